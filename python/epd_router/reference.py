"""Writes the reference pages from the tables in the code; `--check` fails when they are stale."""

from __future__ import annotations

import sys
from pathlib import Path

from epd_router import failures, lifecycle, options
from epd_router.errors import ERRORS

DOCS = Path(__file__).parents[2] / "docs"
NOTE = "<!-- Written by `make docs`; do not edit. -->\n"


def option_page() -> str:
    """Every option."""
    lines = [NOTE, "# Options", "", "Precedence: flag, environment, `--config` YAML file, default.", ""]
    group = ""
    for field, declared in options.declarations():
        if declared.group != group:
            group = declared.group
            lines += ["", f"## {group}", "", "| flag | environment | default | meaning |", "|---|---|---|---|"]
        names = ", ".join(f"`{name}`" for name in (options.flag(field.name), *declared.aliases))
        environment = ", ".join(f"`{name}`" for name in (options.environment_name(field.name), *declared.env_aliases))
        lines.append(f"| {names} | {environment} | `{options.shown(field.default)}` | {declared.help} |")
    return "\n".join(lines) + "\n"


def error_page() -> str:
    """Every error."""
    lines = [NOTE, "# Errors", ""]
    lines += ['What the router answers itself: `{"error": {"message", "type", "param", "code"}}` and `x-epd-router-error-code`.']
    lines += ["A worker's own error passes through with its status and message, without that header; its `code` is the status.", ""]
    lines += ["| code | status | type | what to do |", "|---|---|---|---|"]
    lines += [f"| `{kind.code}` | {kind.status} | {kind.type} | {kind.hint} |" for kind in ERRORS.values()]
    return "\n".join(lines) + "\n"


def failure_page() -> str:
    """The retry policy and the life of a request."""
    lines = [
        NOTE,
        "# Failures",
        "",
        "Before the client has a byte; after that a broken stream gets one error event and is closed.",
        "",
    ]
    lines += ["| stage | failure | next | when nothing is left |", "|---|---|---|---|"]
    for (stage, cause), rule in failures.TABLE.items():
        end = f"`{rule.code}`" if rule.code else "the worker's answer"
        lines.append(f"| {stage.value} | {cause.value} | {rule.action.value} | {end} |")
    return "\n".join([*lines, "", "## The life of a request", "", "```mermaid", lifecycle.mermaid(), "```"]) + "\n"


PAGES = {"options.md": option_page, "errors.md": error_page, "failures.md": failure_page}


def main() -> int:
    """Write the pages, or with `--check` compare them."""
    stale = []
    for name, make in PAGES.items():
        path, text = DOCS / name, make()
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(text)
    if "--check" in sys.argv and stale:
        sys.stderr.write(f"stale: {', '.join(stale)}; run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
