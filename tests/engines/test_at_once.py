"""Sixteen mixed requests at once: no engine dies, no answer differs, no picture is encoded twice."""

from __future__ import annotations

from pathlib import Path

from . import client
from .conftest import topology
from .fleet import Fleet
from .pictures import PictureServer
from .router import routing
from .runs import check_answer, check_encodes, run


def test_sixteen_at_once(fleet: Fleet, server: PictureServer, run_dir: Path, expected: dict[str, client.Answer]) -> None:
    with routing(run_dir / "router-at-once.log", *topology(fleet, "E+P+D")) as router:
        done = run(fleet, router.url, server, salt="at once", at_once=16)
    for name, answer in done.answers.items():
        check_answer(answer, expected[name])
    check_encodes(done)
    assert all(engine.alive and engine.healthy for engine in fleet.values())
