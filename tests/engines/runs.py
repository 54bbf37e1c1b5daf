"""All prompts through one router, with the counters of the engines before and after."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from . import client
from .fleet import Engine, Fleet
from .pictures import PictureServer
from .prompts import PROMPTS, Prompt, distinct

ENCODED = "vllm:request_success_total"
LOADED = "vllm:external_prefix_cache_hits_total"
TEXT = [prompt for prompt in PROMPTS if not prompt.has_pictures]
PICTURES = [prompt for prompt in PROMPTS if prompt.has_pictures]


@dataclasses.dataclass(frozen=True)
class Run:
    """Answers by name of the prompt; requests at the encoder; prompt tokens that the decode engine got from prefill."""

    answers: dict[str, client.Answer | client.RefusedError]
    encodes_for_text: int
    encodes_for_pictures: int
    tokens_loaded: int


def run(fleet: Fleet, url: str, server: PictureServer, salt: str, at_once: int = 1, decode: str = "d") -> Run:
    """`salt` keeps the prefix cache from answering for an earlier run."""
    loaded = fleet[decode].metric(LOADED)
    before = settled(fleet["e"])
    answers = answer_all(url, server, TEXT, salt, at_once)
    between = settled(fleet["e"])
    answers |= answer_all(url, server, PICTURES, salt, at_once)
    after = settled(fleet["e"])
    return Run(answers, between - before, after - between, int(fleet[decode].metric(LOADED) - loaded))


def answer_all(
    url: str, server: PictureServer, prompts: Iterable[Prompt], salt: str, at_once: int
) -> dict[str, client.Answer | client.RefusedError]:
    def one(prompt: Prompt) -> tuple[str, client.Answer | client.RefusedError]:
        try:
            return prompt.name, client.ask(url, prompt.body(server, cache_salt=salt))
        except client.RefusedError as failure:
            return prompt.name, failure

    with ThreadPoolExecutor(at_once) as pool:
        return dict(pool.map(one, prompts))


def settled(encoder: Engine) -> int:
    """Finished encode requests, once the counter stands still (it is written after the answer)."""
    seen = encoder.metric(ENCODED)
    while True:
        time.sleep(0.3)
        previous, seen = seen, encoder.metric(ENCODED)
        if seen == previous:
            return int(seen)


def check_encodes(done: Run) -> None:
    """One encode request for each distinct picture, none for text."""
    assert done.encodes_for_text == 0
    assert done.encodes_for_pictures == distinct(PICTURES)


def check_answer(answer: client.Answer | client.RefusedError, expected: client.Answer) -> None:
    assert isinstance(answer, client.Answer), answer
    assert answer.same(expected), f"{answer} {answer.logprobs}\n{expected} {expected.logprobs}"
