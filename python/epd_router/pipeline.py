"""The way of a request: scan, check, identify, place, encode, prefill, decode, relay, account.

Each attempt goes through all stages with new handles; `failures.TABLE` says what follows a failed one. Nothing has
reached the client while an attempt can still be followed by another.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING

from epd_router import _core
from epd_router._core import BodyError, derive_id, media_ids
from epd_router.auth import check_key, worker_authorization
from epd_router.decision import Decision
from epd_router.embeddings import Embedding, Embeddings
from epd_router.engines import vllm
from epd_router.errors import ClientError, EpdRouterError, NoWorkerError, StageTimeoutError, WorkerError, from_core
from epd_router.failures import SUSPECT_REFERENCE, TABLE, Action, Cause, Rule, Stage, cause_of_status
from epd_router.lifecycle import Event, State, after
from epd_router.media import UrlGuard
from epd_router.relay import Collect, Relay
from epd_router.upstream import dispatch
from epd_router.workers import WHOLE_ROLES, Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_router._core import Item, Lease, Scan
    from epd_router.health import HealthMonitor
    from epd_router.ingress import Exchange
    from epd_router.metrics import Metrics
    from epd_router.options import Settings
    from epd_router.upstream import Pieces, UpstreamError
    from epd_router.workers import Fleet, Pools, Worker

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
HASH_OFF_LOOP = 256 << 10  # bytes of a body from which its media are hashed in a thread: 3 GB/s
ITEM_TOKENS = 1024  # predicted cost of a picture, until its size is known
DECODE_TOKENS = 256  # predicted answer when the request does not limit it
CAUSES = {"connect": Cause.CONNECT, "broken": Cause.BROKEN, "timeout": Cause.TIMEOUT}
FAILED = {
    Stage.ENCODE: ("encode_failed", "no_encode_worker"),
    Stage.PREFILL: ("prefill_failed", "no_prefill_worker"),
    Stage.DECODE: ("decode_failed", "no_decode_worker"),
    Stage.WHOLE: ("worker_failed", "no_worker"),
}


class StageFailedError(Exception):
    """One stage of one attempt failed. `answer` is the worker's own, if it gave one."""

    def __init__(
        self,
        stage: Stage,
        cause: Cause,
        message: str,
        *,
        worker: Worker | None = None,
        answer: tuple[int, bytes] | None = None,
    ) -> None:
        super().__init__(message)
        self.stage = stage
        self.cause = cause
        self.message = message
        self.worker = worker
        self.answer = answer

    @property
    def rule(self) -> Rule:
        """What follows."""
        return TABLE[self.stage, self.cause]


class Request:
    """What is known of one request on its way."""

    __slots__ = (
        "authorization", "avoid", "body", "decision", "exchange", "forward", "ids", "pools", "raw", "referenced", "scan", "state",
        "whole",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, scan: Scan, pools: Pools) -> None:
        self.exchange = exchange
        self.body = exchange.body
        self.scan = scan
        self.pools = pools
        self.decision = Decision()
        self.state = State.RECEIVED
        self.ids: list[str] = []  # media ids, in the order of the items
        self.avoid: list[Worker] = []  # workers that failed this request
        self.raw = False  # references have failed: send the media themselves
        self.referenced = False  # this attempt has references
        self.whole = ""

    def advance(self, event: Event) -> None:
        """Walk the state table."""
        self.state = after(self.state, event)

    @property
    def prompt_cost(self) -> float:
        """Predicted prefill work, tokens."""
        return self.scan.text_bytes / 4 + ITEM_TOKENS * len(self.ids) + 1


