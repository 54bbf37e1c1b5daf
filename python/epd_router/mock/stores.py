"""What engines share through a disk: the embeddings of ECExampleConnector and the KV of ExampleConnector.

Engines of one process share dictionaries, engines of several processes a folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

END = "\n"


class FolderStore(MutableMapping[str, str | None]):
    """A folder per key with one file in it. Writing is not atomic: a value of None is a file that is half written."""

    def __init__(self, root: Path, file: str) -> None:
        self._root = root
        self._file = file

    def _path(self, key: str) -> Path:
        return self._root / key / self._file

    def __getitem__(self, key: str) -> str | None:
        """The value; a look leaves an empty folder behind, as the real connector does."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            text = path.read_text()
        except FileNotFoundError:
            raise KeyError(key) from None
        return text.removesuffix(END) if text.endswith(END) else None

    def __setitem__(self, key: str, value: str | None) -> None:
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half" if value is None else value + END)

    def __delitem__(self, key: str) -> None:
        shutil.rmtree(self._path(key).parent)

    def __iter__(self) -> Iterator[str]:
        return (path.parent.name for path in self._root.glob(f"*/{self._file}"))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def clear(self) -> None:
        """Wipe the store."""
        shutil.rmtree(self._root, ignore_errors=True)


@dataclass
class Shared:
    """The stores of a cluster: uuid to content, None while it is written; prompt key to the contents of its media."""

    embeddings: MutableMapping[str, str | None] = field(default_factory=dict)
    kv: MutableMapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def folder(cls, path: Path) -> Shared:
        """Stores that other processes see."""
        return cls(FolderStore(path / "ec", "encoder_cache.safetensors"), FolderStore(path / "kv", "kv.safetensors"))
