"""`epd-router demo`: mock engines, one picture request, and the decision the router took."""

from __future__ import annotations

import asyncio
import base64
import io
import sys
import time
from collections.abc import Sequence
from typing import Any

import openai
import uvloop
from PIL import Image

from epd_router import options
from epd_router.mock import Cluster, EngineConfig
from epd_router.server import Server


def say(line: str) -> None:
    """Print at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Run the demo."""
    uvloop.run(run())
    return 0


def jpeg() -> str:
    """A real JPEG as a data URL."""
    out = io.BytesIO()
    Image.effect_mandelbrot((640, 480), (-2.2, -1.5, 1.0, 1.5), 60).convert("RGB").save(out, "JPEG")
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()


async def run() -> None:
    """Start everything, ask twice, show what happened."""
    config = EngineConfig(encode_ms=80, prefill_ms=40, token_ms=15)
    async with Cluster(config=config, encode=1, prefill=1, decode=1) as cluster:
        roles = {role: cluster.urls(role) for role in ("encode", "prefill", "decode")}
        for role, url in roles.items():
            say(f"mock {role:8} {url}")
        server = Server(options.load({"host": "127.0.0.1", "port": "0", "health_check_interval_secs": "0.1", **roles}))
        await server.start()
        while server.fleet.missing_roles():
            await asyncio.sleep(0.02)
        say(f"router        http://127.0.0.1:{server.port}  {server.fleet.topology.name}")
        try:
            await ask(server.port, "a picture", [jpeg()])
            await ask(server.port, "the same picture again", [jpeg()])
            await ask(server.port, "text only", [])
        finally:
            await server.stop()


async def ask(port: int, title: str, pictures: list[str]) -> None:
    """One streamed request through the openai client."""
    content: list[dict[str, object]] = [{"type": "image_url", "image_url": {"url": url}} for url in pictures]
    messages: Any = [{"role": "user", "content": [*content, {"type": "text", "text": "What is this?"}]}]
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as api:
        started = time.perf_counter()
        create: Any = api.chat.completions.with_raw_response.create
        raw = await create(model="tiny", messages=messages, stream=True, extra_headers={"x-epd-router-explain": "1"})
        words = [event.choices[0].delta.content or "" async for event in raw.parse() if event.choices]
    elapsed = (time.perf_counter() - started) * 1000
    say(f"\n{title}: {''.join(words)}")
    for name in ("decision", "encode", "prefill", "decode", "items", "timing"):
        say(f"  {name:9} {raw.headers.get(f'x-epd-router-{name}') or '-'}")
    say(f"  total     {elapsed:.0f} ms")
