"""Paths besides generation: health, models, load, metrics, events, faults, and what engines ask of each other."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from epd_router.mock import replies
from epd_router.mock.faults import Fault

if TYPE_CHECKING:
    from epd_router.mock.engine import Engine


class Admin:
    """The handlers of one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def health(self, request: web.Request) -> web.Response:
        """200 while the engine lives."""
        return web.Response(status=503 if self.engine.dead else 200)

    async def version(self, request: web.Request) -> web.Response:
        """The release."""
        return replies.whole({"version": self.engine.config.version})

    async def load(self, request: web.Request) -> web.Response:
        """Requests in the server."""
        return replies.whole({"server_load": self.engine.active})

    async def models(self, request: web.Request) -> web.Response:
        """Cards of the served models."""
        now = int(time.time())
        return replies.whole({"object": "list", "data": [self._card(name, now) for name in self.engine.config.models]})

    def _card(self, name: str, now: int) -> dict[str, Any]:
        permission = {
            "id": f"modelperm-{uuid.uuid4().hex[:16]}", "object": "model_permission", "created": now, "allow_create_engine": False,
            "allow_sampling": True, "allow_logprobs": True, "allow_search_indices": False, "allow_view": True,
            "allow_fine_tuning": False, "organization": "*", "group": None, "is_blocking": False,
        }  # fmt: skip
        return {"id": name, "object": "model", "created": now, "owned_by": "vllm", "root": self.engine.config.models[0],
                "parent": None, "max_model_len": self.engine.config.max_model_len, "permission": [permission]}  # fmt: skip

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus' text."""
        engine, metrics = self.engine, self.engine.memory.metrics
        pool, processor = engine.memory.blocks, engine.memory.processor
        metrics.set("num_requests_running", engine.active)
        metrics.set("engine_sleep_state", 1, "awake")
        metrics.set("kv_cache_usage_perc", min(1.0, engine.memory.leases.pinned / engine.config.num_blocks))
        metrics.set("prefix_cache_queries", pool.queries)
        metrics.set("prefix_cache_hits", pool.hits)
        metrics.set("mm_cache_queries", processor.queries)
        metrics.set("mm_cache_hits", processor.hits)
        metrics.set("kv_expired_reqs", engine.memory.leases.expired)
        return web.Response(text=metrics.text(), headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"})

    async def sources(self, request: web.Request) -> web.Response:
        """Where KV events come from; from 0.31 on."""
        if self.engine.config.minor < 31:
            raise web.HTTPNotFound
        return replies.whole(self.engine.memory.events.sources())

    async def reset_prefix_cache(self, request: web.Request) -> web.Response:
        """Forget all blocks."""
        self.engine.memory.blocks.clear()
        return web.Response()

    async def reset_mm_cache(self, request: web.Request) -> web.Response:
        """Forget all preprocessed media."""
        self.engine.memory.processor.clear()
        return web.Response()

    # --- the mock's own ---

    async def bootstrap(self, request: web.Request) -> web.Response:
        """Mooncake's bootstrap server."""
        engine = self.engine
        if not engine.bootstrap:
            raise web.HTTPNotFound
        address = {"0": {"0": f"tcp://127.0.0.1:{engine.port}"}}
        return replies.whole({"0": {"engine_id": engine.engine_id, "worker_addr": address}})

    async def kv(self, request: web.Request) -> web.Response:
        """Decode takes blocks, at once or as soon as they are there."""
        wanted = orjson.loads(await request.read())
        leases = self.engine.memory.leases
        if self.engine.dead or wanted["engine_id"] != self.engine.engine_id:
            raise web.HTTPNotFound
        found = await leases.wait(wanted["name"], wanted["wait"]) if "wait" in wanted else leases.take(wanted["name"])
        if found is None:
            raise web.HTTPNotFound
        return replies.whole(found)

    async def embedding(self, request: web.Request) -> web.Response:
        """A consumer reads an embedding in this encoder's memory."""
        value = self.engine.memory.embeddings.get(orjson.loads(await request.read())["key"])
        if value is None or self.engine.dead:
            raise web.HTTPNotFound
        return replies.whole({"value": value})

    async def push(self, request: web.Request) -> web.Response:
        """An encoder pushes an embedding."""
        given = orjson.loads(await request.read())
        await self.engine.memory.embeddings.push(given["transfer_id"], given["value"])
        return replies.whole({})

    async def set_fault(self, request: web.Request) -> web.Response:
        """Make something go wrong."""
        try:
            self.engine.add_fault(Fault.load(orjson.loads(await request.read())))
        except ValueError as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        return web.Response()

    async def clear_faults(self, request: web.Request) -> web.Response:
        """Nothing goes wrong any more."""
        await self.engine.clear_faults()
        return web.Response()

    async def state(self, request: web.Request) -> web.Response:
        """What a test wants to know of an engine in another process."""
        engine = self.engine
        return replies.whole(
            {
                "engine_id": engine.engine_id, "died": engine.died, "died_of": engine.died_of, "cancelled": engine.cancelled,
                "active": engine.active, "pinned_blocks": engine.pinned_blocks, "requests": len(engine.requests),
                "bootstrap_port": engine.bootstrap,
            }
        )  # fmt: skip


def add_routes(app: web.Application, engine: Engine) -> None:
    """Add every path of this module."""
    admin = Admin(engine)
    gets = {
        "/health": admin.health, "/ping": admin.health, "/version": admin.version, "/load": admin.load,
        "/v1/models": admin.models, "/metrics": admin.metrics, "/kv_event_sources": admin.sources, "/query": admin.bootstrap,
        "/mock/state": admin.state,
    }  # fmt: skip
    posts = {
        "/ping": admin.health, "/reset_prefix_cache": admin.reset_prefix_cache, "/reset_mm_cache": admin.reset_mm_cache,
        "/mock/kv": admin.kv, "/mock/embedding": admin.embedding, "/mock/push": admin.push, "/mock/fault": admin.set_fault,
    }  # fmt: skip
    for path, handler in gets.items():
        app.router.add_get(path, handler)
    for path, handler in posts.items():
        app.router.add_post(path, handler)
    app.router.add_delete("/mock/fault", admin.clear_faults)
