"""One Hypothesis profile and a long limit: machines under load are slow, which is no failure."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("epd-router", deadline=None)
settings.load_profile("epd-router")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(300))
