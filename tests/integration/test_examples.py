"""Every example of the README and the documentation runs, with mock engines in place of vLLM."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import openai
import pytest
from epd_router.mock import Cluster, EngineConfig

from tests.conftest import chat, data_url, picture

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
DRAWINGS = {"mermaid": ("flowchart", "stateDiagram-v2"), "": ("accept",)}
ROLES = {"--encode": "encode", "--prefill": "prefill", "--decode": "decode", "--prefill-decode": "prefill_decode",
         "--worker-urls": "aggregated"}  # fmt: skip
VLLM_FLAGS = {"--port", "--enforce-eager", "--ec-transfer-config", "--kv-transfer-config"}
EC_ROLES = {"ec_producer", "ec_consumer"}


class Command(NamedTuple):
    """One command line of a page."""

    page: str
    words: list[str]

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)[:60]}"


def blocks() -> list[tuple[str, str, str]]:
    """Page, language and text of every fenced block."""
    return [(page.name, language, text) for page in PAGES for _, language, text in FENCE.findall(page.read_text())]


def commands() -> list[Command]:
    """Every command of the shell blocks, with continuation lines joined and variables of the block filled in."""
    found = []
    for page, language, text in blocks():
        if language not in {"bash", "sh", "console"}:
            continue
        variables: dict[str, str] = {}
        for line in text.replace("\\\n", " ").splitlines():
            filled = re.sub(r"\$(\w+)", lambda match, known=variables: known[match[1]].replace('"', '\\"'), line)  # type: ignore[misc]
            words = shlex.split(filled, comments=True)
            while words and re.fullmatch(r"\w+=.*", words[0]):
                name, _, value = words.pop(0).partition("=")
                variables[name] = value
            if words:
                found.append(Command(page, words))
    return found


def those(program: str) -> list[Command]:
    return [command for command in commands() if command.words[0] == program]


def test_every_block_is_run_or_drawn() -> None:
    assert {command.words[0] for command in commands()} == {"make", "epd-router", "vllm"}
    for page, language, text in blocks():
        assert language in {"bash", "python"} or text.lstrip().startswith(DRAWINGS[language]), (page, text)


def test_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for page, language, text in blocks():
        if language == "python":
            exec(compile(textwrap.dedent(text), page, "exec"), {"data": picture("red")})
    assert "(64, 48)" in capsys.readouterr().out


@pytest.mark.parametrize("command", those("make"), ids=str)
def test_targets_exist(command: Command) -> None:
    (target,) = command.words[1:]
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


async def test_the_demo_runs() -> None:
    pipe = asyncio.subprocess.PIPE
    demo = await asyncio.create_subprocess_exec(sys.executable, "-m", "epd_router", "demo", stdout=pipe, stderr=pipe)
    said, errors = await demo.communicate()
    assert demo.returncode == 0, errors.decode()
    assert b"encode-prefill-decode" in said


@pytest.mark.parametrize("command", those("vllm"), ids=str)
def test_engine_commands_are_well_formed(command: Command) -> None:
    assert command.words[1] == "serve"
    flags = [word for word in command.words if word.startswith("--")]
    assert set(flags) <= VLLM_FLAGS
    for flag, value in zip(command.words, command.words[1:], strict=False):
        if flag == "--ec-transfer-config":
            config = json.loads(value)
            assert config["ec_role"] in EC_ROLES
            assert config["ec_connector_extra_config"]["shared_storage_path"]
        elif flag == "--kv-transfer-config":
            assert json.loads(value) == {"kv_connector": "NixlConnector", "kv_role": "kv_both"}


@contextlib.asynccontextmanager
async def engines_for(words: list[str]) -> AsyncIterator[tuple[list[str], Cluster]]:
    """The command with the URLs of mock engines in place of those it names."""
    role, roles = "", [ROLES[word] for word in words if word in ROLES]
    counts = dict.fromkeys(roles, 0)
    for word in words:
        role = ROLES.get(word, role)
        counts[role] = counts.get(role, 0) + word.startswith("http://")
    async with Cluster(
        config=EngineConfig(allowed_local_media_path="/dev/shm"), **{role: counts[role] for role in roles}
    ) as cluster:
        engines = {role: iter(cluster[role]) for role in roles}
        made = []
        for word in words:
            role = ROLES.get(word, role)
            made.append(re.sub(r"http://[^,]+", lambda _, role=role: next(engines[role]).url, word))  # type: ignore[misc]
        yield made, cluster


@contextlib.asynccontextmanager
async def running(words: list[str]) -> AsyncIterator[str]:
    """The router as a process of its own; gives its address."""
    if "--port" in words:
        at = words.index("--port")
        words = words[:at] + words[at + 2 :]
    program = [sys.executable, "-m", "epd_router", *words[1:], "--host", "127.0.0.1", "--port", "0"]
    router = await asyncio.create_subprocess_exec(*program, stderr=asyncio.subprocess.PIPE)
    assert router.stderr is not None
    try:
        while found := await router.stderr.readline():
            if match := re.search(rb"listening on (\S+:\d+)", found):
                yield f"http://{match[1].decode()}"
                break
        else:
            raise AssertionError("the router did not start")
    finally:
        with contextlib.suppress(ProcessLookupError):
            router.terminate()
        await router.communicate()
    assert router.returncode == 0


@pytest.mark.parametrize("command", those("epd-router"), ids=str)
async def test_the_router_serves_as_told(command: Command) -> None:
    async with engines_for(command.words) as (words, cluster), running(words) as address:
        async with aiohttp.ClientSession() as http:
            async with asyncio.timeout(25):
                while True:
                    async with http.get(f"{address}/readiness") as answer:
                        if answer.status == 200:
                            break
                    await asyncio.sleep(0.02)
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as api:
            body: dict[str, Any] = chat("what?", data_url(picture("red")))
            answer_ = await api.chat.completions.with_raw_response.create(**body, extra_headers={"x-epd-router-explain": "1"})
            assert answer_.parse().choices[0].message.content
        for name in ("decision", "encode", "prefill", "decode", "timing"):  # as the README says
            assert f"x-epd-router-{name}" in answer_.headers
        assert "x-epd-router-degraded" not in answer_.headers
        for role in {ROLES[word] for word in words if word in ROLES}:
            assert any(engine.requests for engine in cluster[role])


def test_examples_name_ports_that_match() -> None:
    """The router of the quick start is told the ports of its engines."""
    ports = {words[words.index("--port") + 1] for _, words in those("vllm")}
    (router,) = [words for page, words in those("epd-router") if page == "quickstart.md"]
    assert {word.rpartition(":")[2] for word in router if word.startswith("http://")} == ports
