"""Types of the Rust extension: byte work that must not hold the event loop or the GIL."""

import os
from asyncio import Future
from collections.abc import Sequence
from typing import Literal, Self, final

__all__ = [
    "BodyError",
    "ChunkedDecoder",
    "DecodePool",
    "Decoded",
    "Edits",
    "Framer",
    "HttpError",
    "Item",
    "Lease",
    "Limits",
    "Load",
    "MediaError",
    "Named",
    "PassThrough",
    "Probe",
    "RequestHead",
    "ResponseHead",
    "Scan",
    "__version__",
    "clean_text",
    "data_url",
    "decode",
    "derive_id",
    "error_table",
    "identify",
    "item_bytes",
    "item_pieces",
    "least_loaded",
    "name_bytes",
    "parse_request_head",
    "parse_response_head",
    "probe",
    "scan",
]

__version__: str

# --- errors -----------------------------------------------------------------------------------------------------------

def error_table() -> list[tuple[str, int, str, str]]:
    """Every error the router can answer: (code, HTTP status, OpenAI `type`, hint of what to do next)."""

@final
class BodyError(ValueError):
    """A body the scanner refuses. Attributes: `code` (a key of `error_table`), `message`, `param`, `offset` (bytes)."""

    code: str
    message: str
    param: str | None
    offset: int

@final
class HttpError(ValueError):
    """A malformed HTTP/1.x message. Attributes: `code` (a key of `error_table`), `message`."""

    code: str
    message: str

# --- HTTP/1.1 heads and framing ---------------------------------------------------------------------------------------

@final
class RequestHead:
    """One parsed request head."""

    @property
    def method(self) -> str: ...
    @property
    def target(self) -> str:
        """Request target as sent, origin form (absolute form is reduced to it)."""
    @property
    def path(self) -> str:
        """Target without the query."""
    @property
    def minor(self) -> int:
        """0 for HTTP/1.0, 1 for HTTP/1.1."""
    @property
    def size(self) -> int:
        """Bytes of the buffer that the head took, terminator included."""
    @property
    def content_length(self) -> int | None: ...
    @property
    def chunked(self) -> bool: ...
    @property
    def keep_alive(self) -> bool: ...
    @property
    def expect_continue(self) -> bool: ...
    @property
    def request_id(self) -> str | None:
        """`x-request-id`, else `x-correlation-id`, `x-trace-id`, `request-id`; None when absent or unsafe
        (anything but 1 to 128 characters of `[A-Za-z0-9._:-]`)."""
    @property
    def authorization(self) -> str | None: ...
    @property
    def forward(self) -> bytes:
        """Header lines to pass on, each ended by CRLF: without hop-by-hop headers (and those `Connection` names), `host`,
        `content-length`, `expect`, `accept-encoding`, `authorization`, `x-api-key` and the request id headers."""
    def get(self, name: str) -> str | None:
        """First value of a header, by lower-case name (latin-1)."""

def parse_request_head(buffer: bytes | bytearray, start: int, end: int, limit: int) -> RequestHead | None:
    """Parse the head in `buffer[start:end]`; None while it is incomplete.

    Raises HttpError: `header_too_large` beyond `limit` bytes or 128 fields, `bad_http` for everything RFC 9112 calls
    invalid or ambiguous (both length and chunked, differing lengths, signs or spaces in a length, a transfer coding other
    than a single final `chunked`, `Transfer-Encoding` in HTTP/1.0, obs-fold, bare CR or LF, a missing or repeated Host
    in 1.1, space before the colon), `http_version` for anything but 1.0 and 1.1.
    """

