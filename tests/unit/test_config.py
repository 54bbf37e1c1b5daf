"""Options, topology, state table, generated pages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from epd_router import cli, lifecycle, options, reference
from epd_router.errors import ConfigError
from epd_router.urls import parse_worker_list
from epd_router.workers import configured


def load(*flags: str, **environment: str) -> options.Settings:
    return options.load(vars(cli.parser().parse_args(list(flags))), environment)


def test_flag_beats_environment_beats_file(tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    file.write_text("listen: {port: 1}\nretries: 7\nworkers:\n  encode: [{url: 'http://e:1', weight: 2}, 'http://f:1']\n")
    found = load("--config", str(file), "--port", "3", EPD_ROUTER_PORT="2", EPD_ROUTER_MAX_PAYLOAD_SIZE="1MiB")
    assert (found.port, found.retries, found.max_payload_size) == (3, 7, 1 << 20)
    assert [(spec.url, spec.weight) for spec in found.encode] == [("http://e:1", 2.0), ("http://f:1", 1.0)]


def test_aliases_and_ignored_switches() -> None:
    found = load(
        "--encode-servers-urls",
        "http://a:1,http://b:2",
        "--prefill",
        "http://p:1",
        "9000",
        "--decode",
        "http://d:1",
        "--epd-disaggregation",
    )
    assert [spec.id for spec in found.encode] == ["a:1", "b:2"]
    assert found.prefill[0].bootstrap == 9000


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "no workers"),
        (["--encode", "http://e:1"], "--encode needs"),
        (["--prefill", "http://e:1"], "--prefill needs --decode"),
        (["--decode", "http://e:1"], "--decode needs --prefill"),
        (["--encode", "http://e:1", "--worker-urls", "http://w:1"], "--encode needs"),
        (["--prefill", "http://e:1", "--decode", "http://e:1"], "is given as"),
        (["--worker-urls", "http://w:1", "http://w:1"], "twice"),
        (["--worker-urls", "http://w:1/v1"], "no path"),
        (["--worker-urls", "ftp://w:1"], "not a worker URL"),
        (["--worker-urls", "http://w:1,weight=-1"], "weight must be a positive number"),
        (["--port", "x"], "--port"),
    ],
)
def test_wrong_options_say_what_is_wrong(flags: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        configured(load(*flags))


def test_unknown_keys_of_a_file_are_fatal(tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    file.write_text("prot: 1\n")
    with pytest.raises(ConfigError, match="prot"):
        load("--config", str(file))


def test_labels() -> None:
    (spec,) = parse_worker_list("http://w:1,weight=2.5,node=rack-1")
    assert (spec.weight, spec.node, spec.id) == (2.5, "rack-1", "w:1")


def test_every_state_can_end_and_final_states_stay() -> None:
    for state in lifecycle.State:
        events = {event for (start, event) in lifecycle.TABLE if start is state}
        assert (state in lifecycle.FINAL) == (not events)
        if events:
            assert {lifecycle.Event.FAIL, lifecycle.Event.CANCEL} <= events
    with pytest.raises(ValueError, match="cannot follow"):
        lifecycle.after(lifecycle.State.RECEIVED, lifecycle.Event.COMMIT)


def test_reference_pages_are_current() -> None:
    for name, make in reference.PAGES.items():
        assert (reference.DOCS / name).read_text() == make(), f"{name} is stale; run make docs"


def test_the_commands_of_the_readme_parse() -> None:
    text = (reference.DOCS.parent / "README.md").read_text()
    commands = [line.split("#")[0].split() for line in text.splitlines() if line.strip().startswith("epd-router --")]
    assert len(commands) == 4
    for command in commands:
        configured(load(*command[1:]))


@pytest.mark.parametrize(("command", "module"), [("demo", "openai"), ("mock-engine", "PIL")])
def test_a_command_without_its_packages_says_what_to_install(
    command: str, module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(("epd_router.demo", "epd_router.mock", module))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SystemExit):
        cli.main([command])
    assert capsys.readouterr().err == f"epd-router: {command} needs {module}; pip install 'epd-router[demo]'\n"
