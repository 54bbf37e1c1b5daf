"""Disaggregated answers equal those of the aggregated worker, and every stage really ran."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from . import client
from .conftest import topology
from .fleet import Fleet
from .pictures import PictureServer
from .prompts import PROMPTS, Prompt, Shown
from .router import Router, routing
from .runs import PICTURES, Run, check_answer, check_encodes, run

BY_NAME = {prompt.name: prompt for prompt in PROMPTS}


@pytest.fixture(scope="module", params=["E+P+D", "E+PD"])
def done(request: pytest.FixtureRequest, fleet: Fleet, server: PictureServer, run_dir: Path) -> Run:
    name = str(request.param)
    with routing(run_dir / f"router-{name}.log", *topology(fleet, name)) as router:
        return run(fleet, router.url, server, salt=name)


def test_thirty_prompts() -> None:
    assert len(BY_NAME) == len(PROMPTS) == 30


@pytest.mark.parametrize("name", BY_NAME)
def test_equals_aggregated(done: Run, expected: dict[str, client.Answer], name: str) -> None:
    check_answer(done.answers[name], expected[name])


def test_each_picture_is_encoded_once(done: Run) -> None:
    check_encodes(done)


def test_prefill_hands_over_to_decode(done: Run, request: pytest.FixtureRequest) -> None:
    disaggregated = "E+P+D" in request.node.name
    assert (done.tokens_loaded > 1000) is disaggregated


def test_a_bypassed_encoder_is_noticed(
    fleet: Fleet, server: PictureServer, run_dir: Path, expected: dict[str, client.Answer]
) -> None:
    """Without encoders the answers are right, and only the count tells."""
    with routing(run_dir / "router-bypass.log", *topology(fleet, "P+D")) as router:
        bypassed = run(fleet, router.url, server, salt="bypass")
    for name, answer in bypassed.answers.items():
        check_answer(answer, expected[name])
    with pytest.raises(AssertionError):
        check_encodes(bypassed)


@pytest.mark.parametrize("name", [prompt.name for prompt in PICTURES])
def test_another_picture_gives_another_answer(
    fleet: Fleet, server: PictureServer, expected: dict[str, client.Answer], name: str
) -> None:
    """The comparison can fail: whichever picture of a prompt is another one, the aggregated worker says so."""
    for place in range(len(BY_NAME[name].shown)):
        swapped = swap(BY_NAME[name], place)
        assert not client.ask(fleet["agg"].url, swapped.body(server)).same(expected[name]), place


def swap(prompt: Prompt, place: int) -> Prompt:
    """The prompt with another picture of the same size at one place."""
    old = prompt.shown[place].picture
    new = Shown(dataclasses.replace(old, seed=old.seed + 1000))
    left = iter(range(len(prompt.shown)))
    turns = tuple(
        turn if isinstance(turn, str) else tuple(part if isinstance(part, str) or next(left) != place else new for part in turn)
        for turn in prompt.turns
    )
    return dataclasses.replace(prompt, turns=turns)


def test_the_decision_names_the_workers(fleet: Fleet, epd: Router, server: PictureServer) -> None:
    body = BY_NAME["one PNG"].body(server)
    headers, _ = client.post(epd.url, body, {"x-epd-router-explain": "1"})
    assert headers["x-epd-router-decision"] == "encode-prefill-decode"
    for stage, role in (("encode", "e"), ("prefill", "p"), ("decode", "d")):
        assert str(fleet[role].port) in headers[f"x-epd-router-{stage}"]
