"""Holds what fuzzing found to Pillow: `python -m tests.media.differential FOLDER`, a folder for each format in it."""

import signal
import sys
import warnings
from pathlib import Path
from types import FrameType

from epd_router._core import Decoded, Limits, MediaError, PassThrough, decode

from tests.media.reference import reference

FORMATS = ("jpeg", "png", "webp", "gif", "bmp", "tiff", "ppm")
LIMITS = Limits(pixels=4 << 20)
SECONDS = 10  # for Pillow


def disagreement(data: bytes) -> str | None:
    """What differs from the reference; None if nothing does, or if the picture is left to the engine or too large."""
    got: Decoded | PassThrough | MediaError
    try:
        got = decode(data, limits=LIMITS)
    except MediaError as error:
        got = error
    if isinstance(got, PassThrough) or (isinstance(got, MediaError) and got.code == "media_too_large"):
        return None
    want = reference(data)
    if isinstance(got, MediaError):
        return None if want is None else f"refused: {got.message}"
    if want is None:
        return f"accepted as {got.format}"
    return None if want == ((got.width, got.height), got.data) else "other pixels"


def late(number: int, frame: FrameType | None) -> None:
    raise TimeoutError


def main(folder: Path) -> int:
    signal.signal(signal.SIGALRM, late)
    count = failed = 0
    for path in sorted(path for form in FORMATS for path in (folder / form).glob("*")):
        count += 1
        signal.alarm(SECONDS)
        try:
            found = disagreement(path.read_bytes())
        except TimeoutError:
            continue
        finally:
            signal.alarm(0)
        if found:
            failed += 1
            print(f"{path}: {found}")
    print(f"{count} pictures against Pillow, {failed} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main(Path(sys.argv[1])))
