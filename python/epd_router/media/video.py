"""Frames of a clip, byte for byte those that vLLM's reader gives (OpenCV over FFmpeg), or a reason why they cannot be had.

Only what was compared with that reader is decoded here; everything else is refused with a reason and goes to the engine as
the file it came in. A stretch without wanted frames is jumped over where key frames allow it, so damage in there goes unseen.
Blocking: runs in a thread of the caller; FFmpeg works without the interpreter's lock, two threads a clip. Needs PyAV (the
extra `video`).

Reasons: `container`, `streams` (not one video stream), `codec`, `size` (over a limit), `length` (over a limit, or a single
frame), `timing` (a timeline that is read differently), `colours`, `changes` (frames unlike the first), `broken`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from types import TracebackType
from typing import TYPE_CHECKING

import av
from av.filter import Graph
from av.video.frame import PictureType
from av.video.reformatter import Interpolation, VideoReformatter

from epd_router.media.sampling import ClipInfo

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

CODECS = frozenset({"h264", "hevc", "mjpeg", "mpeg4", "vp8", "vp9"})  # the engine's reader has no AV1
JUMPS = frozenset({"h264", "hevc", "mjpeg", "vp9"})  # one packet is one frame, and a key frame is one
# Colours as ISO/IEC 23091-2 numbers them. With others, the wide ones of HDR above all, the two readers differ.
SPACES, PRIMARIES, TRANSFERS = frozenset({0, 1, 2, 4, 5, 6, 7}), frozenset({1, 2, 5, 6}), frozenset({1, 2, 4, 5, 6, 13})
TURNS = {-90: "transpose=clock", 90: "transpose=cclock", 180: "hflip,vflip", -180: "hflip,vflip"}  # by degrees to the left
WORTH_A_JUMP = 6  # frames saved, so that emptying and filling the decoder pays
FOREIGN = 4000  # packets of other streams in a row; the engine's reader gives up soon after
THREADS = 2
BACK = 16  # frames before the end from which the engine's reader looks for it
NOTHING = 0.000025  # seconds


class ClipError(Exception):
    """Why there are no frames. `reason` is short and one of few."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class VideoLimits:
    """Bounds on one clip: pixels of a frame, frames handed out, their bytes, packets, and pixels decoded on the way."""

    pixels: int = 178_956_970
    frames: int = 768
    bytes: int = 1 << 30
    packets: int = 1_000_000
    work: int = 1 << 38


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames of a clip: their indices in it, and RGB bytes of each, upright, row by row without gaps."""

    info: ClipInfo
    indices: tuple[int, ...]
    width: int
    height: int
    pixels: tuple[bytes, ...]


def probe_clip(data: bytes, limits: VideoLimits | None = None) -> ClipInfo:
    """The numbers the engine samples by. Raises ClipError."""
    with _explained(), Clip(data, limits or VideoLimits()) as clip:
        return clip.info


def sample(data: bytes, indices: Sequence[int], limits: VideoLimits | None = None) -> Frames:
    """These frames of a clip, each once and in order. Raises ClipError."""
    return sample_by(data, lambda _: indices, limits)


def sample_by(data: bytes, choose: Callable[[ClipInfo], Sequence[int]], limits: VideoLimits | None = None) -> Frames:
    """The frames that `choose` wants once it knows the clip. Raises ClipError, and what `choose` raises."""
    with _explained(), Clip(data, limits or VideoLimits()) as clip:
        return clip.frames(choose(clip.info))


def container_of(data: bytes) -> str | None:
    """FFmpeg's name of the container. None but these are opened: others can name further files and addresses to read."""
    if data[4:8] == b"ftyp":
        return "mp4"
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    return "avi" if data[:4] == b"RIFF" and data[8:12] == b"AVI " else None


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (av.FFmpegError, UnicodeDecodeError, MemoryError) as error:
        raise ClipError("broken") from error


class _LostError(Exception):
    """What came after a jump is not what the container promised."""


