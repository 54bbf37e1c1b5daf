"""Faults an engine can be told to have: `Engine.fault()`, `--fault` or `POST /mock/fault`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

FOREVER = 1 << 30
KINDS = {
    "refuse": "the listener is closed and connections are reset, for `ms` or, when 0, until cleared",
    "reset": "the connection is reset in place of an answer",
    "hang": "never answered",
    "error_event": "status 200 and an error as first event",
    "die_mid_stream": "the connection is reset after half of the tokens",
    "die": "the engine dies of the request",
    "slow_start": "health and requests get 503 for `ms`",
    "wrong_metadata": "the encoder reports no metadata",
    "wrong_grid": "the encoder reports the grid of another picture size",
}


@dataclasses.dataclass
class Fault:
    """Something that goes wrong: `kind` is one of `KINDS` or an HTTP status.

    `times` counts down. Without `path` it concerns POST requests of clients, with it any request whose path starts so.
    """

    kind: str
    times: int = FOREVER
    path: str | None = None
    ms: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS and not self.kind.isdigit():
            raise ValueError(f"unknown fault {self.kind!r}; known: a status, {', '.join(KINDS)}")

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read `kind`, `kind:times` or `kind:name=value,...`, as in `503:times=2,path=/health`."""
        kind, _, rest = text.partition(":")
        if rest.isdigit():
            return cls(kind, int(rest))
        return cls.load({"kind": kind, **dict(pair.split("=", 1) for pair in rest.split(",") if pair)})

    @classmethod
    def load(cls, values: dict[str, Any]) -> Fault:
        """Build from strings or JSON values. Raises ValueError."""
        unknown = values.keys() - {each.name for each in dataclasses.fields(cls)}
        if unknown or "kind" not in values:
            raise ValueError(f"a fault has kind, times, path and ms, not {sorted(unknown)}")
        times, path = values.get("times"), values.get("path")
        return cls(str(values["kind"]), FOREVER if times is None else int(times), path, float(values.get("ms", 0)))

    def concerns(self, method: str, path: str) -> bool:
        """Whether it is to happen to a request."""
        if self.times <= 0:
            return False
        return method == "POST" if self.path is None else path.startswith(self.path)


def take(faults: Sequence[Fault], method: str, path: str) -> str:
    """Kind of the first fault that concerns a request, or ''; it is counted."""
    for fault in faults:
        if fault.concerns(method, path):
            fault.times -= 1
            return fault.kind
    return ""
