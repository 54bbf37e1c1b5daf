"""Every option once: from a field here follow flag, environment name, YAML key, help text and the reference page.

Precedence: flag > `EPD_ROUTER_*` environment > `--config` file > default.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from epd_router._core import __version__
from epd_router.errors import ConfigError
from epd_router.media.guard import plain_host
from epd_router.urls import WorkerSpec, parse_worker_list

UNITS = {"": 1, "b": 1, "kb": 1000, "kib": 1 << 10, "mb": 10**6, "mib": 1 << 20, "gb": 10**9, "gib": 1 << 30}


def size(text: str) -> int:
    """Bytes from `1048576`, `1MiB` or `1 MB`."""
    number = text.rstrip("BbIiKkMmGg ")
    return int(not_negative(number) * UNITS[text[len(number) :].strip().lower()])


def seconds(text: str) -> float:
    """Seconds from `2.5`, `500ms`, `30s` or `5m`."""
    for suffix, factor in (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)):
        if text.endswith(suffix):
            return not_negative(text[: -len(suffix)]) * factor
    return not_negative(text)


def not_negative(text: str) -> float:
    """A finite number from 0 on."""
    number = float(text)
    if not 0 <= number < math.inf:
        raise ValueError(text)
    return number


def count(text: str) -> int:
    """A whole number from 0 on."""
    number = int(text)
    if not 0 <= number < 1 << 31:
        raise ValueError(text)
    return number


def port_number(text: str) -> int:
    """A port number; 0 stands for any. uvloop takes larger numbers and listens on what is left of them."""
    number = int(text)
    if not 0 <= number <= 65535:
        raise ValueError(text)
    return number


def words(text: str) -> tuple[str, ...]:
    """A comma separated list."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def domains(text: str) -> tuple[str, ...]:
    """Host names, comma separated; `*.` in front is what they mean anyway."""
    return tuple(plain_host(word.removeprefix("*").lstrip(".")) for word in words(text))


def switch(text: str) -> bool:
    """A boolean as people write them."""
    if text.lower() in {"1", "true", "yes", "on"}:
        return True
    if text.lower() in {"0", "false", "no", "off", ""}:
        return False
    raise ValueError(text)


def modalities(text: str) -> tuple[str, ...]:
    """What is decoded here: `image`, or a boolean, which is the same."""
    return ("image",) if text.lower() == "image" or switch(text) else ()


