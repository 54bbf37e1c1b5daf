"""vLLM's dialect (0.26 to 0.32): bodies of the encode, prefill and decode legs, and what their answers mean.

Everything that changes preprocessing goes to every stage; only text and sampling are left out of the encode leg.
Transfer parameters are opaque and echoed byte for byte. A reference stands in for media only when the encoder gave
metadata for every item of its modality in the request, because an engine refuses to mix the two forms.
"""

from __future__ import annotations

import base64
import secrets
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from epd_router._core import item_pieces
from epd_router.embeddings import Embedding

if TYPE_CHECKING:
    from epd_router._core import Edits, Item, Scan
    from epd_router.options import Settings
    from epd_router.upstream import Pieces
    from epd_router.workers import Worker

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

PREFILL_PULL = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
    b'"remote_host":null,"remote_port":null}'
)


class PrefillReply(msgspec.Struct):
    """What matters of a prefill answer."""

    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")


class EncodeReply(msgspec.Struct):
    """What matters of an encode answer."""

    ec_transfer_params: dict[str, msgspec.Raw] | None = None


class DialectError(Exception):
    """The engine's answer does not have a shape this dialect knows."""


def whole_only(scan: Scan, body: bytes | bytearray) -> str:
    """Why a request must be served by one worker, or ''."""
    if scan.n != 1:
        return "n"
    fields = set(scan.fields)
    for name, unasked in WHOLE_ONLY.items():
        if name in fields and scan.raw(body, name) not in unasked:
            return name
    prompt = scan.raw(body, "prompt") if "prompt" in fields else None
    return "prompt list" if prompt is not None and prompt.startswith(b"[") else ""


# --- encode ---


def encode_body(body: bytes | bytearray, scan: Scan, item: Item, uuid: str, extra: bytes = b"") -> list[Any]:
    """Pieces of the encode request of one item. `extra` is further members, each ended by a comma."""
    carried = [b'"%s":%s,' % (orjson.dumps(name)[1:-1], scan.raw(body, name) or b"null") for name in scan.fields
               if name not in NOT_FOR_ENCODE]  # fmt: skip
    model = scan.raw(body, "model")
    if model is not None:
        carried.append(b'"model":' + model + b",")
    head = b"{%s%s" % (b"".join(carried), extra)
    head += b'"stream":false,"max_tokens":1,"messages":[{"role":"user","content":['
    return [head, *item_pieces(body, item, uuid), b"]}]}"]


def embedding(reply: bytes, uuid: str, encoder: str) -> Embedding:
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
    shared = "peer_host" not in entry and "transfer_id" not in entry
    return Embedding(uuid, key, raw, metadata or None, encoder, shared)


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


def referable(scan: Scan, found: Sequence[Embedding | None], version: tuple[int, ...]) -> list[bool]:
    """Which items may go as references: those of modalities of which every item has metadata."""
    if version and version < REFERENCES:
        return [False] * len(found)
    mixed = {item.modality for item, one in zip(scan.items, found, strict=True) if one is None or one.metadata is None}
    return [item.modality not in mixed for item in scan.items]


def write_media(
    edits: Edits,
    scan: Scan,
    found: Sequence[Embedding | None],
    uuids: Sequence[str],
    version: tuple[int, ...],
    *,
    raw: bool,
) -> bool:
    """Name every item and put references where they are safe; True when no media is left in the body."""
    refer = [False] * len(found) if raw else referable(scan, found, version)
    for index, (item, one, uuid) in enumerate(zip(scan.items, found, uuids, strict=True)):
        if refer[index] and one is not None:
            edits.set_item(index, reference(item, one, version))
        else:
            edits.set_uuid(index, uuid if one is None else one.uuid)
    entries = {one.key: one for one in found if one is not None and one.entry}
    if entries:
        edits.set("ec_transfer_params", transfer_params(list(entries.values())))
    return bool(refer) and all(refer)


