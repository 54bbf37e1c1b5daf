"""The claims of the README on real engines."""

from __future__ import annotations

import asyncio
import functools
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import aiohttp
import openai
import pytest

from tests.engines.fleet import Engine
from tests.engines.prompts import Book, Prompt, picture
from tests.engines.router import Router

Fleet = dict[str, Engine]
SUCCESS = "vllm:request_success_total"


class Pictures(http.server.BaseHTTPRequestHandler):
    """Serves the pictures of a book."""

    def __init__(self, book: Book, *arguments: Any) -> None:
        self._book = book
        super().__init__(*arguments)

    def do_GET(self) -> None:
        content = self._book.served[self.path]
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Be quiet."""


@pytest.fixture(scope="session")
def prompts() -> Iterator[list[Prompt]]:
    book = Book("")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Pictures, book)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        book.base = f"http://127.0.0.1:{server.server_port}"
        yield book.prompts()
        server.shutdown()


async def token_ids(session: aiohttp.ClientSession, url: str, body: dict[str, Any], *, stream: bool = False) -> list[int]:
    async with session.post(f"{url}/v1/chat/completions", json={**body, "stream": stream}) as answer:
        text = await answer.text()
        assert answer.status == 200, text
    if not stream:
        return list(json.loads(text)["choices"][0]["token_ids"])
    found: list[int] = []
    for line in text.splitlines():
        if line.startswith("data: {"):
            found += (json.loads(line[6:])["choices"] or [{}])[0].get("token_ids") or []
    return found


@pytest.fixture(scope="session")
def expected(fleet: Fleet, prompts: list[Prompt]) -> list[list[int]]:
    """The aggregated engine's answers."""

    async def ask() -> list[list[int]]:
        async with aiohttp.ClientSession() as session:
            return [await token_ids(session, fleet["agg"].url, prompt.body) for prompt in prompts]

    return asyncio.run(ask())


def distinct(prompts: list[Prompt]) -> int:
    """Pictures to encode: each one once, those behind URLs once a request."""
    named = {name for prompt in prompts for name in prompt.pictures if not name.startswith("/")}
    return len(named) + sum(len({name for name in prompt.pictures if name.startswith("/")}) for prompt in prompts)


async def test_encode_prefill_decode_equals_aggregated(
    fleet: Fleet, epd: Router, prompts: list[Prompt], expected: list[list[int]]
) -> None:
    assert len(prompts) == 30
    assert len({tuple(ids) for ids in expected}) > 20  # the model tells pictures apart, so a wrong one would show
    before = fleet["e"].metric(SUCCESS)
    async with aiohttp.ClientSession() as session:
        for number, (prompt, right) in enumerate(zip(prompts, expected, strict=True)):
            start = fleet["e"].metric(SUCCESS)
            assert await token_ids(session, epd.url, prompt.body, stream=number % 2 == 1) == right, prompt.name
            if not prompt.pictures:
                assert fleet["e"].metric(SUCCESS) == start, "a text request reached the encoder"
    assert fleet["e"].metric(SUCCESS) - before == distinct(prompts)


async def test_encode_and_prefill_decode_equals_aggregated(
    fleet: Fleet, e_pd: Router, prompts: list[Prompt], expected: list[list[int]]
) -> None:
    before = fleet["e"].metric(SUCCESS)
    async with aiohttp.ClientSession() as session:
        for prompt, right in zip(prompts, expected, strict=True):
            assert await token_ids(session, e_pd.url, prompt.body) == right, prompt.name
    assert fleet["e"].metric(SUCCESS) - before == distinct(prompts)


async def test_sixteen_at_once(fleet: Fleet, epd: Router, prompts: list[Prompt], expected: list[list[int]]) -> None:
    async with aiohttp.ClientSession() as session:
        answers = await asyncio.gather(*(token_ids(session, epd.url, prompt.body) for prompt in prompts[:16]))
    assert answers == expected[:16]
    assert all(engine.alive for engine in fleet.values())


def test_openai_client(epd: Router, prompts: list[Prompt]) -> None:
    api = openai.OpenAI(base_url=f"{epd.url}/v1", api_key="none", max_retries=0)
    assert [model.id for model in api.models.list()] == ["tiny"]
    messages: Any = prompts[5].body["messages"]
    whole = api.chat.completions.create(model="tiny", messages=messages, temperature=0, max_tokens=6)
    stream = api.chat.completions.create(model="tiny", messages=messages, temperature=0, max_tokens=6, stream=True)
    assert "".join(event.choices[0].delta.content or "" for event in stream) == whole.choices[0].message.content
    with pytest.raises(openai.APITimeoutError):
        api.with_options(timeout=0.01).chat.completions.create(model="tiny", messages=messages, max_tokens=64)


async def test_async_openai_client_and_a_truncated_picture(fleet: Fleet, epd: Router) -> None:
    import base64

    content = picture(99, "JPEG")[:-300]
    url = "data:image/jpeg;base64," + base64.b64encode(content).decode()
    messages: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    said = []
    for base in (fleet["agg"].url, epd.url):
        async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0) as api:
            with pytest.raises(openai.BadRequestError) as caught:
                await api.chat.completions.create(model="tiny", messages=messages)
            said.append(caught.value.body)
    assert said[0] == said[1]


async def test_a_killed_prefill_engine_comes_back(
    fleet: Fleet, epd: Router, prompts: list[Prompt], expected: list[list[int]]
) -> None:
    async def once(session: aiohttp.ClientSession, number: int) -> int:
        async with session.post(f"{epd.url}/v1/chat/completions", json=prompts[number].body) as answer:
            document = await answer.json()
            if answer.status == 200:
                assert document["choices"][0]["token_ids"] == expected[number]
            else:
                assert document["error"]["code"] in {"prefill_failed", "no_prefill_worker", "decode_failed", 500}, document
            return answer.status

    async with aiohttp.ClientSession() as session:
        under_way = [asyncio.create_task(once(session, number)) for number in range(4, 10)]
        await asyncio.sleep(0.15)
        fleet["p"].kill()
        statuses = await asyncio.gather(*under_way)
        assert set(statuses) <= {200, 500, 502, 503}
        assert await once(session, 4) in {502, 503}
        fleet["p"].start()
        await asyncio.to_thread(fleet["p"].wait)
        await asyncio.to_thread(epd.wait_ready, 60)
        assert await once(session, 4) == 200