def choice(*allowed: str) -> Callable[[str], str]:
    """A parser that takes one of `allowed`."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(text)
        return text

    parse.__name__ = "|".join(allowed)
    return parse


@dataclasses.dataclass(frozen=True)
class Declaration:
    """What the field of an option carries besides its default."""

    group: str
    parse: Callable[[str], Any]
    help: str
    aliases: tuple[str, ...] = ()
    env_aliases: tuple[str, ...] = ()
    repeat: bool = False
    bare: str = ""


def option(
    group: str,
    default: Any,
    parse: Callable[[str], Any],
    help: str,  # noqa: A002 - the word argparse uses
    *,
    aliases: Sequence[str] = (),
    env: Sequence[str] = (),
    repeat: bool = False,
    bare: str = "",
) -> Any:
    """Declare an option. `repeat` options gather values over words and repeated flags; `bare` is what the flag means without
    a value."""
    declaration = Declaration(group, parse, help, tuple(aliases), tuple(env), repeat, "true" if parse is switch else bare)
    return dataclasses.field(default=default, metadata={"option": declaration})


Workers = tuple[WorkerSpec, ...]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The router's configuration. Times are seconds, sizes bytes."""

    host: str = option("listen", "0.0.0.0", str, "address to listen on", aliases=["--http-host"])
    port: int = option("listen", 8000, port_number, "port to listen on; 0 takes a free one", aliases=["--http-port"])
    tls_cert: str = option("listen", "", str, "PEM certificate chain; turns TLS on", aliases=["--ssl-certfile"])
    tls_key: str = option("listen", "", str, "PEM private key of --tls-cert", aliases=["--ssl-keyfile"])

    worker_urls: Workers = option(
        "workers",
        (),
        parse_worker_list,
        "aggregated workers (all stages in one)",
        aliases=["--static-backends"],
        repeat=True,
    )
    encode: Workers = option("workers", (), parse_worker_list, "encode workers", aliases=["--encode-servers-urls"], repeat=True)
    prefill: Workers = option("workers", (), parse_worker_list, "prefill workers", aliases=["--prefill-servers-urls"], repeat=True)
    decode: Workers = option("workers", (), parse_worker_list, "decode workers", aliases=["--decode-servers-urls"], repeat=True)
    prefill_decode: Workers = option("workers", (), parse_worker_list, "workers that prefill and decode", repeat=True)

    kv_connector: str = option(
        "engine",
        "auto",
        choice("auto", "nixl-push", "mooncake"),
        "how KV moves from prefill to decode; auto covers NIXL pull and stores",
    )
    ec_connector: str = option(
        "engine",
        "auto",
        choice("auto", "mooncake"),
        "how embeddings move from encode to prefill; auto covers shared stores and NIXL",
    )
    ec_consumer_zmq_addrs: tuple[str, ...] = option(
        "engine", (), words, "Mooncake embeddings: control addresses (host:port) of the --prefill-decode workers, in their order"
    )
    mooncake_bootstrap_port: int = option(
        "engine", 8998, port_number, "Mooncake KV: bootstrap port of prefill workers", env=["VLLM_MOONCAKE_BOOTSTRAP_PORT"]
    )
    encode_fallback: str = option(
        "engine", "local", choice("local", "fail"), "when no encoder can: encode at prefill, or answer 502"
    )
    encode_fallback_budget: int = option("engine", 8, count, "requests at a time that may encode at prefill as a fallback")
    embedding_ttl_secs: float = option("engine", 600.0, seconds, "how long a published embedding is trusted to exist")
    embedding_index_entries: int = option("engine", 100_000, count, "most embeddings remembered")
    trust_client_transfer_params: bool = option(
        "engine", False, switch, "let clients send transfer parameters and embeddings (they can stop an engine)"
    )
    retries: int = option("engine", 2, count, "attempts after the first, per request", aliases=["--decode-retries"])

    mm_allowed_media_domains: tuple[str, ...] = option(
        "media", (), domains, "hosts media URLs may name, with the hosts below them; all public ones when empty"
    )
    mm_allow_private_media_hosts: bool = option("media", False, switch, "let media URLs name private addresses")
    mm_per_request_image_limit: int = option("media", 256, count, "most pictures in a request")
    frontend_decoding: tuple[str, ...] = option(
        "media", (), modalities, "decode pictures here and name them by their pixels", bare="image"
    )
    mm_fetch: str = option(
        "media", "router", choice("router", "worker"), "who downloads media URLs where stages are split; the router does it once"
    )
    mm_max_item_bytes: int = option("media", 256 << 20, size, "largest picture, clip or recording, encoded")
    mm_max_pixels: int = option("media", 178_956_970, count, "most pixels of a picture (the default is vLLM's)")
    mm_cache_bytes: int = option("media", 512 << 20, size, "memory for downloaded media; each is dropped once its server says so")
    mm_fetch_timeout_secs: float = option("media", 20.0, seconds, "download of a picture, redirects and retry included")
    mm_user_agent: str = option("media", f"epd-router/{__version__}", str, "User-Agent of downloads")
    mm_decode_threads: int = option("media", 0, count, "threads that decode; 0 is one for each core")
    mm_decode_queue: int = option("media", 1024, count, "most pictures that wait for a thread; more are a 503")
    media_handoff: str = option(
        "media",
        "auto",
        choice("auto", "data", "file", "http"),
        "how workers get media: inside the request, by a file in --media-shm-dir, or by a URL below --media-base-url",
    )
    media_shm_dir: str = option(
        "media", "", str, "folder in shared memory for hand-off to workers on this host, their --allowed-local-media-path"
    )
    media_shm_bytes: int = option("media", 1 << 30, size, "most bytes of hand-off files at a time")
    media_base_url: str = option("media", "", str, "this router as its workers reach it, for hand-off by URL: http://router:8000")

    max_payload_size: int = option("limits", 256 << 20, size, "largest request body")
    max_header_size: int = option("limits", 64 << 10, size, "largest request head")
    max_json_depth: int = option("limits", 128, count, "deepest nesting of a request body")
    max_media_items: int = option("limits", 1024, count, "most media parts in a request body")

    connect_timeout_secs: float = option("timeouts", 5.0, seconds, "connecting to a worker")
    encode_timeout_secs: float = option("timeouts", 60.0, seconds, "answer of the encode stage")
    prefill_timeout_secs: float = option("timeouts", 300.0, seconds, "answer of the prefill stage")
    first_byte_timeout_secs: float = option("timeouts", 600.0, seconds, "first byte of a decode or aggregated worker")
    idle_timeout_secs: float = option("timeouts", 300.0, seconds, "silence in the middle of an answer")
    request_timeout_secs: float = option("timeouts", 1800.0, seconds, "whole request")
    client_timeout_secs: float = option("timeouts", 30.0, seconds, "a client that stalls while sending or reading")
    client_keepalive_secs: float = option("timeouts", 75.0, seconds, "idle client connection")
    worker_keepalive_secs: float = option(
        "timeouts", 2.5, seconds, "idle worker connection; must be below the worker's own (vLLM: 5 s)"
    )
    drain_timeout_secs: float = option("timeouts", 30.0, seconds, "requests in flight at shutdown")

    health_check_interval_secs: float = option("health", 2.0, seconds, "between probes of a worker")
    health_check_timeout_secs: float = option("health", 5.0, seconds, "answer of a probe")
    health_failure_threshold: int = option("health", 3, count, "failed probes that take a worker out")
    health_success_threshold: int = option("health", 1, count, "good probes that bring a worker back")

    api_key: tuple[str, ...] = option("auth", (), words, "keys clients must show; none asked for when empty", repeat=True)
    admin_api_key: str = option("auth", "", str, "key for changing the worker list (default: the client keys)")
    worker_api_key: str = option("auth", "", str, "key sent to workers")

    log_level: str = option("logs", "info", choice("debug", "info", "warning", "error"), "least severity to log")
    log_format: str = option("logs", "text", choice("text", "json"), "one line per event, as text or JSON")
    log_requests: bool = option("logs", False, switch, "log the decision of every request", aliases=["--log-decisions"])


