"""From the samples of bench/media.py to a page: `bench/media_report.py results/media.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from decoders import TITLES
from report import machine_note, number, spread, table

OURS = "epd-router"
# Kind of picture, the way compared with, least ratio of its CPU time to ours, the way of ours.
TARGETS = (
    ("jpeg", "pillow", 1.4, OURS),
    ("jpeg", "vllm", 1.4, OURS),
    ("jpeg", "turbo reused", 0.95, "epd-router reused"),
    ("png", "pillow", 2.0, OURS),
    ("webp", "pillow", 1.4, OURS),
)


def ratio(sample: dict[str, Any], other: str, ours: str = OURS) -> float:
    """How many times our CPU time another way takes."""
    return median(sample["cpu_ms"][other]) / median(sample["cpu_ms"][ours])


def line(name: str, sample: dict[str, Any]) -> str:
    """Give one line while the bench runs."""
    ways = "  ".join(f"{way} {median(times):.2f}" for way, times in sample["cpu_ms"].items())
    return f"{name}: x{ratio(sample, 'pillow'):.2f} Pillow, x{ratio(sample, 'vllm'):.2f} vLLM's path; CPU ms: {ways}"


def summary(samples: dict[str, dict[str, Any]], used: dict[str, dict[str, Any]]) -> str:
    """Give CPU milliseconds of ours and how many times that others take, Pillow also in a process with used memory."""
    others = ("pillow", "vllm", "opencv", "simplejpeg", "image")
    lines = []
    for name, sample in samples.items():
        bits = sample["bytes"] * 8 / sample["pixels"]
        cells = [f"{ratio(sample, way):.2f}" if way in sample["cpu_ms"] else "-" for way in others]
        for index in (0, 1):
            cells[index] += f" ({ratio(used[name], others[index]):.2f})"
        own = median(sample["cpu_ms"][OURS])
        lines.append([name, f"{bits:.2f}", number(own), number(own * 1e6 / sample["pixels"]), *cells])
    return table(["picture", "bits/px", "ms", "ms/MP", *(TITLES[way] for way in others)], lines)


def targets(samples: dict[str, dict[str, Any]], used: dict[str, dict[str, Any]]) -> str:
    """Give the targets beside what was measured."""
    lines = []
    for kind, other, least, ours in TARGETS:
        for name, sample in samples.items():
            if name.split()[0] == kind and other in sample["cpu_ms"]:
                found = ratio(sample, other, ours)
                state = "met" if found >= least else "missed"
                again = f"{ratio(used[name], other, ours):.2f}"
                lines.append([name, TITLES[other], f"≥ {least:g}", f"{found:.2f}", state, again])
    return table(["picture", "against", "target", "measured", "state", "used memory"], lines)


def details(name: str, sample: dict[str, Any]) -> str:
    """Give every way of one picture."""
    lines = [
        [TITLES[way], spread(times), f"{ratio(sample, way):.2f}", "yes" if sample["exact"][way] else "**no**"]
        for way, times in sample["cpu_ms"].items()
    ]
    title = f"### {name} ({sample['bytes'] / 1024:.0f} KiB)\n\n"
    return title + table(["way", "CPU ms", "times epd-router", "pixels are Pillow's"], lines)


def pool(found: dict[str, list[dict[str, Any]]]) -> str:
    """Give what a batch of ten costs on one thread and on two."""
    lines = []
    for name, rounds in found.items():
        walls = [one["wall_ms"] for one in rounds]
        single = median(one["wall_ms"] for one in found[f"{name.split()[0]} 1"])
        cells = [spread(walls), f"{single / median(walls):.2f}", spread([one["cpu_ms"] for one in rounds])]
        lines.append([name, *cells, spread([one["lag_p99_ms"] for one in rounds])])
    return table(["way, threads", "ms a batch", "speed against 1 thread", "CPU ms a batch", "loop lag p99 ms"], lines)


def identity(found: dict[str, Any]) -> str:
    """Give what naming a picture costs."""
    titles = {
        "scan": "`scan` of the body",
        "identify": "`identify`: base64, BLAKE3 and the header",
        "probe": "`probe` of the first bytes",
        "json": "for comparison: `json.loads` of the body",
        "python": "for comparison: `base64.b64decode` and SHA-256 of Python",
    }
    return table(["step", "CPU ms"], [[titles[key], spread(times)] for key, times in found["cpu_ms"].items()])


def markdown(result: dict[str, Any]) -> str:
    """Give the whole page."""
    samples = result["decoding"]
    text = f"# Decoding pictures\n\n{machine_note(result['machine'])}\n"
    text += f"Per-thread CPU time, medians of {result['rounds']} interleaved rounds (a third of them at 12 MP), each picture in a\n"
    text += "process of its own. Columns of other decoders: times the CPU of epd-router's `decode`, so above 1 is slower.\n\n"
    text += "The ratio to Pillow depends on what the process allocated before: in brackets it has freed large blocks, so that the\n"
    text += "allocator keeps memory and hardly any page is touched for the first time. What is left then is the codec, which for\n"
    text += "JPEG and WebP is the same library on both sides.\n\n"
    text += summary(samples, result["used"]) + "\n## Targets\n\n" + targets(samples, result["used"])
    if "pool" in result:
        text += "\n## Ten 480p JPEGs through the pool\n\nThe same through a thread pool of Python with Pillow, as vLLM has it.\n\n"
        text += pool(result["pool"])
        size = result["identity"]["bytes"] / 1e6
        text += f"\n## Identity of a picture in a request of {size:.2f} MB\n\n" + identity(result["identity"])
    return text + "\n## Every way\n\n" + "\n".join(details(name, sample) for name, sample in samples.items())


if __name__ == "__main__":
    print(markdown(json.loads(Path(sys.argv[1]).read_text())))
