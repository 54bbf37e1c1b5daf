"""Which URLs a client may have fetched: every spelling of a host means what a resolver or another parser takes it for."""

from __future__ import annotations

import pytest
from epd_router import options
from epd_router.errors import ConfigError
from epd_router.media.guard import UrlGuard

NOT_PLAIN = "the URL has no plain host"
PRIVATE = """
    127.0.0.1 127.1 2130706433 0x7f000001 0x7F.0.0.1 0177.0.0.1 017700000001 00000177.1 127.0.0.1. 0x7f000001. 0 0.0.0.0 10.1
    10.0.0.1 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 192.0.2.1 198.18.0.1 224.0.0.1 255.255.255.255
    4294967297 256.256.256.256 1.2.3.4.5 0x.1 127.0.0.08
    ①②⑦.0.0.1 127。0。0。1 ⓛⓞⓒⓐⓛⓗⓞⓢⓣ
    [::1] [::] [::127.0.0.1] [::ffff:127.0.0.1] [::ffff:7f00:1] [::ffff:0:127.0.0.1] [64:ff9b::7f00:1] [64:ff9b::10.0.0.1]
    [64:ff9b:1::1] [2002:7f00:1::] [2001:0:7f00:1::] [fe80::1] [fc00::1] [fd00:ec2::254] [ff02::1]
    localhost LOCALHOST localhost. a.localhost x.local foo.internal metadata.google.internal intranet db.svc host.lan
    localhost.localdomain nas.home.arpa kubernetes.default.svc.cluster.local
    """
SCHEME = "only http, https and data URLs are fetched"


def guard(**given: str) -> UrlGuard:
    return UrlGuard(options.load({"worker_urls": "http://w:1", **given}, {}))


@pytest.mark.parametrize("host", PRIVATE.split())
@pytest.mark.parametrize("url", ["http://{}/a", "https://{}:8443", "HTTP://{}/?u=http://example.com", "http://{}#@example.com/"])
def test_private_hosts_are_private_in_every_spelling(host: str, url: str) -> None:
    assert guard().refusal(url.format(host)).endswith(" is private")
    assert guard(mm_allow_private_media_hosts="true").refusal(url.format(host)) == ""


@pytest.mark.parametrize(
    "url",
    [
        "http://user@example.com/",
        "http://:password@example.com/",
        "http://example.com@127.0.0.1/",
        "http://example.com\\@127.0.0.1/",
        "http:\\\\127.0.0.1/",
        "http://127.0.0.1\\.example.com/",
        "http://%31%32%37.0.0.1/",
        "http://127.0.0.1%2f.example.com/",
        "http://127.0.0.1%00.example.com/",
        "http://[fe80::1%25eth0]/",
        "http://[v1.example]/",
        "http://[::1",
        "http://[]/",
        "http://",
        "http:///a",
        "http://:80/",
        "http:/127.0.0.1/",
        "http:127.0.0.1",
        "http://example.com:99999/",
        "http://example.com:port/",
        "http://exam\tple.com/",
        "http://example.com/\r\nHost: x",
        "http://exam ple.com/",
        "http://" + "ä" * 70 + ".com/",
    ],
)
@pytest.mark.parametrize("private", ["true", "false"])
def test_a_host_that_two_readers_may_read_differently_is_refused(url: str, private: str) -> None:
    assert guard(mm_allow_private_media_hosts=private).refusal(url) == NOT_PLAIN


@pytest.mark.parametrize(
    "url", ["//example.com/", "ftp://example.com/", "file:///etc/passwd", "javascript:1", "a.jpg", "", "blob:http://e.com"]
)
def test_other_schemes_are_refused(url: str) -> None:
    assert guard(mm_allow_private_media_hosts="true").refusal(url) == SCHEME


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com",
        " https://example.com:8443/a b?c=d@e#f ",
        "https://example.com/a%20b%2fc",
        "http://bücher.example/",
        "http://xn--bcher-kva.example/",
        "http://8.8.8.8/",
        "http://134744072/",
        "http://[2606:4700::1111]:80/",
        "http://[::ffff:8.8.8.8]/",
        "http://[64:ff9b::8.8.8.8]/",
        "http://1password.com/",
        "http://a_b.example.com./",
        "http://local.example.com/",
    ],
)
def test_public_hosts_may_be_fetched_from(url: str) -> None:
    assert guard().refusal(url) == ""


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://example.com/", True),
        ("http://EXAMPLE.com./", True),
        ("http://cdn.example.com/", True),
        ("http://notexample.com/", False),
        ("http://example.com.evil.org/", False),
        ("http://evil.org/example.com", False),
        ("http://evil.org#.example.com", False),
        ("http://bücher.example/", True),
        ("http://xn--bcher-kva.example/", True),
        ("http://8.8.8.8/", False),
        ("http://pictures.test/", True),
    ],
)
def test_with_a_list_only_its_domains_and_those_below_are_allowed(url: str, allowed: bool) -> None:
    found = guard(mm_allowed_media_domains="Example.COM, .bücher.example,*.pictures.test").refusal(url)
    assert (found == "") == allowed
    assert allowed or found.endswith(" is not allowed")


def test_a_listed_host_that_is_private_needs_the_other_switch_too() -> None:
    assert guard(mm_allowed_media_domains="10.0.0.1").refusal("http://10.0.0.1/").endswith("is private")
    both = guard(mm_allowed_media_domains="10.0.0.1", mm_allow_private_media_hosts="true")
    assert both.refusal("http://10.0.0.1/") == ""
    assert both.refusal("http://10.0.0.2/").endswith("is not allowed")


@pytest.mark.parametrize("domains", ["http://example.com", "a b", "exa%mple.com"])
def test_a_domain_that_is_none_is_found_at_the_start(domains: str) -> None:
    with pytest.raises(ConfigError, match="mm-allowed-media-domains"):
        guard(mm_allowed_media_domains=domains)
