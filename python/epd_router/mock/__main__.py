"""`epd-router mock-engine`: one mock engine as a process."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from epd_router.mock.config import EngineConfig
from epd_router.mock.engine import Engine
from epd_router.mock.faults import KINDS, Fault
from epd_router.mock.stores import Shared


def parser() -> argparse.ArgumentParser:
    """The command's flags: every setting of an engine, and where it runs."""
    made = argparse.ArgumentParser(prog="epd-router mock-engine", description="A mock engine that speaks vLLM's wire.")
    made.add_argument("--host", default="127.0.0.1", help="address to listen on")
    made.add_argument("--port", type=int, default=0, help="port to listen on; 0 is any")
    made.add_argument("--shared-dir", type=Path, help="folder for embeddings and KV that other mock engines share")
    kinds = ", ".join(KINDS)
    made.add_argument(
        "--fault", action="append", default=[], type=Fault.parse, metavar="KIND[:TIMES|:name=value,...]", help=f"a status, {kinds}"
    )
    for field in dataclasses.fields(EngineConfig):
        options: dict[str, Any] = {"default": field.default, "help": field.metadata["help"]}
        if isinstance(field.default, bool):
            options["action"] = argparse.BooleanOptionalAction
        elif isinstance(field.default, tuple):
            options["type"] = names
        else:
            options["type"] = type(field.default)
            options["choices"] = field.metadata["choices"] or None
        made.add_argument("--" + field.name.replace("_", "-"), **options)
    return made


def names(text: str) -> tuple[str, ...]:
    """Comma-separated names."""
    return tuple(text.split(","))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one engine until a signal; prints its URL when it listens. Exits with 1 when the engine dies."""
    given = vars(parser().parse_args(argv))
    host, port, faults, folder = (given.pop(name) for name in ("host", "port", "fault", "shared_dir"))
    engine = Engine(EngineConfig(**given), Shared.folder(folder) if folder else None)
    return asyncio.run(run(engine, host, port, faults))


async def run(engine: Engine, host: str, port: int, faults: Sequence[Fault]) -> int:
    """Serve until SIGTERM, SIGINT or death."""
    await engine.start(host, port)
    for fault in faults:
        engine.add_fault(fault)
    sys.stdout.write(f'{{"url": "http://{host}:{engine.port}", "engine_id": "{engine.engine_id}"}}\n')
    sys.stdout.flush()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    ends = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(engine.ended.wait())]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for end in ends:
        end.cancel()
    await engine.wait_end()
    await engine.stop()
    if engine.died:
        sys.stderr.write(f"engine died: {engine.died_of}\n")
    return 1 if engine.died else 0


if __name__ == "__main__":
    raise SystemExit(main())
