"""What fuzzing starts from: `python -m tests.media.seeds FOLDER`."""

import hashlib
import sys
from pathlib import Path

from tests.media.corpus import KINDS

FORMATS = {
    b"\xff\xd8": "jpeg",
    b"\x89P": "png",
    b"RI": "webp",
    b"GI": "gif",
    b"BM": "bmp",
    b"II": "tiff",
    b"MM": "tiff",
    b"\0\0": "heif",
}


def write(folder: Path, most: int = 4096) -> None:
    """One file for each small picture of the tests, in a folder for each format."""
    for kind in KINDS.values():
        for _, data in kind():
            if 16 < len(data) <= most:
                where = folder / FORMATS.get(data[:2], "ppm")
                where.mkdir(parents=True, exist_ok=True)
                (where / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
