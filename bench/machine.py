"""The note about the machine that every result carries."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import systems


def cpu_model() -> str:
    """Give the processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def commit() -> str:
    """Give the commit that was measured, marked when the sources differ from it."""
    command = ["git", "-C", str(systems.HERE), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def version(package: str) -> str:
    """Give the version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def note() -> dict[str, Any]:
    """Give what a reader needs to judge the numbers."""
    peers = [line for line in systems.REQUIREMENTS.read_text().splitlines() if line and not line.startswith("#")]
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in ("epd-router", "uvloop", "aiohttp")} | {"peers": peers},
        "commit": commit(),
        "load_average_before": os.getloadavg(),
        "pinned": False,
    }
