"""What the samplers of an installed vLLM pick, as JSON: {rule: [[frames, fps, number asked for, rate asked for, digest], ...]}.

usage: engine_samplers.py [full|golden]      (with the Python of the engine environment)

A digest is the start of the SHA-256 of the picked indices as JSON, or null where the sampler fails.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Iterator
from typing import Any

NAMES = {"uniform": "opencv", "qwen2_vl": "qwen2_vl", "qwen3_vl": "qwen3_vl", "glm4v": "opencv_dynamic", "glm46v": "glm46v"}
RATES = [
    24.0,
    30.0,
    25.0,
    30000 / 1001,
    24000 / 1001,
    60.0,
    60000 / 1001,
    50.0,
    15.0,
    10.0,
    1.0,
    0.5,
    2.0,
    29.5,
    120.0,
    23.31983805668016,
]
Case = tuple[int, float, int, float | None]


def cases(rule: str, kind: str) -> Iterator[Case]:
    """Every short clip at a common rate, odd rates, long clips, and workers that were told something else."""
    dice = random.Random(rule)
    few = 280 if kind == "golden" else 6000
    for _ in range(few):
        total = dice.choice((dice.randint(1, 40), dice.randint(1, 1000), dice.randint(1, 20_000), dice.randint(1, 200_000)))
        fps = dice.choice((*RATES, 0.0, round(dice.uniform(0.2, 130), dice.randint(0, 9))))
        asked = dice.choice((32, 32, 32, -1, 8, 64, 1)) if rule == "uniform" and total < 20_000 else 32
        yield total, fps, asked, dice.choice((None, None, None, 1, 2.0, 0.5, 4, 40))
    if kind == "full":
        yield from ((total, fps, 32, None) for total in range(1, 700) for fps in RATES[:6])


def digest(indices: list[int] | None) -> str | None:
    return None if indices is None else hashlib.sha256(json.dumps(indices).encode()).hexdigest()[:8]


def picks(loader: Any, case: Case) -> list[int] | None:
    """The call that the reader of a file makes, with the reader's own default for the rate."""
    import inspect

    from vllm.multimodal.video_decoders import (  # type: ignore[import-not-found, unused-ignore]
        VideoSourceMetadata,
        VideoTargetMetadata,
    )

    total, fps, num_frames, rate = case
    default = inspect.signature(loader.load_bytes).parameters["fps"].default
    source = VideoSourceMetadata(total, fps, total / fps if fps > 0 else 0)
    target = VideoTargetMetadata(num_frames, default if rate is None else rate, 300)
    try:
        return [int(index) for index in loader.compute_frames_index_to_sample(loader._prepare_source(source), target)] or None
    except (ValueError, ZeroDivisionError):
        return None


def main() -> None:
    from vllm.multimodal.video import VIDEO_LOADER_REGISTRY  # type: ignore[import-not-found, unused-ignore]

    kind = sys.argv[1] if len(sys.argv) > 1 else "golden"
    found = {
        rule: [[*case, digest(picks(VIDEO_LOADER_REGISTRY.load(name), case))] for case in cases(rule, kind)]
        for rule, name in NAMES.items()
    }
    print(json.dumps(found, separators=(",", ":")).replace("],[", "],\n["))


if __name__ == "__main__":
    main()
