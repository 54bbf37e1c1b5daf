"""Worker URLs with labels: `http://host:8001,weight=2,node=a`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from epd_router.errors import ConfigError

HOST = re.compile(r"[A-Za-z0-9._:%-]+")
NUMBERS = ("bootstrap", "kv_port", "ec_port", "tp", "pp")
TEXTS = ("node", "engine_id", "kv_host", "ec_host", "media")
WAYS = ("data", "file", "http")


@dataclasses.dataclass(frozen=True)
class WorkerSpec:
    """One worker as configured. `weight` is relative capacity; the other labels tell connectors where to meet: `kv_*` the
    side channel of a prefill worker, `ec_*` the control port of an embedding consumer (vLLM's defaults). `media` is how it gets
    media, as --media-handoff has it."""

    url: str
    weight: float = 1.0
    node: str = ""
    engine_id: str = ""
    kv_host: str = ""
    kv_port: int = 5600
    ec_host: str = ""
    ec_port: int = 14579
    tp: int = 1
    pp: int = 1
    bootstrap: int = 0
    media: str = ""

    @property
    def id(self) -> str:
        """`host:port`, how the worker is named in headers, logs and metrics."""
        return urlsplit(self.url).netloc

    def __str__(self) -> str:
        return self.url

    def labelled(self, labels: Mapping[str, object]) -> WorkerSpec:
        """The same with labels by name. Raises ConfigError."""
        known = [_label(f"{key}={value}") for key, value in labels.items()]
        return dataclasses.replace(self, **{key: value for label in known for key, value in label.items()})


def parse_worker_list(text: str) -> tuple[WorkerSpec, ...]:
    """Workers from a comma separated list; `key=value` labels and a bare bootstrap port follow their URL."""
    specs: list[WorkerSpec] = []
    for piece in (word.strip() for word in text.split(",")):
        if not piece or piece in {"disable", "none"}:
            continue
        if "://" in piece.split("=", 1)[0]:
            specs.append(WorkerSpec(normalise(piece)))
        elif not specs:
            raise ConfigError(f"{piece!r} is not a worker URL (http://host:port)")
        else:
            specs[-1] = dataclasses.replace(specs[-1], **_label(piece))
    if len({spec.url for spec in specs}) != len(specs):
        raise ConfigError("a worker URL is given twice")
    return tuple(specs)


def normalise(url: str) -> str:
    """`scheme://host:port` without path. Raises ConfigError for anything a worker cannot be."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ConfigError(f"{url!r} is not a worker URL (http://host:port)") from None
    if parts.scheme not in {"http", "https"} or not HOST.fullmatch(host) or port == 0 or "@" in parts.netloc:
        raise ConfigError(f"{url!r} is not a worker URL (http://host:port)")
    if parts.path.rstrip("/") or parts.query or parts.fragment:
        raise ConfigError(f"{url!r}: a worker URL has no path")
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port or (443 if parts.scheme == 'https' else 80)}"


def _label(piece: str) -> dict[str, Any]:
    key, _, value = piece.partition("=")
    if piece.isdigit():
        return {"bootstrap": int(piece)}
    if key == "media" and value not in WAYS:
        raise ConfigError(f"{piece!r}: media must be {', '.join(WAYS)}")
    if key in TEXTS:
        return {key: value}
    try:
        if key in NUMBERS:
            return {key: int(value)}
        if key == "weight" and 0 < float(value) < float("inf"):
            return {key: float(value)}
    except ValueError:
        pass
    if key in NUMBERS or key == "weight":
        raise ConfigError(f"{piece!r}: {key} must be a {'whole' if key in NUMBERS else 'positive'} number")
    raise ConfigError(f"{piece!r} is not a worker label (weight=, {'=, '.join((*TEXTS, *NUMBERS))}=)")
