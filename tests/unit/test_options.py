"""Every option by every way in: flag, alias, environment, YAML at the top and in its group."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from epd_router import cli, logs, options
from epd_router.errors import ConfigError
from epd_router.options import Declaration, declarations, environment_name, flag
from epd_router.urls import parse_worker_list

# A value that is not the default and its parsed form, for each kind of option.
SAMPLES: dict[str, tuple[str, Any]] = {
    "str": ("some", "some"),
    "count": ("7", 7),
    "port_number": ("7", 7),
    "size": ("3MiB", 3 << 20),
    "seconds": ("1500ms", 1.5),
    "words": ("a, b", ("a", "b")),
    "domains": ("*.Example.com,b.org", ("example.com", "b.org")),
    "switch": ("yes", True),
    "auto|nixl-push|mooncake": ("mooncake", "mooncake"),
    "auto|mooncake": ("mooncake", "mooncake"),
    "modalities": ("image", ("image",)),
    "router|worker": ("worker", "worker"),
    "auto|data|file|http": ("file", "file"),
    "local|fail": ("fail", "fail"),
    "debug|info|warning|error": ("debug", "debug"),
    "text|json": ("json", "json"),
}
OPTIONS = [pytest.param(field, declared, id=field.name) for field, declared in declarations()]
PICKY = [
    pytest.param(field, declared, id=field.name) for field, declared in declarations() if declared.parse not in {str, options.words}
]


def load(*flags: str, **environment: str) -> options.Settings:
    return options.load(vars(cli.parser().parse_args(list(flags))), environment)


def sample(declared: Declaration) -> tuple[str, Any]:
    if declared.parse is parse_worker_list:
        text = "http://a:1,weight=2,http://b:2"
        return text, parse_worker_list(text)
    return SAMPLES[declared.parse.__name__]


@pytest.mark.parametrize(("field", "declared"), OPTIONS)
def test_an_option_means_the_same_by_every_way_in(field: dataclasses.Field[Any], declared: Declaration, tmp_path: Path) -> None:
    text, value = sample(declared)
    assert value != field.default
    file = tmp_path / "router.yaml"
    found = [load(name, text) for name in (flag(field.name), *declared.aliases)]
    found += [load(f"{flag(field.name)}={text}")]
    found += [load(**{name: text}) for name in (environment_name(field.name), *declared.env_aliases)]
    for document in ({field.name: text}, {field.name.replace("_", "-"): text}, {declared.group: {field.name: text}}):
        file.write_text(yaml.safe_dump(document))
        found += [load("--config", str(file)), load(EPD_ROUTER_CONFIG=str(file))]
    for settings in found:
        assert getattr(settings, field.name) == value
        others = {name: given for name, given in dataclasses.asdict(settings).items() if name != field.name}
        assert others == {name: given for name, given in dataclasses.asdict(options.Settings()).items() if name != field.name}


def test_frontend_decoding_without_a_value_is_for_pictures() -> None:
    for flags in (["--frontend-decoding"], ["--frontend-decoding", "--port", "1"], ["--frontend-decoding=true"]):
        assert load(*flags).frontend_decoding == ("image",)
    assert load("--frontend-decoding=off").frontend_decoding == ()


@pytest.mark.parametrize(("field", "declared"), PICKY)
def test_a_wrong_value_names_the_way_it_came(field: dataclasses.Field[Any], declared: Declaration, tmp_path: Path) -> None:
    wrong = "w w"
    file = tmp_path / "router.yaml"
    file.write_text(yaml.safe_dump({field.name: wrong}))
    for ways, words in (
        ((f"{flag(field.name)}={wrong}",), flag(field.name)),
        (("--config", str(file)), f"{field.name} in the configuration file"),
    ):
        with pytest.raises(ConfigError) as error:
            load(*ways)
        assert error.value.message.startswith(words)
    with pytest.raises(ConfigError, match=environment_name(field.name)):
        load(**{environment_name(field.name): wrong})


@pytest.mark.parametrize("port", ["-1", "65536", "8000.0", "x", ""])
def test_a_port_is_a_port(port: str) -> None:
    with pytest.raises(ConfigError, match="--port"):
        load(f"--port={port}")


@pytest.mark.parametrize(
    ("text", "value"),
    [("250ms", 0.25), ("2.5", 2.5), ("30s", 30.0), ("5m", 300.0), ("1h", 3600.0), ("0", 0.0)],
)
def test_times(text: str, value: float) -> None:
    assert load("--idle-timeout-secs", text).idle_timeout_secs == value


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "-5s", "1d", "s", "", "1e999"])
def test_times_are_finite_and_not_negative(text: str) -> None:
    with pytest.raises(ConfigError, match="--idle-timeout-secs"):
        load(f"--idle-timeout-secs={text}")


@pytest.mark.parametrize(
    ("text", "value"),
    [("1048576", 1 << 20), ("1MiB", 1 << 20), ("1 MB", 10**6), ("1.5kib", 1536), ("2gb", 2 * 10**9), ("3B", 3)],
)
def test_sizes(text: str, value: int) -> None:
    assert load("--max-payload-size", text).max_payload_size == value


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "1TiB", "MiB", "", "1e999"])
def test_sizes_are_finite_and_not_negative(text: str) -> None:
    with pytest.raises(ConfigError, match="--max-payload-size"):
        load(f"--max-payload-size={text}")


@pytest.mark.parametrize("name", [field.name for field, declared in declarations() if declared.parse is options.count])
def test_numbers_are_not_negative(name: str) -> None:
    with pytest.raises(ConfigError, match=flag(name)):
        load(f"{flag(name)}=-1")


@pytest.mark.parametrize("text", ["1", "true", "TRUE", "yes", "on"])
def test_switches_are_on_by_these_words_or_alone(text: str) -> None:
    assert load("--log-requests", text).log_requests
    assert load("--log-requests").log_requests
    assert load("--log-decisions").log_requests
    assert not load("--log-requests", "no", EPD_ROUTER_LOG_REQUESTS=text).log_requests


def test_lists_of_a_file_may_have_labels_and_groups(tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    file.write_text(
        """
        listen: {host: 127.0.0.1, port: 1}
        workers:
          encode:
            - url: http://e0:1
              weight: 2
              node: rack-1
            - http://e1:1,weight=3
          prefill: http://p0:1, 9000, http://p1:1
          decode: [http://d0:1, http://d1:1]
        auth: {api_key: [one, two]}
        media:
          mm_allowed_media_domains: [a.org, b.org]
        log-requests: true
        max_payload_size: 1MiB
        """
    )
    found = load("--config", str(file))
    assert [(spec.url, spec.weight, spec.node) for spec in found.encode] == [("http://e0:1", 2, "rack-1"), ("http://e1:1", 3, "")]
    assert [(spec.url, spec.bootstrap) for spec in found.prefill] == [("http://p0:1", 9000), ("http://p1:1", 0)]
    assert len(found.decode) == 2
    assert (found.host, found.port, found.api_key, found.log_requests) == ("127.0.0.1", 1, ("one", "two"), True)
    assert (found.mm_allowed_media_domains, found.max_payload_size) == (("a.org", "b.org"), 1 << 20)


def test_an_empty_file_is_none(tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    file.write_text("# nothing yet\nretries:\n")
    assert load("--config", str(file)) == options.Settings()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a", "mapping"),
        ("listen: {prot: 1}", "prot"),
        ("prot: 1", "prot"),
        ("listen: 5", "listen"),
        ("a: [", "cannot read"),
        ("port: 1\nlisten: {port: 2}", "twice"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "router.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load("--config", str(file))
    with pytest.raises(ConfigError, match="cannot read"):
        load("--config", str(tmp_path / "none.yaml"))


def test_repeated_flags_and_words_add_up() -> None:
    found = load(
        "--api-key", "a", "b", "--api-key", "c,d", "--worker-urls", "http://a:1", "http://b:1", "--worker-urls", "http://c:1"
    )
    assert found.api_key == ("a", "b", "c", "d")
    assert [spec.id for spec in found.worker_urls] == ["a:1", "b:1", "c:1"]


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_logs_have_the_level_and_style(level: str, style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    handlers, before = root.handlers[:], root.level
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    root.handlers = []
    try:
        logs.configure(level, style)
        for name in ("debug", "info", "warning", "error"):
            getattr(logging.getLogger("epd_router.test"), name)("said %s", name)
        try:
            raise ValueError("broken\nline")
        except ValueError:
            logging.getLogger("epd_router.test").exception("with a trace")
    finally:
        root.handlers, root.level = handlers, before
        logging.getLogger().setLevel(before)
    levels = ["debug", "info", "warning", "error"]
    said = out.getvalue()
    assert [name for name in levels if f"said {name}" in said] == levels[levels.index(level) :]
    if style == "json":
        lines = [json.loads(line) for line in said.splitlines()]
        assert {line["logger"] for line in lines} == {"epd_router.test"}
        assert lines[-1]["level"] == "error"
        assert "broken\nline" in lines[-1]["exception"]
    else:
        assert "epd_router.test: said error" in said
