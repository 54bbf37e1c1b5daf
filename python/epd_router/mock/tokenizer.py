"""The tokenizer and chat template of the tiny Qwen2-VL that the wire samples were recorded with, so that counts agree.

Byte-level BPE with six merges: every token is one byte, or one of ` t`, `he`, ` the`, `in`, ` a`, `er`. The merges never
compete (no merge of lower rank overlaps one of higher rank from the left), so replacing in order of rank is exact.
Ids 270 to 509 are unused in the real vocabulary; here they are the 240 four-letter words of which answers consist
(` baxo`, ` kixu`, ...), so an answer's text returns to the same ids when a later turn repeats it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

IM_START, IM_END, VISION_START, VISION_END, AUDIO_PAD, IMAGE_PAD, VIDEO_PAD = 263, 264, 265, 266, 267, 268, 269
PADS = {"image": IMAGE_PAD, "video": VIDEO_PAD, "audio": AUDIO_PAD}
FIRST_WORD = 270
VOCABULARY = 512

_SPECIALS = [b"<|endoftext|>", b"<|im_start|>", b"<|im_end|>", b"<|vision_start|>", b"<|vision_end|>", b"<|vision_pad|>"]
_SPECIALS += [b"<|image_pad|>", b"<|video_pad|>"]
# Markers are bytes that UTF-8 never uses.
_MERGES = [
    (b" t", b"\xf8", 256, b" t"),
    (b"he", b"\xf9", 257, b"he"),
    (b"\xf8\xf9", b"\xfa", 258, b" the"),
    (b"in", b"\xfb", 259, b"in"),
    (b" a", b"\xfc", 260, b" a"),
    (b"er", b"\xfd", 261, b"er"),
]
WORDS = [f" {a}{b}x{c}" for a in "bdfgklmnpsvz" for b in "aiou" for c in "aeiou"]
_WORD = re.compile(rb"((?: |(?<![A-Za-z ]))[bdfgklmnpsvz][aiou]x[aeiou](?![A-Za-z]))")
_WORD_IDS = {word.strip().encode(): FIRST_WORD + index for index, word in enumerate(WORDS)}


def _byte_ids() -> list[int]:
    """Id of each byte: GPT-2's printable stand-ins in sorted order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    stand_in = {byte: byte for byte in printable} | {byte: 256 + index for index, byte in enumerate(hidden)}
    order = sorted(range(256), key=stand_in.__getitem__)
    return [order.index(byte) for byte in range(256)]


_BYTE_IDS = _byte_ids()
_TABLE = list(_BYTE_IDS)
_PIECES: dict[int, bytes] = {number: bytes([byte]) for byte, number in enumerate(_BYTE_IDS)}
for _pair, _marker, _id, _text in _MERGES:
    _TABLE[_marker[0]] = _id
    _PIECES[_id] = _text
_PIECES.update({262 + index: name for index, name in enumerate(_SPECIALS)})
_PIECES.update({FIRST_WORD + index: word.encode() for index, word in enumerate(WORDS)})


def encode(text: str) -> list[int]:
    """Token ids of plain text; special tokens are not recognised in it."""
    ids: list[int] = []
    for position, piece in enumerate(_WORD.split(text.encode("utf-8", "surrogatepass"))):
        if position % 2:
            ids.append(_WORD_IDS[piece.lstrip()])
            continue
        for pair, marker, _, _ in _MERGES:
            piece = piece.replace(pair, marker)
        ids.extend([_TABLE[byte] for byte in piece])
    return ids


def decode(ids: Iterable[int]) -> str:
    """Text of token ids; ids outside the vocabulary are empty, as the recorded engine's are."""
    return b"".join(_PIECES.get(number, b"") for number in ids).decode("utf-8", "replace")


def token_strings(ids: Iterable[int]) -> list[str]:
    """Each token alone."""
    return [decode([number]) for number in ids]


@dataclass
class Layout:
    """A prompt in tokens. `runs` holds start and length of every media item's placeholder run, in order."""

    ids: list[int]
    runs: list[tuple[int, int]]


_USER_END = [IM_END, *encode("\n")]
_ASSISTANT = [IM_START, *encode("assistant\n")]


def chat_prompt(turns: Sequence[tuple[str, Sequence[str | tuple[str, int]]]], *, generation: bool = True) -> Layout:
    """Apply the chat template. A turn is a role and pieces: text, or a media item as (modality, tokens)."""
    prompt = Layout([], [])
    ids = prompt.ids
    for role, pieces in turns:
        ids.append(IM_START)
        ids.extend(encode(f"{role}\n"))
        for piece in pieces:
            if isinstance(piece, str):
                ids.extend(encode(piece))
                continue
            modality, count = piece
            ids.append(VISION_START)
            prompt.runs.append((len(ids), count))
            ids.extend([PADS[modality]] * count)
            ids.append(VISION_END)
        ids.extend(_USER_END)
    if generation:
        ids.extend(_ASSISTANT)
    return prompt
