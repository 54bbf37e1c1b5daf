"""What a mock engine makes of a request's messages: token ids with placeholder runs, and the tokens of an answer.

The answer depends on the token ids and on the content of the media that the engine would really use, not on how they came: a
reference to an embedding gives the answer that the picture itself gives. So a router that mixes pictures up is found out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from epd_router.mock import tokenizer
from epd_router.mock.blocks import Run
from epd_router.mock.config import EngineConfig
from epd_router.mock.errors import ApiError, bad_field, bad_role, bad_value, invalid
from epd_router.mock.media import RAW, REFERENCES, Item

Part: TypeAlias = dict[str, Any]
Turn: TypeAlias = tuple[str, list["str | Part"]]
MEDIA = RAW | REFERENCES


@dataclass
class Prompt:
    """One prompt in tokens."""

    ids: list[int]
    runs: list[Run] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)

    def multimodal(self) -> dict[str, int] | None:
        """Placeholder tokens by modality."""
        counts: dict[str, int] = {}
        for item in self.items:
            counts[item.modality] = counts.get(item.modality, 0) + item.tokens
        return counts or None


def turns(body: dict[str, Any]) -> list[Turn]:
    """Roles and pieces of a chat. Raises ApiError."""
    messages = body["messages"]
    if not isinstance(messages, list) or not messages:
        bad_field("list_type", "body.messages", "Input should be a valid list", messages)
    return [_turn(index, message) for index, message in enumerate(messages)]


def _turn(index: int, message: Any) -> Turn:
    if not isinstance(message, dict):
        bad_field("dict_type", f"body.messages.{index}", "Input should be a valid dictionary", message)
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        bad_role(index, role, message)
    if content is None or isinstance(content, str):
        return role, [content or ""]
    pieces: list[str | Part] = []
    for part in content:
        kind = part.get("type") or next((kind for kind in MEDIA if kind in part), "text")
        if kind in MEDIA:
            pieces.append({**part, "type": kind})
        elif kind in {"text", "input_text", "refusal", "thinking"}:
            pieces.append(str(part.get("text" if kind == "input_text" else kind, "")))
        else:
            invalid(f"Unknown part type: {kind}")
    return role, pieces


def parts(chat: Sequence[Turn]) -> list[Part]:
    """The media parts of a chat, in order."""
    return [piece for _, pieces in chat for piece in pieces if isinstance(piece, dict)]


def render(chat: Sequence[Turn], items: Sequence[Item], *, generation: bool = True) -> Prompt:
    """Apply the chat template."""
    left = iter(items)
    filled = [(role, [piece if isinstance(piece, str) else _run(next(left)) for piece in pieces]) for role, pieces in chat]
    layout = tokenizer.chat_prompt(filled, generation=generation)
    runs = [Run(item.id, start, length) for item, (start, length) in zip(items, layout.runs, strict=True)]
    return Prompt(layout.ids, runs, list(items))


def _run(item: Item) -> tuple[str, int]:
    return item.modality, item.tokens


def plain(prompt: Any) -> list[Prompt]:
    """The prompts of a text completion: a text, token ids, or a list of either."""
    if isinstance(prompt, str):
        return [Prompt(tokenizer.encode(prompt))]
    if isinstance(prompt, list) and prompt and all(isinstance(one, int) for one in prompt):
        return [Prompt(list(prompt))]
    if isinstance(prompt, list) and prompt:
        return [each for one in prompt for each in plain(one)]
    raise ApiError(400, "Either prompt or prompt_embeds must be provided and non-empty.", param="prompt")


def check_text(length: int, config: EngineConfig) -> None:
    """Refuse what is too long before any media count."""
    limit = config.max_model_len
    if length > limit:
        # The tokenizer stops one token after the limit, so it never knows the whole length.
        text = f"This model's maximum context length is {limit} tokens. However, your prompt contains at least {limit + 1} "
        text += "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
        bad_value(text + "input prompt.", "input_tokens", limit + 1)


def check_length(length: int, config: EngineConfig) -> None:
    """Refuse what is too long with its media."""
    if length > config.max_model_len:
        invalid(f"Input length ({length}) exceeds model's maximum context length ({config.max_model_len}).")


def seed(ids: Sequence[int], contents: Sequence[str]) -> str:
    """What an answer depends on."""
    text = ",".join(map(str, ids)) + "\0" + "\0".join(contents)
    return hashlib.sha256(text.encode()).hexdigest()


def answer(start: str, choice: int, count: int) -> list[int]:
    """The first `count` token ids of a choice."""
    digest = hashlib.sha256(f"{start} {choice}".encode()).digest()
    return [tokenizer.FIRST_WORD + (digest[index % 32] + index // 32) % len(tokenizer.WORDS) for index in range(count)]
