"""The way of a request: scan, check, identify, then attempts at the stages until one has answered the client.

Each attempt goes through all stages with new handles; `failures.TABLE` says what follows a failed one. Nothing has
reached the client while an attempt can still be followed by another.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from typing import TYPE_CHECKING

from epd_router import _core
from epd_router._core import BodyError
from epd_router.auth import check_key
from epd_router.decision import REFERENCE_FAILED
from epd_router.engines import vllm
from epd_router.errors import ClientError, EpdRouterError, StageTimeoutError, WorkerError, from_core, shutting_down
from epd_router.failures import FAILED, SUSPECT_REFERENCE, Action
from epd_router.lifecycle import Event
from epd_router.request import Request, StageFailedError
from epd_router.workers import Role

if TYPE_CHECKING:
    from epd_router.ingress import Exchange
    from epd_router.media.service import MediaService
    from epd_router.metrics import Metrics
    from epd_router.options import Settings
    from epd_router.stages.encode import EncodeStage
    from epd_router.stages.generate import GenerateStage
    from epd_router.workers import Fleet

log = logging.getLogger(__name__)

# Paths served on the hot path; True where the stages can be split over workers.
INFERENCE = {
    "/v1/chat/completions": True,
    "/v1/completions": True,
    "/v1/responses": False,
    "/v1/messages": False,
    "/v1/embeddings": False,
    "/tokenize": False,
    "/detokenize": False,
    "/pooling": False,
    "/classify": False,
    "/score": False,
    "/v1/score": False,
    "/rerank": False,
    "/v1/rerank": False,
    "/inference/v1/generate": False,
    "/v1/chat/completions/render": False,
    "/v1/completions/render": False,
}
SCAN_OFF_LOOP = 8 << 20  # bytes of a body from which it is scanned in a thread: 20 GB/s, and a hop costs 40 µs
RELEASE_SECS = 1.0  # for releases of blocks, at shutdown


class Pipeline:
    """Serves exchanges of the inference paths. Looked at by the sweeper for the deadline of whole requests."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        media: MediaService,
        encode: EncodeStage,
        generate: GenerateStage,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._identifier = media.identifier
        self._encode = encode
        self._generate = generate
        self._metrics = metrics
        self._guard = media.guard
        self._loop = asyncio.get_running_loop()
        self._active: dict[asyncio.Task[None], Exchange] = {}
        self._draining = False  # what is still in flight is being cut
        # Request ids: this process, then a counter.
        self._process = secrets.token_hex(8)
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        return len(self._active) + len(self._generate.background)

    @property
    def in_flight(self) -> int:
        """Requests being served."""
        return len(self._active)

    def tasks(self) -> list[asyncio.Task[None]]:
        """Everything in flight: requests, and releases of blocks that go on after theirs."""
        return [*self._active, *self._generate.background]

    def serve(self, exchange: Exchange) -> None:
        """Start serving; the client leaving cancels it."""
        exchange.started = self._loop.time()
        exchange.request_id = exchange.head.request_id or f"{self._process}{next(self._numbers):016x}"
        task = self._loop.create_task(self._serve(exchange))
        exchange.cancel = task.cancel
        self._active[task] = exchange
        task.add_done_callback(self._active.pop)

    async def drain(self, timeout: float) -> None:
        """Wait for the requests in flight, then cancel the rest; those that prefill had answered tell decode to release their
        blocks, for which there is a moment more."""
        for patience in (timeout, RELEASE_SECS):
            if tasks := self.tasks():
                await asyncio.wait(tasks, timeout=patience)
            self._draining = True
            for task in (rest := self.tasks()):
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

    def check(self, now: float) -> None:
        """End what has taken too long."""
        latest = now - self._settings.request_timeout_secs
        for task, exchange in self._active.items():
            if exchange.started < latest:
                if exchange.status:
                    exchange.abort()
                task.cancel()

    async def _serve(self, exchange: Exchange) -> None:
        request: Request | None = None
        try:
            request = await self._admit(exchange)
            await self._attempts(request)
            request.advance(Event.FINISH)
        except asyncio.CancelledError:
            if request is not None:
                request.advance(Event.CANCEL)
            if exchange.gone:
                self._metrics.errors.labels("client_disconnected").inc()
            elif not exchange.status:
                self._answer_error(
                    exchange,
                    None,
                    shutting_down()
                    if self._draining
                    else StageTimeoutError("stage_timeout", "the request took too long", stage="whole"),
                )
        except EpdRouterError as error:
            self._answer_error(exchange, request, error)
        except Exception:
            log.exception("request %s failed", exchange.request_id)
            self._answer_error(exchange, request, EpdRouterError("internal_error", "internal error"))
        finally:
            if request is not None:
                self._encode.leave(request)
            self._account(exchange, request)

    def _answer_error(self, exchange: Exchange, request: Request | None, error: EpdRouterError) -> None:
        if request is not None:
            request.advance(Event.FAIL)
        self._metrics.errors.labels(error.code).inc()
        if isinstance(error, WorkerError):
            log.warning("request %s failed: %s: %s", exchange.request_id, error.code, error)
        if exchange.status:
            exchange.abort()
        elif not exchange.gone:
            exchange.fail(error)

    def _account(self, exchange: Exchange, request: Request | None) -> None:
        kind = "none" if request is None else request.decision.kind
        model = None if request is None else request.scan.model
        status = f"{exchange.status // 100}xx" if exchange.status else "499"
        self._metrics.answered(model, kind, status, self._loop.time() - exchange.started)
        if request is not None and self._settings.log_requests:
            log.info("request %s %s %s", exchange.request_id, exchange.status, request.decision.json().decode())

    # --- admission ---

    async def _admit(self, exchange: Exchange) -> Request:
        check_key(exchange.head.get, self._settings.api_key)
        body, settings = exchange.body, self._settings
        try:
            if len(body) >= SCAN_OFF_LOOP:
                scan = await asyncio.to_thread(_core.scan, body, settings.max_json_depth, settings.max_media_items)
            else:
                scan = _core.scan(body, settings.max_json_depth, settings.max_media_items)
        except BodyError as error:
            raise from_core(error) from None
        request = Request(exchange, scan, self._fleet.pools(scan.model))
        if not settings.trust_client_transfer_params and (name := vllm.refused(scan, body)):
            raise ClientError("transfer_params_not_allowed", f"{name} is for the router to set", param=name)
        if request.items:
            self._guard.check(request.items)
            for item in request.items:
                self._metrics.media.labels(item.modality, item.source).inc()
        roles = request.pools.roles
        request.whole = vllm.whole_only(scan, body) if INFERENCE[exchange.head.path] else "endpoint"
        if not request.whole and not roles & {Role.PREFILL, Role.ENCODE}:
            request.whole = "topology"
        request.advance(Event.IDENTIFY)
        encode = bool(request.items) and not request.whole and Role.ENCODE in roles
        if request.items and (encode or settings.frontend_decoding):
            request.media = await self._identifier.identify(request)
        if encode:
            request.ids = [medium.id for medium in request.media]
        request.advance(Event.ADMIT)
        return request

    # --- attempts ---

    async def _attempts(self, request: Request) -> None:
        left = self._settings.retries
        while True:
            request.decision = request.decision.next_attempt()
            try:
                await self._generate.run(request)
                return
            except StageFailedError as failure:
                if failure.rule.action is Action.RELAY and failure.answer is not None:
                    self._relay_failure(request, failure.answer)
                    return
                if not left or not self._may_retry(request, failure):
                    self._give_up(request, failure)
                    return
                left -= 1
                self._prepare_retry(request, failure)

    @staticmethod
    def _may_retry(request: Request, failure: StageFailedError) -> bool:
        if failure.rule.action is Action.RAW:
            return bool(request.items) and not request.raw
        return failure.rule.action is not Action.FAIL

    def _prepare_retry(self, request: Request, failure: StageFailedError) -> None:
        self._metrics.retries.labels(failure.stage.value, failure.cause.value).inc()
        log.info("request %s: %s failed (%s), trying again", request.exchange.request_id, failure.stage.value, failure.message)
        if failure.worker is not None:
            request.avoid.append(failure.worker)
        if failure.rule.action is Action.RAW:
            request.raw = True
        if request.referenced and failure.cause in SUSPECT_REFERENCE:
            request.raw = True
            request.decision.degraded = REFERENCE_FAILED
            self._encode.forget(request)
        request.pools = self._fleet.pools(request.scan.model)
        request.advance(Event.RETRY)

    def _give_up(self, request: Request, failure: StageFailedError) -> None:
        code = failure.rule.code
        if not code and failure.answer is not None:
            self._relay_failure(request, failure.answer)
            return
        code = code or FAILED[failure.stage]
        kind = StageTimeoutError if code == "stage_timeout" else WorkerError
        raise kind(code, f"{failure.stage.value}: {failure.message}", stage=failure.stage.value)

    @staticmethod
    def _relay_failure(request: Request, answer: tuple[int, bytes]) -> None:
        """The worker's own answer, status and message."""
        exchange = request.exchange
        status, body = answer
        if status >= 500:
            log.warning("request %s failed: a worker answered %d: %s", exchange.request_id, status, vllm.error_message(body))
        request.advance(Event.COMMIT)
        headers = b"content-type: application/json\r\nx-request-id: " + exchange.request_id.encode() + b"\r\n"
        exchange.answer(status, headers, body if body.lstrip().startswith(b"{") else vllm.error_object(status, body))