class Clip:
    """One open clip. Raises ClipError and av.FFmpegError."""

    def __init__(self, data: bytes, limits: VideoLimits) -> None:
        kind = container_of(data)
        if kind is None:
            raise ClipError("container")
        self._limits = limits
        self._work = 0
        self._container = av.open(BytesIO(data), "r", format=kind, metadata_errors="ignore")
        try:
            self._stream = self._only_stream()
            self._scan()
            self._first = self._look()
            self._painter = Painter(self._first)
            self.info = ClipInfo.of(self._presentable(), self._fps)
        except BaseException:
            self._container.close()
            raise

    def __enter__(self) -> Clip:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._container.close()

    def _only_stream(self) -> VideoStream:
        if len(self._container.streams.video) != 1:
            raise ClipError("streams")
        stream = self._container.streams.video[0]
        codec = stream.codec_context
        if getattr(codec, "name", None) not in CODECS:  # there is no context where FFmpeg has no decoder
            raise ClipError("codec")
        if codec.width * codec.height > self._limits.pixels:
            raise ClipError("size")
        codec.thread_type, codec.thread_count = "FRAME", THREADS
        codec.options = {"err_detect": "explode"}  # what hides damage depends on the number of threads
        return stream

    # --- what the container says ---

    def _scan(self) -> None:
        """Read the whole container once, without decoding: when each frame is shown, and which are key frames."""
        stream = self._stream
        if not stream.average_rate or stream.start_time is None or stream.time_base is None:
            raise ClipError("timing")
        self._fps, self._tick, self._start = float(stream.average_rate), float(stream.time_base), stream.start_time
        self._rewind()
        packets = list(self._packets())
        shown = [packet for packet in packets if not packet[2]]
        self._hidden = len(shown) != len(packets)
        self._times = sorted(pts for pts, _, _ in shown)
        self._keys = [pts for pts, key, _ in shown if key]
        # Key frames out of order, or two frames at a time: nobody knows where a jump would land.
        self._jumps = stream.codec_context.name in JUMPS and self._keys == sorted(self._keys)
        self._jumps &= len(set(self._times)) == len(self._times)

    def _packets(self) -> Iterator[tuple[int, bool, bool]]:
        """Presentation time, key frame and hidden, of each packet with a frame."""
        foreign = seen = 0
        for packet in self._container.demux():
            if packet.stream_index != self._stream.index:
                foreign += 1
            elif packet.size:
                foreign, seen = 0, seen + 1
                if packet.pts is None or packet.is_corrupt:
                    raise ClipError("timing")
                yield packet.pts, packet.is_keyframe, packet.is_discard
            if foreign > FOREIGN or seen > self._limits.packets:
                raise ClipError("length")

    def _counted(self) -> int:
        """Frames by the head of the container, or by its duration where that has no number."""
        if self._stream.frames:
            return self._stream.frames
        seconds = (self._container.duration or 0) / 1_000_000
        if seconds < NOTHING:
            seconds = (self._stream.duration or 0) * self._tick
        return int(seconds * self._fps + 0.5)

    def _number(self, stamp: int) -> int:
        return int(self._fps * ((stamp - self._start) * self._tick) + 0.5)

    # --- what the engine's reader makes of it ---

    def _look(self) -> VideoFrame:
        self._rewind()
        frame = next(self._decoded(), None)
        if frame is None:
            raise ClipError("broken")
        return frame

    def _presentable(self) -> int:
        """The count of frames that vLLM works with: it looks for the end of the stream by seeking, and takes what it sees there
        where that is less than the head claims. Only clips with an odd timeline have to be asked."""
        total = self._counted()
        if total < 2 or not self._times:
            raise ClipError("length")  # of a single frame the engine's reader sees none
        first = _stamp(self._first)
        if first is not None and not self._hidden and len(self._times) == total and self._number(first) >= 0:
            zero = self._number(self._times[0])
            if all(self._number(time) - zero == index for index, time in enumerate(self._times)):
                return total
        if self._container.format.name == "avi":
            raise ClipError("timing")  # times of an AVI are places in its index, which the two readers fill differently
        visible, at_end = self._end(total)
        return visible if at_end and 0 < visible < total - 1 else total

    def _end(self, total: int) -> tuple[int, bool]:
        """Where OpenCV stands after a seek to the last frame, and whether the stream ends there."""
        back, zero = BACK, self._number_of(self._first)
        while True:
            target = max(total - back, 0)
            self._seek(self._start + int(target / self._fps / self._tick + 0.5))
            frames = self._decoded()
            if (frame := next(frames, None)) is None:
                raise ClipError("timing")
            if zero < 0:
                zero = self._number_of(frame)
            at = self._number_of(frame) - zero
            if 0 <= at < total:
                return self._walk(frames, at, total)
            if target == 0:
                return at, self._grab(frames, at) is None
            back = back * 3 // 2

    def _walk(self, frames: Iterator[VideoFrame], at: int, total: int) -> tuple[int, bool]:
        while at < total - 1 and self._grab(frames, at) is not None:
            at += 1
        return at + 1, self._grab(frames, at + 1) is None

    def _grab(self, frames: Iterator[VideoFrame], at: int) -> VideoFrame | None:
        """None also beyond the number in the head."""
        return None if 0 < self._stream.frames < at else next(frames, None)

    def _number_of(self, frame: VideoFrame) -> int:
        if (stamp := _stamp(frame)) is None:
            raise ClipError("timing")
        return self._number(stamp)

    # --- frames ---

    def frames(self, indices: Sequence[int]) -> Frames:
        """These frames, each once and in order."""
        wanted = sorted(set(indices))
        paint, limits = self._painter, self._limits
        if len(wanted) > limits.frames or len(wanted) * paint.width * paint.height * 3 > limits.bytes:
            raise ClipError("size")
        if not wanted or wanted[0] < 0 or wanted[-1] >= self.info.total_frames:
            raise ValueError("frames that are not in the clip")
        try:
            pixels = tuple(self._read(wanted, jumps=self._jumps))
        except _LostError:
            pixels = tuple(self._read(wanted, jumps=False))
        return Frames(self.info, tuple(wanted), paint.width, paint.height, pixels)

    def _read(self, wanted: list[int], *, jumps: bool) -> Iterator[bytes]:
        """Frames are counted as they come, as the engine counts them; after a jump the container's times say which they are."""
        self._rewind()
        frames, at, jumped = self._decoded(), 0, False
        for target in wanted:
            if jumps and (key := self._jump(at, target)) is not None:
                frames, at, jumped = self._landed(key), bisect_left(self._times, key), True
            for frame in frames:
                at += 1
                expected = at <= len(self._times) and frame.pts == self._times[at - 1]
                if jumped and not expected:
                    raise _LostError
                jumps &= expected
                if at > target:
                    yield self._painter.paint(frame)
                    break
            else:
                raise _LostError if jumped else ClipError("broken")

    def _jump(self, at: int, target: int) -> int | None:
        """The time of the key frame to decode a frame from, where that skips some."""
        if target >= len(self._times):
            return None
        place = bisect_right(self._keys, self._times[target]) - 1
        if place < 0 or bisect_left(self._times, self._keys[place]) - at < WORTH_A_JUMP:
            return None
        return self._keys[place]

    def _landed(self, key: int) -> Iterator[VideoFrame]:
        """Decode from the key frame that is shown at `key`; pictures that lead it, and lack what they refer to, are left out."""
        self._seek(key)
        frames = self._decoded(first=key)
        for frame in frames:
            if frame.pts is None or frame.pts > key or (frame.pts == key and frame.pict_type != PictureType.I):
                raise _LostError
            if frame.pts == key:
                yield frame
                yield from frames

    def _decoded(self, *, first: int | None = None) -> Iterator[VideoFrame]:
        """Frames from here on; the next packet must be the one of time `first`."""
        frame_work = self._stream.codec_context.width * self._stream.codec_context.height
        packet: Packet[VideoStream]
        for packet in self._container.demux(self._stream):
            if first is not None and packet.pts != first:
                raise _LostError
            first = None
            for frame in packet.decode():
                self._work += frame_work
                if self._work > self._limits.work:
                    raise ClipError("length")
                if frame.is_corrupt:
                    raise ClipError("broken")
                yield frame

    def _rewind(self) -> None:
        self._seek(self._start)

    def _seek(self, time: int) -> None:
        self._container.seek(time, stream=self._stream, backward=True)


