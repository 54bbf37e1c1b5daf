"""The encode stage: embeddings of a request's media, encoded where nobody has them yet.

Without an encoder the media go raw to the next stage, which encodes them itself: right but slow, so the number of
requests that may do so at once has a budget.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from epd_router._core import derive_id
from epd_router.engines import vllm
from epd_router.errors import NoWorkerError
from epd_router.failures import Action, Cause, Stage
from epd_router.lifecycle import Event
from epd_router.media.threads import together
from epd_router.request import ITEM_TOKENS, StageFailedError
from epd_router.stages.call import Leg, no_worker
from epd_router.workers import Role

if TYPE_CHECKING:
    from epd_router.embeddings import Embedding, Embeddings
    from epd_router.engines.transfer import EcDriver
    from epd_router.media.handoff import HandOff
    from epd_router.media.medium import Medium
    from epd_router.metrics import Metrics
    from epd_router.options import Settings
    from epd_router.request import Request
    from epd_router.stages.call import Caller
    from epd_router.workers import Worker


class EncodeStage:
    """Finds or makes embeddings."""

    def __init__(
        self,
        settings: Settings,
        caller: Caller,
        embeddings: Embeddings,
        handoff: HandOff,
        metrics: Metrics,
        driver: EcDriver,
    ) -> None:
        self._timeout = settings.encode_timeout_secs
        self._budget = settings.encode_fallback_budget if settings.encode_fallback == "local" and driver.falls_back else 0
        self._caller = caller
        self._embeddings = embeddings
        self._handoff = handoff
        self._metrics = metrics
        self._driver = driver
        self._loop = asyncio.get_running_loop()
        self._local: set[Request] = set()  # being encoded by the stage after this one

    async def run(self, request: Request, consumer: Worker | None = None) -> list[Embedding | None]:
        """The embeddings of all items in order, None where an item goes raw; `consumer` is who will read them, where the
        connector must know. Raises StageFailedError and NoWorkerError."""
        request.advance(Event.ENCODE)
        started = self._loop.time()
        found: dict[str, Embedding | None] = {}
        missing: dict[str, Medium] = {}
        for media_id, medium in zip(request.ids, request.media, strict=True):
            if media_id not in found and media_id not in missing:
                known = None if consumer else self._embeddings.lookup(media_id)
                self._metrics.embeddings.labels("miss" if known is None else "hit").inc()
                if known is None:
                    missing[media_id] = medium
                else:
                    found[media_id] = known
                    request.decision.reused += 1
        if missing:
            try:
                found |= await self._encode_all(request, missing, consumer)
            finally:
                request.decision.encode_ms = (self._loop.time() - started) * 1000
        return [found[media_id] for media_id in request.ids]

    def leave(self, request: Request) -> None:
        """The request has ended: give back its part of the budget."""
        self._local.discard(request)

    def forget(self, request: Request) -> None:
        """A worker contradicted us about the media of this request."""
        for media_id in request.ids:
            self._embeddings.forget(media_id)

    async def _encode_all(
        self, request: Request, missing: dict[str, Medium], consumer: Worker | None
    ) -> dict[str, Embedding | None]:
        work = [self._encode_or_fall_back(request, media_id, medium, consumer) for media_id, medium in missing.items()]
        return dict(zip(missing, await together(work), strict=True))

    async def _encode_or_fall_back(
        self, request: Request, media_id: str, medium: Medium, consumer: Worker | None
    ) -> Embedding | None:
        try:
            if consumer is not None:  # pushed to this consumer: nobody else can use it
                return await self._encode(request, medium, media_id, consumer)
            return await self._embeddings.get(media_id, lambda uuid: self._encode(request, medium, uuid, None))
        except StageFailedError as failure:
            if failure.cause is Cause.CLIENT or not self._may_fall_back(request):
                raise
            request.decision.degraded = "encode_failed"
        except NoWorkerError:
            if not self._may_fall_back(request):
                raise
            request.decision.degraded = "no_encode_worker"
        return None

    def _may_fall_back(self, request: Request) -> bool:
        if request not in self._local and len(self._local) >= self._budget:
            return False
        self._local.add(request)
        return True

    async def _encode(self, request: Request, medium: Medium, uuid: str, consumer: Worker | None) -> Embedding:
        """Encode one item: at most two tries, the second at another encoder if there is one."""
        tried: list[Worker] = []
        while True:
            picked = request.pools.pick(Role.ENCODE, ITEM_TOKENS, tried)
            if picked is None:
                raise no_worker(Stage.ENCODE)
            worker, lease = picked
            try:
                return await self._encode_at(request, medium, uuid, worker, consumer)
            except StageFailedError as failure:
                tried.append(worker)
                # A 500 may come of a media cache that is out of step (see `failures`), which a new name gets past.
                others = len(request.pools[Role.ENCODE]) > 1 or failure.cause is Cause.ERROR
                if failure.rule.action is not Action.ENCODER or len(tried) > 1 or not others:
                    raise
                self._metrics.retries.labels("encode", failure.cause.value).inc()
                # The first encoder may have left half an embedding under this name.
                uuid = derive_id([uuid.encode(), b"second encoder"])
            finally:
                lease.release()

    async def _encode_at(self, request: Request, medium: Medium, uuid: str, worker: Worker, consumer: Worker | None) -> Embedding:
        params, transfer_id = self._driver.offer(consumer)
        name = f"{request.exchange.request_id}:{uuid[:12]}:{secrets.token_hex(3)}"
        self._metrics.encode_requests.labels(worker.id).inc()
        request.decision.encode.append(worker.id)
        handed = await self._handoff.take(request, worker, [medium])
        try:
            url = handed.urls.get(medium.index)
            pieces = vllm.encode_body(request.body, request.scan, medium.item, uuid, params, url)
            leg = Leg(Stage.ENCODE, worker, "/v1/chat/completions", name, self._timeout, pieces)
            reply = await self._caller.collect(request, leg)
        except StageFailedError as failure:
            if failure.answer is None or not self._handoff.refused(worker, handed, failure.answer[1]):
                raise
            return await self._encode_at(request, medium, uuid, worker, consumer)
        finally:
            handed.release()
        try:
            return vllm.embedding(reply, uuid, worker.id, transfer_id)
        except vllm.DialectError as error:
            raise StageFailedError(Stage.ENCODE, Cause.ERROR, str(error), worker=worker) from error
