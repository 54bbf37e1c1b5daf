"""One request through an engine: read, preprocess, admit, compute, answer."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiohttp import web

from epd_router.mock import kv, replies
from epd_router.mock.errors import ApiError, EngineDeadError, dead
from epd_router.mock.media import GRIDS, Item, Preprocessing, load
from epd_router.mock.prompt import Prompt, check_length, check_text, parts, plain, render, seed, turns
from epd_router.mock.sampling import Sampling

if TYPE_CHECKING:
    from epd_router.mock.engine import Engine


@dataclass
class Prefilled:
    """A prompt whose first token can be sampled: what the answer depends on, and where the KV came from."""

    seed: str
    cached: int
    created: int
    external: bool = False


class Request:
    """One chat or text completion."""

    def __init__(self, engine: Engine, body: dict[str, Any], request: web.Request, fault: str) -> None:
        self.engine = engine
        self.sampling = Sampling(body, engine.config)
        self._body = body
        self._http = request
        self._fault = fault
        self._began = time.perf_counter()
        prefix = "chatcmpl-" if self.sampling.chat else "cmpl-"
        self.id = prefix + (request.headers.get("x-request-id") or uuid.uuid4().hex[:16])
        self._head = replies.Head(self.id, int(time.time()), self.sampling.model, engine.memory.fingerprint)
        self._kv_params: dict[str, Any] = body.get("kv_transfer_params") or {}
        self._ec_params: dict[str, Any] = body.get("ec_transfer_params") or {}

    async def answer(self) -> web.StreamResponse:
        """Serve it. Raises ApiError and EngineDeadError."""
        try:
            prompts, known = await self._read()
            self._refuse(prompts)
        except (ApiError, asyncio.CancelledError):
            self.engine.background(self.engine.kv.reject(self._kv_params))
            raise
        if self.sampling.stream:
            return await self._stream(prompts, known)
        self.engine.memory.processor.admit(prompts[0].items, known)
        if self.engine.config.encodes_only:
            return await self._encode(prompts[0])
        filled = await self._prefill(prompts)
        return await self._whole(prompts, filled)

    # --- up to admission ---

    async def _read(self) -> tuple[list[Prompt], list[bool]]:
        self.sampling.check_form()
        engine = self.engine
        if not self.sampling.chat:
            prompts = plain(self._body.get("prompt"))
            for prompt in prompts:
                check_text(len(prompt.ids), engine.config)
            return prompts, []
        chat = turns(self._body)
        media = parts(chat)
        markers = [Item("image", 0, "", tokens=1) for _ in media]
        check_text(len(render(chat, markers).ids), engine.config)
        items = await load(media, Preprocessing(self._body, engine.config), engine.config, engine.session)
        known = engine.memory.processor.look_up(items)
        generation = self._body.get("add_generation_prompt", True)
        return [render(chat, items, generation=generation)], known

    def _refuse(self, prompts: Sequence[Prompt]) -> None:
        for prompt in prompts:
            check_length(len(prompt.ids), self.engine.config)
            if not self.engine.config.encodes_only:
                self.sampling.check_values(len(prompt.ids))

    # --- encode ---

    async def _encode(self, prompt: Prompt) -> web.Response:
        entries = await self.engine.ec.publish(prompt.items, self._ec_params)
        reported = [self._reported(item) for item in prompt.items]
        tokens, finish = self.sampling.answer("", 0)
        counts = replies.Counts(len(prompt.ids), len(tokens), 0, 0, prompt.multimodal())
        usage = counts.usage(details=self.engine.config.prompt_tokens_details)
        made = replies.completion(self._head, self.sampling, [replies.Choice(0, tokens, finish, prompt)], usage)
        made["ec_transfer_params"] = replies.encoded(reported, entries, self.engine.config.minor)
        self._count(prompt, Prefilled("", 0, 0), [finish], 0, 0.0)
        return replies.whole(made)

    def _reported(self, item: Item) -> Item:
        metadata = item.metadata
        if self._fault == "wrong_metadata":
            metadata = {}
        elif self._fault == "wrong_grid":
            metadata = {name: [*value[:-1], value[-1] + 2] if name in GRIDS.values() else value for name, value in metadata.items()}
        return Item(item.modality, item.index, item.id, metadata, item.tokens, item.digest)

    # --- prefill ---

    async def _prefill(self, prompts: Sequence[Prompt]) -> list[Prefilled]:
        """Raises ApiError and EngineDeadError."""
        if self._fault == "die":
            raise EngineDeadError("told to")
        return [await self._prefill_one(prompt) for prompt in prompts]

    async def _prefill_one(self, prompt: Prompt) -> Prefilled:
        engine, pool = self.engine, self.engine.memory.blocks
        if engine.config.encodes_only:
            await engine.ec.publish(prompt.items, self._ec_params)
            return Prefilled("", 0, 0)
        chain = pool.chain(prompt.ids, prompt.runs, self.sampling.salt)
        recompute = self.sampling.prompt_logprobs is not None
        cached = 0 if recompute else pool.cached(chain, len(prompt.ids))
        if self.sampling.full_report:
            pool.announce(chain[: cached // pool.size])
        leg = kv.Leg(self.id, self._kv_params, prompt)
        received = await engine.kv.receive(leg)
        if received is not None:
            if recompute and any(item.reference for item in prompt.items):
                raise EngineDeadError("prompt log-probabilities need the embeddings of references")
            pool.store(chain, cached)
            return Prefilled(received["seed"], received["cached"], 0, external=True)
        contents = engine.kv.contents(prompt)
        if contents is None:
            contents = await engine.ec.contents(prompt.items, self._ec_params)
        await engine.sleep(engine.config.prefill_ms)
        engine.kv.keep(prompt, contents)
        return Prefilled(seed(prompt.ids, contents), cached, pool.store(chain, cached))

    # --- answers ---

    def _choices(self, prompts: Sequence[Prompt], filled: Sequence[Prefilled]) -> list[replies.Choice]:
        made: list[replies.Choice] = []
        for prompt, one in zip(prompts, filled, strict=True):
            for choice in range(self.sampling.n):
                tokens, finish = self.sampling.answer(one.seed, choice)
                made.append(replies.Choice(len(made), tokens, finish, prompt))
        return made

    def _usage(self, prompts: Sequence[Prompt], filled: Sequence[Prefilled], output: int, *, whole: bool = True) -> dict[str, Any]:
        created = sum(one.created for one in filled) if self.sampling.chat else None
        multimodal = prompts[0].multimodal() if len(prompts) == 1 else None
        total = sum(len(prompt.ids) for prompt in prompts)
        counts = replies.Counts(total, output, sum(one.cached for one in filled), created, multimodal)
        return counts.usage(details=self.engine.config.prompt_tokens_details, whole=whole)

    async def _whole(self, prompts: Sequence[Prompt], filled: Sequence[Prefilled]) -> web.Response:
        first = time.perf_counter() - self._began
        choices = self._choices(prompts, filled)
        await self.engine.sleep(self.engine.config.token_ms * max(len(choice.tokens) for choice in choices))
        output = sum(len(choice.tokens) for choice in choices)
        made = replies.completion(self._head, self.sampling, choices, self._usage(prompts, filled, output))
        made["kv_transfer_params"] = await self._hand_over(prompts[0], filled[0], choices[0].finish)
        self._finish(prompts, filled, choices, first)
        return replies.whole(made)

    async def _hand_over(self, prompt: Prompt, filled: Prefilled, finish: str) -> dict[str, Any] | None:
        memory = self.engine.memory
        leg = kv.Leg(self.id, self._kv_params, prompt)
        if not leg.sends:
            return None
        ids = memory.leases.allocate(-(-len(prompt.ids) // memory.blocks.size))
        blocks = kv.Blocks(seed=filled.seed, tokens=len(prompt.ids), ids=ids, cached=filled.cached)
        return await self.engine.kv.send(leg, blocks, finish)

    async def _stream(self, prompts: Sequence[Prompt], known: Sequence[bool]) -> web.StreamResponse:
        """From here on failures are events: the status is out before the engine has done anything."""
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        await response.prepare(self._http)
        try:
            if self._fault == "error_event":
                raise ApiError(500, "injected")
            self.engine.memory.processor.admit(prompts[0].items, known)
            await self._events(response, prompts, await self._prefill(prompts))
        except ApiError as error:
            await response.write(replies.error_event(error.body()))
        except EngineDeadError as error:
            self.engine.die(str(error))
            await response.write(replies.error_event(dead().body()))
        except asyncio.CancelledError:
            if not self.engine.dead:
                raise
            await response.write(replies.error_event(dead().body()))
        await response.write(replies.DONE)
        return response

    async def _events(self, response: web.StreamResponse, prompts: Sequence[Prompt], filled: Sequence[Prefilled]) -> None:
        first = time.perf_counter() - self._began
        choices = self._choices(prompts, filled)
        if self.sampling.chat:
            for choice in choices:
                opening = replies.chunk(self._head, self.sampling, choice.index, (), None, first=choice.prompt)
                await response.write(replies.event(opening))
        steps = max(len(choice.tokens) for choice in choices)
        for step in range(steps):
            await self.engine.sleep(self.engine.config.token_ms)
            if self._fault == "die_mid_stream" and step == steps // 2:
                self.engine.cut(self._http)
            live = [choice for choice in choices if step < len(choice.tokens)]
            for choice in live:
                last = step == len(choice.tokens) - 1
                made = replies.chunk(
                    self._head, self.sampling, choice.index, choice.tokens[step : step + 1], choice.finish if last else None
                )
                if self.sampling.continuous_usage:
                    made["usage"] = self._usage(prompts, filled, step + 1, whole=False)
                await response.write(replies.event(made))
        if not steps:
            await response.write(replies.event(replies.chunk(self._head, self.sampling, 0, (), choices[0].finish)))
        if self.sampling.include_usage:
            usage = self._usage(prompts, filled, sum(len(choice.tokens) for choice in choices), whole=False)
            await response.write(replies.event(replies.usage_chunk(self._head, self.sampling, usage)))
        await self._hand_over(prompts[0], filled[0], choices[0].finish)
        self._finish(prompts, filled, choices, first)

    # --- afterwards ---

    def _finish(
        self, prompts: Sequence[Prompt], filled: Sequence[Prefilled], choices: Sequence[replies.Choice], first: float
    ) -> None:
        pool = self.engine.memory.blocks
        for prompt, one in zip(prompts, filled, strict=True):
            own = [choice for choice in choices if choice.prompt is prompt]
            full = len(prompt.ids) // pool.size * pool.size
            for choice in own:
                # The last token is never computed, so its KV does not exist.
                pool.store(pool.chain([*prompt.ids, *choice.tokens[:-1]], prompt.runs, self.sampling.salt), full)
            tokens = sum(len(choice.tokens) for choice in own)
            self._count(prompt, one, [choice.finish for choice in own], tokens, first)

    def _count(self, prompt: Prompt, filled: Prefilled, finished: Sequence[str], tokens: int, first: float) -> None:
        metrics, length = self.engine.memory.metrics, len(prompt.ids)
        whole = time.perf_counter() - self._began
        source = "external_kv_transfer" if filled.external else "local_compute"
        metrics.count("prompt_tokens", length)
        metrics.count("prompt_tokens_by_source", length - filled.cached, source)
        metrics.count("prompt_tokens_by_source", filled.cached, "local_cache_hit")
        metrics.count("prompt_tokens_cached", filled.cached)
        metrics.count("prompt_tokens_cached_by_source", filled.cached, "device")
        metrics.count("generation_tokens", tokens)
        for reason in finished:
            metrics.count("request_success", 1, reason)
        for name, value in {
            "request_prompt_tokens": length, "request_generation_tokens": tokens, "iteration_tokens_total": length + tokens,
            "request_max_num_generation_tokens": tokens, "request_params_n": self.sampling.n, "request_num_preemptions": 0,
            "request_params_max_tokens": self.sampling.max_tokens, "time_to_first_token_seconds": first,
            "e2e_request_latency_seconds": whole, "request_queue_time_seconds": 0.0, "request_inference_time_seconds": whole,
            "request_prefill_time_seconds": first, "request_decode_time_seconds": whole - first,
            "request_prefill_kv_computed_tokens": length - filled.cached,
        }.items():  # fmt: skip
            metrics.observe(name, value)
        if tokens > 1:
            metrics.observe("inter_token_latency_seconds", (whole - first) / (tokens - 1), tokens - 1)
            metrics.observe("request_time_per_output_token_seconds", (whole - first) / (tokens - 1))