def transfer_params(found: Sequence[Embedding]) -> bytes:
    """Top-level `ec_transfer_params`: the encoders' entries by key, as they came."""
    if any(one.entry.startswith(b"[") for one in found):
        return b'{"ec_items":[%s]}' % b",".join(one.entry.strip()[1:-1] for one in found)
    return b"{%s}" % b",".join(orjson.dumps(one.key) + b":" + one.entry for one in found)


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


class KvDriver:
    """How prefill hands its KV to decode. `concurrent`: both legs start together, decode is told without prefill's answer."""

    concurrent = False

    async def prepare(self, prefill: Worker, request_id: str) -> tuple[bytes, bytes | None]:
        """Parameters of the prefill leg, and those of the decode leg where they are known before."""
        return PREFILL_PULL, None

    def adjust_prefill(self, edits: Edits) -> None:
        """Further edits of the prefill leg."""


class NixlPush(KvDriver):
    """Prefill writes into decode's memory; the two meet by request id."""

    concurrent = True

    async def prepare(self, prefill: Worker, request_id: str) -> tuple[bytes, bytes | None]:
        """Decode learns prefill's address from the labels of its URL."""
        spec = prefill.spec
        decode = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": spec.engine_id,
            "remote_host": spec.kv_host or prefill.endpoint.host,
            "remote_port": spec.kv_port,
            "tp_size": spec.tp,
            "pp_size": spec.pp,
            "remote_request_id": f"chatcmpl-{request_id}",
        }
        return PREFILL_PULL, orjson.dumps(decode)


class Mooncake(KvDriver):
    """Prefill writes into decode's memory; the two meet by transfer id, found through prefill's bootstrap server."""

    concurrent = True

    def __init__(self, settings: Settings, query: Any) -> None:
        self._port = settings.mooncake_bootstrap_port
        self._query = query
        self._engines: dict[tuple[str, int], str] = {}

    async def prepare(self, prefill: Worker, request_id: str) -> tuple[bytes, bytes | None]:
        """A fresh transfer id for each attempt."""
        host = prefill.spec.kv_host or prefill.endpoint.host
        address = f"http://{host}:{prefill.spec.bootstrap or self._port}"
        known = self._engines.get((prefill.id, prefill.boot))
        if known is None:
            answer = orjson.loads(await self._query(address + "/query"))
            known = self._engines[prefill.id, prefill.boot] = str(answer["0"]["engine_id"])
        transfer = secrets.token_hex(16)
        first = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": transfer}
        second = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_bootstrap_addr": address,
            "remote_engine_id": known,
            "transfer_id": transfer,
        }
        return orjson.dumps(first), orjson.dumps(second)

    def adjust_prefill(self, edits: Edits) -> None:
        """Only a `length` finish keeps the blocks, so the first token must not end the sequence."""
        edits.set("ignore_eos", b"true")
        edits.set("min_tokens", b"1")


def driver(settings: Settings, query: Any) -> KvDriver:
    """The configured driver."""
    if settings.kv_connector == "nixl-push":
        return NixlPush()
    if settings.kv_connector == "mooncake":
        return Mooncake(settings, query)
    return KvDriver()


def decode_edits(scan: Scan, params: bytes | None) -> Edits:
    """The edits that make a request a decode leg."""
    edits = scan.edit()
    if params is not None:
        edits.set("kv_transfer_params", params)
    return edits


def total(pieces: Pieces) -> int:
    """Bytes of a body in pieces."""
    return sum(map(len, pieces))


# --- errors ---


def status_of_error(event: bytes) -> int:
    """The HTTP status that an error object stands for: its `code` where that is one."""
    try:
        code = orjson.loads(event)["error"]["code"]
    except (ValueError, KeyError, TypeError):
        return 500
    return code if isinstance(code, int) and 400 <= code < 600 else 500


def error_message(body: bytes) -> str:
    """The message of an error object, shortened."""
    try:
        error = orjson.loads(body)["error"]
        text = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        text = body.decode("utf-8", "replace")
    return str(text)[:300]
