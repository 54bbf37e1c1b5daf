"""Hand-off files: pictures in a folder of shared memory that workers on this host read.

Every router has a folder of its own there, which it holds a lock on for as long as it lives: whoever starts finds the
folders of routers that ended, however they ended, by their free locks, and removes them. A file stays while somebody
uses it, and after that until its space is needed.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import secrets
import shutil
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from epd_router.errors import ConfigError

log = logging.getLogger(__name__)
PREFIX = "epd-router-"
T = TypeVar("T")


class SharedFile:
    """One file; it stays while it is used. `url` is how a worker reads it."""

    __slots__ = ("_users", "content", "path", "size", "url")

    def __init__(self, path: Path, content: str, size: int) -> None:
        self.path = path
        self.content = content
        self.size = size
        self.url = path.as_uri().encode()
        self._users = 0

    def take(self) -> SharedFile:
        """Use it, too."""
        self._users += 1
        return self

    def release(self) -> None:
        """Use it no longer."""
        self._users -= 1

    @property
    def used(self) -> bool:
        """Somebody may be reading it."""
        return self._users > 0


class SharedFiles:
    """The files of this router, at most `budget` bytes, by what they hold."""

    def __init__(self, folder: str, budget: int) -> None:
        self._parent = Path(folder)
        self._budget = budget
        self._files: OrderedDict[str, SharedFile] = OrderedDict()
        self._held = 0  # bytes of files, and of space promised to files being written
        self._lock = -1
        self.folder = self._parent / f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"

    def open(self) -> None:
        """Make the folder and remove those of routers that are gone; blocks. Raises ConfigError."""
        try:
            parent = os.open(self._parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(parent, fcntl.LOCK_EX)  # else one that starts now could take a folder for one left behind
                self.folder.mkdir(mode=0o755)
                self._lock = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._remove_stale()
            finally:
                os.close(parent)
        except OSError as error:
            raise ConfigError(f"--media-shm-dir: {error}") from error

    def _remove_stale(self) -> None:
        for other in self._parent.glob(f"{PREFIX}*"):
            if other.is_dir() and other != self.folder and is_unlocked(other):
                log.info("removing hand-off files of a router that is gone: %s", other.name)
                shutil.rmtree(other, ignore_errors=True)

    def close(self) -> None:
        """Remove everything; blocks."""
        self._files.clear()
        if self._lock >= 0:
            shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    @property
    def held(self) -> int:
        """Bytes in files and promised."""
        return self._held

    async def make(self, size: int, write: Callable[[Path], Awaitable[T]], content_of: Callable[[T], str]) -> T | None:
        """Have `write(path)` make a file of `size` bytes, and return what it does; None where there is no room. `content_of`
        that names the content; '' when no file was made. Cancelled, the writing goes on, because threads do."""
        if (path := self._reserve(size)) is None:
            return None
        work = asyncio.ensure_future(write(path))
        work.add_done_callback(lambda done: self._written(done, path, size, content_of))
        try:
            return await asyncio.shield(work)
        except OSError as error:
            log.warning("no hand-off by file: %s", error)
            return None

    def _reserve(self, size: int) -> Path | None:
        """A name for a new file, whose space is promised; None where there is none: files that are used stay."""
        if size > self._budget:
            return None
        while self._held + size > self._budget:
            idle = next((file for file in self._files.values() if not file.used), None)
            if idle is None:
                return None
            self._remove(idle)
        self._held += size
        return self.folder / secrets.token_hex(16)

    def _written(self, work: asyncio.Future[T], path: Path, size: int, content_of: Callable[[T], str]) -> None:
        content = "" if work.cancelled() or work.exception() else content_of(work.result())
        if content and content not in self._files:
            self._files[content] = SharedFile(path, content, size)
            return
        self._held -= size
        unlink(path)

    def take(self, content: str) -> SharedFile | None:
        """Use the file of a content, if there is one."""
        file = self._files.get(content)
        if file is None:
            return None
        self._files.move_to_end(content)
        return file.take()

    def _remove(self, file: SharedFile) -> None:
        del self._files[file.content]
        self._held -= file.size
        unlink(file.path)


def unlink(path: Path) -> None:
    """Remove a file, in a thread: giving back the pages of a large one takes milliseconds."""
    _ = asyncio.get_running_loop().run_in_executor(None, lambda: path.unlink(missing_ok=True))


def is_unlocked(folder: Path) -> bool:
    """Nobody holds the lock of this folder."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # another user's, or gone meanwhile
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True