class Pipeline:
    """Serves exchanges of the inference paths."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        health: HealthMonitor,
        embeddings: Embeddings,
        metrics: Metrics,
        kv: vllm.KvDriver,
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._health = health
        self._embeddings = embeddings
        self._metrics = metrics
        self._kv = kv
        self._guard = UrlGuard(settings)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._local_encodes = 0
        self._worker_authorization = worker_authorization(settings)

    def __len__(self) -> int:
        return len(self._tasks)

    def tasks(self) -> list[asyncio.Task[None]]:
        """What is being served, for diagnosis."""
        return list(self._tasks)

    def serve(self, exchange: Exchange) -> None:
        """Start serving; the client leaving cancels it."""
        task = self._loop.create_task(self._serve(exchange))
        exchange.cancel = task.cancel
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self, timeout: float) -> None:
        """Wait for the requests in flight, then cancel the rest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, exchange: Exchange) -> None:
        metrics = self._metrics
        exchange.started = self._loop.time()
        exchange.request_id = exchange.head.request_id or secrets.token_hex(16)
        request: Request | None = None
        total = self._loop.call_later(self._settings.request_timeout_secs, self._overdue, asyncio.current_task(), exchange)
        metrics.in_flight.inc()
        try:
            request = await self._admit(exchange)
            await self._attempts(request)
            request.advance(Event.FINISH)
        except asyncio.CancelledError:
            if request is not None:
                request.advance(Event.CANCEL)
            if not exchange.gone and not exchange.status:
                exchange.fail(StageTimeoutError("stage_timeout", "the request took too long", stage="whole"))
        except EpdRouterError as error:
            self._answer_error(exchange, request, error)
        except Exception:
            log.exception("request %s failed", exchange.request_id)
            self._answer_error(exchange, request, EpdRouterError("internal_error", "internal error"))
        finally:
            total.cancel()
            metrics.in_flight.dec()
            self._account(exchange, request)

    def _overdue(self, task: asyncio.Task[None] | None, exchange: Exchange) -> None:
        if task is None:
            return
        if exchange.status:
            exchange.abort()
        task.cancel()

    def _answer_error(self, exchange: Exchange, request: Request | None, error: EpdRouterError) -> None:
        if request is not None:
            request.advance(Event.FAIL)
        self._metrics.errors.labels(error.code).inc()
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
        check_key(self._settings, exchange.head)
        body, settings = exchange.body, self._settings
        try:
            if len(body) >= SCAN_OFF_LOOP:
                scan = await asyncio.to_thread(_core.scan, body, settings.max_json_depth, settings.max_media_items)
            else:
                scan = _core.scan(body, settings.max_json_depth, settings.max_media_items)
        except BodyError as error:
            raise from_core(error) from None
        request = Request(exchange, scan, self._fleet.pools(scan.model))
        if not settings.trust_client_transfer_params:
            for name in vllm.CLIENT_TRANSFER_PARAMS:
                if (value := scan.raw(body, name)) is not None and value != b"null":
                    raise ClientError("transfer_params_not_allowed", f"{name} is for the router to set", param=name)
        items = scan.items
        if items:
            self._guard.check(scan)
            for item in items:
                self._metrics.media.labels(item.modality, item.source).inc()
        request.decision.items = len(items)
        split = INFERENCE[exchange.head.path]
        roles = self._fleet.topology.roles
        request.whole = vllm.whole_only(scan, body) if split else "endpoint"
        if not request.whole and not roles & {Role.PREFILL, Role.ENCODE}:
            request.whole = "topology"
        request.advance(Event.IDENTIFY)
        if items and not request.whole and Role.ENCODE in roles:
            request.ids = await self._identify(request, items)
        request.advance(Event.ADMIT)
        return request

    async def _identify(self, request: Request, items: Sequence[Item]) -> list[str]:
        """Media ids: content where the bytes are in the body; a name for this request only where they are not, because what
        a URL leads to may change from one request to the next."""
        scan, body = request.scan, request.body
        scope = [scan.raw(body, name) or b"" for name in ("model", "mm_processor_kwargs", "media_io_kwargs", "cache_salt")]
        salt = derive_id(scope).encode()
        try:
            if len(body) >= HASH_OFF_LOOP:
                found = await asyncio.to_thread(media_ids, body, scan, salt)
            else:
                found = media_ids(body, scan, salt)
        except BodyError as error:
            raise from_core(error) from None
        nonce = secrets.token_bytes(16)
        return [
            derive_id([salt, nonce, (item.url or "").encode()]) if one is None else one
            for item, one in zip(items, found, strict=True)
        ]

    # --- attempts ---

    async def _attempts(self, request: Request) -> None:
        left = self._settings.retries
        while True:
            request.decision.attempts += 1
            try:
                await self._attempt(request)
                return
            except StageFailedError as failure:
                if self._relays(failure):
                    self._relay_failure(request, failure)
                    return
                retry = failure.rule.action is not Action.FAIL and left > 0 and not isinstance(failure.__cause__, EpdRouterError)
                if failure.rule.action is Action.RAW and (request.raw or not request.decision.items):
                    retry = False
                if not retry:
                    self._give_up(request, failure)
                    return
                left -= 1
                self._prepare_retry(request, failure)

    @staticmethod
    def _relays(failure: StageFailedError) -> bool:
        return failure.rule.action is Action.RELAY and failure.answer is not None

    def _prepare_retry(self, request: Request, failure: StageFailedError) -> None:
        self._metrics.retries.labels(failure.stage.value, failure.cause.value).inc()
        log.info(
            "request %s: %s failed (%s), trying again",
            request.exchange.request_id,
            failure.stage.value,
            failure.message,
        )
        if failure.worker is not None:
            request.avoid.append(failure.worker)
        if failure.rule.action is Action.RAW:
            request.raw = True
        if request.referenced and failure.cause in SUSPECT_REFERENCE:
            request.raw = True
            request.decision.degraded = "reference_failed"
            for media_id in request.ids:
                self._embeddings.forget(media_id)
        request.pools = self._fleet.pools(request.scan.model)
        request.advance(Event.RETRY)

    def _give_up(self, request: Request, failure: StageFailedError) -> None:
        code = failure.rule.code
        if not code and failure.answer is not None:
            self._relay_failure(request, failure)
            return
        code = code or FAILED[failure.stage][0]
        kind = StageTimeoutError if code == "stage_timeout" else WorkerError
        raise kind(code, f"{failure.stage.value}: {failure.message}", stage=failure.stage.value)

    def _relay_failure(self, request: Request, failure: StageFailedError) -> None:
        """The worker's own answer, status and message."""
        assert failure.answer is not None
        status, body = failure.answer
        exchange = request.exchange
        headers = b"content-type: application/json\r\nx-request-id: " + exchange.request_id.encode() + b"\r\n"
        self._commit(request)
        exchange.answer(status, headers, body)

    def _commit(self, request: Request) -> None:
        if request.state is not State.DECODING:
            request.state = State.DECODING  # an answer that ends the request at an earlier stage
        request.advance(Event.COMMIT)

    async def _attempt(self, request: Request) -> None:
        """One pass through the stages."""
        request.advance(Event.PLACE)
        request.referenced = False
        pools, decision = request.pools, request.decision
        if request.whole:
            decision.kind, decision.reason = "whole", request.whole
            await self._whole(request)
            return
        split = bool(pools[Role.PREFILL] or pools[Role.DECODE]) or not pools[Role.PREFILL_DECODE]
        encode = bool(request.ids)
        found: list[Embedding | None] = []
        if encode:
            request.advance(Event.ENCODE)
            found = await self._encode_all(request)
        if split and Role.PREFILL in self._fleet.topology.roles:
            decision.kind = "encode-prefill-decode" if encode else "prefill-decode"
            await self._prefill_decode(request, found)
        else:
            decision.kind = "encode-decode" if encode else "whole"
            await self._single(request, found, Role.PREFILL_DECODE)

    def _pick(self, request: Request, stage: Stage, roles: Sequence[Role], cost: float) -> tuple[Worker, Lease]:
        for role in roles:
            if picked := request.pools.pick(role, cost, request.avoid):
                return picked
        # The pools of the request may be older than a worker's recovery.
        request.pools = self._fleet.pools(request.scan.model)
        for role in roles:
            if picked := request.pools.pick(role, cost, request.avoid):
                return picked
        raise NoWorkerError(
            FAILED[stage][1], f"no healthy {stage.value} worker" if stage is not Stage.WHOLE else "no healthy worker",
            stage=stage.value, retry_after=1,
        )  # fmt: skip

    # --- encode ---

    async def _encode_all(self, request: Request) -> list[Embedding | None]:
        """The embeddings of all items, encoded side by side where they are not known; None where an item goes raw."""
        started = self._loop.time()
        items = request.scan.items
        unique: dict[str, Item] = {}
        for media_id, item in zip(request.ids, items, strict=True):
            unique.setdefault(media_id, item)
        request.decision.encode = []
        request.decision.reused = 0
        tasks = {
            media_id: self._loop.create_task(self._encode_or_fall_back(request, media_id, item))
            for media_id, item in unique.items()
        }
        try:
            await asyncio.gather(*tasks.values())
        except BaseException:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
            raise
        finally:
            request.decision.encode_ms = (self._loop.time() - started) * 1000
        return [tasks[media_id].result() for media_id in request.ids]

    async def _encode_or_fall_back(self, request: Request, media_id: str, item: Item) -> Embedding | None:
        known = self._embeddings.lookup(media_id)
        self._metrics.embeddings.labels("miss" if known is None else "hit").inc()
        if known is not None:
            request.decision.reused += 1
            return known
        try:
            return await self._embeddings.get(media_id, lambda uuid: self._encode(request, item, uuid))
        except StageFailedError as failure:
            if failure.cause is Cause.CLIENT or not self._may_encode_locally():
                raise
            reason = "encode_failed"
        except NoWorkerError:
            if not self._may_encode_locally():
                raise
            reason = "no_encode_worker"
        request.decision.degraded = reason
        return None

    def _may_encode_locally(self) -> bool:
        return self._settings.encode_fallback == "local" and self._local_encodes < self._settings.encode_fallback_budget

    async def _encode(self, request: Request, item: Item, uuid: str) -> Embedding:
        """Encode one item: at most two encoders are asked."""
        tried: list[Worker] = []
        while True:
            picked = request.pools.pick(Role.ENCODE, ITEM_TOKENS, tried)
            if picked is None or picked[0] in tried:
                raise self._no_encoder(tried)
            worker, lease = picked
            try:
                return await self._encode_at(request, item, uuid, worker)
            except StageFailedError as failure:
                tried.append(worker)
                if failure.rule.action is not Action.ENCODER or len(tried) > 1 or len(request.pools[Role.ENCODE]) < 2:
                    raise
                self._metrics.retries.labels("encode", failure.cause.value).inc()
                # The first encoder may have left half an embedding under this name.
                uuid = derive_id([uuid.encode(), b"second encoder"])
            finally:
                lease.release()

    @staticmethod
    def _no_encoder(tried: Sequence[Worker]) -> EpdRouterError:
        detail = "no healthy encode worker" + (" is left" if tried else "")
        return NoWorkerError("no_encode_worker", detail, stage="encode", retry_after=1)

    async def _encode_at(self, request: Request, item: Item, uuid: str, worker: Worker) -> Embedding:
        pieces = vllm.encode_body(request.body, request.scan, item, uuid)
        request_id = f"{request.exchange.request_id}:{uuid[:12]}:{secrets.token_hex(3)}"
        self._metrics.encode_requests.labels(worker.id).inc()
        request.decision.encode.append(worker.id)
        leg = Collect()
        await self._call(
            request,
            Stage.ENCODE,
            worker,
            pieces,
            leg,
            self._settings.encode_timeout_secs,
            request_id,
            "/v1/chat/completions",
        )
        try:
            return vllm.embedding(leg.body, uuid, worker.id)
        except vllm.DialectError as error:
            raise StageFailedError(Stage.ENCODE, Cause.ERROR, str(error), worker=worker) from error

    # --- prefill and decode ---

    async def _prefill_decode(self, request: Request, found: list[Embedding | None]) -> None:
        prefill, lease = self._pick(request, Stage.PREFILL, (Role.PREFILL,), request.prompt_cost)
        handed: bytes | None = None
        try:
            if not request.pools[Role.DECODE]:
                self._pick(request, Stage.DECODE, (Role.DECODE,), 0)[1].release()
            request.advance(Event.PREFILL)
            uuids = [derive_id([one.encode(), b"raw"]) for one in request.ids]
            params, decode_params = await self._kv.prepare(prefill, request.exchange.request_id)
            edits = vllm.prefill_edits(request.scan, params)
            self._kv.adjust_prefill(edits)
            referenced = self._write_media(edits, request, found, uuids, prefill)
            pieces, _ = edits.apply(request.body)
            request.decision.prefill = prefill.id
            first = self._loop.create_task(self._prefill(request, prefill, pieces))
            try:
                if not self._kv.concurrent:
                    decode_params = handed = await first
                raw = not (referenced and vllm.hands_over_blocks(handed))
                if self._kv.concurrent:
                    await self._decode_beside(request, found, uuids, decode_params, first)
                else:
                    lease.release()
                    await self._decode(request, found, uuids, decode_params, raw=raw)
            except asyncio.CancelledError:
                if handed is not None and not request.exchange.status:
                    self._release_through_decode(request, handed)
                raise
            finally:
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)
        finally:
            lease.release()

    def _write_media(
        self, edits: _core.Edits, request: Request, found: list[Embedding | None], uuids: list[str], worker: Worker
    ) -> bool:
        if not found:
            if request.scan.client_uuids:
                for index in range(len(request.scan.items)):
                    edits.set_uuid(index, None)
            return False
        # A raw retry goes under new names: under the old ones the engine would look for what failed.
        usable = [None] * len(found) if request.raw else found
        referenced = vllm.write_media(edits, request.scan, usable, uuids, worker.version, raw=request.raw)
        request.referenced = request.referenced or referenced
        return referenced

    async def _prefill(self, request: Request, worker: Worker, pieces: Pieces) -> bytes | None:
        started = self._loop.time()
        leg = Collect()
        path = request.exchange.head.path
        await self._call(
            request,
            Stage.PREFILL,
            worker,
            pieces,
            leg,
            self._settings.prefill_timeout_secs,
            request.exchange.request_id,
            path,
        )
        request.decision.prefill_ms = (self._loop.time() - started) * 1000
        try:
            return vllm.prefill_result(leg.body)
        except vllm.DialectError as error:
            raise StageFailedError(Stage.PREFILL, Cause.GATEWAY, str(error), worker=worker) from error

    async def _decode(
        self, request: Request, found: list[Embedding | None], uuids: list[str], params: bytes | None, *, raw: bool
    ) -> None:
        cost = float(request.scan.max_tokens or DECODE_TOKENS)
        worker, lease = self._pick(request, Stage.DECODE, (Role.DECODE,), cost)
        try:
            edits = vllm.decode_edits(request.scan, params)
            if found and not raw:
                self._write_media(edits, request, found, uuids, worker)
            elif found:
                for index, (one, uuid) in enumerate(zip(found, uuids, strict=True)):
                    edits.set_uuid(index, uuid if one is None or request.raw else one.uuid)
            else:
                self._write_media(edits, request, found, uuids, worker)
            pieces, _ = edits.apply(request.body)
            await self._answer_from(request, Stage.DECODE, worker, pieces)
        finally:
            lease.release()

    async def _decode_beside(
        self,
        request: Request,
        found: list[Embedding | None],
        uuids: list[str],
        params: bytes | None,
        prefill: asyncio.Task[bytes | None],
    ) -> None:
        """Both legs at once: a failed prefill ends the decode that waits for it."""
        decode = self._loop.create_task(self._decode(request, found, uuids, params, raw=True))
        try:
            done, _ = await asyncio.wait({decode, prefill}, return_when=asyncio.FIRST_EXCEPTION)
            if prefill in done and decode not in done:
                prefill.result()
            await decode
        finally:
            decode.cancel()
            await asyncio.gather(decode, return_exceptions=True)

    def _release_through_decode(self, request: Request, params: bytes) -> None:
        """The client left between prefill and decode: a one-token decode makes prefill free its blocks at once."""

        async def release() -> None:
            try:
                worker, lease = self._pick(request, Stage.DECODE, (Role.DECODE,), 1)
            except EpdRouterError:
                return
            try:
                edits = vllm.prefill_edits(request.scan, params)
                self._write_media(edits, request, [], [], worker)
                pieces, _ = edits.apply(request.body)
                name = f"{request.exchange.request_id}:release"
                await self._call(request, Stage.DECODE, worker, pieces, Collect(), 30.0, name, request.exchange.head.path)
            except (StageFailedError, EpdRouterError) as error:
                log.info("could not release blocks through decode: %s", error)
            finally:
                lease.release()

        task = self._loop.create_task(release())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _single(self, request: Request, found: list[Embedding | None], role: Role) -> None:
        """Prefill and decode at one worker."""
        cost = request.prompt_cost + float(request.scan.max_tokens or DECODE_TOKENS)
        worker, lease = self._pick(request, Stage.WHOLE, (role,), cost)
        try:
            edits = request.scan.edit()
            uuids = [derive_id([one.encode(), b"raw"]) for one in request.ids]
            self._write_media(edits, request, found, uuids, worker)
            pieces, _ = edits.apply(request.body)
            await self._answer_from(request, Stage.WHOLE, worker, pieces)
        finally:
            lease.release()

    async def _whole(self, request: Request) -> None:
        """The request as it came, but for client uuids."""
        scan = request.scan
        cost = scan.text_bytes / 4 + ITEM_TOKENS * request.decision.items + float(scan.max_tokens or DECODE_TOKENS)
        worker, lease = self._pick(request, Stage.WHOLE, WHOLE_ROLES, cost)
        try:
            pieces: Pieces = (request.body,)
            if request.decision.items and scan.client_uuids:
                edits = scan.edit()
                for index in range(request.decision.items):
                    edits.set_uuid(index, None)
                pieces, _ = edits.apply(request.body)
            await self._answer_from(request, Stage.WHOLE, worker, pieces)
        finally:
            lease.release()

    async def _answer_from(self, request: Request, stage: Stage, worker: Worker, pieces: Pieces) -> None:
        """Send the leg whose answer the client gets."""
        exchange, decision = request.exchange, request.decision
        request.advance(Event.DECODE)
        decision.decode = worker.id
        extra = b"x-request-id: %s\r\n" % exchange.request_id.encode()
        if decision.degraded:
            extra += b"x-epd-router-degraded: %s\r\n" % decision.degraded.encode()
            self._metrics.degraded.labels(decision.degraded).inc()
        if exchange.head.get("x-epd-router-explain"):
            extra += decision.headers()
        relay = Relay(exchange, extra)
        target = exchange.head.target
        timeout = self._settings.first_byte_timeout_secs
        error = await self._send(request, worker, pieces, relay, timeout, exchange.request_id, target)
        if relay.committed:
            self._metrics.first_byte(decision.kind, relay.first_byte_at - exchange.started)
            request.advance(Event.COMMIT)
            if error is not None:
                self._note(worker, error)
                raise WorkerError("decode_failed", str(error), stage=stage.value)
            return
        raise self._failure(stage, worker, error, relay.head.status if relay.head else 0, relay.kept_body, relay.stream_error)

    # --- calling workers ---

    async def _call(
        self,
        request: Request,
        stage: Stage,
        worker: Worker,
        pieces: Pieces,
        leg: Collect,
        timeout: float,
        name: str,
        path: str,
    ) -> None:
        """Send an inner leg and keep its answer. Raises StageFailedError for anything but success."""
        started = self._loop.time()
        error = await self._send(request, worker, pieces, leg, timeout, name, path)
        self._metrics.stage_duration.labels(stage.value).observe(self._loop.time() - started)
        if error is not None or cause_of_status(leg.status) is not None:
            raise self._failure(stage, worker, error, leg.status, leg.body, None)

    async def _send(
        self,
        request: Request,
        worker: Worker,
        pieces: Pieces,
        leg: Collect | Relay,
        timeout: float,
        name: str,
        path: str,
    ) -> UpstreamError | None:
        head = b"POST %s HTTP/1.1\r\nhost: %s\r\n%s%sx-request-id: %s\r\ncontent-length: %d\r\n\r\n" % (
            path.encode("latin-1"),
            worker.endpoint.authority,
            request.exchange.head.forward,
            self._worker_authorization(request.exchange.head),
            name.encode(),
            vllm.total(pieces),
        )
        deadlines = (self._loop.time() + timeout, self._settings.idle_timeout_secs)
        return await dispatch(worker.endpoint, [head, *pieces], leg, deadlines)

    def _note(self, worker: Worker, error: UpstreamError) -> None:
        if error.cause == "connect":
            self._health.connection_failed(worker, str(error))
        elif error.cause == "broken":
            self._health.suspect(worker)

    def _failure(
        self, stage: Stage, worker: Worker, error: UpstreamError | None, status: int, body: bytes, event: bytes | None
    ) -> StageFailedError:
        if error is not None:
            self._note(worker, error)
            return StageFailedError(stage, CAUSES[error.cause], f"worker {worker.id}: {error}", worker=worker)
        if event is not None:  # an error as first event of a stream answers 200
            status, body = vllm.status_of_error(event), event
        cause = cause_of_status(status) or Cause.ERROR
        message = f"worker {worker.id} answered {status}: {vllm.error_message(body)}"
        return StageFailedError(stage, cause, message, worker=worker, answer=(status, body))
