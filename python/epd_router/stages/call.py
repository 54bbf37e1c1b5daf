"""Calling workers: the head of a leg, its deadlines, and what its failure means."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

from epd_router.auth import worker_authorization
from epd_router.engines import vllm
from epd_router.errors import NoWorkerError, WorkerError
from epd_router.failures import FAILED, Cause, Stage, cause_of_status
from epd_router.lifecycle import Event
from epd_router.relay import Collect, Relay
from epd_router.request import Request, StageFailedError
from epd_router.upstream import UpstreamError, dispatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_router._core import Lease
    from epd_router.health import HealthMonitor
    from epd_router.metrics import Metrics
    from epd_router.options import Settings
    from epd_router.upstream import Pieces
    from epd_router.workers import Fleet, Role, Worker

CAUSES = {"connect": Cause.CONNECT, "broken": Cause.BROKEN, "timeout": Cause.TIMEOUT}
NO_WORKER = {
    Stage.ENCODE: "no_encode_worker",
    Stage.PREFILL: "no_prefill_worker",
    Stage.DECODE: "no_decode_worker",
    Stage.WHOLE: "no_worker",
}


@dataclasses.dataclass(slots=True)
class Leg:
    """One request to one worker. `timeout` is seconds until the first byte, `name` its request id."""

    stage: Stage
    worker: Worker
    target: str
    name: str
    timeout: float
    pieces: Pieces


class Caller:
    """Sends legs."""

    def __init__(self, settings: Settings, fleet: Fleet, health: HealthMonitor, metrics: Metrics) -> None:
        self._idle_timeout = settings.idle_timeout_secs
        self._fleet = fleet
        self._health = health
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._authorization = worker_authorization(settings)

    def pick(self, request: Request, stage: Stage, roles: Sequence[Role], cost: float) -> tuple[Worker, Lease]:
        """A worker of the first of `roles` that has one, and a lease of `cost` on it. Raises NoWorkerError."""
        pools = request.pools
        for role in roles:
            if picked := pools.pick(role, cost, request.avoid):
                return picked
        # The pools of the request may be older than a worker's recovery.
        pools = request.pools = self._fleet.pools(request.scan.model)
        for role in roles:
            if picked := pools.pick(role, cost, request.avoid):
                return picked
        raise no_worker(stage)

    async def collect(self, request: Request, leg: Leg) -> bytes:
        """Send an inner leg and return its answer. Raises StageFailedError for anything but success."""
        started = self._loop.time()
        kept = Collect()
        error = await self._send(request, leg, kept)
        self._metrics.stage_duration.labels(leg.stage.value).observe(self._loop.time() - started)
        if error is not None or cause_of_status(kept.status) is not None:
            raise self._failure(leg, error, kept.status, kept.body)
        return kept.body

    async def answer(self, request: Request, leg: Leg) -> None:
        """Send the leg whose answer the client gets. Raises StageFailedError while the client has no byte of it."""
        exchange, decision = request.exchange, request.decision
        request.advance(Event.DECODE)
        decision.decode = leg.worker.id
        extra = b"x-request-id: %s\r\n" % exchange.request_id.encode()
        if decision.degraded:
            extra += b"x-epd-router-degraded: %s\r\n" % decision.degraded.encode()
        if exchange.head.get("x-epd-router-explain"):
            extra += decision.headers()
        code = FAILED[leg.stage]
        relay = Relay(exchange, extra, code=code)
        error = await self._send(request, leg, relay)
        if not relay.committed:
            status, body = (relay.head.status if relay.head else 0), relay.kept_body
            if relay.stream_error is not None:  # an error as first event of a stream answers 200
                status, body = vllm.status_of_error(relay.stream_error), relay.stream_error
            raise self._failure(leg, error, status, body)
        first_byte = relay.first_byte_at - exchange.started
        decision.first_byte_ms = first_byte * 1000
        if decision.degraded:
            self._metrics.degraded.labels(decision.degraded).inc()
        self._metrics.first_byte(decision.kind, first_byte)
        request.advance(Event.COMMIT)
        if error is not None:
            self._note(leg.worker, error)
            raise WorkerError("stage_timeout" if error.cause == "timeout" else code, str(error), stage=leg.stage.value)

    async def _send(self, request: Request, leg: Leg, answer: Collect | Relay) -> UpstreamError | None:
        endpoint = leg.worker.endpoint
        client = request.exchange.head
        head = b"POST %s HTTP/1.1\r\nhost: %s\r\n%s%sx-request-id: %s\r\ncontent-length: %d\r\n\r\n" % (
            leg.target.encode("latin-1"),
            endpoint.authority,
            client.forward,
            self._authorization(client),
            leg.name.encode(),
            sum(map(len, leg.pieces)),
        )
        deadlines = (self._loop.time() + leg.timeout, self._idle_timeout)
        return await dispatch(endpoint, [head, *leg.pieces], answer, deadlines)

    def _note(self, worker: Worker, error: UpstreamError) -> None:
        if error.cause == "connect":
            self._health.connection_failed(worker, str(error))
        elif error.cause == "broken":
            self._health.suspect(worker)

    def _failure(self, leg: Leg, error: UpstreamError | None, status: int, body: bytes) -> StageFailedError:
        worker = leg.worker
        if error is not None:
            self._note(worker, error)
            return StageFailedError(leg.stage, CAUSES[error.cause], f"worker {worker.id}: {error}", worker=worker)
        cause = cause_of_status(status) or Cause.ERROR
        message = f"worker {worker.id} answered {status}: {vllm.error_message(body)}"
        return StageFailedError(leg.stage, cause, message, worker=worker, answer=(status, body))


def no_worker(stage: Stage, detail: str = "") -> NoWorkerError:
    """Nobody is there for a stage."""
    what = "worker" if stage is Stage.WHOLE else f"{stage.value} worker"
    return NoWorkerError(NO_WORKER[stage], f"no healthy {what}{detail}", stage=stage.value, retry_after=1)
