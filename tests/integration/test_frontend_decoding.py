"""`--frontend-decoding`: pictures are downloaded, decoded and named here, and handed to workers in every way there is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from epd_router.errors import ConfigError
from epd_router.mock import Cluster, EngineConfig
from epd_router.server import Server

from tests.conftest import Started, ask, chat, data_url, picture, running
from tests.media.corpus import noise, saved
from tests.waiting import ready, settled

PRIVATE = {"mm_allow_private_media_hosts": "true"}
DECODING = {"frontend_decoding": "image", **PRIVATE}


class Site:
    """Files by path, under a wrong type; notes what was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.headers: dict[str, str] = {}
        self.asked: list[str] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append(request.path_qs)
        await asyncio.sleep(0.01)
        return web.Response(body=self.files[request.path], headers={"content-type": "text/plain", **self.headers})


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    found = Site()
    app = web.Application()
    app.router.add_get("/{name:.*}", found.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


def metric(server: Server, name: str, **labels: str) -> float:
    return server.metrics.registry.get_sample_value(name, labels) or 0.0


def same_pixels() -> list[bytes]:
    """One picture in five files."""
    image = noise("RGB", (40, 30))
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("PNG", {}), ("PNG", {"compress_level": 1}), ("WEBP", {"lossless": True}), ("BMP", {}), ("TIFF", {}),
    ]  # fmt: skip
    return [saved(image, form, **more) for form, more in kinds]


def media_urls(cluster: Cluster, role: str) -> list[str]:
    """What the workers of a role were handed."""
    found = []
    for engine in cluster[role]:
        for request in engine.requests:
            for message in request["body"]["messages"]:
                parts = message["content"] if isinstance(message["content"], list) else []
                found += [part["image_url"]["url"] for part in parts if part.get("type") == "image_url"]
    return found


