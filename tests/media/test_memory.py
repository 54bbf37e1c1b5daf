"""Bytes of kept media and of downloads under one limit."""

from __future__ import annotations

import asyncio

from epd_router.media.memory import LARGEST_SHARE, OVERHEAD, Claim, Entry, Memory, Resource

LIMIT = 10 * OVERHEAD


def entry(size: int) -> Entry:
    return Entry(Resource(bytes(size), "image/png"), {}, 0.0, {})


async def stuck(task: asyncio.Task[None]) -> bool:
    """Whether a task cannot go on by itself."""
    for _ in range(10):
        await asyncio.sleep(0)
    return not task.done()


async def test_a_claim_waits_until_another_has_ended() -> None:
    memory = Memory(LIMIT)
    with memory.claim(), memory.claim() as waiting:
        with memory.claim() as other:
            await other.grow(LIMIT - 10)
            task = asyncio.create_task(waiting.grow(11))
            assert await stuck(task)
            await other.grow(10)
            assert memory.used == LIMIT
        await task
        assert memory.used == 11
    assert memory.used == 0


async def test_the_oldest_claim_never_waits_and_after_it_the_next_one() -> None:
    memory = Memory(LIMIT)
    finish = [asyncio.Event() for _ in range(3)]
    claims: list[Claim] = []

    async def download(end: asyncio.Event) -> None:
        with memory.claim() as claim:
            claims.append(claim)
            await claim.grow(2 * LIMIT)
            await end.wait()

    tasks = [asyncio.create_task(download(end)) for end in finish]
    for number, task in enumerate(tasks):
        assert await stuck(task)
        assert [claim.size > 0 for claim in claims[number:]] == [True, *[False] * (2 - number)]
        finish[number].set()
        await task
    assert memory.used == 0


async def test_a_claim_that_is_given_up_while_it_waits_takes_nothing() -> None:
    memory = Memory(LIMIT)

    async def download() -> None:
        with memory.claim() as claim:
            await claim.grow(1)

    with memory.claim() as first:
        await first.grow(LIMIT)
        task = asyncio.create_task(download())
        assert await stuck(task)
        task.cancel()
        await asyncio.wait([task])
        assert memory.used == LIMIT
    assert memory.used == 0


async def test_kept_media_make_room_for_downloads() -> None:
    memory = Memory(LIMIT)
    for url in "abc":
        memory.put(url, entry(OVERHEAD))
    memory.get("a")
    with memory.claim(), memory.claim() as claim:
        await claim.grow(LIMIT - 3 * OVERHEAD)
        assert [url for url in "abc" if memory.get(url)] == ["a"]
        await claim.grow(3 * OVERHEAD)
        assert (len(memory), memory.used) == (0, LIMIT)


def test_what_is_replaced_or_dropped_or_too_large_takes_nothing() -> None:
    memory = Memory(LIMIT)
    memory.put("a", entry(1))
    memory.put("a", entry(2))
    assert memory.used == 2 + 1 + OVERHEAD
    memory.put("a", entry(LIMIT // LARGEST_SHARE))
    assert (len(memory), memory.used) == (0, 0)
    memory.drop("a")
    assert memory.used == 0


def test_many_tiny_media_are_few() -> None:
    memory = Memory(LIMIT)
    for number in range(1000):
        memory.put(str(number), entry(1))
    assert len(memory) < 10
    assert memory.used <= LIMIT
    assert memory.get("999")
    assert memory.get("0") is None
