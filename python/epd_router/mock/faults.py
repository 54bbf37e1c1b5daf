"""Faults a mock engine can be told to have: by config, `Engine.fault()`, `--fault` or `POST /mock/fault`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, get_args

from epd_router.mock.config import Role

if TYPE_CHECKING:
    from collections.abc import Iterable

KINDS = {
    "refuse": "listening socket closed and connections reset; for `seconds`, or until cleared",
    "reset": "the connection is reset in place of an answer",
    "500": "answered 500",
    "503": "answered 503 with Retry-After",
    "429": "answered 429 with Retry-After",
    "hang": "never answered",
    "hang_after_headers": "status and headers, then nothing",
    "die": "the engine dies on the request",
    "die_mid_stream": "the engine dies after `after` events of a stream",
    "cut_mid_stream": "the connection is reset after `after` events of a stream",
    "error_first_event": "200 whose first event is an error",
    "error_mid_stream": "an error event after `after` events",
    "slow_start": "`seconds` before the request is looked at",
    "slow_tokens": "`seconds` before every token",
    "wrong_metadata": "the encoder reports a wrong grid",
    "close_idle": "the connection is closed after the answer without announcing it",
    "truncate": "fewer bytes than Content-Length announces (a stream ends without its last chunk)",
}
_ALIASES = {"error_500": "500", "error_503": "503", "error_429": "429"}


@dataclass
class Fault:
    """One fault. Without `path` it concerns POST requests of clients, with it every request whose path starts so."""

    kind: str
    times: int | None = None
    path: str | None = None
    role: Role | None = None
    after: int = 1
    seconds: float = 1.0
    message: str = "Injected fault."
    hits: int = 0

    def __post_init__(self) -> None:
        self.kind = _ALIASES.get(self.kind, self.kind)
        if self.kind not in KINDS:
            raise ValueError(f"unknown fault {self.kind!r}; known: {', '.join(KINDS)}")
        if self.role is not None and self.role not in get_args(Role):
            raise ValueError(f"unknown role {self.role!r}")

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read `kind[:name=value,...]`, for example `503:times=2,path=/v1/chat`."""
        kind, _, rest = text.partition(":")
        pairs = (pair.partition("=") for pair in rest.split(",") if pair)
        return cls.load({"kind": kind, **{name.strip(): value for name, _, value in pairs}})

    @classmethod
    def load(cls, values: dict[str, Any]) -> Fault:
        """Build from strings or JSON values; unknown names are a `ValueError`."""
        unknown = values.keys() - {each.name for each in fields(cls)}
        if unknown:
            raise ValueError(f"unknown fault setting {sorted(unknown)[0]!r}")
        numbers: dict[str, type[int] | type[float]] = {"times": int, "after": int, "seconds": float, "hits": int}
        made = {name: numbers[name](value) if name in numbers and value is not None else value for name, value in values.items()}
        return cls(**{**made, "kind": str(values.get("kind"))})

    def matches(self, role: str, method: str, path: str) -> bool:
        """Whether the fault concerns a request."""
        if (self.times is not None and self.hits >= self.times) or self.role not in (None, role):
            return False
        return method == "POST" if self.path is None else path.startswith(self.path)


class Faults:
    """The faults an engine has at the moment."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self.active = list(faults)

    def add(self, fault: Fault) -> None:
        """Add one fault."""
        self.active.append(fault)

    def clear(self) -> None:
        """Forget all faults."""
        self.active.clear()

    def has(self, kind: str) -> bool:
        """Whether a fault of this kind is set."""
        return any(fault.kind == kind for fault in self.active)

    def draw(self, role: str, method: str, path: str) -> list[Fault]:
        """Faults that apply to a request; each is counted once."""
        if not self.active:
            return []
        chosen = [fault for fault in self.active if fault.matches(role, method, path)]
        for fault in chosen:
            fault.hits += 1
        return chosen
