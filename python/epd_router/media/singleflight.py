"""One piece of work per key at a time, for everybody who wants its result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class _Flight(Generic[Result]):
    __slots__ = ("task", "waiters")

    def __init__(self, work: Coroutine[Any, Any, Result]) -> None:
        self.task = asyncio.get_running_loop().create_task(work)
        self.waiters = 0


class SingleFlight(Generic[Key, Result]):
    """Callers of a key that is worked on join that work. It is cancelled when the last of them is."""

    def __init__(self) -> None:
        self._flights: dict[Key, _Flight[Result]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, key: Key) -> bool:
        return key in self._flights

    async def get(self, key: Key, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """The result of `work()`, or of the same key's work under way; raises what that raises."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(work())
            flight.task.add_done_callback(lambda _: self._landed(key, flight))
        flight.waiters += 1
        try:
            await asyncio.wait([flight.task])  # unlike awaiting the task: our cancellation is not its own
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                del self._flights[key]  # now, not when it has ended: nobody may join what is being cancelled
                flight.task.cancel()
        return flight.task.result()

    def _landed(self, key: Key, flight: _Flight[Result]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        if not flight.task.cancelled():
            flight.task.exception()  # retrieved: one that nobody waits for any more is no unhandled error

    async def close(self) -> None:
        """Cancel all work, and with it those who wait."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
