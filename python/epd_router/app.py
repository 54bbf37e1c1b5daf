"""Every path that is not hot: health, models, metrics, the worker list. Plain aiohttp."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import orjson
from aiohttp import web

from epd_router import __version__
from epd_router.auth import check_key
from epd_router.errors import ClientError, EpdRouterError
from epd_router.media.served import PATH
from epd_router.options import not_negative
from epd_router.pipeline import INFERENCE
from epd_router.urls import WorkerSpec, normalise
from epd_router.workers import Role

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler

    from epd_router.server import Server
    from epd_router.workers import Worker

log = logging.getLogger(__name__)
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def build_app(server: Server) -> web.Application:
    """The application of one server."""
    admin = Admin(server)
    app = web.Application(middlewares=[errors_as_json], client_max_size=1 << 20)
    for path in ("/health", "/readiness", "/readyz", "/ping"):
        app.router.add_get(path, admin.readiness)
    for path in ("/liveness", "/healthz"):
        app.router.add_get(path, admin.liveness)
    app.router.add_get("/v1/models", admin.models)
    app.router.add_get("/v1/models/{name:.+}", admin.model)
    app.router.add_get(PATH + "/{content}/{expiry}/{signature}", admin.media)
    app.router.add_get("/metrics", admin.metrics)
    app.router.add_get("/version", admin.version)
    app.router.add_get("/workers", admin.workers)
    app.router.add_get("/workers/{id}", admin.worker)
    app.router.add_post("/workers", admin.add)
    app.router.add_delete("/workers/{id}", admin.remove)
    app.router.add_post("/workers/{id}/drain", admin.drain)
    return app


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors as OpenAI error objects."""
    try:
        return await handler(request)
    except web.HTTPMethodNotAllowed as error:
        return answer(ClientError("method_not_allowed", f"{request.method} {request.path}"), error.headers.get("allow"))
    except web.HTTPNotFound:
        if request.path in INFERENCE:
            return answer(ClientError("method_not_allowed", f"{request.method} {request.path}"), "POST")
        return answer(ClientError("unknown_url", f"no such path: {request.method} {request.path}"))
    except web.HTTPRequestEntityTooLarge as error:
        return answer(ClientError("payload_too_large", error.text or "too large"))
    except EpdRouterError as error:
        return answer(error)
    except web.HTTPException:
        raise
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        return answer(EpdRouterError("internal_error", "internal error"))


def answer(error: EpdRouterError, allow: str | None = None) -> web.Response:
    """The response for an error."""
    headers = {"x-epd-router-error-code": error.code} | ({"allow": allow} if allow else {})
    return web.Response(status=error.status, body=error.json(), content_type="application/json", headers=headers)


def json_response(value: object, status: int = 200) -> web.Response:
    """JSON by orjson."""
    return web.Response(status=status, body=orjson.dumps(value), content_type="application/json")


