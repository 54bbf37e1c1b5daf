"""Is a worker fit? Asked by probes, told at once by failed connections.

A refused connection takes a worker out immediately: an engine that dies closes its port. Anything less needs
`health_failure_threshold` failed probes. A worker that comes back gets a new `boot`, its models and version read anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from typing import TYPE_CHECKING

import aiohttp
import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from epd_router.options import Settings
    from epd_router.workers import Fleet, Worker

log = logging.getLogger(__name__)
REFRESH = 15  # probes between two looks at a healthy worker's model list


class ModelList(msgspec.Struct):
    """Answer of `/v1/models`."""

    data: list[msgspec.Raw]


class ModelCard(msgspec.Struct):
    """One model of the list."""

    id: str


class Version(msgspec.Struct):
    """Answer of `/version`."""

    version: str = ""


def parse_version(text: str) -> tuple[int, ...]:
    """`0.32.0rc1+cpu` is (0, 32, 0)."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, match.group().split("."))) if match else ()


class HealthMonitor:
    """Probes every worker of the fleet for as long as it runs."""

    def __init__(self, fleet: Fleet, settings: Settings, on_change: Callable[[Worker], None]) -> None:
        self._fleet = fleet
        self._settings = settings
        self._on_change = on_change
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake: dict[str, asyncio.Event] = {}
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Begin probing every worker of the fleet."""
        key = self._settings.worker_api_key
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._settings.health_check_timeout_secs),
            headers={"authorization": f"Bearer {key}"} if key else {},
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
        )
        for worker in self._fleet:
            self.watch(worker)

    def watch(self, worker: Worker) -> None:
        """Begin probing one worker."""
        self._wake[worker.id] = asyncio.Event()
        self._tasks[worker.id] = asyncio.create_task(self._probe_forever(worker))

    def forget(self, worker: Worker) -> None:
        """Stop probing one worker."""
        if task := self._tasks.pop(worker.id, None):
            task.cancel()
        self._wake.pop(worker.id, None)

    async def stop(self) -> None:
        """Stop everything."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def connection_failed(self, worker: Worker, error: str) -> None:
        """A connection was refused: no need to wait for a probe."""
        self._failed(worker, error, at_once=True)
        self.suspect(worker)

    def suspect(self, worker: Worker) -> None:
        """Probe now: a connection broke in mid-answer."""
        if wake := self._wake.get(worker.id):
            wake.set()

    async def _probe_forever(self, worker: Worker) -> None:
        wake = self._wake[worker.id]
        probes = 0
        while True:
            await self._probe(worker, refresh=probes % REFRESH == 0)
            probes = probes + 1 if worker.healthy else 0
            wake.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(wake.wait(), self._settings.health_check_interval_secs)

    async def _probe(self, worker: Worker, *, refresh: bool) -> None:
        try:
            await self._get(worker, "/health")
            if refresh or not worker.healthy:
                await self._describe(worker)
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError, msgspec.MsgspecError) as error:
            self._failed(worker, str(error) or type(error).__name__, at_once=isinstance(error, aiohttp.ClientConnectorError))
        else:
            self._passed(worker)

    async def _get(self, worker: Worker, path: str) -> bytes:
        assert self._session is not None
        async with self._session.get(worker.spec.url + path, raise_for_status=True) as response:
            return await response.read()

    async def _describe(self, worker: Worker) -> None:
        """Read models and version."""
        listed = msgspec.json.decode(await self._get(worker, "/v1/models"), type=ModelList)
        models = tuple(msgspec.json.decode(card, type=ModelCard).id for card in listed.data)
        with contextlib.suppress(aiohttp.ClientResponseError, msgspec.MsgspecError):
            answer = msgspec.json.decode(await self._get(worker, "/version"), type=Version)
            worker.version = parse_version(answer.version)
        worker.cards = tuple(bytes(card) for card in listed.data)
        if models != worker.models:
            worker.models = models
            self._fleet.changed()

    def _passed(self, worker: Worker) -> None:
        worker.failures = 0
        worker.successes += 1
        if worker.healthy or worker.successes < self._settings.health_success_threshold:
            return
        worker.healthy = True
        worker.boot += 1
        worker.last_error = ""
        log.info("worker %s (%s) is healthy: %s", worker.id, worker.role.value, ", ".join(worker.models))
        self._changed(worker)

    def _failed(self, worker: Worker, error: str, *, at_once: bool) -> None:
        worker.successes = 0
        worker.failures += 1
        worker.last_error = error
        if worker.healthy and (at_once or worker.failures >= self._settings.health_failure_threshold):
            worker.healthy = False
            log.warning("worker %s (%s) is unhealthy: %s", worker.id, worker.role.value, error)
            self._changed(worker)

    def _changed(self, worker: Worker) -> None:
        self._fleet.changed()
        self._on_change(worker)
