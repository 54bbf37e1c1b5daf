"""What is known of the request that is being served: set by the server, read by handlers, which run in the same context."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Context:
    """One HTTP request: its JSON body, the fault it was given, and whether its error was one that nobody expected."""

    body: dict[str, Any] = field(default_factory=dict)
    fault: str = ""
    unhandled: bool = False


CURRENT: ContextVar[Context] = ContextVar("request")
