"""vLLM's dialect (0.26 to 0.32): bodies of the encode, prefill and decode legs, and what their answers mean.

Everything that changes preprocessing goes to every stage; only text and sampling are left out of the encode leg.
Transfer parameters are opaque and echoed byte for byte. A reference stands in for media only when the encoder gave
metadata for every item of its modality in the request, because an engine refuses to mix the two forms.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from epd_router._core import derive_id, item_pieces
from epd_router.embeddings import Embedding

if TYPE_CHECKING:
    from epd_router._core import Edits, Item, Scan
    from epd_router.upstream import Pieces

NAMED_MEDIA = frozenset(["/v1/chat/completions"])  # paths whose media parts take a uuid, in every version
JSON_METADATA = (0, 30)  # first version that takes metadata as JSON numbers
REFERENCES = (0, 28)  # first version whose consumers take references without media

# Text and sampling: of no use to an encoder, or in its way.
NOT_FOR_ENCODE = frozenset(
    [
        "messages",
        "prompt",
        "input",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "n",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "response_format",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "logit_bias",
        "seed",
        "user",
        "functions",
        "function_call",
        "echo",
        "add_generation_prompt",
        "continue_final_message",
        "return_token_ids",
        "metadata",
        "store",
        "reasoning_effort",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "length_penalty",
        "best_of",
        "use_beam_search",
        "bad_words",
        "logits_processors",
        "include_reasoning",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "documents",
        "ec_transfer_params",
        "kv_transfer_params",
        "model",
    ]
)
# One worker must do all of it: what these ask for cannot be put together from two.
# The values with which each is not asked for: vLLM acts on any number of prompt log-probabilities, 0 included, and takes 1
# for true.
WHOLE_ONLY = {
    "prompt_logprobs": (b"null",),
    "use_beam_search": (b"null", b"false", b"0"),
    "echo": (b"null", b"false", b"0"),
    "best_of": (b"null", b"1"),
}
CLIENT_TRANSFER_PARAMS = ("ec_transfer_params", "kv_transfer_params", "prompt_embeds")
# Members that vLLM merges into what its connectors read.
CARRIERS = ("vllm_xargs", "sampling_params", "extra_args")
# A request with none of these members needs no look at them.
LOOKED_AT = frozenset([*WHOLE_ONLY, *CLIENT_TRANSFER_PARAMS, *CARRIERS, "prompt"])


class PrefillReply(msgspec.Struct):
    """What matters of a prefill answer."""

    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")


class EncodeReply(msgspec.Struct):
    """What matters of an encode answer."""

    ec_transfer_params: dict[str, msgspec.Raw] | None = None


class DialectError(Exception):
    """The engine's answer does not have a shape this dialect knows."""


def refused(scan: Scan, body: bytes | bytearray) -> str:
    """A member with transfer parameters or embeddings of the client's own, or ''. They can stop an engine."""
    if LOOKED_AT.isdisjoint(scan.fields):
        return ""
    for name in CLIENT_TRANSFER_PARAMS:
        if (value := scan.raw(body, name)) is not None and value != b"null":
            return name
    for name in CARRIERS:
        if (value := scan.raw(body, name)) is not None and (inner := _carried(_parsed(value))):
            return f"{name}.{inner}"
    return ""


def _parsed(value: bytes) -> Any:
    """What the scanner accepted, lone surrogates and numbers of any length included, which orjson refuses."""
    return json.loads(value, parse_int=str, parse_float=str)


