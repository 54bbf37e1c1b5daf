"""The smallest client that keeps token ids."""

from __future__ import annotations

import dataclasses
import json
import math
import urllib.error
import urllib.request
from typing import Any

TOLERANCE = 2e-3
SECONDS = 180


class RefusedError(Exception):
    """An answer that is not 200."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


@dataclasses.dataclass(frozen=True)
class Answer:
    """What must be equal whatever way a request took."""

    token_ids: list[int]
    text: str
    finish_reason: str | None
    logprobs: list[float] = dataclasses.field(compare=False, repr=False)

    def same(self, other: Answer) -> bool:
        """Equal tokens from equal distributions: a random model may say the same of two pictures by accident."""
        if self != other or len(self.logprobs) != len(other.logprobs):
            return False
        return all(math.isclose(a, b, abs_tol=TOLERANCE) for a, b in zip(self.logprobs, other.logprobs, strict=True))


def post(
    base: str, body: dict[str, Any], headers: dict[str, str] | None = None, path: str = "/v1/chat/completions"
) -> tuple[dict[str, str], str]:
    """Headers (lower case) and body of an answer."""
    request = urllib.request.Request(
        f"{base}{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json", **(headers or {})},
    )
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            return {k.lower(): v for k, v in response.headers.items()}, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            raise RefusedError(error.code, error.read().decode()) from None


def ask(base: str, body: dict[str, Any]) -> Answer:
    _, text = post(base, body)
    return merge(events(text) if body.get("stream") else [json.loads(text)])


def events(text: str) -> list[dict[str, Any]]:
    """The events of a complete stream."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert data, text
    assert data[-1] == "[DONE]", text[-500:]
    return [json.loads(line) for line in data[:-1]]


def merge(documents: list[dict[str, Any]]) -> Answer:
    """One answer from one document or from the events of a stream."""
    for document in documents:
        assert "error" not in document, document
    choices = [choice for document in documents for choice in document["choices"]]
    steps = [step for choice in choices for step in (choice["logprobs"] or {"content": []})["content"] or []]
    said = [choice.get("message") or choice["delta"] for choice in choices]
    return Answer(
        token_ids=[token for choice in choices for token in choice.get("token_ids") or []],
        text="".join(part.get("content") or "" for part in said),
        finish_reason=next((c["finish_reason"] for c in reversed(choices) if c["finish_reason"]), None),
        logprobs=[likely["logprob"] for step in steps for likely in step["top_logprobs"]],
    )