@final
class ResponseHead:
    """One parsed response head."""

    @property
    def status(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def minor(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def content_length(self) -> int | None: ...
    @property
    def chunked(self) -> bool: ...
    @property
    def keep_alive(self) -> bool: ...
    @property
    def event_stream(self) -> bool:
        """Content type is `text/event-stream`."""
    @property
    def forward(self) -> bytes:
        """Header lines to pass on, each ended by CRLF: without hop-by-hop headers, `content-length`, `x-request-id`."""
    def get(self, name: str) -> str | None: ...

def parse_response_head(buffer: bytes | bytearray, limit: int) -> ResponseHead | None:
    """As `parse_request_head`, from the start of `buffer`. 1xx heads are returned like any other."""

@final
class Framer:
    """Finds where a response body ends, without copying it; for an event stream also where it may be cut.

    `content_length` None and `chunked` False means the body ends with the connection. With `sse`, cuts are only after a
    whole event (blank line) that is also a chunk boundary, so that an own event may follow.
    """

    def __new__(cls, content_length: int | None, chunked: bool, sse: bool) -> Self: ...
    def feed(self, data: bytes) -> int:
        """Take the next bytes; return how many of all bytes fed so far may be passed on (monotonic). Without `sse` that is
        all of the body. With `sse` bytes after the last cut are held until the next one, but never more than 1 MiB.
        Raises HttpError `bad_http` on broken chunk framing."""
    @property
    def done(self) -> bool:
        """The body is complete (never True for a body that ends with the connection)."""
    @property
    def excess(self) -> int:
        """Bytes fed beyond the end of the body (0 unless `done`)."""
    @property
    def first_event(self) -> bytes | None:
        """With `sse`: the `data:` payload of the first event (comments skipped, lines joined by LF), once complete."""
    @property
    def error_event(self) -> bytes | None:
        """With `sse`: the payload of the first event whose JSON starts with an `"error"` member, wherever it came."""

@final
class ChunkedDecoder:
    """Decodes a chunked body incrementally. Chunk extensions and trailers are skipped, bounded at 16 KiB."""

    def __new__(cls, limit: int) -> Self:
        """`limit`: most payload bytes; beyond it HttpError `payload_too_large`."""
    def feed(self, data: bytes | bytearray | memoryview) -> bytes:
        """Payload bytes of `data` (a memoryview must be contiguous)."""
    @property
    def done(self) -> bool: ...
    @property
    def excess(self) -> int:
        """Bytes of the last fed data that lie beyond the end of the body."""

# --- body -------------------------------------------------------------------------------------------------------------

_Modality = Literal["image", "audio", "video", "prompt"]
_Source = Literal["data", "http", "other", "none", "embeds"]

@final
class Item:
    """One media part of a request."""

    @property
    def modality(self) -> _Modality: ...
    @property
    def source(self) -> _Source:
        """`data`: a data URL or inline base64; `http`: http(s) URL; `other`: another scheme; `none`: null or empty, a
        uuid-only reference; `embeds`: any `*_embeds` part."""
    @property
    def span(self) -> tuple[int, int]:
        """Byte range of the part's object, braces included."""
    @property
    def url(self) -> str | None:
        """The URL, unescaped, for `http` and `other`; None otherwise."""
    @property
    def client_uuid(self) -> bool:
        """The part carries a `uuid` member."""
    @property
    def param(self) -> str:
        """Where it stands, for messages: `messages[0].content[1]`."""

@final
class Scan:
    """What one pass over a JSON body found. Spans are byte ranges of the body."""

    @property
    def model(self) -> str | None: ...
    @property
    def stream(self) -> bool: ...
    @property
    def max_tokens(self) -> int | None:
        """`max_completion_tokens`, else `max_tokens`, else `max_output_tokens`."""
    @property
    def n(self) -> int: ...
    @property
    def items(self) -> tuple[Item, ...]: ...
    @property
    def text_bytes(self) -> int:
        """Bytes of all strings under messages, input and prompt that are not media."""
    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the top-level members, in order."""
    def raw(self, body: bytes | bytearray, name: str) -> bytes | None:
        """The value of a top-level member exactly as sent."""
    def edit(self) -> Edits: ...
    @property
    def client_uuids(self) -> bool:
        """Any item carries a `uuid` of the client."""

def scan(body: bytes | bytearray, max_depth: int = 128, max_items: int = 1024) -> Scan:
    """One validating pass (RFC 8259, UTF-8), GIL released when the body is long.

    Raises BodyError: `invalid_json` with the byte offset (also a body that is no object, lone surrogate escapes are
    accepted), `invalid_value` with `param` for a wrong type of model, stream, max_tokens or n, for a repeated member
    among those the router reads or writes, and for more than `max_items` media parts or `max_depth` levels.
    """

@final
class Edits:
    """Byte edits of one scanned body. Later calls for the same place replace earlier ones."""

    def set(self, name: str, value: bytes) -> None:
        """Give a top-level member this JSON value; inserted as the first member when absent."""
    def remove(self, name: str) -> None:
        """Remove a top-level member if present."""
    def set_uuid(self, index: int, uuid: str | None) -> None:
        """Overwrite, insert or (None) remove the `uuid` of media part `index`."""
    def strip_uuids(self) -> None:
        """Remove the `uuid` of every media part."""
    def set_item(self, index: int, part: bytes) -> None:
        """Replace the whole object of media part `index`."""
    def set_url(self, index: int, url: bytes) -> None:
        """Replace the URL (or bare base64) of media part `index`, printable ASCII without quotes and backslashes; it is not
        copied. Raises ValueError."""
    def apply(self, body: bytes | bytearray) -> tuple[list[bytes | memoryview], int]:
        """The edited body as pieces in order and their total length. Unchanged ranges of 32 KiB and more are views of
        `body`, everything else is copied together."""

def item_pieces(body: bytes | bytearray, item: Item, uuid: str, url: bytes | None = None) -> list[bytes | memoryview]:
    """The object of one media part with its `uuid` set, and with `url` in place of its own one, as pieces like `Edits.apply`
    (for the encode stage)."""

# --- media identity ---------------------------------------------------------------------------------------------------

@final
class Named:
    """What is known of the bytes of one item."""

    @property
    def id(self) -> str:
        """64 lower-case hex characters of BLAKE3 over framed salt, modality and the encoded bytes."""
    @property
    def size(self) -> int:
        """Encoded bytes, base64 undone."""
    @property
    def canonical(self) -> bool:
        """Every engine takes the string of the body as it is spelled; else send `clean_text`."""
    @property
    def probe(self) -> Probe | None:
        """The header of a picture of a known format, from the first 64 KiB."""

def identify(body: bytes | bytearray, scan: Scan, salt: bytes, *, limits: Limits | None = None) -> list[Named | None]:
    """Name every item: base64 is decoded block by block, tolerant as browsers are, and never held as a whole. None for items
    whose bytes are not in the body. GIL released. Raises BodyError naming the item: `invalid_value` for a payload that is
    not base64, `media_too_large`, `media_unsupported` for what no engine opens (HEIC)."""

def name_bytes(
    data: bytes | bytearray, kind: Literal["image", "audio", "video", "prompt"], salt: bytes, *, limits: Limits | None = None
) -> Named:
    """Name bytes from elsewhere; in a body they would have the same name. GIL released. Raises MediaError."""

def item_bytes(body: bytes | bytearray, item: Item) -> bytes | None:
    """The bytes of an item, base64 undone; None where they are not in the body. Raises BodyError."""

def clean_text(body: bytes | bytearray, item: Item) -> bytes | None:
    """The data URL (or bare base64) of an item in the one spelling that strict decoders take, its type that of the bytes;
    None where they are not in the body. Raises BodyError."""

def data_url(data: bytes | bytearray, kind: Literal["image", "audio", "video", "prompt"], declared: str = "") -> bytes:
    """`data:TYPE;base64,...`. The type of a picture comes from its bytes; for other kinds it is `declared` if that is one."""

def derive_id(parts: Sequence[bytes]) -> str:
    """64 lower-case hex characters of BLAKE3 over length-framed parts."""

# --- pictures -----------------------------------------------------------------------------------------------------------

@final
class MediaError(ValueError):
    """A picture that no engine would take (`media_damaged`, `media_unsupported`), one beyond the limits (`media_too_large`),
    or one too many in a pool (`queue_full`). Attributes: `code` (a key of `error_table`), `message`."""

    code: str
    message: str

@final
class Limits:
    """Bounds on one picture, checked from its header before anything is allocated. The defaults are those of vLLM:
    178 956 970 pixels and 256 MiB encoded, nothing else bounded."""

    def __new__(
        cls,
        *,
        pixels: int | None = None,
        side: int | None = None,
        aspect: int | None = None,
        frames: int | None = None,
        encoded: int | None = None,
    ) -> Self: ...
    @property
    def pixels(self) -> int: ...
    @property
    def side(self) -> int:
        """Most pixels of the longer side."""
    @property
    def aspect(self) -> int:
        """Most times that the longer side may be the shorter one."""
    @property
    def frames(self) -> int: ...
    @property
    def encoded(self) -> int:
        """Most encoded bytes."""

@final
class Probe:
    """What the header of a picture says."""

    @property
    def format(self) -> str:
        """Name as Pillow has it: JPEG, PNG, WEBP, GIF, BMP, TIFF, AVIF, PPM; and HEIF."""
    @property
    def mime(self) -> str: ...
    @property
    def width(self) -> int:
        """Pixels a row, as stored: what SGLang counts with, except for a TIFF, which Pillow opens upright."""
    @property
    def height(self) -> int: ...
    @property
    def upright(self) -> tuple[int, int]:
        """Width and height with the orientation applied: what vLLM counts with."""
    @property
    def orientation(self) -> int:
        """EXIF orientation, 1 to 8, from wherever Pillow finds one."""
    @property
    def alpha(self) -> bool: ...
    @property
    def depth(self) -> int:
        """Bits a sample."""
    @property
    def channels(self) -> int:
        """Samples a pixel, as stored."""
    @property
    def palette(self) -> bool: ...
    @property
    def frames(self) -> int: ...
    @property
    def settled(self) -> bool:
        """False while bytes still missing may change `orientation` or `frames`."""

def probe(data: bytes | bytearray, *, complete: bool = True, limits: Limits | None = None) -> Probe | None:
    """Read the header of a picture. Without `complete`, `data` is the start of a file, and None asks for more of it.
    Raises MediaError."""

@final
class Decoded:
    """Pixels exactly as vLLM gets them from Pillow: first frame, orientation applied, transparency put on white."""

    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def mode(self) -> Literal["RGB"]: ...
    @property
    def format(self) -> str:
        """What it was decoded from."""
    @property
    def data(self) -> bytes:
        """Rows of RGB, 8 bits a sample, without gaps; behind a header when a PPM was asked for. Not copied:
        `numpy.frombuffer(decoded.data, "uint8", offset=decoded.offset).reshape(decoded.height, decoded.width, 3)`."""
    @property
    def size(self) -> int:
        """Bytes of the pixels, a header included."""
    @property
    def offset(self) -> int:
        """Where the pixels start in `data`."""
    @property
    def id(self) -> str | None:
        """64 lower-case hex characters of BLAKE3 over mode, size and pixels: the same for every container. None unless
        asked for."""

@final
class PassThrough:
    """A picture that is not decoded here because the pixels would not be known to be the same: hand its bytes on."""

    @property
    def reason(self) -> str:
        """The kind of picture, one of a few dozen, for counting."""

def decode(data: bytes, *, limits: Limits | None = None, ppm: bool = False, identify: bool = True) -> Decoded | PassThrough:
    """Decode a picture, GIL released. `ppm`: into a binary PPM, which every engine opens. Raises MediaError."""

@final
class DecodePool:
    """Threads of its own for decoding. Dropping it lets what is queued finish."""

    def __new__(cls, threads: int, queue: int) -> Self:
        """`queue`: most pictures that wait."""
    def decode(
        self, data: bytes, *, limits: Limits | None = None, ppm: bool = False, identify: bool = True
    ) -> Future[Decoded | PassThrough]:
        """As the function `decode`, for the running event loop. A future cancelled before its turn costs nothing.
        Raises MediaError `queue_full` at once."""
    def decode_to(
        self, data: bytes, path: str | os.PathLike[str], *, limits: Limits | None = None
    ) -> Future[Decoded | PassThrough]:
        """As `decode`, as a PPM into a new file, mapped and with all of its space taken beforehand; `data` of the result is
        empty. The file is there only when the result is Decoded. Raises OSError, too."""
    @property
    def waiting(self) -> int: ...
    @property
    def running(self) -> int: ...
    def close(self) -> None:
        """Take no more pictures; the threads end once the queue is empty."""

# --- load accounting --------------------------------------------------------------------------------------------------

@final
class Load:
    """Predicted outstanding work and request count of one worker. Thread safe."""

    def __new__(cls, weight: float = 1.0) -> Self: ...
    @property
    def outstanding(self) -> float: ...
    @property
    def active(self) -> int: ...
    @property
    def weight(self) -> float: ...
    def lease(self, cost: float) -> Lease: ...

@final
class Lease:
    """Holds `cost` on a `Load` until released; dropping the last reference releases it too, so it cannot leak."""

    def release(self) -> None:
        """Idempotent."""
    @property
    def released(self) -> bool: ...

def least_loaded(loads: Sequence[Load], cost: float) -> int:
    """Index of the load with the least (outstanding + cost) / weight; ties are broken at random. -1 when empty."""
