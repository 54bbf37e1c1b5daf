"""Thirty prompts over text and pictures, formats, sources, languages and turns."""

from __future__ import annotations

import base64
import dataclasses
import io
import random
from typing import Any

from PIL import Image, ImageDraw

MIME = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp"}
KINDS = tuple(MIME)
TEXTS = (
    "What does the picture show?",
    "Was ist auf dem Bild zu sehen?",
    "Compare the pictures.",
    "Beschreibe die Bilder, bitte: größer?",
)


def picture(seed: int, kind: str, size: tuple[int, int] = (168, 112)) -> bytes:
    """A picture like no other."""
    dice = random.Random(seed)
    image = Image.new("RGB", size, tuple(dice.randrange(256) for _ in range(3)))
    draw = ImageDraw.Draw(image)
    for _ in range(25):
        x, y = dice.randrange(size[0]), dice.randrange(size[1])
        draw.ellipse(
            (x, y, x + dice.randrange(10, 60), y + dice.randrange(10, 60)),
            fill=tuple(dice.randrange(256) for _ in range(3)),
        )
    out = io.BytesIO()
    image.save(out, kind)
    return out.getvalue()


@dataclasses.dataclass
class Prompt:
    """A request and the pictures in it, by name; names that start with `/` are served over HTTP."""

    name: str
    body: dict[str, Any]
    pictures: list[str] = dataclasses.field(default_factory=list)


class Book:
    """Makes the prompts; `served` are the pictures that must be served at `base`."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.served: dict[str, bytes] = {}

    def part(self, seed: int, kind: str, *, url: bool) -> tuple[str, dict[str, Any]]:
        content = picture(seed, kind)
        if url:
            path = f"/{seed}.{kind.lower()}"
            self.served[path] = content
            return path, {"type": "image_url", "image_url": {"url": self.base + path}}
        text = f"data:{MIME[kind]};base64,{base64.b64encode(content).decode()}"
        return f"{seed}.{kind}", {"type": "image_url", "image_url": {"url": text}}

    def ask(self, text: str, seeds: list[int], *, url: bool = False, **more: Any) -> Prompt:
        parts = [self.part(seed, KINDS[seed % 3], url=url) for seed in seeds]
        content = [part for _, part in parts] + [{"type": "text", "text": text}]
        return Prompt(f"{text} {seeds}", request([{"role": "user", "content": content}], **more), [name for name, _ in parts])

    def prompts(self) -> list[Prompt]:
        """All thirty."""
        listed = [Prompt(f"text {n}", request([{"role": "user", "content": f"Tell me about number {n}."}])) for n in range(4)]
        listed += [self.ask(TEXTS[n % 2], [n]) for n in range(9)]
        listed += [self.ask(TEXTS[2], [10 + n, 20 + n]) for n in range(3)]
        listed += [self.ask(TEXTS[3], [30 + n, 31 + n, 32 + n, 33 + n]) for n in range(2)]
        listed += [self.ask(TEXTS[n % 2], [40 + n], url=True) for n in range(4)]
        listed += [self.ask(TEXTS[2], [50, 51], url=True)]
        listed += [self.ask(TEXTS[0], [60 + n], top_p=1.0 - n / 100) for n in range(2)]
        listed += [self.ask(TEXTS[1], [0]), self.ask("Again, another question?", [1])]  # known pictures
        for seed in (70, 71, 72):
            first = self.ask(TEXTS[0], [seed])
            turns = [
                *first.body["messages"],
                {"role": "assistant", "content": "A shape."},
                {"role": "user", "content": "Which colour?"},
            ]
            listed.append(Prompt(f"turns {seed}", request(turns), first.pictures))
        return listed


def request(messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "temperature": 0, "max_tokens": 8, "return_token_ids": True, "messages": messages, **more}
