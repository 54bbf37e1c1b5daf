"""The `openai` client, unmodified, cannot tell the router from the aggregated worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import openai
import pytest

from .fleet import MODEL, Fleet
from .pictures import Picture, data_url
from .router import Router

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam

LONG = 2000


def messages(url: str) -> list[ChatCompletionMessageParam]:
    return [
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": url}},
                {"type": "text", "text": "What do you see?"},
            ],
        }
    ]


PICTURE = messages(Picture(500).data_url)
TRUNCATED = messages(data_url(Picture(501).content[:-400]))


@pytest.fixture
def direct(fleet: Fleet) -> Iterator[openai.OpenAI]:
    """The client at the aggregated worker."""
    with openai.OpenAI(base_url=f"{fleet['agg'].url}/v1", api_key="none", max_retries=0) as api:
        yield api


@pytest.fixture
def routed(epd: Router) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{epd.url}/v1", api_key="none", max_retries=0) as api:
        yield api


@pytest.fixture
async def routed_async(epd: Router) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{epd.url}/v1", api_key="none", max_retries=0) as api:
        yield api


@pytest.fixture
def said(direct: openai.OpenAI) -> str | None:
    """What the aggregated worker says of the picture."""
    answer = direct.chat.completions.create(model=MODEL, messages=PICTURE, temperature=0, max_tokens=16)
    assert answer.choices[0].message.content
    return answer.choices[0].message.content


def test_models(routed: openai.OpenAI) -> None:
    assert [model.id for model in routed.models.list()] == [MODEL]


def test_sync(routed: openai.OpenAI, said: str) -> None:
    answer = routed.chat.completions.create(model=MODEL, messages=PICTURE, temperature=0, max_tokens=16)
    assert answer.choices[0].message.content == said


def test_sync_stream(routed: openai.OpenAI, said: str) -> None:
    with routed.chat.completions.create(model=MODEL, messages=PICTURE, temperature=0, max_tokens=16, stream=True) as stream:
        assert "".join(event.choices[0].delta.content or "" for event in stream) == said


async def test_async(routed_async: openai.AsyncOpenAI, said: str) -> None:
    answer = await routed_async.chat.completions.create(model=MODEL, messages=PICTURE, temperature=0, max_tokens=16)
    assert answer.choices[0].message.content == said


async def test_async_stream(routed_async: openai.AsyncOpenAI, said: str) -> None:
    async with await routed_async.chat.completions.create(
        model=MODEL,
        messages=PICTURE,
        temperature=0,
        max_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        events = [event async for event in stream]
    assert "".join(event.choices[0].delta.content or "" for event in events if event.choices) == said
    assert events[-1].usage
    assert events[-1].usage.completion_tokens > 0


def test_timeout(routed: openai.OpenAI) -> None:
    with pytest.raises(openai.APITimeoutError):
        routed.chat.completions.create(model=MODEL, messages=PICTURE, max_tokens=LONG, extra_body={"ignore_eos": True}, timeout=0.2)


@pytest.mark.parametrize("stream", [False, True])
def test_a_truncated_picture(direct: openai.OpenAI, routed: openai.OpenAI, stream: bool) -> None:
    refusals = []
    for api in (direct, routed):
        with pytest.raises(openai.BadRequestError) as caught:
            api.chat.completions.create(model=MODEL, messages=TRUNCATED, stream=stream)
        refusals.append((caught.value.status_code, caught.value.body))
    assert refusals[0] == refusals[1]
