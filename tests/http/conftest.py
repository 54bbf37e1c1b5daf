"""Every test of the protocol layer on both event loops: what transports do at the edges differs."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
import uvloop


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def tls(tmp_path: Path) -> tuple[dict[str, Path], ssl.SSLContext]:
    """The router's options for a certificate of `localhost`, and a client's trust in it."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    files = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    certificate.cert_chain_pems[0].write_to_path(files["tls_cert"])
    certificate.private_key_pem.write_to_path(files["tls_key"])
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    return files, trust