def _carried(value: Any) -> str:
    """The path of a transfer parameter at any depth, or ''."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in members:
        if name in CLIENT_TRANSFER_PARAMS:
            return str(name)
        if found := _carried(inner):
            return f"{name}.{found}"
    return ""


def whole_only(scan: Scan, body: bytes | bytearray) -> str:
    """Why a request must be served by one worker, or ''."""
    if scan.n != 1:
        return "n"
    if LOOKED_AT.isdisjoint(scan.fields):
        return ""
    for name, unasked in WHOLE_ONLY.items():
        if (value := scan.raw(body, name)) is not None and value not in unasked:
            return name
    prompt = scan.raw(body, "prompt")
    return "prompt list" if prompt is not None and prompt.startswith(b"[") else ""


# --- encode ---


def encode_body(
    body: bytes | bytearray, scan: Scan, item: Item, uuid: str, params: bytes = b"", url: bytes | None = None
) -> Pieces:
    """Pieces of the encode request of one item; `params` is its `ec_transfer_params`, if the connector needs any, `url` what
    stands in the place of its own one."""
    carried = [b'"%s":%s,' % (orjson.dumps(name)[1:-1], scan.raw(body, name) or b"null") for name in scan.fields
               if name not in NOT_FOR_ENCODE]  # fmt: skip
    model = scan.raw(body, "model")
    if model is not None:
        carried.append(b'"model":' + model + b",")
    if params:
        carried.append(b'"ec_transfer_params":' + params + b",")
    head = b"{%s" % b"".join(carried)
    head += b'"stream":false,"max_tokens":1,"messages":[{"role":"user","content":['
    return [head, *item_pieces(body, item, uuid, url), b"]}]}"]


def embedding(reply: bytes, uuid: str, encoder: str, transfer_id: str = "") -> Embedding:
    """What an encode answer published, in any of the shapes of 0.26 to 0.32. Raises DialectError."""
    try:
        params = msgspec.json.decode(reply, type=EncodeReply).ec_transfer_params or {}
        if set(params) == {"ec_items"}:  # 0.28, 0.29: a list, the metadata beside the hash
            entries = msgspec.json.decode(params["ec_items"])
            key = str(entries[0].pop("mm_hash", uuid)) if entries else uuid
            metadata, raw = (entries[0] if entries else {}), bytes(params["ec_items"])
            entry: dict[str, Any] = {}
        elif params:  # 0.30 on: by hash
            key, value = next(iter(params.items()))
            raw = bytes(value)
            entry = msgspec.json.decode(value)
            metadata = entry.get("metadata") or {}
        else:  # 0.26, 0.27: nothing
            key, raw, entry, metadata = uuid, b"", {}, {}
    except (msgspec.MsgspecError, AttributeError, TypeError, KeyError) as error:
        raise DialectError(f"unknown shape of ec_transfer_params: {error}") from error
    return Embedding(uuid, key, raw, metadata or None, encoder, "peer_host" in entry, transfer_id)


# --- references ---


def npy(values: Sequence[Any]) -> str:
    """Base64 of an int64 `.npy` file: how consumers before 0.30 take metadata."""
    rows = values if values and isinstance(values[0], list) else [values]
    flat = [int(value) for row in rows for value in row]
    shape = f"({len(rows)}, {len(rows[0])})" if rows is values else f"({len(flat)},)"
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack(f"<{len(flat)}q", *flat)
    return base64.b64encode(data).decode()


def reference(item: Item, found: Embedding, version: tuple[int, ...]) -> bytes:
    """The media part that refers to a published embedding."""
    kind = f"{item.modality}_embeds"
    metadata: Mapping[str, object] = found.metadata or {}
    if version and version < JSON_METADATA:
        metadata = {name: npy(value) if isinstance(value, list) else value for name, value in metadata.items()}
    return orjson.dumps({"type": kind, kind: metadata, "uuid": found.uuid})


def referable(items: Sequence[Item], found: Sequence[Embedding | None], version: tuple[int, ...]) -> list[bool]:
    """Which items may go as references: those of modalities of which every item has metadata."""
    if version and version < REFERENCES:
        return [False] * len(found)
    mixed = {item.modality for item, one in zip(items, found, strict=True) if one is None or one.metadata is None}
    return [item.modality not in mixed for item in items]


def raw_name(media_id: str) -> str:
    """The uuid of media that go without an embedding."""
    return derive_id([media_id.encode(), b"raw"])


def name_media(edits: Edits, found: Sequence[Embedding | None], media_ids: Sequence[str]) -> None:
    """Name every item as the stage before did."""
    for index, (one, media_id) in enumerate(zip(found, media_ids, strict=True)):
        edits.set_uuid(index, raw_name(media_id) if one is None else one.uuid)


def refer_media(
    edits: Edits, items: Sequence[Item], found: Sequence[Embedding | None], media_ids: Sequence[str], version: tuple[int, ...]
) -> list[bool]:
    """Name every item, put references where they are safe and say where the embeddings are; which items are references."""
    name_media(edits, found, media_ids)
    refer = referable(items, found, version)
    for index, (item, one) in enumerate(zip(items, found, strict=True)):
        if refer[index] and one is not None:
            edits.set_item(index, reference(item, one, version))
    published = {one.key: one for one in found if one is not None and one.entry}
    if published:
        edits.set("ec_transfer_params", transfer_params(list(published.values())))
    return refer


def transfer_params(found: Sequence[Embedding]) -> bytes:
    """Top-level `ec_transfer_params`: the encoders' entries by key, as they came, and the transfer ids of those pushed."""
    if any(one.entry.startswith(b"[") for one in found):
        return b'{"ec_items":[%s]}' % b",".join(one.entry.strip()[1:-1] for one in found)
    members = [orjson.dumps(one.key) + b":" + one.entry for one in found]
    if pushed := [{"mm_hash": one.key, "transfer_id": one.transfer_id} for one in found if one.transfer_id]:
        members.append(b'"ec_items":' + orjson.dumps(pushed))
    return b"{%s}" % b",".join(members)


