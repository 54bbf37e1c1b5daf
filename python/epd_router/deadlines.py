"""Deadlines without a timer per request.

A timer costs two heap operations for each of several deadlines of each request. Here every live object is looked at
once per tick instead, and the hot path only sets attributes. Deadlines are therefore late by up to one tick.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

log = logging.getLogger(__name__)


class Timed(Protocol):
    """Something with deadlines of its own."""

    def check(self, now: float) -> None:
        """Called once per tick with `loop.time()`; acts on what is overdue."""


class Sweeper:
    """Calls `check` on every registered object once per tick."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tick: float) -> None:
        self._loop = loop
        self._tick = tick
        self._live: set[Timed] = set()
        self._handle: asyncio.TimerHandle | None = None
        self.add = self._live.add
        self.discard = self._live.discard

    def __len__(self) -> int:
        return len(self._live)

    def start(self) -> None:
        """Begin ticking."""
        self._handle = self._loop.call_later(self._tick, self._sweep)

    def stop(self) -> None:
        """Stop ticking; registered objects are forgotten."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._live.clear()

    def _sweep(self) -> None:
        self._handle = self._loop.call_later(self._tick, self._sweep)  # first: whatever happens below, deadlines go on
        now = self._loop.time()
        for timed in tuple(self._live):
            if timed not in self._live:
                continue  # forgotten by the check of another
            try:
                timed.check(now)
            except Exception:
                log.exception("a deadline could not be checked")
