"""From samples to a page: medians, spread, verdicts and targets."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import systems
import work

OURS = "epd-router"
PEERS = systems.PEERS
Samples = dict[str, list[dict[str, Any]]]
# From issue 2 section 6: row, measure, limit.
TARGETS = (
    ("text-c32", "cpu_us", 60.0),
    ("stream-c64", "cpu_us", 16.0),
    ("picture-c1", "added_p50_ms", 0.8),
    ("picture-c1", "cpu_us", 900.0),
    ("ten-pictures-c4", "cpu_us", 350.0),
)
LABELS = {"cpu_us": "CPU µs", "added_p50_ms": "added p50 ms"}


def values(samples: list[dict[str, Any]], key: str) -> list[float]:
    """Give one measure of all rounds that had no error."""
    return [sample[key] for sample in samples if key in sample and not sample["errors"]]


def added(by_system: Samples, system: str, key: str) -> list[float]:
    """Give the excess over direct, round by round."""
    bare = by_system.get("direct", [])
    pairs = zip(by_system.get(system, []), bare, strict=False)
    return [sample[key] - base[key] for sample, base in pairs if not sample["errors"] and not base["errors"]]


def measure_of(by_system: Samples, system: str, measure: str) -> list[float]:
    """Give a measure by its name, `added_*` against direct."""
    if measure.startswith("added_"):
        return added(by_system, system, measure.removeprefix("added_"))
    return values(by_system.get(system, []), measure)


def number(value: float) -> str:
    """Give a number with about three significant digits."""
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def centre(found: list[float], sign: bool = False) -> str:
    """Give the median, or a dash."""
    if not found:
        return "-"
    text = number(median(found))
    return f"+{text}" if sign and median(found) >= 0 else text


def spread(found: list[float]) -> str:
    """Give the median with the lowest and highest round."""
    if len(found) < 2:
        return centre(found)
    return f"{centre(found)} ({number(min(found))} to {number(max(found))})"


def verdict(ours: list[float], theirs: list[float]) -> str:
    """Compare two systems on a cost: only ranges that do not touch say anything."""
    if not ours or not theirs:
        return "-"
    factor = median(theirs) / median(ours) if median(ours) > 0 else 0.0
    if len(ours) > 1 and max(ours) >= min(theirs) and max(theirs) >= min(ours):
        return f"inconclusive within noise (x{factor:.2f})"
    return f"x{factor:.2f}"


def table(header: list[str], lines: list[list[str]]) -> str:
    """Give a markdown table."""
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows) + "\n"


def summary(samples: dict[str, Samples]) -> str:
    """Give the short table: p50 ms and CPU µs for each system."""
    names = [system.name for system in systems.SYSTEMS if any(system.name in by for by in samples.values())]
    lines = []
    for name, by_system in samples.items():
        cells = [work.BY_NAME[name].title]
        for system in names:
            found = by_system.get(system, [])
            cpu, p50 = centre(values(found, "cpu_us")), centre(values(found, "p50_ms"))
            cells.append(p50 if system == "direct" else f"{p50} \\| {cpu}" if found else "-")
        lines.append(cells)
    return table(["work", *[f"{n} p50 ms" if n == "direct" else f"{n} p50 ms \\| CPU µs" for n in names]], lines)


def details(name: str, by_system: Samples) -> str:
    """Give everything about one row."""
    lines = []
    ours = values(by_system.get(OURS, []), "cpu_us")
    for system, found in by_system.items():
        cpu = values(found, "cpu_us")
        cells = [system, spread(values(found, "p50_ms")), centre(values(found, "p99_ms"))]
        cells += [centre(added(by_system, system, key), sign=True) for key in ("p50_ms", "p99_ms")]
        cells += [spread(cpu), centre(values(found, "per_s")), centre(values(found, "rss_mb"))]
        cells.append("" if system in (OURS, "direct") else verdict(ours, cpu))
        lines.append(cells)
    unit = "chunk" if work.BY_NAME[name].stream else "request"
    header = ["system", "p50 ms", "p99 ms", "added p50", "added p99", f"CPU µs per {unit}", f"{unit}s/s", "RSS MB"]
    return f"### {work.BY_NAME[name].title}\n\n" + table([*header, "CPU against this router"], lines)


def targets(samples: dict[str, Samples]) -> str:
    """Give the targets of the project beside what was measured."""
    lines = []
    for row, measure, limit in TARGETS:
        found = measure_of(samples.get(row, {}), OURS, measure)
        if found:
            state = "met" if median(found) <= limit else "missed"
            lines.append([work.BY_NAME[row].title, LABELS[measure], f"≤ {number(limit)}", spread(found), state])
    for row, by_system in samples.items():
        for peer in PEERS:
            ours, theirs = values(by_system.get(OURS, []), "cpu_us"), values(by_system.get(peer, []), "cpu_us")
            if ours and theirs:
                text = verdict(ours, theirs)
                state = text if text.startswith("inc") else "met" if median(ours) < median(theirs) else "missed"
                limit_text = f"< {peer} ({centre(theirs)})"
                lines.append([work.BY_NAME[row].title, "CPU µs", limit_text, spread(ours), state])
    return table(["work", "measure", "target", "measured", "state"], lines) if lines else ""


def machine_note(facts: dict[str, Any]) -> str:
    """Give the machine note as a list."""
    before, after = (" ".join(f"{x:.2f}" for x in facts[key]) for key in ("load_average_before", "load_average_after"))
    packages = facts["packages"]
    versions = ", ".join([*(f"{n} {v}" for n, v in packages.items() if n != "peers"), *packages["peers"]])
    lines = [
        f"- {facts['date']}, commit {facts['commit']}",
        f"- {facts['cpu']}, {facts['cores']} cores, {facts['memory_gb']} GB, Linux {facts['kernel']}; nothing pinned",
        f"- Python {facts['python']}; {versions}",
        f"- load average {before} before, {after} after (the run itself is about 2)",
    ]
    if facts["load_average_before"][0] > 0.5:
        lines.append("- **The machine was busy with other work before the run: judge by CPU, not by latency.**")
    return "\n".join(lines) + "\n"


def errors(samples: dict[str, Samples]) -> str:
    """Name every measurement that was thrown away."""
    lines = []
    for row, by_system in samples.items():
        for system, found in by_system.items():
            bad = [sample for sample in found if sample["errors"]]
            if bad:
                lines.append(f"- {row}, {system}: {len(bad)} of {len(found)} rounds; first: `{bad[0]['problem'][:300]}`")
    return "\n## Errors (not counted in any number)\n\n" + "\n".join(lines) + "\n" if lines else ""


def notes(result: dict[str, Any]) -> str:
    """Say how each system was started, its memory when idle, and why a system is missing."""
    text = "\n## How each was started\n\n"
    for name, command in result["commands"].items():
        text += f"- {name} ({result['rss_start_mb'][name]:.0f} MB at start): `{command}`\n"
    text += "\n## Why a column is empty\n\n"
    reasons = {**systems.NO_EPD, **result["notes"]}
    return text + "".join(f"- {name}: {reason.splitlines()[0]}\n" for name, reason in reasons.items())


def markdown(result: dict[str, Any]) -> str:
    """Give the whole page."""
    samples = result["samples"]
    text = f"# Router overhead\n\n{machine_note(result['machine'])}\n"
    text += f"Medians of {result['rounds']} interleaved rounds; lowest and highest round in brackets. CPU is the router's\n"
    text += "whole process tree. Streams: latency is the way of one chunk, CPU is per relayed chunk.\n\n"
    text += summary(samples) + "\n## Targets\n\n" + targets(samples) + "\n## Rows\n\n"
    text += "\n".join(details(name, by_system) for name, by_system in samples.items())
    return text + errors(samples) + notes(result)


if __name__ == "__main__":
    print(markdown(json.loads(Path(sys.argv[1]).read_text())))