# --- prefill and decode ---


def prefill_edits(scan: Scan, params: bytes) -> Edits:
    """The edits that make a request a prefill leg: one token, not streamed."""
    edits = scan.edit()
    fields = set(scan.fields)
    edits.set("stream", b"false")
    edits.set("max_tokens", b"1")
    if "max_completion_tokens" in fields:
        edits.set("max_completion_tokens", b"1")
    for name in ("stream_options", "min_tokens", "logprobs", "top_logprobs", "prompt_logprobs"):
        if name in fields:
            edits.remove(name)
    edits.set("kv_transfer_params", params)
    return edits


def prefill_result(reply: bytes) -> bytes | None:
    """`kv_transfer_params` of a prefill answer, verbatim; None when the connector needs none."""
    try:
        raw = bytes(msgspec.json.decode(reply, type=PrefillReply).kv_transfer_params)
    except msgspec.MsgspecError as error:
        raise DialectError(f"not a completion: {error}") from error
    return None if raw == b"null" else raw


def hands_over_blocks(params: bytes | None) -> bool:
    """Decode will pull every block, so it needs no media of its own."""
    if params is None:
        return False
    decoded = msgspec.json.decode(params)
    return bool(isinstance(decoded, dict) and decoded.get("do_remote_prefill") and any(decoded.get("remote_block_ids") or ()))


def decode_edits(scan: Scan, params: bytes | None) -> Edits:
    """The edits that make a request a decode leg."""
    edits = scan.edit()
    if params is not None:
        edits.set("kv_transfer_params", params)
    return edits


# --- errors ---


def status_of_error(event: bytes) -> int:
    """The HTTP status that an error object stands for: its `code` where that is one."""
    try:
        code = orjson.loads(event)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return 500
    return code if isinstance(code, int) and 400 <= code < 600 else 500


def error_object(status: int, body: bytes) -> bytes:
    """An error object for an answer that is none, such as the text of a server in trouble."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return orjson.dumps({"error": {"message": error_message(body), "type": kind, "param": None, "code": status}})


def error_message(body: bytes) -> str:
    """The message of an error object, shortened."""
    try:
        error = orjson.loads(body)["error"]
        text = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        text = body.decode("utf-8", "replace")
    return str(text)[:300]
