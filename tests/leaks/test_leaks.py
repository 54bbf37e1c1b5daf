"""A server that has stopped leaves nothing; nor does a client that has left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.leaks.isolated import SCENARIOS

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", list(SCENARIOS))
def test_nothing_is_left(name: str) -> None:
    command = [sys.executable, "-X", "dev", "-W", "error", "-m", "tests.leaks.isolated", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
