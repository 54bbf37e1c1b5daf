"""The `epd-router` command: serve (the default), demo, mock-engine."""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import sys
from collections.abc import Sequence

import uvloop

from epd_router import __version__, logs, options
from epd_router.errors import ConfigError
from epd_router.options import Settings
from epd_router.server import Server

DEMO_PACKAGES = {"PIL", "openai"}  # of the extra `demo`


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments.pop(0) if arguments and arguments[0] in {"serve", "demo", "mock-engine"} else "serve"
    try:
        if command == "demo":
            from epd_router.demo import main as demo  # its packages are an extra

            raise SystemExit(demo(arguments))
        if command == "mock-engine":
            from epd_router.mock.__main__ import main as mock

            raise SystemExit(mock(arguments))
        serve(arguments)
    except ModuleNotFoundError as error:
        if error.name not in DEMO_PACKAGES:
            raise
        print(f"epd-router: {command} needs {error.name}; pip install 'epd-router[demo]'", file=sys.stderr)  # noqa: T201
        raise SystemExit(2) from None
    except ConfigError as error:
        print(f"epd-router: {error.message}", file=sys.stderr)  # noqa: T201 - the user's answer
        raise SystemExit(2) from None


def parser() -> argparse.ArgumentParser:
    """The parser of the serve command."""
    made = argparse.ArgumentParser(
        prog="epd-router",
        description="Encode-Prefill-Decode router for multimodal LLM servers. Other commands: demo, mock-engine.",
        allow_abbrev=False,
    )
    made.add_argument("--version", action="version", version=f"epd-router {__version__}")
    options.add_arguments(made)
    return made


def serve(arguments: Sequence[str]) -> None:
    """Run the router until a signal."""
    settings = options.load(vars(parser().parse_args(arguments)))
    logs.configure(settings.log_level, settings.log_format)
    uvloop.run(run(settings))


async def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, then drain."""
    server = Server(settings)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        server.loop.add_signal_handler(number, stop.set)
    await server.start()
    gc.freeze()  # what exists now lives as long as the process; do not look at it again
    await stop.wait()
    await server.stop()
