"""The HTTP server of a mock engine: routes, what happens to every request, and what engines ask of each other."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import orjson
from aiohttp import web

from epd_router.mock import admin, faults, replies, tokens
from epd_router.mock.context import CURRENT, Context
from epd_router.mock.errors import ApiError, EngineDeadError, dead
from epd_router.mock.generate import Request

if TYPE_CHECKING:
    from epd_router.mock.engine import Engine

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OPEN = ("/mock/", "/query")
UNCOUNTED = ("/metrics", "/health", "/load", "/ping", "/version")
GUARDED = ("/v1", "/v2", "/inference", "/cohere")


def application(engine: Engine) -> web.Application:
    """Everything that an engine answers."""
    service = Service(engine)
    app = web.Application(client_max_size=1 << 30, middlewares=[service.middleware])
    app.on_response_prepare.append(service.add_headers)
    app.router.add_post("/v1/chat/completions", service.generate)
    app.router.add_post("/v1/completions", service.generate)
    for path in ("/v1/responses", "/v1/messages", "/v1/embeddings"):
        app.router.add_post(path, service.echo)
    tokens.add_routes(app, engine)
    admin.add_routes(app, engine)
    return app


class Service:
    """What happens to the requests of clients."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Death, faults, the key, headers and the count of HTTP requests."""
        if request.path.startswith(OPEN):
            return await handler(request)
        CURRENT.set(Context())
        began = time.perf_counter()
        size = 0
        self.engine.active += request.method == "POST"
        try:
            raw = await request.read() if request.method == "POST" else b""
            size = len(raw)
            response = await self._respond(request, raw, handler)
        finally:
            self.engine.active -= request.method == "POST"
        if request.path in UNCOUNTED:
            return response
        sizes = (size, getattr(response, "content_length", None) or 0)
        metrics = self.engine.memory.metrics
        metrics.observe_http(request.path, request.method, response.status, time.perf_counter() - began, sizes)
        return response

    async def _respond(self, request: web.Request, raw: bytes, handler: Handler) -> web.StreamResponse:
        try:
            self._guard(request)
            fault = faults.take(self.engine.faults, request.method, request.path)
            if request.method == "POST":
                self._keep(request, raw)
            if fault:
                await self._fail(request, fault)
            CURRENT.get().fault = fault
            if self.engine.starting and request.path != "/version":
                raise ApiError(503, "The engine is starting.")
            return await self._work(request, handler) if request.method == "POST" else await handler(request)
        except ApiError as error:
            CURRENT.get().unhandled = not error.handled
            return web.Response(status=error.status, body=error.body(), content_type="application/json")

    async def _work(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self.engine.dead:
            raise dead()
        if self.engine.config.max_queued and self.engine.active > self.engine.config.max_queued:
            self.engine.memory.metrics.count("admission_rejections", 1, "max_num_queued_reqs")
            raise ApiError(503, "The queue of this engine is full. Try a different instance.")
        work: asyncio.Task[web.StreamResponse] = asyncio.get_running_loop().create_task(handler(request))  # type: ignore[arg-type]
        self.engine.works.add(work)
        try:
            return await work
        except EngineDeadError as error:
            self.engine.die(str(error))
            raise dead() from None
        except asyncio.CancelledError:
            if self.engine.dead:
                raise dead() from None
            self.engine.cancelled += 1
            raise
        finally:
            self.engine.works.discard(work)

    def _guard(self, request: web.Request) -> None:
        key = self.engine.config.api_key
        if key and request.path.startswith(GUARDED) and request.headers.get("authorization") != f"Bearer {key}":
            raise web.HTTPUnauthorized(text='{"error":"Unauthorized"}', content_type="application/json")

    def _keep(self, request: web.Request, raw: bytes) -> None:
        try:
            body = orjson.loads(raw or b"{}")
        except orjson.JSONDecodeError as error:
            text = f"1 validation error:\n  {{'type': 'json_invalid', 'loc': 'body.{error.pos}', 'msg': 'JSON decode error'}}"
            raise ApiError(400, text, param=f"body.{error.pos}", kind="Bad Request") from None
        if not isinstance(body, dict):
            raise ApiError(400, "1 validation error:\n  the body is no object", kind="Bad Request")
        self.engine.requests.append({"path": request.path, "body": body, "raw": raw, "headers": dict(request.headers)})
        CURRENT.get().body = body

    async def _fail(self, request: web.Request, fault: str) -> None:
        if fault.isdigit():
            raise ApiError(int(fault), f"injected {fault}")
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "reset":
            self.engine.cut(request)

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """The headers of the server and, unless nobody expected the error, of its middleware."""
        response.headers["server"] = "uvicorn"
        context = CURRENT.get(None)
        if context is None or not context.unhandled:
            response.headers["vary"] = "Origin"
            if self.engine.config.request_id_headers:
                response.headers["x-request-id"] = request.headers.get("x-request-id") or uuid.uuid4().hex

    # --- handlers ---

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """A chat or text completion."""
        context = CURRENT.get()
        return await Request(self.engine, context.body, request, context.fault).answer()

    async def echo(self, request: web.Request) -> web.StreamResponse:
        """What a mock has no model for: it says what it got."""
        await self.engine.sleep(self.engine.config.prefill_ms)
        return replies.whole({"object": "echo", "path": request.path, "model": CURRENT.get().body.get("model")})