class Admin:
    """The handlers."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def liveness(self, request: web.Request) -> web.Response:
        """The process answers."""
        return json_response({"status": "ok"})

    async def readiness(self, request: web.Request) -> web.Response:
        """Every stage of the configured topology has a healthy worker."""
        server = self._server
        missing = [role.value for role in server.fleet.missing_roles()]
        if server.draining:
            return json_response({"status": "draining"}, 503)
        status = {
            "status": "missing" if missing else "ready",
            "topology": server.fleet.topology.name,
            "missing": missing,
        }
        return json_response(status, 503 if missing else 200)

    async def models(self, request: web.Request) -> web.Response:
        """The models of all workers, each once, as the workers describe them. Asks for a client's key, as vLLM does."""
        check_key(request.headers.get, self._server.settings.api_key)
        body = b'{"object":"list","data":[%s]}' % b",".join(self._cards().values())
        return web.Response(body=body, content_type="application/json")

    async def model(self, request: web.Request) -> web.Response:
        """One model."""
        check_key(request.headers.get, self._server.settings.api_key)
        name = request.match_info["name"]
        card = self._cards().get(name)
        if card is None:
            raise ClientError("model_not_found", f"the model {name!r} does not exist", param="model")
        return web.Response(body=card, content_type="application/json")

    def _cards(self) -> dict[str, bytes]:
        cards: dict[str, bytes] = {}
        for worker in self._server.fleet:
            if worker.role is not Role.ENCODE:
                cards |= {name: card for name, card in zip(worker.models, worker.cards, strict=False) if name not in cards}
        return cards

    async def metrics(self, request: web.Request) -> web.Response:
        """Prometheus exposition."""
        return web.Response(body=self._server.metrics.render(), headers={"content-type": METRICS_TYPE})

    async def media(self, request: web.Request) -> web.Response:
        """A picture for a worker that was told of it; the URL is the key."""
        served = self._server.media.served
        found = served.get(**request.match_info) if served is not None else None
        if found is None:
            raise ClientError("unknown_url", "no such media")
        # Of no type: engines look at the bytes, and nothing that was downloaded is to be run by a browser.
        return web.Response(body=found.data, content_type="application/octet-stream", headers={"cache-control": "no-store"})

    async def version(self, request: web.Request) -> web.Response:
        """The router's version."""
        return json_response({"version": __version__})

    async def workers(self, request: web.Request) -> web.Response:
        """The worker table."""
        return json_response({"workers": [describe(worker) for worker in self._server.fleet]})

    async def worker(self, request: web.Request) -> web.Response:
        """One worker."""
        return json_response(describe(self._server.fleet.get(request.match_info["id"])))

    async def add(self, request: web.Request) -> web.Response:
        """Take a worker in: `{"url", "role"}` and any label of a worker URL."""
        self._authorize(request)
        role, spec = parse_worker(await request.read())
        return json_response(describe(self._server.add_worker(spec, role)), 201)

    async def remove(self, request: web.Request) -> web.Response:
        """Forget a worker; its requests go on."""
        self._authorize(request)
        self._server.remove_worker(request.match_info["id"])
        return json_response({"removed": request.match_info["id"]})

    async def drain(self, request: web.Request) -> web.Response:
        """Give a worker no new requests and wait until it has none (at most `?timeout=` seconds)."""
        self._authorize(request)
        worker = self._server.fleet.get(request.match_info["id"])
        end = self._server.loop.time() + parse_timeout(request.query.get("timeout", "30"))
        worker.draining = True
        self._server.fleet.changed()
        while worker.load.active and self._server.loop.time() < end:
            await asyncio.sleep(0.05)
        return json_response(describe(worker))

    def _authorize(self, request: web.Request) -> None:
        settings = self._server.settings
        keys = (settings.admin_api_key,) if settings.admin_api_key else settings.api_key
        check_key(request.headers.get, keys, "admin key")


def parse_worker(body: bytes) -> tuple[Role, WorkerSpec]:
    """Role and description of `{"url", "role", label...}`. Raises ClientError and ConfigError."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ClientError("invalid_json", f"{error.msg} at byte {error.pos}") from None
    if not isinstance(document, dict):
        raise ClientError("invalid_value", "a worker is an object with url and role")
    roles = [role.value for role in Role]
    named = str(document.get("role")).replace("-", "_")
    if named not in roles:
        raise ClientError("invalid_value", f"role must be one of {', '.join(roles)}", param="role")
    role, url = Role(named), document.pop("url", None)
    del document["role"]
    if not isinstance(url, str):
        raise ClientError("invalid_value", "url must be a string", param="url")
    return role, WorkerSpec(normalise(url)).labelled(document)


def parse_timeout(text: str) -> float:
    """Seconds, not negative and finite. Raises ClientError."""
    try:
        return not_negative(text)
    except ValueError:
        raise ClientError("invalid_value", f"timeout={text!r} is not a number of seconds", param="timeout") from None


def describe(worker: Worker) -> dict[str, object]:
    """A worker for people and tools."""
    spec: WorkerSpec = worker.spec
    return {
        "id": worker.id,
        "url": spec.url,
        "role": worker.role.value,
        "healthy": worker.healthy,
        "draining": worker.draining,
        "models": list(worker.models),
        "version": ".".join(map(str, worker.version)),
        "weight": spec.weight,
        "node": spec.node,
        "active": worker.load.active,
        "outstanding": worker.load.outstanding,
        "error": worker.last_error,
    }
