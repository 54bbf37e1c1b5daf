"""The prefill engine is killed in the middle of requests and comes back."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor

from . import client
from .fleet import Engine, Fleet
from .pictures import PictureServer
from .prompts import PROMPTS, Prompt
from .router import Router
from .runs import check_answer

CLEAR = {502, 503}
RESUME_SECONDS = 60
ASKED = [prompt for prompt in PROMPTS if prompt.name in {"text, long", "one JPEG", "one PNG, stream", "two", "four"}]

Expected = dict[str, client.Answer]


def ask(router: Router, server: PictureServer, prompt: Prompt, salt: str) -> client.Answer | client.RefusedError:
    try:
        return client.ask(router.url, prompt.body(server, cache_salt=salt))
    except client.RefusedError as failure:
        return failure


def wait_until_asked(engine: Engine, waiting: int) -> None:
    """Until that many connections hold bytes which the frozen engine has not read."""
    end = time.monotonic() + 60
    while engine.unread_connections() < waiting:
        assert time.monotonic() < end, "no request reached the prefill engine"
        time.sleep(0.05)


def check_clear(answer: client.Answer | client.RefusedError, expected: client.Answer) -> None:
    """The right answer, or a status that says what is wrong."""
    if isinstance(answer, client.RefusedError):
        assert answer.status in CLEAR, answer
        assert '"message"' in answer.body
    else:
        check_answer(answer, expected)


def test_prefill_killed_and_restarted(fleet: Fleet, epd: Router, server: PictureServer, expected: Expected) -> None:
    engine = fleet["p"]
    epd.wait()  # other tests freeze engines
    with ThreadPoolExecutor(len(ASKED)) as pool:
        engine.pause()
        under_way: list[Future[client.Answer | client.RefusedError]] = [
            pool.submit(ask, epd, server, prompt, "killed") for prompt in ASKED
        ]
        wait_until_asked(engine, len(ASKED))
        engine.kill()
        for prompt, answer in zip(ASKED, under_way, strict=True):
            check_clear(answer.result(), expected[prompt.name])
    check_clear(ask(epd, server, ASKED[0], "down"), expected[ASKED[0].name])

    engine.start()
    engine.wait()
    resumed(epd, server, expected)
    assert all(other.alive and other.healthy for other in fleet.values())


def resumed(router: Router, server: PictureServer, expected: Expected) -> None:
    """The router finds the engine again by itself; from then on every answer is right."""
    end = time.monotonic() + RESUME_SECONDS
    while isinstance(answer := ask(router, server, ASKED[0], "back"), client.RefusedError):
        check_clear(answer, expected[ASKED[0].name])
        assert time.monotonic() < end, answer
        time.sleep(0.5)
    for prompt in ASKED:
        check_answer(ask(router, server, prompt, "again"), expected[prompt.name])