# Accepted and ignored: the topology follows from the roles given.
IGNORED_FLAGS = ("--pd-disaggregation", "--vllm-pd-disaggregation", "--epd-disaggregation")


def declarations() -> list[tuple[dataclasses.Field[Any], Declaration]]:
    """All options in order of declaration."""
    return [(field, field.metadata["option"]) for field in dataclasses.fields(Settings)]


def flag(name: str) -> str:
    """`worker_urls` is `--worker-urls`."""
    return "--" + name.replace("_", "-")


def environment_name(name: str) -> str:
    """`worker_urls` is `EPD_ROUTER_WORKER_URLS`."""
    return "EPD_ROUTER_" + name.upper()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add every option to `parser`; values stay text until `load`."""
    parser.add_argument("--config", metavar="FILE", help="YAML file with any of these options")
    for field, declared in declarations():
        extra: dict[str, Any] = {"help": f"{declared.help} (default: {shown(field.default)})".replace("%", "%%")}
        if declared.bare:
            extra.update(nargs="?", const=declared.bare, metavar="BOOL" if declared.parse is switch else "WHAT")
        elif declared.repeat:
            extra.update(nargs="*", action="extend", metavar="VALUE")
        else:
            extra.update(metavar=getattr(declared.parse, "__name__", "value").upper())
        parser.add_argument(flag(field.name), *declared.aliases, dest=field.name, default=None, **extra)
    for name in IGNORED_FLAGS:
        parser.add_argument(name, action="store_true", help=argparse.SUPPRESS)


def shown(value: Any) -> str:
    """A default as people read it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value == "" else str(value)


def load(arguments: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Settings:
    """Merge flags, environment and file into settings. Raises ConfigError naming the option at fault."""
    path = arguments.get("config") or environment.get("EPD_ROUTER_CONFIG")
    file = read_file(Path(path)) if path else {}
    values: dict[str, Any] = {}
    for field, declared in declarations():
        source, raw = _first(field.name, declared, arguments, environment, file)
        if raw is not None:
            values[field.name] = _convert(source, declared, raw)
    return Settings(**values)


def _first(
    name: str,
    declared: Declaration,
    arguments: Mapping[str, Any],
    environment: Mapping[str, str],
    file: Mapping[str, Any],
) -> tuple[str, Any]:
    if arguments.get(name) is not None:
        return flag(name), arguments[name]
    for variable in (environment_name(name), *declared.env_aliases):
        if variable in environment:
            return variable, environment[variable]
    return f"{name} in the configuration file", file.get(name)


def _convert(source: str, declared: Declaration, raw: Any) -> Any:
    try:
        return declared.parse(_as_text(raw))
    except (ValueError, KeyError) as error:
        expected = getattr(declared.parse, "__name__", "value").replace("parse_worker_list", "URL list")
        reason = str(error) if isinstance(error, ConfigError) else f"{_as_text(raw)!r} is not a valid {expected}"
        raise ConfigError(f"{source}: {reason}") from None


def _as_text(raw: Any) -> str:
    if isinstance(raw, Mapping):
        url = raw.get("url", "")
        return ",".join([str(url), *(f"{key}={value}" for key, value in raw.items() if key != "url")])
    if isinstance(raw, (list, tuple)):
        return ",".join(map(_as_text, raw))
    return str(raw)


def read_file(path: Path) -> dict[str, Any]:
    """Options of a YAML file, at the top level or below the name of their group. Unknown keys are fatal."""
    try:
        document = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} must hold a mapping of options")
    groups = {declared.group for _, declared in declarations()}
    flat: dict[str, Any] = {}
    for key, value in document.items():
        for name, given in (value if key in groups and isinstance(value, dict) else {key: value}).items():
            name = str(name).replace("-", "_")
            if name in flat:
                raise ConfigError(f"{path}: option {name} is given twice")
            flat[name] = given
    known = {field.name for field, _ in declarations()}
    if unknown := sorted(flat.keys() - known):
        raise ConfigError(f"{path}: unknown option {', '.join(unknown)}")
    return flat
