"""Bodies of answers: whole completions, chunks of a stream, usage, and what an encoder says of its items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from epd_router.mock import tokenizer
from epd_router.mock.media import Item
from epd_router.mock.prompt import Prompt
from epd_router.mock.sampling import Sampling

DONE = b"data: [DONE]\n\n"


@dataclass
class Head:
    """What every body of an answer starts from."""

    id: str
    created: int
    model: str
    fingerprint: str


@dataclass
class Choice:
    """One choice: its tokens, why it ended, and the prompt it belongs to."""

    index: int
    tokens: list[int]
    finish: str
    prompt: Prompt


@dataclass
class Counts:
    """Token counts of an answer. `created` is None where they are not known."""

    prompt: int
    output: int
    cached: int
    created: int | None
    multimodal: dict[str, int] | None

    def usage(self, *, details: bool, whole: bool = True) -> dict[str, Any]:
        """The `usage` object; a stream's has no member for details of the output."""
        given = {"cached_tokens": self.cached, "created_cache_tokens": self.created, "multimodal_tokens": self.multimodal}
        made = {
            "prompt_tokens": self.prompt, "total_tokens": self.prompt + self.output, "completion_tokens": self.output,
            "prompt_tokens_details": given if details else None,
        }  # fmt: skip
        return {**made, "completion_tokens_details": None} if whole else made


def visible(tokens: Sequence[int]) -> str:
    """Text of output tokens; the end of the answer has none."""
    return tokenizer.decode(token for token in tokens if token != tokenizer.IM_END)


def completion(head: Head, sampling: Sampling, choices: Sequence[Choice], usage: dict[str, Any]) -> dict[str, Any]:
    """A whole answer."""
    listed = [_choice(choice, sampling) for choice in choices]
    made: dict[str, Any] = {
        "id": head.id, "object": "chat.completion" if sampling.chat else "text_completion", "created": head.created,
        "model": head.model, "choices": listed, "service_tier": None, "system_fingerprint": head.fingerprint, "usage": usage,
    }  # fmt: skip
    if sampling.chat:
        made["prompt_logprobs"] = _prompt_logprobs(choices[0].prompt, sampling)
        made["prompt_token_ids"] = choices[0].prompt.ids if sampling.token_ids else None
        made["prompt_text"] = None
    return {**made, "kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}


def _choice(choice: Choice, sampling: Sampling) -> dict[str, Any]:
    text = visible(choice.tokens)
    logprobs = _logprobs(choice.tokens, sampling)
    tail = {"logprobs": logprobs, "finish_reason": choice.finish, "stop_reason": None,
            "token_ids": choice.tokens if sampling.token_ids else None}  # fmt: skip
    if sampling.chat:
        message = {"role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None,
                   "function_call": None, "reasoning": None}  # fmt: skip
        return {"index": choice.index, "message": message, **tail, "routed_experts": None}
    if sampling.echo:
        text = tokenizer.decode(choice.prompt.ids) + text
    own = {"prompt_logprobs": _prompt_logprobs(choice.prompt, sampling),
           "prompt_token_ids": choice.prompt.ids if sampling.token_ids else None, "routed_experts": None}  # fmt: skip
    return {"index": choice.index, "text": text, **tail, **own}


def chunk(
    head: Head, sampling: Sampling, index: int, tokens: Sequence[int], finish: str | None, *, first: Prompt | None = None
) -> dict[str, Any]:
    """An event with new tokens, or (`first`) the one that opens a choice of a chat."""
    ids = list(tokens) if sampling.token_ids else None
    if not sampling.chat:
        choice = {"index": index, "text": visible(tokens), "logprobs": _logprobs(tokens, sampling), "finish_reason": finish,
                  "stop_reason": None, "prompt_token_ids": None, "token_ids": ids}  # fmt: skip
        return {"id": head.id, "object": "text_completion", "created": head.created, "model": head.model, "choices": [choice],
                "usage": None}  # fmt: skip
    made: dict[str, Any] = {"id": head.id, "object": "chat.completion.chunk", "created": head.created, "model": head.model}
    if first is not None:
        delta = {"role": "assistant", "content": ""}
        made["choices"] = [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}]
        return {**made, "prompt_token_ids": first.ids if sampling.token_ids else None, "prompt_text": None}
    last = {"stop_reason": None} if finish else {}
    made["choices"] = [{"index": index, "delta": {"content": visible(tokens)}, "logprobs": _logprobs(tokens, sampling),
                        "finish_reason": finish, **last, "token_ids": ids}]  # fmt: skip
    return made


def usage_chunk(head: Head, sampling: Sampling, usage: dict[str, Any]) -> dict[str, Any]:
    """The event with the usage of the whole stream."""
    kind = "chat.completion.chunk" if sampling.chat else "text_completion"
    return {"id": head.id, "object": kind, "created": head.created, "model": head.model, "choices": [], "usage": usage,
            "system_fingerprint": head.fingerprint}  # fmt: skip


def event(value: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def error_event(body: bytes) -> bytes:
    """An error inside a stream."""
    return b"data: " + body + b"\n\n"


def whole(value: Any) -> web.Response:
    """A JSON answer."""
    return web.Response(body=orjson.dumps(value), content_type="application/json")


def encoded(items: Sequence[Item], entries: Sequence[dict[str, Any]], minor: int) -> Any:
    """`ec_transfer_params` of an encoder's answer in the shape of a release; `entries` go beside the metadata."""
    if minor < 28 or not items:
        return None
    if minor < 30:
        return {"ec_items": [{"mm_hash": item.id, **item.metadata, **entry} for item, entry in zip(items, entries, strict=True)]}
    made: dict[str, dict[str, Any]] = {}
    for index, (item, entry) in enumerate(zip(items, entries, strict=True)):
        positions: dict[str, Any] = {"item_indices": []} if minor >= 31 else {}
        known = made.setdefault(item.id, {**positions, "metadata": item.metadata, **entry})
        if minor >= 31:
            known["item_indices"].append(index)
    return made


def _logprobs(tokens: Sequence[int], sampling: Sampling) -> dict[str, Any] | None:
    """Every token is certain, and the alternatives are the next ids."""
    if sampling.logprobs is None:
        return None
    texts = [tokenizer.decode([token]) for token in tokens]
    tops = [[(tokenizer.decode([token + step]), float(-step)) for step in range(sampling.logprobs)] for token in tokens]
    if not sampling.chat:
        starts = [sum(map(len, texts[:index])) for index in range(len(texts))]
        likely = [dict(top) for top in tops]
        return {"text_offset": starts, "token_logprobs": [0.0] * len(tokens), "tokens": texts, "top_logprobs": likely}
    listed = []
    for text, top in zip(texts, tops, strict=True):
        near = [{"token": name, "logprob": value, "bytes": list(name.encode())} for name, value in top]
        listed.append({"token": text, "logprob": 0.0, "bytes": list(text.encode()), "top_logprobs": near})
    return {"content": listed}


def _prompt_logprobs(prompt: Prompt, sampling: Sampling) -> list[Any] | None:
    if sampling.prompt_logprobs is None:
        return None
    rest = [{str(token): {"logprob": 0.0, "rank": 1, "decoded_token": tokenizer.decode([token])}} for token in prompt.ids[1:]]
    return [None, *rest]