def left(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def encodes(cluster: Cluster) -> int:
    return sum(len(engine.requests) for engine in cluster["encode"])


async def answer_of(server: Server, *urls: str) -> str:
    status, answer = await ask(server, chat("What?", *urls))
    assert status == 200, answer
    return str(answer["choices"][0]["message"]["content"])


async def test_one_picture_in_any_file_is_encoded_once(started: Started, site: Site) -> None:
    async with started(encode=1, prefill=1, decode=1, settings=DECODING) as (server, cluster):
        answers = set()
        for index, content in enumerate(same_pixels()):
            site.files[f"/{index}"] = content
            for url in (f"{site.url}/{index}?sig=1", f"{site.url}/{index}?sig=2", data_url(content, "image/jpeg")):
                answers.add(await answer_of(server, url))
        assert len(answers) == 1
        assert encodes(cluster) == 1
        assert len(site.asked) == 10
        assert metric(server, "epd_router_media_decodes_total", result="decoded") == 5
        assert metric(server, "epd_router_media_decodes_total", result="known") == 10
        assert metric(server, "epd_router_media_fetches_total", result="fetched") == 10
        await settled(server)


async def test_without_decoding_equal_bytes_are_one_picture(started: Started, site: Site) -> None:
    first, *others = same_pixels()
    site.files = {"/a": first, "/b": others[0]}
    async with started(encode=1, prefill=1, decode=1, settings=PRIVATE) as (server, cluster):
        for url in (f"{site.url}/a?sig=1", f"{site.url}/a?sig=2", data_url(first)):
            await answer_of(server, url)
        assert encodes(cluster) == 1
        assert media_urls(cluster, "encode") == [data_url(first, "image/png")]
        await answer_of(server, f"{site.url}/b")
        assert encodes(cluster) == 2


async def test_workers_download_where_they_are_told_to(started: Started, site: Site) -> None:
    site.files = {"/a": picture("red")}
    settings = {"mm_fetch": "worker", **PRIVATE}
    async with started(encode=1, prefill=1, decode=1, settings=settings) as (server, cluster):
        await answer_of(server, f"{site.url}/a")
        assert media_urls(cluster, "encode") == [f"{site.url}/a"]


async def test_sixty_four_requests_download_and_decode_and_encode_once(started: Started, site: Site) -> None:
    site.files = {"/a": saved(noise("RGB", (300, 200)), "PNG")}
    config = EngineConfig(encode_ms=50)
    async with started(encode=1, prefill=1, decode=1, settings=DECODING, config=config) as (server, cluster):
        answers = await asyncio.gather(*(answer_of(server, f"{site.url}/a") for _ in range(64)))
        assert len(set(answers)) == 1
        assert site.asked == ["/a"]
        assert encodes(cluster) == 1
        assert metric(server, "epd_router_media_decodes_total", result="decoded") == 1
        await settled(server)


@pytest.mark.parametrize("roles", [{"aggregated": 1}, {"encode": 1, "prefill_decode": 1}, {"encode": 1, "prefill": 1, "decode": 1}])
@pytest.mark.parametrize("way", ["data", "file", "http"])
async def test_every_way_and_topology_gives_the_same_answer(
    started: Started, site: Site, tmp_path: Path, way: str, roles: dict[str, int]
) -> None:
    site.files = {"/a": picture("red", "PNG"), "/b": saved(noise("RGBA", (50, 20)), "PNG")}
    config = EngineConfig(allowed_local_media_path=str(tmp_path))
    urls = [f"{site.url}/a", f"{site.url}/b", data_url(picture("blue", "WEBP"))]
    async with started(settings=PRIVATE, config=config, **roles) as (server, _):
        expected = await answer_of(server, *urls)
    ways = {"media_handoff": way, "media_shm_dir": tmp_path, "media_base_url": "http://127.0.0.1:1"}
    asked = len(site.asked)
    async with started(settings={**DECODING, **ways}, config=config, wait=False, **roles) as (server, cluster):
        if server.media.served is not None:
            server.media.served._base = f"http://127.0.0.1:{server.port}"
        await ready(server)
        assert await answer_of(server, *urls) == expected
        assert len(site.asked) == asked + 2  # by nobody but the router
        first = "encode" if "encode" in roles else "aggregated"
        scheme = {"data": "data:image/x-portable-anymap;", "file": f"file://{tmp_path}", "http": "http://127.0.0.1"}[way]
        handed = media_urls(cluster, first)
        assert len(handed) == 3
        assert [url[:40] for url in handed if not url.startswith(scheme)] == []
        # A second request finds the names; nothing is downloaded by workers, whatever they are handed.
        assert await answer_of(server, *urls) == expected
        assert metric(server, "epd_router_media_decodes_total", result="decoded") == 3
        await settled(server)
        assert not server.media.served
    assert left(tmp_path) == []


async def test_a_whole_picture_that_is_refused_names_its_place(started: Started, site: Site) -> None:
    cut = saved(noise("RGB", (60, 50)), "JPEG")[:-2]
    site.files = {"/cut": cut, "/good": picture("red")}
    async with started(encode=1, prefill=1, decode=1, settings=DECODING) as (server, cluster):
        for url in (f"{site.url}/cut", data_url(cut)):
            status, answer = await ask(server, chat("What?", f"{site.url}/good", url))
            error = answer["error"]
            assert (status, error["code"], error["param"]) == (400, "media_damaged", "messages[0].content[1]")
            assert error["message"].startswith("messages[0].content[1]: ")
        assert encodes(cluster) == 0
        await settled(server)


async def test_joined_requests_are_each_told_their_own_place(started: Started, site: Site) -> None:
    site.files = {"/cut": saved(noise("RGB", (600, 500)), "JPEG")[:-2]}
    async with started(encode=1, prefill=1, decode=1, settings=DECODING) as (server, _):
        bad, good = f"{site.url}/cut", data_url(picture("red"))
        answers = await asyncio.gather(ask(server, chat("?", bad)), ask(server, chat("?", good, bad)))
        assert [answer["error"]["param"] for _, answer in answers] == ["messages[0].content[0]", "messages[0].content[1]"]


@pytest.mark.parametrize("decoding", ["", "image"])
async def test_limits_hold_before_anything_is_decoded(started: Started, site: Site, decoding: str) -> None:
    large = saved(noise("RGB", (101, 100)), "PNG")
    site.files = {"/a": large}
    settings = {**PRIVATE, "frontend_decoding": decoding, "mm_max_pixels": 10_000, "mm_max_item_bytes": 40_000}
    async with started(encode=1, prefill=1, decode=1, settings=settings) as (server, _):
        for url in (f"{site.url}/a", data_url(large)):
            status, answer = await ask(server, chat("What?", url))
            assert (status, answer["error"]["code"]) == (413, "media_too_large")
            assert "10100" in answer["error"]["message"] or "101x100" in answer["error"]["message"]
        status, answer = await ask(server, chat("What?", data_url(saved(noise("RGB", (90, 90)), "BMP") * 2)))
        assert (status, answer["error"]["code"]) == (413, "media_too_large")


async def test_what_is_not_decoded_is_passed_through(started: Started) -> None:
    avif = saved(noise("RGB", (30, 20)), "AVIF")
    async with started(encode=1, prefill=1, decode=1, settings=DECODING) as (server, cluster):
        await answer_of(server, data_url(avif))
        await answer_of(server, data_url(avif))
        assert media_urls(cluster, "encode") == [data_url(avif)]
        assert metric(server, "epd_router_media_passed_through_total", reason="AVIF") == 1
        assert encodes(cluster) == 1


async def test_a_request_with_options_of_its_own_is_not_decoded_here(started: Started) -> None:
    content = saved(noise("RGBA", (30, 20)), "PNG")
    async with started(encode=1, prefill=1, decode=1, settings=DECODING) as (server, cluster):
        body = chat("What?", data_url(content, "image/png"), media_io_kwargs={"image": {"rgba_background_color": [0, 0, 0]}})
        assert (await ask(server, body))[0] == 200
        assert media_urls(cluster, "encode") == [data_url(content, "image/png")]


SPELLINGS = ["DATA:image/jpg;base64,{}", "data:image/png;BASE64,{}", "data:image/png; base64 ,{}", "data:;base64, {} "]


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_workers_get_the_one_spelling_they_take(started: Started, spelling: str) -> None:
    plain = data_url(picture("red"))
    async with started(encode=1, prefill=1, decode=1) as (server, cluster):
        expected = await answer_of(server, plain)
        assert await answer_of(server, spelling.format(plain.partition(",")[2])) == expected
        assert encodes(cluster) == 1
    async with started(encode=1, prefill=1, decode=1) as (server, cluster):
        await answer_of(server, spelling.format(plain.partition(",")[2]))
        assert media_urls(cluster, "encode") == [plain]


@pytest.mark.parametrize(("size", "kind"), [((1200, 1000), "PNG"), ((60, 50), "JPEG")])
async def test_pixels_that_do_not_pay_in_json_go_as_they_came(
    started: Started, site: Site, size: tuple[int, int], kind: str
) -> None:
    large = saved(noise("RGB", size), kind)
    site.files = {"/a": large}
    async with started(encode=1, prefill=1, decode=1, settings=DECODING) as (server, cluster):
        await answer_of(server, f"{site.url}/a")
        assert media_urls(cluster, "encode") == [data_url(large, f"image/{kind.lower()}")]


async def test_without_room_for_files_media_go_in_the_request(started: Started, site: Site, tmp_path: Path) -> None:
    site.files = {"/a": picture("red"), "/b": picture("blue")}
    settings = {**DECODING, "media_shm_dir": tmp_path, "media_shm_bytes": 100}
    async with started(encode=1, prefill=1, decode=1, settings=settings) as (server, cluster):
        await answer_of(server, f"{site.url}/a", f"{site.url}/b")
        assert all(url.startswith("data:") for url in media_urls(cluster, "encode"))
        assert server.media.files is not None
        assert server.media.files.held == 0


async def test_a_worker_may_be_given_media_in_its_own_way(site: Site, tmp_path: Path) -> None:
    site.files = {"/a": picture("red")}
    config = EngineConfig(allowed_local_media_path=str(tmp_path))
    async with Cluster(config=config, aggregated=1) as cluster:
        values = {**DECODING, "media_shm_dir": tmp_path, "worker_urls": f"{cluster.urls('aggregated')},media=data"}
        async with running(values) as server:
            await answer_of(server, f"{site.url}/a")
            assert media_urls(cluster, "aggregated")[0].startswith("data:")


@pytest.mark.parametrize("roles", [{"encode": 1, "prefill_decode": 1}, {"encode": 1, "prefill": 1, "decode": 1}])
async def test_workers_that_read_no_files_are_handed_none(started: Started, tmp_path: Path, roles: dict[str, int]) -> None:
    settings = {**DECODING, "media_shm_dir": tmp_path}
    async with started(settings=settings, **roles) as (server, cluster):
        for color in ("red", "blue"):
            await answer_of(server, data_url(picture(color)))
        assert [url.partition(":")[0] for url in media_urls(cluster, "encode")] == ["file", "data", "data"]
        await settled(server)


async def test_names_reach_whole_requests_where_the_endpoint_takes_them(started: Started) -> None:
    async with started(aggregated=1, settings=DECODING) as (server, cluster):
        for content in same_pixels():
            await answer_of(server, data_url(content))
        parts = [request["body"]["messages"][0]["content"][0] for request in cluster["aggregated"][0].requests]
        assert len({part["uuid"] for part in parts}) == 1


async def test_media_urls_are_signed_and_expire(started: Started, site: Site) -> None:
    async with started(aggregated=1, settings={**DECODING, "media_base_url": "http://router"}) as (server, _):
        served = server.media.served
        assert served is not None
        held = served.put("ab", b"pixels")
        _, _, content, expiry, signature = held.url.decode().rsplit("/", 4)
        assert served.get(content, expiry, signature) is held
        assert served.get(content, str(int(expiry) + 1), signature) is None
        assert served.get("ac", expiry, signature) is None
        served._clock = lambda: float(expiry) + 1
        assert served.get(content, expiry, signature) is None
        status, answer = await ask_get(server, f"/media/ab/{expiry}/{'0' * 64}")
        assert (status, answer["error"]["code"]) == (404, "unknown_url")
        held.release()
        assert not len(served)


async def ask_get(server: Server, path: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{server.port}{path}") as answer:
        return answer.status, await answer.json()


@pytest.mark.parametrize("values", [{"media_handoff": "file"}, {"media_handoff": "http"}, {"media_shm_dir": "/nowhere/at/all"}])
async def test_options_that_cannot_be_met_are_refused(values: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="--media-"):
        async with running({"worker_urls": "http://127.0.0.1:1", **values}, wait=False):
            pass


async def test_files_of_a_router_that_is_gone_are_removed(started: Started, tmp_path: Path) -> None:
    stale = tmp_path / "epd-router-1-dead"
    stale.mkdir()
    (stale / "x").write_bytes(b"left")
    settings = {**DECODING, "media_shm_dir": tmp_path}
    async with started(aggregated=1, settings=settings):
        assert not stale.exists()
        async with started(aggregated=1, settings=settings) as (server, _):
            assert len(left(tmp_path)) == 2
            assert server.media.files is not None
            assert server.media.files.folder.exists()
    assert left(tmp_path) == []
