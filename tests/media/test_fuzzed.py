"""Every input that once fuzzed something out is what it is for Pillow, or left to the engine."""

from pathlib import Path

import pytest

from tests.media.differential import FORMATS, disagreement

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus"


@pytest.mark.parametrize("form", FORMATS)
def test_corpus(form: str) -> None:
    found = {path.name: disagreement(path.read_bytes()) for path in (CORPUS / form).iterdir()}
    assert found
    assert {name: what for name, what in found.items() if what} == {}
