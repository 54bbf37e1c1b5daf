"""Twenty thousand requests that are cancelled, broken and timed out at random: nothing may be left of them."""

from __future__ import annotations

import asyncio
import base64
import collections
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.leaks.engines import FAULTS, TAG, LeanEngine

REQUESTS = 20_000
WARM = 5_000  # by now every cache, pool and label has its size
CLIENTS = 48
SEED = 20_260_729
ROOT = Path(__file__).parents[2]
OPTIONS = {
    "encode-timeout-secs": 0.5,
    "prefill-timeout-secs": 0.5,
    "first-byte-timeout-secs": 0.5,
    "idle-timeout-secs": 0.5,
    "worker-keepalive-secs": 1,
    "health-check-interval-secs": 0.5,
    "embedding-index-entries": 500,
    "embedding-ttl-secs": 5,
    "encode-fallback-budget": 4,
    "log-level": "error",
}


class Client:
    """One connection after the other; now and then it asks for the impossible, or leaves in the middle."""

    def __init__(self, port: int, dice: random.Random) -> None:
        self._port = port
        self._dice = dice
        self._pictures = [base64.b64encode(dice.randbytes(90)).decode() for _ in range(40)]
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.outcomes: collections.Counter[str] = collections.Counter()

    async def ask(self, number: int) -> None:
        tag = f"tag-{number}"
        patience = self._dice.choices([60.0, 0.0, self._dice.random() * 0.03], [90, 2, 8])[0]
        try:
            async with asyncio.timeout(patience):
                status, body = await self._exchange(self._request(tag))
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            self.outcomes["left" if isinstance(error, TimeoutError) and patience < 60 else type(error).__name__] += 1
            self.close()
            return
        self.outcomes[str(status)] += 1
        assert {*TAG.findall(body)} <= {tag.encode()}, "an answer went to the wrong client"
        if self._dice.random() < 0.05:
            self.close()

    def _request(self, tag: str) -> bytes:
        dice = self._dice
        urls = [self._picture() for _ in range(dice.choice([0, 0, 1, 1, 1, 2, 3]))]
        content: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        content.append({"type": "text", "text": f"<{tag}>"})
        body: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 4}
        body["stream"] = dice.random() < 0.5
        odd = dice.random()
        if odd < 0.01:
            body["model"] = f"unknown-{tag}"
        elif odd < 0.02:
            body["kv_transfer_params"] = {"a": 1}
        elif odd < 0.05:
            body["n"] = 2
        sent = json.dumps(body).encode()
        if dice.random() < 0.01:
            sent = sent[:-9]
        if dice.random() < 0.1:
            cut = dice.randrange(1, len(sent))
            chunks = b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (cut, sent[:cut], len(sent) - cut, sent[cut:])
            return b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
        return b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(sent), sent)

    def _picture(self) -> str:
        fresh = self._dice.random() < 0.3
        content = base64.b64encode(self._dice.randbytes(90)).decode() if fresh else self._dice.choice(self._pictures)
        return f"data:image/png;base64,{content}"

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b"transfer-encoding: chunked" in head:
            body = b""
            while size := int(await reader.readline(), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readexactly(2)
        else:
            body = await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
        if b"connection: close" in head:
            self.close()
        return int(head.split(b" ", 2)[1]), body

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


class Watched:
    """The router's process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.port = 0

    async def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = await self.process.stdout.readline()
        assert line, (await self.process.stderr.read()).decode()
        found: dict[str, Any] = json.loads(line)
        return found

    async def measure(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        return await self.line()

    @classmethod
    async def start(cls, engines: list[LeanEngine]) -> Watched:
        flags = [f"--{name}={value}" for name, value in OPTIONS.items()]
        for role in ("encode", "prefill", "decode"):
            flags += [f"--{role}", *(engine.url for engine in engines if engine.role == role)]
        command = [sys.executable, "-W", "error", "-m", "tests.leaks.watched", "--host=127.0.0.1", "--port=0", *flags]
        pipe = asyncio.subprocess.PIPE
        self = cls(await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, limit=1 << 20))
        self.port = (await self.line())["port"]
        return self

    async def stop(self) -> None:
        _, said = await self.process.communicate(b"")
        assert (self.process.returncode, said.decode()) == (0, "")


async def flap(engines: list[LeanEngine], dice: random.Random) -> None:
    """One engine after the other dies and comes back."""
    while True:
        await asyncio.sleep(1.0)
        engine = dice.choice(engines)
        await engine.stop()
        await asyncio.sleep(0.2)
        await engine.start()


async def soak() -> tuple[list[dict[str, Any]], collections.Counter[str], collections.Counter[str]]:
    engines = [LeanEngine(role, random.Random(f"{SEED}{role}{i}")) for role in ("encode", "prefill", "decode") for i in range(2)]
    for engine in engines:
        await engine.start()
    router = await Watched.start(engines)
    clients = [Client(router.port, random.Random(SEED + number)) for number in range(CLIENTS)]
    marks = [await router.measure()]
    sent = 0
    for goal in (WARM, (WARM + REQUESTS) // 2, REQUESTS):
        numbers = iter(range(sent, goal))

        async def work(client: Client, numbers: Any = numbers) -> None:
            for number in numbers:
                await client.ask(number)

        for engine in engines:
            engine.faulty = True
        flapping = asyncio.create_task(flap(engines, random.Random(SEED)))
        await asyncio.gather(*map(work, clients))
        flapping.cancel()
        await asyncio.gather(flapping, return_exceptions=True)
        for engine in engines:
            engine.faulty = False
            await engine.stop()
            await engine.start()
        for client in clients:
            client.close()
        marks.append(await router.measure())
        sent = goal
    await router.stop()
    for engine in engines:
        await engine.stop()
    outcomes = sum((client.outcomes for client in clients), collections.Counter[str]())
    return marks, outcomes, sum((engine.seen for engine in engines), collections.Counter[str]())


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_twenty_thousand_requests_leave_nothing_behind() -> None:
    (first, warm, *_, last), outcomes, faults = uvloop.run(asyncio.wait_for(soak(), 240))
    assert all(faults[kind] for kind in FAULTS)
    assert {"200", "400", "404", "422", "502", "504", "left"} <= outcomes.keys()
    assert sum(outcomes.values()) == REQUESTS
    for name in ("tasks", "descriptors", "timed", "clients", "served", "background", "in_flight", "leases", "stuck"):
        assert last[name] == warm[name] == first[name], name
    assert not any(map(any, last["leases"]))
    assert last["in_flight"] == 0
    assert last["embeddings"] == OPTIONS["embedding-index-entries"]
    assert own(last) == own(warm) == own(first)
    assert last["blocks"] - warm["blocks"] < (REQUESTS - WARM) / 10, "Python objects grow with the requests"
    assert last["resident"] - warm["resident"] < (REQUESTS - WARM) * 200, "memory grows with the requests"


def own(mark: dict[str, Any]) -> dict[str, int]:
    """How many objects of the router's own types there are; embeddings are remembered on purpose."""
    return {kind: count for kind, count in mark["objects"].items() if not kind.startswith("epd_router.embeddings.")}
