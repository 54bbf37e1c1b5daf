"""KV that prefill pushes into decode (NixlPushConnector): both legs at once, the same answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import client
from .conftest import CACHE, ENVIRONMENT
from .fleet import PUSH_ROLES, Fleet, booted, tiny_model
from .pictures import PictureServer
from .prompts import PROMPTS
from .router import Router, routing
from .runs import Run, check_answer, check_encodes, run


@pytest.fixture(scope="module")
def pushing(fleet: Fleet, run_dir: Path) -> Iterator[Fleet]:
    """Prefill and decode that push, beside the encoder of the fleet. The pulling pair is frozen meanwhile: an idle NIXL engine
    keeps a core busy."""
    for role in ("p", "d"):
        fleet[role].pause()
    try:
        with booted(ENVIRONMENT, tiny_model(ENVIRONMENT, CACHE), run_dir, PUSH_ROLES) as pair:
            yield {"e": fleet["e"], **pair}
    finally:
        for role in ("p", "d"):
            fleet[role].resume()
            fleet[role].wait()


@pytest.fixture(scope="module")
def router(pushing: Fleet, run_dir: Path) -> Iterator[Router]:
    prefill = f"{pushing['pp'].url},engine_id=engine-pp,kv_host=localhost,kv_port={pushing['pp'].side_port}"
    options = ["--encode", pushing["e"].url, "--prefill", prefill, "--decode", pushing["pd"].url, "--kv-connector", "nixl-push"]
    with routing(run_dir / "router-push.log", *options) as running:
        yield running


@pytest.fixture(scope="module", params=[1, 16])
def done(request: pytest.FixtureRequest, pushing: Fleet, router: Router, server: PictureServer) -> Run:
    at_once = int(request.param)
    return run(pushing, router.url, server, salt=f"push {at_once}", at_once=at_once, decode="pd")


@pytest.mark.parametrize("name", [prompt.name for prompt in PROMPTS])
def test_equals_aggregated(done: Run, expected: dict[str, client.Answer], name: str) -> None:
    check_answer(done.answers[name], expected[name])


def test_each_picture_is_encoded_once_and_kv_is_pushed(done: Run) -> None:
    check_encodes(done)
    assert done.tokens_loaded > 1000


def test_a_refused_picture_ends_both_legs(pushing: Fleet, router: Router, server: PictureServer) -> None:
    body = next(prompt for prompt in PROMPTS if prompt.name == "one PNG").body(server)
    part = next(part for part in body["messages"][-1]["content"] if part["type"] == "image_url")
    part["image_url"]["url"] = "data:image/png;base64,iVBORw0KGgo="
    with pytest.raises(client.RefusedError) as refused:
        client.ask(router.url, body)
    assert refused.value.status == 400
    assert all(engine.healthy for engine in pushing.values())
