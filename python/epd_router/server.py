"""The router as a running server: wires the parts, listens, drains."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import ssl
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from epd_router._core import Load
from epd_router.app import build_app
from epd_router.deadlines import Sweeper
from epd_router.embeddings import Embeddings
from epd_router.engines.transfer import ec_driver, kv_driver
from epd_router.errors import ClientError, ConfigError, EpdRouterError, shutting_down
from epd_router.health import HealthMonitor
from epd_router.ingress import Exchange, Ingress
from epd_router.media.service import MediaService
from epd_router.metrics import Metrics
from epd_router.pipeline import INFERENCE, Pipeline
from epd_router.relay import Relay
from epd_router.stages.call import Caller
from epd_router.stages.encode import EncodeStage
from epd_router.stages.generate import GenerateStage
from epd_router.stages.media import MediaWriter
from epd_router.upstream import Endpoint, LocalEndpoint, dispatch
from epd_router.workers import Fleet, Role, Topology, Worker, check_connectors, configured

if TYPE_CHECKING:
    from epd_router.options import Settings
    from epd_router.urls import WorkerSpec

log = logging.getLogger(__name__)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"})
TICK = 0.25  # seconds by which a deadline may be late
FLUSH = 1.0  # seconds a client has to take the end of its answer at shutdown


class Server:
    """One router. Use `start`, then `stop`; both on the loop it serves on."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.sweeper = Sweeper(self.loop, TICK)
        self.metrics = Metrics()
        self.fleet = Fleet()
        self.embeddings = Embeddings(settings.embedding_ttl_secs, settings.embedding_index_entries)
        self.health = HealthMonitor(self.fleet, settings, self._worker_changed)
        self.media = MediaService(settings, self.metrics)
        self.pipeline = self._make_pipeline()
        self.metrics.watch(self.fleet, self.pipeline)
        self.port = 0
        self.draining = False
        self._connections: set[Ingress] = set()
        self._server: asyncio.Server | None = None
        self._runner: web.AppRunner | None = None
        self._local: LocalEndpoint | None = None
        self._background: set[asyncio.Task[None]] = set()
        for role, specs in configured(settings).items():
            for spec in specs:
                self.fleet.add(self.make_worker(spec, role))
        self.fleet.require(self.fleet.topology.roles)

    def _make_pipeline(self) -> Pipeline:
        settings, metrics = self.settings, self.metrics
        ec = ec_driver(settings)
        caller = Caller(settings, self.fleet, self.health, metrics)
        encode = EncodeStage(settings, caller, self.embeddings, self.media.handoff, metrics, ec)
        generate = GenerateStage(settings, caller, encode, MediaWriter(self.media.handoff), kv_driver(settings, fetch), ec)
        return Pipeline(settings, self.fleet, self.media, encode, generate, metrics)

    def make_worker(self, spec: WorkerSpec, role: Role) -> Worker:
        """A worker with its connections and load."""
        endpoint = Endpoint(
            spec.url,
            self.sweeper,
            connect_timeout=self.settings.connect_timeout_secs,
            keepalive=self.settings.worker_keepalive_secs,
        )
        self.sweeper.add(endpoint)
        return Worker(spec, role, endpoint, Load(spec.weight))

    def add_worker(self, spec: WorkerSpec, role: Role) -> Worker:
        """Take a worker in while running. Raises ConfigError, also where it would change what requests need."""
        topology = Topology(self.fleet.topology.roles | {role})
        topology.validate()
        check_connectors(self.settings, topology, [spec] if role is Role.PREFILL else ())
        worker = self.make_worker(spec, role)
        self.fleet.add(worker)
        self.health.watch(worker)
        return worker

    def remove_worker(self, worker_id: str) -> None:
        """Forget a worker while running; its connections go when its last request has ended."""
        worker = self.fleet.remove(worker_id)
        self.health.forget(worker)
        self.sweeper.discard(worker.endpoint)
        self.sweeper.add(Leaving(worker, self.sweeper))

    def _worker_changed(self, worker: Worker) -> None:
        if not worker.healthy:
            worker.endpoint.close()
            if worker.role is Role.ENCODE:
                self.embeddings.encoder_restarted(worker.id)

    async def start(self) -> None:
        """Listen. `port` tells where. Raises ConfigError, with nothing left running."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        tls = tls_context(self.settings)
        await self.media.open()
        self._runner = web.AppRunner(
            build_app(self),
            access_log=None,
            handle_signals=False,
            keepalive_timeout=3600,
            handler_cancellation=True,
            shutdown_timeout=FLUSH,
        )
        await self._runner.setup()
        assert self._runner.server is not None
        self._local = LocalEndpoint(self._runner.server, self.sweeper, keepalive=60.0)
        self.sweeper.add(self._local)
        self.sweeper.add(self.pipeline)
        self.sweeper.start()
        await self.health.start()
        try:
            self._server = await self.loop.create_server(
                lambda: Ingress(self.handle, self.settings, self._opened, self._closed),
                self.settings.host,
                self.settings.port,
                ssl=tls,
                backlog=2048,
            )
        except (OSError, OverflowError) as error:
            raise ConfigError(f"cannot listen on {self.settings.host}:{self.settings.port}: {error}") from error
        self.port = self._server.sockets[0].getsockname()[1]
        log.info("listening on %s:%d, %s", self.settings.host, self.port, self.fleet.topology.name)

    def _opened(self, connection: Ingress) -> None:
        self._connections.add(connection)
        self.sweeper.add(connection)

    def _closed(self, connection: Ingress) -> None:
        self._connections.discard(connection)
        self.sweeper.discard(connection)

    def handle(self, exchange: Exchange) -> None:
        """Inference goes to the pipeline, everything else to the aiohttp application."""
        head = exchange.head
        if self.draining:
            exchange.close_after()
        if head.path in INFERENCE and head.method == "POST":
            if self.draining:
                exchange.fail(shutting_down())
            else:
                self.pipeline.serve(exchange)
            return
        if head.method not in METHODS:  # aiohttp has no word for it that is JSON
            exchange.fail(ClientError("method_not_allowed", f"{head.method} {head.path}"))
            return
        task = self.loop.create_task(self._hand_over(exchange))
        exchange.cancel = task.cancel
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _hand_over(self, exchange: Exchange) -> None:
        assert self._local is not None
        head = exchange.head
        keys = b"".join(
            b"%s: %s\r\n" % (name.encode(), value.encode("latin-1"))
            for name in ("authorization", "x-api-key")
            if (value := head.get(name)) is not None
        )
        lines = b"%s %s HTTP/1.1\r\nhost: epd-router\r\n%s%scontent-length: %d\r\n\r\n" % (
            head.method.encode(),
            head.target.encode("latin-1"),
            head.forward,
            keys,
            len(exchange.body),
        )
        relay = Relay(exchange, b"", keep_failures=False)
        pieces = [lines, exchange.body] if exchange.body else [lines]
        # No deadline: waiting for a drain may take as long as asked for, and a client that leaves ends it.
        error = await dispatch(self._local, pieces, relay, (math.inf, math.inf), head_only=head.method == "HEAD")
        if error is not None and not relay.committed:
            exchange.fail(EpdRouterError("internal_error", str(error)))

    async def stop(self) -> None:
        """Stop listening, finish what is in flight, close."""
        self.draining = True
        if self._server is not None:
            log.info("shutting down, %d requests in flight", self.pipeline.in_flight)
            self._server.close()
        for connection in tuple(self._connections):
            connection.close_idle()
        await self.pipeline.drain(self.settings.drain_timeout_secs)
        await self._close_clients()
        await self._end_background()
        await self.media.close()
        await self.health.stop()
        for worker in self.fleet:
            worker.endpoint.close()
        if self._local is not None:
            self._local.close()
        if self._runner is not None:
            await self._runner.cleanup()
        self.sweeper.stop()
        if self._server is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._server.wait_closed(), 1.0)

    async def _close_clients(self) -> None:
        """Close every client connection; one whose client does not take the rest of its answer is cut."""
        for connection in tuple(self._connections):
            connection.transport.close()
        end = self.loop.time() + FLUSH
        while self._connections and self.loop.time() < end:
            await asyncio.sleep(0.01)
        for connection in tuple(self._connections):
            connection.transport.abort()
        while self._connections:
            await asyncio.sleep(0)

    async def _end_background(self) -> None:
        """End what serves other paths: whoever asked has been disconnected."""
        tasks = tuple(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Leaving:
    """Sees a removed worker off: closes its connections once it has no request left."""

    def __init__(self, worker: Worker, sweeper: Sweeper) -> None:
        self._worker = worker
        self._sweeper = sweeper

    def check(self, now: float) -> None:
        """Called by the sweeper."""
        if not self._worker.load.active:
            self._worker.endpoint.close()
            self._sweeper.discard(self)


async def fetch(url: str) -> bytes:
    """GET a small answer of an engine's side server. Raises OSError."""
    timeout = aiohttp.ClientTimeout(total=5)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, raise_for_status=True) as response:
            return await response.read()
    except (aiohttp.ClientError, asyncio.TimeoutError) as error:
        raise OSError(str(error) or type(error).__name__) from error


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """The server's TLS, if configured. Raises ConfigError."""
    if not settings.tls_cert:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--tls-cert: {error}") from error
    return context
