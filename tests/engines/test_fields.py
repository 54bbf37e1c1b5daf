"""Request fields that a disaggregated way could get wrong, and refusals: all as the aggregated worker has them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from . import client
from .fleet import MODEL, Fleet
from .pictures import Picture
from .router import Router

Fields = dict[str, Any]

TEXT = "A question that is long enough to fill more than one block of the key-value cache, at least with pictures. "
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 4}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
BEGINNING = {"min_tokens": 0, "max_tokens": 16, "temperature": 0}
FIELDS: dict[str, Fields] = {
    "stop": {"stop": ["a", "e", "o", "8"]},
    "stop, included": {"stop": ["a", "e", "o", "8"], "include_stop_str_in_output": True},
    "stop at the first token": {"stop_token_ids": list(range(262))},
    "stop token ids": {"stop_token_ids": list(range(40, 60))},
    "min_tokens": {"min_tokens": 8, "stop_token_ids": list(range(262))},
    "ignore_eos": {"ignore_eos": True, "max_tokens": 40},
    "max_completion_tokens": {"max_completion_tokens": 5, "max_tokens": None},
    "max_tokens 1": {"max_tokens": 1},
    "n": {"n": 3, "temperature": 1, "top_k": 1},
    "logprobs": {"logprobs": True, "top_logprobs": 4},
    "prompt_logprobs": {"prompt_logprobs": 2},
    "prompt_logprobs, few": {"prompt_logprobs": 1},
    "prompt_logprobs, chosen": {"prompt_logprobs": 0},
    "penalties": {"presence_penalty": 1.5, "frequency_penalty": 0.7, "repetition_penalty": 1.3},
    "logit_bias": {"logit_bias": {"58": -50, "6": 5}},
    "json_schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    "json_object": {"response_format": {"type": "json_object"}},
    "regex": {"structured_outputs": {"regex": "[a-f]{6,9}"}},
    "tools, none": {"tools": [TOOL], "tool_choice": "none"},
    "tools, auto": {"tools": [TOOL], "tool_choice": "auto"},
    "no generation prompt": {"add_generation_prompt": False},
    "template": {"chat_template_kwargs": {"enable_thinking": False}},
    "priority and salt": {"priority": 0, "cache_salt": "one"},
    "usage in the stream": {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "n in the stream": {"n": 2, "temperature": 1, "top_k": 1, "stream": True},
}
REFUSED: dict[str, Fields] = {
    "temperature": {"temperature": -1},
    "max_tokens": {"max_tokens": 99999},
    "logit_bias": {"logit_bias": {"999999": 1}},
    "greedy n": {"n": 2},
    "grammar": {"structured_outputs": {"regex": "("}},
    "min_tokens": {"min_tokens": 99},
    "stream_options": {"stream_options": {"include_usage": True}},
    "mm_processor_kwargs": {"mm_processor_kwargs": {"max_pixels": 6272}},
    "before the stream": {"temperature": -1, "stream": True},
}


def body(fields: Fields, pictures: int, seed: int) -> Fields:
    parts: list[Fields] = [
        {"type": "image_url", "image_url": {"url": Picture(seed + number).data_url}} for number in range(pictures)
    ]
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": TEXT}]}]
    return {"model": MODEL, "messages": messages, "return_token_ids": True, **BEGINNING, **fields}


def choices(base: str, request: Fields, path: str = "/v1/chat/completions") -> list[Fields]:
    """What was said, without ids and times; a stream is merged by choice."""
    _, text = client.post(base, request, path=path)
    documents = client.events(text) if request.get("stream") else [json.loads(text)]
    merged: dict[int, Fields] = {}
    for choice in (choice for document in documents for choice in document["choices"]):
        said = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
        into = merged.setdefault(choice["index"], {"text": "", "ids": [], "calls": [], "end": None, "logprobs": []})
        into["text"] += said.get("content") or ""
        into["ids"] += choice.get("token_ids") or []
        into["calls"] += [call["function"] for call in said.get("tool_calls") or []]
        into["end"] = choice["finish_reason"] and (choice["finish_reason"], choice["stop_reason"])
        into["logprobs"] += [step["token"] for step in (choice.get("logprobs") or {}).get("content") or []]
    return [merged[index] for index in sorted(merged)]


@pytest.mark.parametrize("pictures", [0, 2])
@pytest.mark.parametrize("name", FIELDS)
def test_field(fleet: Fleet, epd: Router, name: str, pictures: int) -> None:
    request = body(FIELDS[name], pictures, 2000)
    expected = choices(fleet["agg"].url, request)
    assert any(choice["ids"] for choice in expected)
    assert choices(epd.url, request) == expected


@pytest.mark.parametrize("pictures", [0, 2])
@pytest.mark.parametrize("name", REFUSED)
def test_refusal(fleet: Fleet, epd: Router, name: str, pictures: int) -> None:
    """Status and body of a refusal, and no harm to the next request with the same pictures."""
    seed = 3000 + 10 * list(REFUSED).index(name)
    refusals = []
    for base in (fleet["agg"].url, epd.url):
        with pytest.raises(client.RefusedError) as caught:
            client.post(base, body(REFUSED[name], pictures, seed))
        refusals.append((caught.value.status, json.loads(caught.value.body)))
    assert refusals[0][0] == 400
    assert refusals[0] == refusals[1]
    assert choices(epd.url, body({}, pictures, seed))


@pytest.mark.parametrize("prompt", [TEXT * 2, [84, 85, 86] * 30, [TEXT * 2], [TEXT, TEXT * 3], [[84, 85, 86] * 30, [90] * 70]])
def test_completions(fleet: Fleet, epd: Router, prompt: object) -> None:
    """A list of prompts must not be disaggregated: it would end the decode engine."""
    request = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 8, "return_token_ids": True}
    path = "/v1/completions"
    assert choices(epd.url, request, path) == choices(fleet["agg"].url, request, path)


def test_engines_live(fleet: Fleet) -> None:
    assert all(engine.alive and engine.healthy for engine in fleet.values())
