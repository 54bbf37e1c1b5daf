"""Downloads of media: what is kept, what is asked again, and which origins cannot do harm."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import tracemalloc
import zlib
from typing import Any

import aiohttp
import pytest
import trustme
from epd_router.errors import MediaError
from epd_router.media import download, guard
from epd_router.media.memory import OVERHEAD, Claim

from tests.media.origin import PARAM, PICTURE, Answer, Names, Origin, fetching, get, redirect, refused, reply, reset
from tests.waiting import until

FRESH = reply(cache_control="max-age=60")
NOT_FOUND = reply(b"", "404 Not Found")
ERROR = reply(b"", "500 Internal Server Error")
REDIRECTED_AWAY = "it redirects to where nothing is fetched from"


class Clock:
    """A time that passes only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def loopback_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names may stand for 127.0.0.1; every other private address is one."""
    monkeypatch.setattr(download, "is_private", lambda host: host != "127.0.0.1" and guard.is_private(host))


def forever(start: bytes) -> tuple[Answer, list[int]]:
    """An answer without an end, and how many bytes of it were sent."""
    sent = [0]

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(start)
        while True:
            writer.write(bytes(64 << 10))
            await writer.drain()
            sent[0] += 64 << 10

    return write, sent


# One download for all


async def test_64_at_once_are_one_request() -> None:
    async with Origin(reply()).listening() as origin, fetching() as fetcher:
        found = await asyncio.gather(*(fetcher.get(origin.url(), "image", PARAM) for _ in range(64)))
        assert {id(resource) for resource in found} == {id(found[0])}
        assert (found[0].data, found[0].content_type, found[0].names) == (PICTURE, "application/octet-stream", {})
        assert len(origin.seen) == 1
        assert fetcher.results == {"fetched": 1, "joined": 63}


async def test_those_who_join_get_errors_that_name_their_own_part() -> None:
    async with Origin(NOT_FOUND).listening() as origin, fetching() as fetcher:
        params = [f"messages[0].content[{index}].video_url.url" for index in range(8)]
        ends = await asyncio.gather(*(fetcher.get(origin.url(), "video", param) for param in params), return_exceptions=True)
        for param, end in zip(params, ends, strict=True):
            assert isinstance(end, MediaError)
            assert (end.param, end.status) == (param, 422)
            assert end.message.startswith(f"{param}: video not fetched: its server answered 404. ")
        assert len(origin.seen) == 1
        assert fetcher.results == {"failed": 8}


async def test_what_must_not_be_stored_is_shared_by_those_who_wait_for_it_and_forgotten() -> None:
    async with Origin(reply(cache_control="no-store, max-age=60")).listening() as origin, fetching() as fetcher:
        await asyncio.gather(get(fetcher, origin.url()), get(fetcher, origin.url()))
        await get(fetcher, origin.url())
        assert len(origin.seen) == 2


async def test_one_of_many_leaves() -> None:
    async with Origin(reply(content_length=2 * len(PICTURE)), reply()).listening() as origin, fetching() as fetcher:
        first, second = (asyncio.create_task(get(fetcher, origin.url())) for _ in range(2))
        await until(lambda: origin.seen)
        first.cancel()
        await asyncio.wait([first])
        assert not origin.left
        second.cancel()
        await asyncio.wait([second])
        await until(lambda: origin.left == 1, "the connection is closed")
        assert await get(fetcher, origin.url()) == PICTURE
        assert fetcher.results == {"fetched": 1}


async def test_close_ends_what_is_under_way() -> None:
    async with Origin(reply(content_length=2 * len(PICTURE))).listening() as origin, fetching() as fetcher:
        task = asyncio.create_task(get(fetcher, origin.url()))
        await until(lambda: origin.seen)
        await fetcher.close()
        await until(lambda: origin.left == 1, "the connection is closed")
        await asyncio.wait([task])
        assert task.cancelled()


# What is kept


async def test_a_fresh_file_is_served_from_memory_and_no_longer_than_it_is_fresh() -> None:
    clock = Clock()
    async with Origin(FRESH, reply(b"changed")).listening() as origin, fetching(more={"clock": clock}) as fetcher:
        first = await fetcher.get(origin.url(), "image", PARAM)
        clock.now += 59.9
        assert await fetcher.get(f" {origin.url()}#page=2 ", "image", PARAM) is first
        clock.now += 0.1
        assert await get(fetcher, origin.url()) == b"changed"
        assert fetcher.results == {"fetched": 2, "hit": 1}


@pytest.mark.parametrize(
    "control",
    [{}, {"cache_control": "private, max-age=60"}, {"vary": "*", "cache_control": "max-age=60"}, {"cache_control": "no-cache"}],
)
async def test_what_may_not_be_reused_is_fetched_each_time(control: dict[str, Any]) -> None:
    async with Origin(reply(**control), reply(b"changed", **control)).listening() as origin, fetching() as fetcher:
        assert [await get(fetcher, origin.url()) for _ in range(2)] == [PICTURE, b"changed"]


async def test_other_successes_are_used_and_not_kept() -> None:
    async with Origin(reply(status="203 Non-Authoritative Information", cache_control="max-age=60")).listening() as origin:
        async with fetching() as fetcher:
            assert [await get(fetcher, origin.url()) for _ in range(2)] == [PICTURE] * 2
            assert len(origin.seen) == 2


@pytest.mark.parametrize(
    ("told", "field"),
    [({"etag": '"a"'}, "if-none-match"), ({"last_modified": "Sun, 06 Nov 1994 08:49:37 GMT", "expires": "0"}, "if-modified-since")],
)
async def test_304_keeps_the_resource_and_its_names(told: dict[str, Any], field: str) -> None:
    not_modified = reply(b"", "304 Not Modified", content_length=None, **told)
    async with Origin(reply(**told), not_modified, not_modified).listening() as origin, fetching() as fetcher:
        first = await fetcher.get(origin.url(), "image", PARAM)
        names = first.names
        for _ in range(2):
            assert await fetcher.get(origin.url(), "image", PARAM) is first
        assert first.names is names
        (_, told_first), *_ = told.items()
        assert [request.fields.get(field) for request in origin.seen] == [None, told_first, told_first]
        assert fetcher.results == {"fetched": 1, "revalidated": 2}
        assert origin.connections == 1


async def test_304_renews_the_lifetime() -> None:
    clock = Clock()
    not_modified = reply(b"", "304 Not Modified", content_length=None, cache_control="max-age=600")
    async with Origin(reply(etag='"a"', cache_control="max-age=60"), not_modified).listening() as origin:
        async with fetching(more={"clock": clock}) as fetcher:
            for passed in (0, 60, 599):
                clock.now += passed
                await get(fetcher, origin.url())
            assert fetcher.results == {"fetched": 1, "revalidated": 1, "hit": 1}


async def test_304_that_forbids_storing_ends_it() -> None:
    not_modified = reply(b"", "304 Not Modified", content_length=None, cache_control="no-store")
    async with Origin(reply(etag='"a"'), not_modified, reply(b"changed")).listening() as origin, fetching() as fetcher:
        assert [await get(fetcher, origin.url()) for _ in range(3)] == [PICTURE, PICTURE, b"changed"]
        assert "if-none-match" not in origin.seen[2].fields


async def test_304_about_another_file_is_asked_again_without_condition() -> None:
    other = reply(b"", "304 Not Modified", content_length=None, etag='"b"')
    async with Origin(reply(etag='"a"'), other, reply(b"changed", etag='"b"')).listening() as origin, fetching() as fetcher:
        assert [await get(fetcher, origin.url()) for _ in range(2)] == [PICTURE, b"changed"]
        assert [request.fields.get("if-none-match") for request in origin.seen] == [None, '"a"', None]


async def test_a_new_tag_brings_a_new_resource() -> None:
    async with (
        Origin(reply(etag='"a"'), reply(b"changed", etag='"b"'), reply(b"again")).listening() as origin,
        fetching() as fetcher,
    ):
        first = await fetcher.get(origin.url(), "image", PARAM)
        second = await fetcher.get(origin.url(), "image", PARAM)
        assert (first.data, second.data) == (PICTURE, b"changed")
        await get(fetcher, origin.url())
        assert origin.seen[2].fields["if-none-match"] == '"b"'


async def test_a_stale_file_is_no_answer_when_its_server_fails() -> None:
    async with Origin(reply(etag='"a"'), ERROR).listening() as origin, fetching() as fetcher:
        await get(fetcher, origin.url())
        assert await refused(fetcher, origin.url(), 422, "media_fetch_failed") == "its server answered 500"


async def test_signed_variants_are_different_files() -> None:
    async with Origin(FRESH, reply(b"other", cache_control="max-age=60")).listening() as origin, fetching() as fetcher:
        urls = [origin.url(f"/a.png?sig={sign}") for sign in ("x", "y", "x")]
        assert [await get(fetcher, url) for url in urls] == [PICTURE, b"other", PICTURE]
        assert [request.path for request in origin.seen] == ["/a.png?sig=x", "/a.png?sig=y"]


async def test_the_least_recently_used_make_room() -> None:
    size = 10_000
    async with Origin(reply(bytes(size), cache_control="max-age=60")).listening() as origin:
        async with fetching(mm_cache_bytes=4 * (size + OVERHEAD + 200)) as fetcher:
            for name in "abcda":
                await get(fetcher, origin.url(f"/{name}"))
            assert fetcher.results == {"fetched": 4, "hit": 1}
            for name in "eab":
                await get(fetcher, origin.url(f"/{name}"))
            assert [request.path for request in origin.seen] == ["/a", "/b", "/c", "/d", "/e", "/b"]


async def test_large_files_and_no_room_at_all() -> None:
    async with Origin(FRESH).listening() as origin:
        for room in (0, 4 * len(PICTURE)):
            async with fetching(mm_cache_bytes=room) as fetcher:
                assert [await get(fetcher, origin.url()) for _ in range(2)] == [PICTURE] * 2
                assert fetcher.results == {"fetched": 2}


async def test_a_redirect_is_asked_again_and_its_target_is_kept() -> None:
    async with Origin(FRESH, reply(b"other", cache_control="max-age=60")).listening() as files:
        first, second = redirect(files.url("/1")), redirect(files.url("/2"))
        async with Origin(first, first, second).listening() as origin, fetching() as fetcher:
            assert [await get(fetcher, origin.url()) for _ in range(3)] == [PICTURE, PICTURE, b"other"]
            assert (len(files.seen), fetcher.results) == (2, {"fetched": 2, "hit": 1})


# What the origin sees


async def test_the_request() -> None:
    async with Origin(reply(set_cookie="a=b")).listening() as origin, fetching(mm_user_agent="Router/1 (mail)") as fetcher:
        for _ in range(2):
            await get(fetcher, origin.url("/%7e/a%2Fb.png?sig=%2B%2f+=/&x='"))
        assert [request.path for request in origin.seen] == ["/%7e/a%2Fb.png?sig=%2B%2f+=/&x='"] * 2
        assert origin.seen[1].fields == {
            "host": f"127.0.0.1:{origin.port}",
            "user-agent": "Router/1 (mail)",
            "accept": "*/*",
            "accept-encoding": "identity",
        }
        assert origin.connections == 1


async def test_what_is_no_uri_is_spelled_as_one() -> None:
    async with Origin(reply()).listening() as origin, fetching() as fetcher:
        await get(fetcher, origin.url("/a b/ü.png?x=ü y"))
        assert origin.seen[0].path == "/a%20b/%C3%BC.png?x=%C3%BC+y"


async def test_no_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with Origin(reply()).listening() as origin, fetching() as fetcher:
        assert await get(fetcher, origin.url()) == PICTURE


# Sizes

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        reply(bytes(1001)),
        reply(b"", content_length=10**15),
        reply(bytes(1001), content_length=None, connection="close"),
        CHUNKED + b"3e9\r\n" + bytes(1001) + b"\r\n0\r\n\r\n",
        reply(gzip.compress(bytes(1001)), content_encoding="gzip"),
    ],
)
async def test_larger_than_the_limit(answer: bytes) -> None:
    async with Origin(answer).listening() as origin, fetching(mm_max_item_bytes=1000) as fetcher:
        reason = await refused(fetcher, origin.url("/?sig=secret"), 413, "media_too_large")
        assert (reason, len(origin.seen)) == ("it is larger than 1000 bytes", 1)


@pytest.mark.parametrize(
    "answer",
    [
        reply(bytes(1000)),
        reply(bytes(1000), content_length=None, connection="close"),
        reply(gzip.compress(bytes(1000)), content_encoding="gzip"),
        reply(zlib.compress(bytes(1000)), content_encoding="deflate"),
    ],
)
async def test_as_large_as_the_limit(answer: bytes) -> None:
    async with Origin(answer).listening() as origin, fetching(mm_max_item_bytes=1000) as fetcher:
        assert await get(fetcher, origin.url()) == bytes(1000)


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\n\r\n", CHUNKED + b"ffffffffff\r\n"])
async def test_an_endless_body_is_cut(start: bytes) -> None:
    write, sent = forever(start=start)
    async with Origin(write).listening() as origin, fetching(mm_max_item_bytes=1 << 20) as fetcher:
        await refused(fetcher, origin.url(), 413, "media_too_large")
        await until(lambda: origin.left == 1, "the connection is closed")
        assert sent[0] < 16 << 20  # what the sockets hold comes on top


async def test_an_endless_head_is_cut() -> None:
    write, sent = forever(start=b"HTTP/1.1 200 OK\r\nX: ")
    async with Origin(write).listening() as origin, fetching() as fetcher:
        assert await refused(fetcher, origin.url(), 422, "media_fetch_failed") == "its server broke off"
        assert sent[0] < 32 << 20


async def test_a_bomb_is_stopped_while_it_goes_off() -> None:
    bomb = reply(gzip.compress(bytes(64 << 20), 6), content_encoding="gzip")
    async with Origin(bomb).listening() as origin, fetching(mm_max_item_bytes=1 << 20) as fetcher:
        tracemalloc.start()
        try:
            await refused(fetcher, origin.url(), 413, "media_too_large")
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()


async def test_a_file_is_in_memory_once() -> None:
    size = 16 << 20
    piece = bytes(64 << 10)

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // len(piece)):
            writer.write(piece)
            await writer.drain()

    async with Origin(write).listening() as origin, fetching() as fetcher:
        tracemalloc.start()
        try:
            assert len(await get(fetcher, origin.url())) == size
            assert tracemalloc.get_traced_memory()[1] < 1.3 * size
        finally:
            tracemalloc.stop()


async def test_downloads_that_do_not_fit_wait_and_all_come_through(monkeypatch: pytest.MonkeyPatch) -> None:
    room, item, grow = 300_000, 200_000, Claim.grow
    used: list[int] = []

    async def watched(claim: Claim, size: int) -> None:
        await grow(claim, size)
        used.append(fetcher._memory.used)

    monkeypatch.setattr(Claim, "grow", watched)
    async with Origin(reply(bytes(item), content_length=None, connection="close")).listening() as origin:
        async with fetching(mm_cache_bytes=room) as fetcher:
            found = await asyncio.gather(*(get(fetcher, origin.url(f"/{index}")) for index in range(24)))
            assert [len(data) for data in found] == [item] * 24
            assert room / 2 < max(used) <= room + item
            assert fetcher._memory.used == 0


# Failures


@pytest.mark.parametrize(
    "status", ["400 Bad Request", "401 Unauthorized", "403 Forbidden", "404 Not Found", "410 Gone", "429 Too Many"]
)
async def test_4xx_is_final(status: str) -> None:
    async with Origin(reply(b"sorry", status)).listening() as origin, fetching() as fetcher:
        reason = await refused(fetcher, origin.url("/?sig=secret"), 422, "media_fetch_failed")
        assert (reason, len(origin.seen)) == (f"its server answered {status[:3]}", 1)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (reply(b"", "204 No Content", content_length=None), "its server answered 204"),
        (reply(status="206 Partial Content", content_range="bytes 0-9/99"), "its server answered 206"),
        (reply(status="300 Multiple Choices"), "its server answered 300"),
        (reply(b"", "304 Not Modified", content_length=None), "its server answered 304"),
        (reply(b"", "302 Found"), "its server redirects to nowhere"),
        (reply(b""), "its server sent nothing"),
        (reply(gzip.compress(b""), content_encoding="gzip"), "its server sent nothing"),
    ],
)
async def test_answers_without_a_file(answer: bytes, reason: str) -> None:
    async with Origin(answer).listening() as origin, fetching() as fetcher:
        assert await refused(fetcher, origin.url(), 422, "media_fetch_failed") == reason
        assert len(origin.seen) == 1


SHORT = reply(content_length=len(PICTURE) + 1, connection="close")
BROKEN = [
    (ERROR, "its server answered 500"),
    (reply(b"", "503 Service Unavailable"), "its server answered 503"),
    (reset, "its server broke off"),
    (SHORT, "its server broke off"),
    (reply(PICTURE + b"more", content_length=len(PICTURE)), "its server broke off"),
    (CHUNKED + b"3\r\nabc\r\n" + b"connection: close", "its server broke off"),
    (b"nonsense\r\n\r\nconnection: close", "its server broke off"),
    (reply(b"no gzip", content_encoding="gzip"), "its server broke off"),
    (reply(content_length="many"), "its server broke off"),
]


@pytest.mark.parametrize(("answer", "reason"), BROKEN)
async def test_failures_that_may_pass_are_tried_once_more(answer: Answer, reason: str) -> None:
    async with Origin(answer, reply()).listening() as origin, fetching() as fetcher:
        assert await get(fetcher, origin.url()) == PICTURE
        assert (len(origin.seen), fetcher.results) == (2, {"fetched": 1})
    async with Origin(answer).listening() as origin, fetching() as fetcher:
        assert await refused(fetcher, origin.url("/?sig=secret"), 422, "media_fetch_failed") == reason
        assert (len(origin.seen), fetcher.results) == (2, {"failed": 1})


async def test_no_server_and_no_such_name_look_the_same() -> None:
    names = Names(closed_example_com=[["127.0.0.1"]])
    async with fetching(more={"resolver": names}) as fetcher:
        for host in ("closed.example.com:1", "nobody.example.com"):
            reason = await refused(fetcher, f"http://{host}/?sig=secret", 422, "media_fetch_failed")
            assert reason == "its server cannot be reached"
        assert names.asked.count("nobody.example.com") == 2


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\n", reply(content_length=10**6)])
async def test_a_server_that_stalls(start: bytes) -> None:
    async def stall(writer: asyncio.StreamWriter) -> None:
        writer.write(start)

    async with Origin(stall, reply()).listening() as origin, fetching(mm_fetch_timeout_secs=2) as fetcher:
        assert await get(fetcher, origin.url()) == PICTURE
    async with Origin(stall).listening() as origin, fetching(mm_fetch_timeout_secs=0.4) as fetcher:
        await refused(fetcher, origin.url("/?sig=secret"), 504, "media_fetch_timeout")
        await until(lambda: origin.left == origin.connections, "every connection is closed")


async def test_a_body_that_trickles_meets_the_deadline() -> None:
    async def trickle(writer: asyncio.StreamWriter) -> None:
        writer.write(reply(b"", content_length=10**6))
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with Origin(trickle).listening() as origin, fetching(mm_fetch_timeout_secs=0.5) as fetcher:
        assert await refused(fetcher, origin.url(), 504, "media_fetch_timeout") == "it took longer than 0.5 s"
        await until(lambda: origin.left == 1, "the connection is closed")


# Where nothing is fetched from


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:{}/?sig=secret", "host 127.0.0.1 is private"),
        ("http://127.1:{}/", "host 127.1 is private"),
        ("http://2130706433:{}/", "host 2130706433 is private"),
        ("http://0x7f.0.0.1:{}/", "host 0x7f.0.0.1 is private"),
        ("http://127.0.0.1.:{}/", "host 127.0.0.1 is private"),
        ("http://[::ffff:127.0.0.1]:{}/", "host ::ffff:127.0.0.1 is private"),
        ("http://①②⑦.0.0.1:{}/", "host 127.0.0.1 is private"),
        ("http://localhost:{}/", "host localhost is private"),
        ("http://pics.example.com@127.0.0.1:{}/", "the URL has no plain host"),
        ("http://user:secret@pics.example.com:{}/", "the URL has no plain host"),
        ("http://pics.example.com\\@127.0.0.1:{}/", "the URL has no plain host"),
        ("http://127.0.0.1:{}\\@pics.example.com/", "the URL has no plain host"),
        ("http://%31%32%37.0.0.1:{}/", "the URL has no plain host"),
        ("http://straße.example.com:{}/", "the URL has no plain host"),  # two standards, two hosts
        ("http://pics.example.com:99999/{}", "the URL has no plain host"),
        ("file:///etc/passwd", "only http, https and data URLs are fetched"),
        ("ftp://pics.example.com/", "only http, https and data URLs are fetched"),
    ],
)
async def test_refused_urls(url: str, reason: str) -> None:
    names = Names(pics_example_com=[["127.0.0.1"]])
    async with Origin(reply()).listening() as origin, fetching(private=False, more={"resolver": names}) as fetcher:
        assert await refused(fetcher, url.format(origin.port), 400, "media_not_allowed") == reason
        assert (origin.connections, fetcher.results) == (0, {"failed": 1})


@pytest.mark.parametrize(
    "found",
    [["127.0.0.1"], ["10.0.0.1"], ["93.184.216.34", "192.168.0.1"], ["::1"], ["fe80::1%2"], ["::ffff:10.0.0.1"], ["0.0.0.0"]],
)
async def test_names_of_private_addresses(found: list[str]) -> None:
    names = Names(pics_example_com=[found])
    async with Origin(reply()).listening() as origin, fetching(private=False, more={"resolver": names}) as fetcher:
        for host in ("pics.example.com", "PICS.example.com."):
            reason = await refused(fetcher, origin.url("/?sig=secret", host), 400, "media_not_allowed")
            assert reason == "host pics.example.com is private"
        assert origin.connections == 0


@pytest.mark.usefixtures("loopback_is_public")
async def test_a_name_that_turns_private_is_refused() -> None:
    names = Names(pics_example_com=[["127.0.0.1"], ["127.0.0.2"]])
    async with (
        Origin(reply(connection="close")).listening() as origin,
        fetching(private=False, more={"resolver": names}) as fetcher,
    ):
        url = origin.url(host="pics.example.com")
        async with Origin(reply(b"inside")).listening("127.0.0.2", origin.port) as inside:
            assert await get(fetcher, url) == PICTURE
            connector = fetcher._downloader._open().connector
            assert isinstance(connector, aiohttp.TCPConnector)
            connector.clear_dns_cache()
            assert await refused(fetcher, url, 400, "media_not_allowed") == "host pics.example.com is private"
            assert (names.asked, inside.connections) == (["pics.example.com"] * 2, 0)


@pytest.mark.usefixtures("loopback_is_public")
@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1:{}/inside?sig=secret",
        "//127.0.0.1:{}/inside",
        "http://inside.example.com:{}/?sig=secret",
        "http://169.254.169.254/latest/meta-data",
        "http://[::1]:{}/",
        "http://user:secret@pics.example.com:{}/",
        "http:\\\\127.0.0.1:{}/",
        "http://[::1:{}/",
        "file:///etc/passwd",
        "data:image/png;base64,secret",
        "gopher://127.0.0.1:{}/",
    ],
)
async def test_redirects_to_where_nothing_is_fetched_from(location: str) -> None:
    names = Names(pics_example_com=[["127.0.0.1"]], inside_example_com=[["10.0.0.1"]])
    async with Origin(reply()).listening() as inside:
        async with Origin(redirect(location.format(inside.port))).listening() as origin:
            async with fetching(private=False, more={"resolver": names}) as fetcher:
                reason = await refused(fetcher, origin.url(host="pics.example.com"), 400, "media_not_allowed")
                assert reason in {REDIRECTED_AWAY, "the URL has no plain host"}
                assert (len(origin.seen), inside.connections) == (1, 0)


@pytest.mark.usefixtures("loopback_is_public")
async def test_redirects_keep_to_the_allowed_hosts() -> None:
    names = Names(pics_example_com=[["127.0.0.1"]], other_example_org=[["127.0.0.1"]])
    async with Origin(reply()).listening() as other:
        async with Origin(redirect(other.url(host="other.example.org"))).listening() as origin:
            given = {"mm_allowed_media_domains": "example.com"}
            async with fetching(private=False, more={"resolver": names}, **given) as fetcher:
                url = origin.url(host="pics.example.com")
                assert await refused(fetcher, url, 400, "media_not_allowed") == REDIRECTED_AWAY
                assert other.connections == 0


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
async def test_redirects_are_followed(status: str) -> None:
    async with Origin(redirect("../b?x=1#top", status), reply()).listening() as origin, fetching() as fetcher:
        assert await get(fetcher, origin.url("/a/1.png")) == PICTURE
        assert [request.path for request in origin.seen] == ["/a/1.png", "/b?x=1"]


async def test_five_redirects_and_no_more() -> None:
    async with Origin(*[redirect("/b")] * 5, reply()).listening() as origin, fetching() as fetcher:
        assert await get(fetcher, origin.url()) == PICTURE
    async with Origin(redirect("/b")).listening() as origin, fetching() as fetcher:
        assert await refused(fetcher, origin.url(), 422, "media_fetch_failed") == "it redirects too often"
        assert len(origin.seen) == 6


async def test_tls_is_checked_and_not_left_by_a_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    server, client = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("pics.example.com").configure_cert(server)
    names = Names(pics_example_com=[["127.0.0.1"]])
    async with Origin(reply()).listening() as plain:
        async with Origin(reply(), redirect(plain.url())).listening(tls=server) as origin:
            url = origin.url(host="pics.example.com", scheme="https")
            async with fetching(more={"resolver": names}) as fetcher:
                assert await refused(fetcher, url, 422, "media_fetch_failed") == "TLS with its server failed"
            authority.configure_trust(client)
            monkeypatch.setattr(aiohttp.connector, "_SSL_CONTEXT_VERIFIED", client)
            async with fetching(more={"resolver": names}) as fetcher:
                assert await get(fetcher, url) == PICTURE
                assert await refused(fetcher, url, 400, "media_not_allowed") == "it redirects from https to http"
                assert plain.connections == 0
