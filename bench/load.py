"""Load generator process.

Reads one JSON command on each line of its standard input and answers each with one JSON line:
`{"do": "open", "row": NAME, "ports": {...}, "first": N}`, `{"do": "run", "seconds": S}`, `{"do": "close"}`.
Every answer is checked (status, length, end of stream); a wrong one is an error and no measurement.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import uvloop
import work
from client import Session
from flow import FlowSession


async def make_session(command: dict[str, Any]) -> Session:
    """Open the session that a command asks for: through one front port, or leg by leg."""
    row = work.BY_NAME[command["row"]]
    kind = Session if "front" in command["ports"] else FlowSession
    session = kind(row, asyncio.get_running_loop())
    await session.open(command["ports"], command["first"])
    return session


async def serve() -> None:
    """Carry out commands until standard input ends."""
    loop = asyncio.get_running_loop()
    session: Session | None = None
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        result: dict[str, Any] = {}
        if command["do"] == "open":
            session = await make_session(command)
        elif session is not None and command["do"] == "run":
            result = await session.run(command["seconds"])
        elif session is not None:
            await session.close()
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    uvloop.run(serve())
