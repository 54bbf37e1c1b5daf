"""Pictures that differ in every patch, and a server for those that are named by URL."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import http.server
import io
import random
import threading
from collections.abc import Iterator

from PIL import Image

MOSAIC = (12, 9)


@dataclasses.dataclass(frozen=True)
class Picture:
    """A mosaic of random colours; `seed` and `size` say which, `kind` how it is encoded."""

    seed: int
    kind: str = "jpeg"
    size: tuple[int, int] = (112, 84)

    @functools.cached_property
    def content(self) -> bytes:
        colours = random.Random(self.seed).randbytes(3 * MOSAIC[0] * MOSAIC[1])
        image = Image.frombytes("RGB", MOSAIC, colours).resize(self.size, Image.Resampling.NEAREST)
        out = io.BytesIO()
        image.save(out, self.kind)
        return out.getvalue()

    @property
    def path(self) -> str:
        return f"/{self.seed}-{self.size[0]}x{self.size[1]}.{self.kind}"

    @property
    def data_url(self) -> str:
        return data_url(self.content, self.kind)


def data_url(content: bytes, kind: str = "jpeg") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


@dataclasses.dataclass
class PictureServer:
    """Where pictures are served from, and what was asked for."""

    base: str
    offered: dict[str, bytes] = dataclasses.field(default_factory=dict)
    seen: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # path and User-Agent

    def url(self, picture: Picture) -> str:
        return self.offer(picture.path, picture.content)

    def offer(self, path: str, content: bytes) -> str:
        self.offered[path] = content
        return self.base + path


class _Handler(http.server.BaseHTTPRequestHandler):
    def __init__(self, served: PictureServer, *arguments: object) -> None:
        self._served = served
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self._served.seen.append((path, self.headers.get("user-agent", "")))
        content = self._served.offered.get(path, b"")
        self.send_response(200 if content else 404)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Say nothing."""


@contextlib.contextmanager
def serving() -> Iterator[PictureServer]:
    served = PictureServer("")
    handler = functools.partial(_Handler, served)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        served.base = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield served
        server.shutdown()
        thread.join()
