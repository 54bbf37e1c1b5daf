"""The bare legs of a disaggregated request, driven by the load generator itself.

This is what "direct" means where one request takes several workers: the same legs with bodies made beforehand,
encodes side by side, then prefill, then decode. A router cannot do less, so its excess over this is its own cost.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import engine
import work
from client import Answer, Connection, Session

if TYPE_CHECKING:
    import asyncio


def encode_bodies(row: work.Row) -> list[dict[str, Any]]:
    """Give the body of each encode leg."""
    bodies = []
    for place in range(row.pictures):
        part = work.picture_part(row.picture_bytes, place) | {"uuid": f"{place:064x}"}
        message = {"role": "user", "content": [part]}
        bodies.append({"model": engine.MODEL, "max_tokens": 1, "stream": False, "messages": [message]})
    return bodies


def reference_body(row: work.Row) -> dict[str, Any]:
    """Give the body of the later legs: references in place of pictures, the text as it was."""
    body = work.chat_body(row)
    uuids = [f"{place:064x}" for place in range(row.pictures)]
    if uuids:
        parts = [{"type": "image_embeds", "image_embeds": engine.GRID, "uuid": uuid} for uuid in uuids]
        body["messages"][-1]["content"][: row.pictures] = parts
        body["ec_transfer_params"] = {uuid: {"item_indices": [0], "metadata": engine.GRID} for uuid in uuids}
    return body


def prefill_body(row: work.Row) -> dict[str, Any]:
    """Give the body of the prefill leg."""
    asked = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None}
    asked |= {"remote_block_ids": None, "remote_host": None, "remote_port": None}
    return reference_body(row) | {"max_tokens": 1, "stream": False, "kv_transfer_params": asked}


def decode_body(row: work.Row) -> dict[str, Any]:
    """Give the body of the decode leg."""
    return reference_body(row) | {"kv_transfer_params": engine.prefill_handles()}


class Legs:
    """One closed loop of requests, each made of its legs."""

    def __init__(self, session: FlowSession) -> None:
        self.session = session
        self.encodes: list[tuple[Connection, work.Template]] = []
        self.prefill: tuple[Connection, work.Template] | None = None
        self.decode: tuple[Connection, work.Template] | None = None
        self.waiting = 0
        self.answer = Answer()

    async def open(self, ports: dict[str, int], first: int) -> None:
        row = self.session.row
        self.encodes = [await self.leg(ports["encode"], body, first, self.encoded) for body in encode_bodies(row)]
        self.prefill = await self.leg(ports["prefill"], prefill_body(row), first, self.prefilled)
        self.decode = await self.leg(ports["decode"], decode_body(row), first, self.decoded)

    async def leg(self, port: int, body: dict[str, Any], first: int, done: Any) -> tuple[Connection, work.Template]:
        connection = await self.session.connect(port, done)
        return connection, work.Template(work.request_bytes(body, port), first)

    def start(self) -> None:
        self.answer = Answer()
        self.answer.started = time.perf_counter()
        self.waiting = len(self.encodes)
        for connection, template in self.encodes:
            connection.send(template.next())
        if not self.encodes:
            self.begin(self.prefill)

    def begin(self, leg: tuple[Connection, work.Template] | None) -> None:
        assert leg is not None
        connection, template = leg
        connection.send(template.next())

    def encoded(self, connection: Connection) -> None:
        self.answer.problem = self.answer.problem or connection.answer.problem
        self.waiting -= 1
        if self.waiting:
            return
        if self.answer.problem:
            self.session.finished(self)
        else:
            self.begin(self.prefill)

    def prefilled(self, connection: Connection) -> None:
        if connection.answer.problem:
            self.answer.problem = connection.answer.problem
            self.session.finished(self)
        else:
            self.begin(self.decode)

    def decoded(self, connection: Connection) -> None:
        self.answer.problem = connection.answer.problem
        self.answer.length = connection.answer.length
        self.answer.took = time.perf_counter() - self.answer.started
        self.session.finished(self)


class FlowSession(Session):
    """A session whose requests are driven leg by leg."""

    def __init__(self, row: work.Row, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(row, loop)
        self.loops: list[Legs] = []

    async def open(self, ports: dict[str, int], first: int) -> None:
        for place in range(self.row.connections):
            legs = Legs(self)
            await legs.open(ports, first + place * 1_000_000)
            self.loops.append(legs)

    def start(self) -> None:
        for legs in self.loops:
            legs.start()

    def finished(self, legs: Legs) -> None:
        """Count one whole request and start the next."""
        self.tally.add(legs.answer, self.expected_length)
        if legs.answer.problem or time.perf_counter() >= self.deadline:
            self.stop_one()
        else:
            legs.start()
