"""Thirty prompts: text and pictures, formats, sources, streams, turns, languages."""

from __future__ import annotations

import dataclasses
from typing import Any

from .fleet import MODEL
from .pictures import Picture, PictureServer

Message = dict[str, Any]
ENGLISH = "Describe what you can see in the picture, please."
CHINESE = "请描述一下这些图片里的内容。"
COMPARE = "Compare the pictures: which one is the brighter?"


@dataclasses.dataclass(frozen=True)
class Shown:
    """A picture in a prompt, by value or by URL."""

    picture: Picture
    by_url: bool = False

    def part(self, server: PictureServer) -> Message:
        url = server.url(self.picture) if self.by_url else self.picture.data_url
        return {"type": "image_url", "image_url": {"url": url}}


Turn = str | tuple[Shown | str, ...]


@dataclasses.dataclass(frozen=True)
class Prompt:
    """Turns of user and assistant in alternation, the first and the last one by the user."""

    name: str
    turns: tuple[Turn, ...]
    stream: bool = False

    @property
    def shown(self) -> list[Shown]:
        return [part for turn in self.turns if not isinstance(turn, str) for part in turn if isinstance(part, Shown)]

    @property
    def has_pictures(self) -> bool:
        return bool(self.shown)

    def body(self, server: PictureServer, **more: Any) -> Message:
        """The request; two likeliest tokens come with every token to make small differences visible."""
        messages = [
            {"role": ("user", "assistant")[number % 2], "content": content(turn, server)} for number, turn in enumerate(self.turns)
        ]
        asked = {"temperature": 0, "max_tokens": 12, "return_token_ids": True, "logprobs": True, "top_logprobs": 2}
        return {"model": MODEL, "messages": messages, "stream": self.stream, **asked, **more}


def content(turn: Turn, server: PictureServer) -> str | list[Message]:
    if isinstance(turn, str):
        return turn
    return [part.part(server) if isinstance(part, Shown) else {"type": "text", "text": part} for part in turn]


def distinct(prompts: list[Prompt]) -> int:
    """Pictures to encode: one by value once and for all, one behind a URL once a prompt."""
    by_value = {shown.picture for prompt in prompts for shown in prompt.shown if not shown.by_url}
    by_url = [{shown.picture for shown in prompt.shown if shown.by_url} for prompt in prompts]
    return len(by_value) + sum(map(len, by_url))


def ask(name: str, text: str, *shown: Shown, stream: bool = False) -> Prompt:
    return Prompt(name, ((*shown, text),), stream)


def data(seed: int, kind: str = "jpeg", size: tuple[int, int] = (112, 84)) -> Shown:
    return Shown(Picture(seed, kind, size))


def url(seed: int, kind: str = "jpeg", size: tuple[int, int] = (112, 84)) -> Shown:
    return Shown(Picture(seed, kind, size), by_url=True)


PROMPTS = [
    Prompt("text", ("Tell me about the number seven.",)),
    Prompt("text, stream", ("Tell me about the number eight.",), stream=True),
    Prompt("text, Chinese", ("给我讲讲数字九的故事。",)),
    Prompt("text, Chinese, stream", ("给我讲讲数字十的故事。",), stream=True),
    Prompt("text, shorter than a block", ("Hi",)),
    Prompt("text, long", ("All of the long text again and again. " * 40,)),
    Prompt("text, turns", ("Name a colour.", "Blue.", "Another one, please.")),
    ask("one JPEG", ENGLISH, data(1)),
    ask("one JPEG, stream", ENGLISH, data(2), stream=True),
    ask("one PNG", ENGLISH, data(3, "png")),
    ask("one PNG, stream", CHINESE, data(4, "png"), stream=True),
    ask("one WebP", CHINESE, data(5, "webp")),
    ask("one WebP, stream", ENGLISH, data(6, "webp", (150, 97)), stream=True),
    ask("one, tall", CHINESE, data(7, "png", (64, 200))),
    ask("one, large", ENGLISH, data(8, "jpeg", (448, 336)), stream=True),
    ask("one, smaller than a block", "?", data(9, "png", (56, 56))),
    ask("one JPEG by URL", ENGLISH, url(10)),
    ask("one PNG by URL, stream", CHINESE, url(11, "png"), stream=True),
    ask("one WebP by URL", ENGLISH, url(12, "webp", (200, 64))),
    ask("two", COMPARE, data(13), data(14, "png")),
    ask("two, stream", CHINESE, data(15, "webp"), data(16), stream=True),
    ask("two by URL", COMPARE, url(17), url(18, "webp")),
    ask("one by value, one by URL, stream", COMPARE, data(19, "png"), url(20, "png", (97, 150)), stream=True),
    ask("the same one twice", COMPARE, data(21), data(21)),
    ask("four", COMPARE, data(22), data(23, "png"), data(24, "webp"), data(25)),
    ask("four, stream", CHINESE, data(26), url(27, "png"), data(28, "webp"), url(29), stream=True),
    ask("a known one, another question", CHINESE, data(1)),
    Prompt("turns about one", ((data(30), ENGLISH), "Squares.", "Which colours do they have?")),
    Prompt("turns, a picture in each", ((data(31), ENGLISH), "Squares.", (data(32, "png"), COMPARE)), stream=True),
    Prompt("turns, Chinese, a known one", ((CHINESE, data(2)), "方块。", ("还有这张呢", url(33, "webp")))),
]
