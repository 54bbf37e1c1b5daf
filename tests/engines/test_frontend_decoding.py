"""`--frontend-decoding` in front of real engines: pictures of all kinds give the answers that they give without it, whatever
way they are handed on, and a picture is encoded once whatever file it comes in."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from epd_router.media import Decoded, MediaError, decode, probe

from tests.media import corpus

from . import client
from .conftest import topology
from .fleet import MODEL, Fleet, free_port
from .pictures import PictureServer, data_url
from .router import routing
from .runs import settled

EACH = 6  # pictures of a kind
SMALLEST, LARGEST = 6, 600  # pixels of a side
DECODED = ("jpeg", "turned", "png", "webp", "gif", "bmp", "tiff")


def fit(content: bytes) -> bool:
    """A whole picture, neither tiny nor large."""
    try:
        found, header = decode(content), probe(content)
    except MediaError:
        return False
    if header is None or not (isinstance(found, Decoded) or header.format == "AVIF"):
        return False
    short, long = sorted(header.upright)
    return short >= SMALLEST and long <= LARGEST


def some(kind: str) -> list[tuple[str, bytes]]:
    """Pictures of a kind, spread over all there are."""
    found = [(name, content) for name, content in corpus.KINDS[kind]() if fit(content)]
    return found[:: max(1, len(found) // EACH)][:EACH]


PICTURES = [(f"{kind} {name}", content) for kind in (*DECODED, "avif") for name, content in some(kind)]


def body(url: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is that?"}]
    asked = {"temperature": 0, "max_tokens": 8, "return_token_ids": True, "logprobs": True, "top_logprobs": 2}
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **asked, **more}


@pytest.fixture(scope="module")
def plain(fleet: Fleet) -> dict[str, client.Answer]:
    """What the aggregated engine says of the files themselves."""
    return {name: client.ask(fleet["agg"].url, body(data_url(content))) for name, content in PICTURES}


def test_there_are_forty_pictures() -> None:
    assert len(PICTURES) >= 40


@pytest.mark.parametrize("way", ["data", "file", "http"])
def test_answers_are_those_without_it(
    fleet: Fleet, server: PictureServer, run_dir: Path, plain: dict[str, client.Answer], way: str
) -> None:
    port = free_port()
    options = ["--frontend-decoding", "--media-handoff", way, "--media-shm-dir", str(run_dir / "media")]
    options += ["--media-base-url", f"http://127.0.0.1:{port}"]
    server.seen.clear()
    with routing(run_dir / f"router-{way}.log", *topology(fleet, "E+P+D"), *options, port=port) as router:
        for number, (name, content) in enumerate(PICTURES):
            url = data_url(content) if number % 2 else server.offer(f"/{way}/{number}", content)
            answer = client.ask(router.url, body(url, cache_salt=way))
            assert answer.same(plain[name]), name
        assert router.metric(f'epd_router_media_handoffs_total{{form="pixels",way="{way}"}}') > (10 if way == "data" else 30)
        assert router.metric('epd_router_media_decodes_total{result="decoded"}') > 30
    assert len(server.seen) == (len(PICTURES) + 1) // 2
    assert {agent.partition("/")[0] for _, agent in server.seen} == {"epd-router"}


def test_one_picture_in_any_file_is_encoded_once(fleet: Fleet, server: PictureServer, run_dir: Path) -> None:
    image = corpus.noise("RGB", (120, 90), 77)
    png, webp = corpus.saved(image, "PNG"), corpus.saved(image, "WEBP", lossless=True)
    urls = [server.offer("/one.png", png) + f"?signature={number}" for number in range(3)]
    urls += [data_url(png, "png"), data_url(webp, "webp"), server.offer("/one.webp", webp)]
    before = settled(fleet["e"])
    with routing(run_dir / "router-one.log", *topology(fleet, "E+P+D"), "--frontend-decoding") as router:
        hits = fleet["p"].metric("vllm:prefix_cache_hits_total")
        answers = [client.ask(router.url, body(url, cache_salt="one")) for url in urls]
    assert all(answer.same(answers[0]) for answer in answers)
    assert settled(fleet["e"]) - before == 1
    assert fleet["p"].metric("vllm:prefix_cache_hits_total") > hits


@pytest.mark.parametrize("way", ["data", "file"])
def test_refusals_are_those_of_the_engine(fleet: Fleet, run_dir: Path, way: str) -> None:
    """A picture that ends too early is a 400 with and without decoding here, and no engine sees it."""
    whole = corpus.saved(corpus.noise("RGB", (120, 90), 78), "JPEG")
    cut = [whole[:-2], whole[: len(whole) // 2]]
    options = ["--frontend-decoding", "--media-handoff", way, "--media-shm-dir", str(run_dir / "media")]
    before = settled(fleet["e"])
    with routing(run_dir / "router-cut.log", *topology(fleet, "E+P+D"), *options) as router:
        for content, url in itertools.product(cut, (fleet["agg"].url, router.url)):
            with pytest.raises(client.RefusedError) as caught:
                client.ask(url, body(data_url(content)))
            assert caught.value.status == 400
            assert ("messages[0].content[0]: " in caught.value.body) is (url == router.url)
    assert settled(fleet["e"]) == before
