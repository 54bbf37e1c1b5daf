"""`epd-router mock-engine`: one mock engine as a process."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import signal
import sys
from collections.abc import Sequence

from epd_router.mock.engine import Engine, EngineConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Run one engine until a signal; prints its URL when it listens."""
    parser = argparse.ArgumentParser(prog="epd-router mock-engine", description="A mock engine that speaks vLLM's wire.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--role", default="aggregated", choices=["aggregated", "encode", "prefill", "decode", "prefill_decode"])
    parser.add_argument("--fault", action="append", default=[], metavar="KIND[:TIMES]")
    for field in dataclasses.fields(EngineConfig):
        if field.name not in {"role", "models"}:
            parser.add_argument("--" + field.name.replace("_", "-"), type=type(field.default), default=field.default)
    parser.add_argument("--models", default="tiny", type=lambda text: tuple(text.split(",")))
    given = vars(parser.parse_args(argv))
    host, port, faults = given.pop("host"), given.pop("port"), given.pop("fault")
    asyncio.run(run(EngineConfig(**given), host, port, faults))
    return 0


async def run(config: EngineConfig, host: str, port: int, faults: Sequence[str]) -> None:
    """Serve until SIGTERM or SIGINT."""
    engine = Engine(config)
    for fault in faults:
        kind, _, times = fault.partition(":")
        engine.fault(kind, int(times or 1 << 30))
    await engine.start(host, port)
    sys.stdout.write(f'{{"url": "http://{host}:{engine.port}"}}\n')
    sys.stdout.flush()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await engine.stop()


if __name__ == "__main__":
    raise SystemExit(main())
