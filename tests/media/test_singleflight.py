"""One piece of work per key at a time."""

from __future__ import annotations

import asyncio
import gc

import pytest
from epd_router.media.singleflight import SingleFlight


class Work:
    """Ends when `go` is set; counts how often it was begun and cancelled."""

    def __init__(self, error: Exception | None = None) -> None:
        self.begun = self.cancelled = 0
        self.go = asyncio.Event()
        self._error = error

    async def __call__(self) -> str:
        self.begun += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self._error is not None:
            raise self._error
        return "result"


async def callers(flights: SingleFlight[str, str], work: Work, count: int, key: str = "key") -> list[asyncio.Task[str]]:
    tasks = [asyncio.create_task(flights.get(key, work)) for _ in range(count)]
    await turns()
    return tasks


async def turns() -> None:
    """Let everything that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_callers_of_a_key_share_the_work() -> None:
    flights, work = SingleFlight[str, str](), Work()
    tasks = await callers(flights, work, 64)
    assert "key" in flights
    work.go.set()
    assert await asyncio.gather(*tasks) == ["result"] * 64
    assert (work.begun, len(flights), "key" in flights) == (1, 0, False)


async def test_keys_do_not_wait_for_each_other() -> None:
    flights, slow, quick = SingleFlight[str, str](), Work(), Work()
    tasks = await callers(flights, slow, 1, "slow")
    quick.go.set()
    assert await flights.get("quick", quick) == "result"
    assert not tasks[0].done()
    slow.go.set()
    await asyncio.gather(*tasks)


async def test_work_is_done_anew_after_it_has_ended() -> None:
    flights, work = SingleFlight[str, str](), Work()
    work.go.set()
    for begun in (1, 2):
        await flights.get("key", work)
        assert work.begun == begun


@pytest.mark.parametrize("leaver", [0, 1, 2])
async def test_a_cancelled_caller_does_not_disturb_the_others(leaver: int) -> None:
    flights, work = SingleFlight[str, str](), Work()
    tasks = await callers(flights, work, 3)
    tasks.pop(leaver).cancel()
    await turns()
    work.go.set()
    assert await asyncio.gather(*tasks) == ["result"] * 2
    assert (work.begun, work.cancelled) == (1, 0)


async def test_the_last_caller_that_leaves_cancels_the_work() -> None:
    flights, work = SingleFlight[str, str](), Work()
    tasks = await callers(flights, work, 3)
    for task in tasks:
        assert not work.cancelled
        task.cancel()
        await turns()
    assert (work.cancelled, len(flights)) == (1, 0)


async def test_nobody_joins_work_that_is_being_cancelled() -> None:
    flights, work, cleaned = SingleFlight[str, str](), Work(), asyncio.Event()

    async def slow_to_end() -> str:
        try:
            return await work()
        finally:
            await cleaned.wait()

    task = asyncio.create_task(flights.get("key", slow_to_end))
    await turns()
    task.cancel()
    await turns()
    assert (work.cancelled, "key" in flights) == (1, False)
    work.go.set()
    assert await flights.get("key", work) == "result"
    cleaned.set()
    await turns()
    assert (work.begun, task.cancelled(), len(flights)) == (2, True, 0)


async def test_everybody_gets_the_exception() -> None:
    flights, work = SingleFlight[str, str](), Work(ValueError("no"))
    tasks = await callers(flights, work, 3)
    work.go.set()
    assert [str(error) for error in await asyncio.gather(*tasks, return_exceptions=True)] == ["no"] * 3
    assert not len(flights)


async def test_an_exception_that_nobody_waits_for_is_no_unhandled_error() -> None:
    unhandled: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
    flights, leaving = SingleFlight[str, str](), asyncio.Event()

    async def stubborn() -> str:
        try:
            await leaving.wait()
        finally:
            raise ValueError("at the end")

    task = asyncio.create_task(flights.get("key", stubborn))
    await turns()
    task.cancel()
    await asyncio.wait([task])
    await turns()
    del task
    gc.collect()
    assert not unhandled


async def test_close_cancels_all_work_and_those_who_wait() -> None:
    flights, works = SingleFlight[str, str](), [Work(), Work()]
    tasks = [(await callers(flights, work, 2, str(key)))[0] for key, work in enumerate(works)]
    await flights.close()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    assert [work.cancelled for work in works] == [1, 1]
    assert not len(flights)
