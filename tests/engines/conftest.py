"""One fleet of real engines for all tests of this folder. Missing engines are a failure, never a skip."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from . import client, pictures
from .fleet import Fleet, booted, tiny_model
from .prompts import PROMPTS
from .router import Router, routing

CACHE = Path(os.environ.get("ENGINE_CACHE") or Path.home() / ".cache" / "epd-router")
ENVIRONMENT = CACHE / "vllm-0.32"
INSTALL = Path(__file__).with_name("install_vllm_cpu.sh")
SECONDS = 600  # a boot of four engines on two busy cores included
SHOWN = 3  # failures with logs
LOGS = pytest.StashKey[Path]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(INSTALL.parent):
            item.add_marker(pytest.mark.timeout(SECONDS))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with the first failures what the engines and the router said."""
    report = yield
    if report.failed and LOGS in item.config.stash and item.session.testsfailed < SHOWN:
        for log in sorted(item.config.stash[LOGS].glob("*.log")):
            end = log.read_text(errors="replace").splitlines()[-25:]
            report.sections.append((f"end of {log.name}", "\n".join(end)))
    return report


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """Logs of engines and routers, and the embedding store."""
    pytestconfig.stash[LOGS] = tmp_path_factory.mktemp("engines")
    return pytestconfig.stash[LOGS]


@pytest.fixture(scope="session")
def fleet(run_dir: Path) -> Iterator[Fleet]:
    if not (ENVIRONMENT / "bin" / "vllm").exists():
        pytest.exit(f"no vLLM in {ENVIRONMENT}; install it with: {INSTALL} {ENVIRONMENT}", returncode=1)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # leave no engine behind when CI gives up
    with booted(ENVIRONMENT, tiny_model(ENVIRONMENT, CACHE), run_dir) as engines:
        yield engines
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def server() -> Iterator[pictures.PictureServer]:
    with pictures.serving() as served:
        yield served


@pytest.fixture(scope="session")
def expected(fleet: Fleet, server: pictures.PictureServer) -> dict[str, client.Answer]:
    """What the aggregated worker answers, by name of the prompt."""
    return {prompt.name: client.ask(fleet["agg"].url, prompt.body(server)) for prompt in PROMPTS}


@pytest.fixture(scope="session")
def epd(fleet: Fleet, run_dir: Path) -> Iterator[Router]:
    """E+P+D, for tests that count nothing."""
    with routing(run_dir / "router.log", *topology(fleet, "E+P+D")) as router:
        yield router


def topology(fleet: Fleet, name: str) -> list[str]:
    """The router's options. A prefill engine is a whole engine that consumes embeddings, so it decodes as well."""
    encode = ["--encode", fleet["e"].url]
    prefill_decode = ["--prefill", fleet["p"].url, "--decode", fleet["d"].url]
    options = {
        "E+P+D": [*encode, *prefill_decode],
        "E+PD": [*encode, "--prefill-decode", fleet["p"].url],
        "P+D": prefill_decode,
    }
    return options[name]
