"""Prefill and decode: at one worker, at two, or the whole request where it cannot be split."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from epd_router.engines import vllm
from epd_router.errors import EpdRouterError
from epd_router.failures import Cause, Stage
from epd_router.lifecycle import Event
from epd_router.request import StageFailedError
from epd_router.stages.call import Leg
from epd_router.workers import WHOLE_ROLES, Role

if TYPE_CHECKING:
    from epd_router.engines.transfer import EcDriver, KvDriver
    from epd_router.options import Settings
    from epd_router.request import Request
    from epd_router.stages.call import Caller
    from epd_router.stages.encode import EncodeStage
    from epd_router.stages.media import Found, MediaWriter
    from epd_router.upstream import Pieces
    from epd_router.workers import Pools, Worker

log = logging.getLogger(__name__)
RELEASE_TIMEOUT = 30.0  # seconds, as long as vLLM keeps the blocks of a prefill that nobody fetches


def prefilling_role(pools: Pools) -> Role:
    """Who prefills a request of this model: the best role that has workers now, so that pools may stand side by side and one
    stands in for another; where none has, the best that is configured, whose absence is then the error."""
    if pools[Role.PREFILL] and pools[Role.DECODE]:
        return Role.PREFILL
    for role in (Role.PREFILL_DECODE, Role.AGGREGATED):
        if pools[role]:
            return role
    return next((role for role in (Role.PREFILL, Role.PREFILL_DECODE) if role in pools.roles), Role.AGGREGATED)


class GenerateStage:
    """One attempt at a request, from placement to the last byte of the answer."""

    def __init__(
        self, settings: Settings, caller: Caller, encode: EncodeStage, media: MediaWriter, kv: KvDriver, ec: EcDriver
    ) -> None:
        self._prefill_timeout = settings.prefill_timeout_secs
        self._answer_timeout = settings.first_byte_timeout_secs
        self._caller = caller
        self._encode = encode
        self._media = media
        self._kv = kv
        self._ec = ec
        self._loop = asyncio.get_running_loop()
        self.background: set[asyncio.Task[None]] = set()  # releases of blocks that go on after their request

    async def run(self, request: Request) -> None:
        """Serve the request. Raises StageFailedError while the client has no byte of an answer, and EpdRouterError."""
        request.advance(Event.PLACE)
        request.referenced = False
        decision = request.decision
        role = Role.AGGREGATED if request.whole else prefilling_role(request.pools)
        if role is Role.PREFILL:
            decision.kind = "encode-prefill-decode" if request.ids else "prefill-decode"
            found = await self._encode.run(request) if request.ids else []
            await self._prefill_decode(request, found)
        elif role is Role.PREFILL_DECODE and request.ids:
            decision.kind = "encode-decode"
            await self._single(request)
        else:
            decision.kind, decision.reason = "whole", request.whole or "topology"
            await self._whole(request)

    # --- one worker ---

    async def _whole(self, request: Request) -> None:
        """The request as it came, but for client uuids."""
        worker, lease = self._caller.pick(request, Stage.WHOLE, WHOLE_ROLES, request.prompt_cost + request.answer_cost)
        try:
            if not request.media and not request.scan.client_uuids:
                await self._answer(request, Stage.WHOLE, worker, (request.body,))
                return
            edits = request.scan.edit()
            async with self._media.whole(edits, request, worker):
                pieces, _ = edits.apply(request.body)
                await self._answer(request, Stage.WHOLE, worker, pieces)
        finally:
            lease.release()

    async def _single(self, request: Request) -> None:
        """Prefill and decode at one worker, which is chosen before the encode only where the connector must know it."""
        found: Found = []
        if request.ids and not self._ec.consumer_first:
            found = await self._encode.run(request)
        cost = request.prompt_cost + request.answer_cost
        worker, lease = self._caller.pick(request, Stage.WHOLE, (Role.PREFILL_DECODE,), cost)
        try:
            if request.ids and self._ec.consumer_first:
                found = await self._encode.run(request, worker)
            edits = request.scan.edit()
            async with self._media.split(edits, request, found, worker):
                pieces, _ = edits.apply(request.body)
                await self._answer(request, Stage.WHOLE, worker, pieces)
        finally:
            lease.release()

    async def _answer(self, request: Request, stage: Stage, worker: Worker, pieces: Pieces) -> None:
        name = request.leg_id if stage is Stage.DECODE else request.exchange.request_id
        await self._caller.answer(request, Leg(stage, worker, request.exchange.head.target, name, self._answer_timeout, pieces))

    # --- two workers ---

    async def _prefill_decode(self, request: Request, found: Found) -> None:
        prefill, lease = self._caller.pick(request, Stage.PREFILL, (Role.PREFILL,), request.prompt_cost)
        try:
            if not request.pools[Role.DECODE]:  # do not prefill what nobody will decode
                self._caller.pick(request, Stage.DECODE, (Role.DECODE,), 0)[1].release()
            request.advance(Event.PREFILL)
            request.decision.prefill = prefill.id
            try:
                prefill_params, decode_params = await self._kv.prepare(prefill, request.leg_id, request.exchange.head.path)
            except vllm.DialectError as error:
                raise StageFailedError(Stage.PREFILL, Cause.GATEWAY, str(error), worker=prefill) from error
            edits = vllm.prefill_edits(request.scan, prefill_params)
            self._kv.adjust_prefill(edits)
            async with self._media.split(edits, request, found, prefill) as referenced:
                pieces, _ = edits.apply(request.body)
                if self._kv.concurrent:
                    await self._side_by_side(request, found, prefill, pieces, decode_params)
                    return
                handed = await self._prefill(request, prefill, pieces)
            lease.release()
            # Whoever is handed every block needs no media of its own.
            refer = referenced and vllm.hands_over_blocks(handed)
            try:
                await self._decode(request, found, handed, refer=refer)
            except asyncio.CancelledError:
                if handed is not None and not request.exchange.status:
                    self._release_through_decode(request, found, handed, refer=refer)
                raise
        finally:
            lease.release()

    async def _prefill(self, request: Request, worker: Worker, pieces: Pieces) -> bytes | None:
        started = self._loop.time()
        leg = Leg(Stage.PREFILL, worker, request.exchange.head.target, request.leg_id, self._prefill_timeout, pieces)
        reply = await self._caller.collect(request, leg)
        request.decision.prefill_ms = (self._loop.time() - started) * 1000
        try:
            return vllm.prefill_result(reply)
        except vllm.DialectError as error:
            raise StageFailedError(Stage.PREFILL, Cause.GATEWAY, str(error), worker=worker) from error

    async def _decode(self, request: Request, found: Found, params: bytes | None, *, refer: bool) -> None:
        worker, lease = self._caller.pick(request, Stage.DECODE, (Role.DECODE,), request.answer_cost)
        try:
            edits = vllm.decode_edits(request.scan, params)
            async with self._media.split(edits, request, found, worker, refer=refer):
                pieces, _ = edits.apply(request.body)
                await self._answer(request, Stage.DECODE, worker, pieces)
        finally:
            lease.release()

    async def _side_by_side(
        self, request: Request, found: Found, prefill: Worker, pieces: Pieces, decode_params: bytes | None
    ) -> None:
        """Both legs at once: a failed prefill ends the decode that waits for it. Decode takes the media themselves, because
        nothing is known yet of what prefill will hand over."""
        first = self._loop.create_task(self._prefill(request, prefill, pieces))
        decode = self._loop.create_task(self._decode(request, found, decode_params, refer=False))
        try:
            done, _ = await asyncio.wait({decode, first}, return_when=asyncio.FIRST_EXCEPTION)
            if first in done and decode not in done:
                first.result()
            await decode
        finally:
            first.cancel()
            decode.cancel()
            await asyncio.gather(first, decode, return_exceptions=True)

    def _release_through_decode(self, request: Request, found: Found, params: bytes, *, refer: bool) -> None:
        """The client left between prefill and decode: a one-token decode makes prefill free its blocks at once."""
        task = self._loop.create_task(self._release(request, found, params, refer=refer))
        self.background.add(task)
        task.add_done_callback(self.background.discard)

    async def _release(self, request: Request, found: Found, params: bytes, *, refer: bool) -> None:
        try:
            worker, lease = self._caller.pick(request, Stage.DECODE, (Role.DECODE,), 1)
        except EpdRouterError:
            return
        try:
            edits = vllm.prefill_edits(request.scan, params)
            async with self._media.split(edits, request, found, worker, refer=refer):
                pieces, _ = edits.apply(request.body)
                leg = Leg(Stage.DECODE, worker, request.exchange.head.target, f"{request.leg_id}:release", RELEASE_TIMEOUT, pieces)
                await self._caller.collect(request, leg)
        except (StageFailedError, EpdRouterError) as error:
            log.info("could not release blocks through decode: %s", error)
        finally:
            lease.release()
