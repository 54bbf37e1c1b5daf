"""docs/pictures.md says what the code does."""

import re
from pathlib import Path

from tests.media.page import PAGE, page

RUST = Path(__file__).parents[2] / "rust" / "media"


def test_the_table_is_what_happens() -> None:
    assert PAGE.read_text() == page(), "run `make docs`"


def test_every_reason_is_on_the_page() -> None:
    source = "".join(path.read_text() for folder in ("decode", "native") for path in (RUST / folder).glob("*.rs"))
    reasons = set(re.findall(r'(?:Pass|Other)\(\s*"([^"]+)"', source))
    assert len(reasons) > 20
    assert {reason for reason in reasons if reason not in PAGE.read_text()} == set()
