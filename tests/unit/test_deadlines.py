"""The sweeper: deadlines go on whatever one of them does."""

from __future__ import annotations

import asyncio

import pytest
from epd_router.deadlines import Sweeper


class Counting:
    def __init__(self) -> None:
        self.checked = asyncio.Event()

    def check(self, now: float) -> None:
        self.checked.set()


class Raising:
    def check(self, now: float) -> None:
        raise RuntimeError("the handler is closed")


async def test_a_check_that_raises_is_logged_and_does_not_end_the_others(caplog: pytest.LogCaptureFixture) -> None:
    sweeper = Sweeper(asyncio.get_running_loop(), 0.001)
    good = Counting()
    sweeper.add(good)
    sweeper.add(Raising())
    sweeper.start()
    for _ in range(3):
        good.checked.clear()
        await asyncio.wait_for(good.checked.wait(), 10)
    sweeper.stop()
    assert {record.exc_info[0] for record in caplog.records if record.exc_info} == {RuntimeError}


async def test_what_one_check_forgets_is_not_checked_in_the_same_sweep() -> None:
    sweeper = Sweeper(asyncio.get_running_loop(), 0.001)
    checked: list[str] = []

    class Rival:
        def __init__(self, name: str) -> None:
            self.name = name
            self.rival: Rival | None = None

        def check(self, now: float) -> None:
            checked.append(self.name)
            assert self.rival is not None
            sweeper.discard(self.rival)

    one, other = Rival("one"), Rival("other")
    one.rival, other.rival = other, one
    sweeper.add(one)
    sweeper.add(other)
    sweeper.start()
    while len(checked) < 3:
        await asyncio.sleep(0.001)
    sweeper.stop()
    assert len(set(checked)) == 1
    assert len(sweeper) == 0
