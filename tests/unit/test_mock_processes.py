"""`epd-router mock-engine`: engines in processes of their own that form a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.conftest import data_url, picture
from tests.unit.test_mock_transfer import PULL, content, http, raw, reference, whole

__all__ = ["http"]
pytestmark = pytest.mark.timeout(120)  # interpreters start slowly on a busy machine
RED = data_url(picture("red"))


@contextlib.asynccontextmanager
async def processes(*commands: list[str]) -> AsyncIterator[list[tuple[str, asyncio.subprocess.Process]]]:
    """Engines as `epd-router mock-engine` starts them; their URLs."""
    line = [sys.executable, "-m", "epd_router", "mock-engine"]
    started = await asyncio.gather(
        *(asyncio.create_subprocess_exec(*line, *command, stdout=asyncio.subprocess.PIPE) for command in commands)
    )
    try:
        found = []
        for process in started:
            assert process.stdout is not None
            found.append((json.loads(await process.stdout.readline())["url"], process))
        yield found
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        await asyncio.gather(*(process.communicate() for process in started))


async def ask(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> dict[str, Any]:
    async with http.post(url + "/v1/chat/completions", json=body) as answer:
        document: dict[str, Any] = await answer.json()
        return {**document, "status": answer.status}


@pytest.mark.parametrize("connector", ["nixl", "store"])
async def test_three_processes_are_one_cluster(http: aiohttp.ClientSession, tmp_path: Path, connector: str) -> None:
    shared = ["--shared-dir", str(tmp_path), "--kv-connector", connector]
    roles = [["--role", role, *shared] for role in ("encode", "prefill", "decode")]
    async with processes(*roles) as found:
        (encode, _), (prefill, process), (decode, _) = found
        await ask(http, encode, raw(RED))
        assert (tmp_path / "ec" / ("u" * 8) / "encoder_cache.safetensors").exists()
        first = await ask(http, prefill, reference(max_tokens=1, kv_transfer_params=PULL))
        assert bool(first["kv_transfer_params"]) == (connector == "nixl")
        second = await ask(http, decode, reference(kv_transfer_params=first["kv_transfer_params"]))
        assert content((200, second)) == await whole(http, raw(RED))
        await ask(http, prefill, reference("never encoded"))
        assert await asyncio.wait_for(process.wait(), 60) == 1
        assert (tmp_path / "ec" / "never encoded").is_dir()  # a look leaves an empty folder
        with pytest.raises(aiohttp.ClientConnectorError):
            await ask(http, prefill, raw(RED))


async def test_flags_and_signals(http: aiohttp.ClientSession) -> None:
    flags = ["--models", "a,b", "--fault", "503:1", "--no-request-id-headers", "--engine-id", "me", "--slow-start-ms", "1"]
    async with processes(flags) as ((url, process),):
        async with http.get(url + "/v1/models") as answer:
            assert [card["id"] for card in (await answer.json())["data"]] == ["a", "b"]
            assert "x-request-id" not in answer.headers
        statuses = [(await ask(http, url, {"model": "b", "messages": [{"role": "user", "content": "x"}]}))["status"] for _ in "ab"]
        assert statuses == [503, 200]
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 60) == 0
