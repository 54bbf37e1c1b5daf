"""Work that is not done one after the other on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
OFF_LOOP = 256 << 10  # bytes from which a thread does it: hashing and base64 do 1 to 4 GB/s, and a hop costs 40 µs


async def off_loop(size: int, work: Callable[P, T], *arguments: P.args, **more: P.kwargs) -> T:
    """Work on `size` bytes, in a thread where that takes long."""
    if size < OFF_LOOP:
        return work(*arguments, **more)
    return await asyncio.to_thread(work, *arguments, **more)


async def together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Side by side; the first that fails cancels the others."""
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
