"""A router as a process that tells what it holds: `python -m tests.leaks.watched --flags`.

Prints the port, then one line of JSON for every line read from standard input. Only the router's own memory is in it.
"""

from __future__ import annotations

import asyncio
import collections
import gc
import json
import sys
from typing import Any

import psutil
import uvloop
from epd_router import cli, logs, options
from epd_router.server import Server

from tests.waiting import ready

OWN = "epd_router."
SETTLE_SECS = 30.0


def held(server: Server) -> dict[str, Any]:
    """Everything that must come back to what it was once nobody is served."""
    kinds = collections.Counter(
        f"{type(thing).__module__}.{type(thing).__qualname__}"
        for thing in gc.get_objects()
        if str(type(thing).__module__).startswith(OWN)
    )
    return {
        "tasks": len(asyncio.all_tasks()),
        "descriptors": psutil.Process().num_fds(),
        "timed": len(server.sweeper),
        "clients": len(server._connections),
        "served": len(server.pipeline),
        "background": len(server._background),
        "in_flight": server.metrics.registry.get_sample_value("epd_router_in_flight"),
        "leases": [[worker.load.active, worker.load.outstanding] for worker in server.fleet],
        "objects": kinds,
    }


def settled(now: dict[str, Any], first: dict[str, Any] | None) -> bool:
    busy = now["clients"] or now["served"] or now["background"] or any(map(any, now["leases"]))
    return not busy and (first is None or all(now[name] <= first[name] for name in ("tasks", "descriptors", "timed")))


async def measure(server: Server, first: dict[str, Any] | None) -> dict[str, Any]:
    """What is held once all is quiet, or at the deadline; idle connections to workers close by themselves."""
    end = server.loop.time() + SETTLE_SECS
    while True:
        gc.collect()
        now = held(server)
        if settled(now, first) or server.loop.time() > end:
            break
        await asyncio.sleep(0.1)
    return now | {
        "blocks": sys.getallocatedblocks(),
        "resident": psutil.Process().memory_info().rss,
        "embeddings": len(server.embeddings),
        "stuck": [str(task) for task in server.pipeline.tasks()],
    }


async def main() -> None:
    settings = options.load(vars(cli.parser().parse_args()), {})
    logs.configure(settings.log_level, settings.log_format)
    server = Server(settings)
    await server.start()
    await asyncio.wait_for(ready(server), SETTLE_SECS)
    reader = asyncio.StreamReader()
    pipe, _ = await server.loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    first = await measure(server, None)
    print(json.dumps({"port": server.port}), flush=True)
    while await reader.readline():
        print(json.dumps(await measure(server, first)), flush=True)
    pipe.close()
    await server.stop()


if __name__ == "__main__":
    uvloop.run(main())