class Painter:
    """Turns decoded frames into upright RGB as OpenCV does: bicubic chroma to BGR with the frame's own colour matrix, then
    the channels swapped."""

    def __init__(self, first: VideoFrame) -> None:
        self._like = _look_of(first)
        if first.colorspace not in SPACES or first.color_primaries not in PRIMARIES or first.color_trc not in TRANSFERS:
            raise ClipError("colours")
        self._to_bgr, self._to_rgb = VideoReformatter(), VideoReformatter()
        self._turn = TURNS.get(first.rotation)
        self._graph: Graph | None = None
        sideways = self._turn is not None and self._turn.startswith("transpose")
        self.width, self.height = (first.height, first.width) if sideways else (first.width, first.height)

    def paint(self, frame: VideoFrame) -> bytes:
        """Raises ClipError for a frame unlike the first."""
        if _look_of(frame) != self._like:
            raise ClipError("changes")
        bgr = self._to_bgr.reformat(frame, format="bgr24", interpolation=Interpolation.BICUBIC, threads=1)
        return packed(self._upright(self._to_rgb.reformat(bgr, format="rgb24", interpolation=Interpolation.POINT, threads=1)))

    def _upright(self, frame: VideoFrame) -> VideoFrame:
        if self._turn is None:
            return frame
        if self._graph is None:
            self._graph = _graph(frame, self._turn)
        self._graph.vpush(frame)
        return self._graph.vpull()


def _look_of(frame: VideoFrame) -> tuple[object, ...]:
    colours = frame.colorspace, frame.color_range, frame.color_primaries, frame.color_trc
    return frame.format.name, frame.width, frame.height, *colours, frame.rotation


def _graph(frame: VideoFrame, turn: str) -> Graph:
    graph = Graph()
    source = graph.add_buffer(width=frame.width, height=frame.height, format=frame.format, time_base=frame.time_base)
    steps = [graph.add(*step.split("=")) for step in turn.split(",")]
    graph.link_nodes(source, *steps, graph.add("buffersink")).configure()
    return graph


def packed(frame: VideoFrame) -> bytes:
    """The bytes of an RGB frame without what pads its rows."""
    plane, row = frame.planes[0], 3 * frame.width
    view = memoryview(plane)
    if plane.line_size == row:
        return bytes(view[: row * frame.height])
    return b"".join(view[start : start + row] for start in range(0, plane.line_size * frame.height, plane.line_size))


def _stamp(frame: VideoFrame) -> int | None:
    """The time OpenCV takes: that of presentation, but that of decoding where the former is 0."""
    return frame.pts or frame.dts
