"""A mock engine server. It answers wrongly what a real engine would punish: a reference to an embedding that is missing or
half written, or a decode without blocks and without media, kills it.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import socket
import time
import uuid
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from epd_router.mock.prompt import ITEM_TOKENS, Prompt, RequestError, answer, read


@dataclasses.dataclass
class Fault:
    """Something that goes wrong: `kind` is reset, hang, 429, 500, 503, error_event, die_mid_stream or wrong_metadata; `times`
    counts down."""

    kind: str
    times: int = 1 << 30


@dataclasses.dataclass
class EngineConfig:
    """One engine. Times are milliseconds."""

    role: str = "aggregated"
    models: tuple[str, ...] = ("tiny",)
    version: str = "0.32.0"
    encode_ms: float = 0.0
    prefill_ms: float = 0.0
    token_ms: float = 0.0
    output_tokens: int = 16
    max_model_len: int = 8192
    api_key: str = ""


@dataclasses.dataclass
class Shared:
    """What the engines of a cluster share: the embedding store (uuid to content digest, None while being written) and the
    blocks that prefill holds for decode."""

    embeddings: dict[str, str | None] = dataclasses.field(default_factory=dict)
    blocks: dict[str, str] = dataclasses.field(default_factory=dict)


class EngineDeadError(Exception):
    """The engine process has died of this request."""


class Engine:
    """One mock engine."""

    def __init__(self, config: EngineConfig, shared: Shared | None = None) -> None:
        self.config = config
        self.shared = shared or Shared()
        self.requests: collections.deque[dict[str, Any]] = collections.deque(maxlen=1000)
        self.faults: list[Fault] = []
        self.cancelled = 0
        self.died = 0
        self.active = 0
        self.port = 0
        self.boot = uuid.uuid4().hex
        self._death: asyncio.Task[None] | None = None
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/v1/chat/completions", self._generate)
        app.router.add_post("/v1/completions", self._generate)
        for path in ("/v1/responses", "/v1/messages", "/v1/embeddings", "/tokenize", "/detokenize"):
            app.router.add_post(path, self._echo)
        app.router.add_get("/health", self._health)
        app.router.add_get("/version", self._version)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/mock/fault", self._set_fault)
        self._session = aiohttp.ClientSession()
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=5.0, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        listener = socket.create_server((host, port or self.port), reuse_port=False, backlog=1024)
        self.port = listener.getsockname()[1]
        await web.SockSite(self._runner, listener).start()

    async def stop(self) -> None:
        """Stop listening and drop every connection."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._session is not None:
            await self._session.close()

    async def restart(self) -> None:
        """Come back on the same port with nothing remembered."""
        await self.stop()
        self.boot = uuid.uuid4().hex
        self.shared.blocks.clear()
        await self.start(port=self.port)

    def fault(self, kind: str, times: int = 1 << 30) -> None:
        """Make something go wrong from now on."""
        self.faults.append(Fault(kind, times))

    def _take_fault(self) -> str:
        for fault in self.faults:
            if fault.times > 0:
                fault.times -= 1
                return fault.kind
        return ""

    # --- handlers ---

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": self.config.version})

    async def _models(self, request: web.Request) -> web.Response:
        card = {"object": "model", "owned_by": "vllm", "max_model_len": self.config.max_model_len}
        return web.json_response({"object": "list", "data": [{"id": name, **card} for name in self.config.models]})

    async def _set_fault(self, request: web.Request) -> web.Response:
        document = await request.json()
        self.fault(document["kind"], document.get("times", 1 << 30))
        return web.Response()

    async def _echo(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        self.requests.append({"path": request.path, "body": body, "headers": dict(request.headers)})
        return web.json_response({"object": "echo", "path": request.path, "model": body.get("model")})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.active += 1
        try:
            return await self._checked(request)
        except RequestError as error:
            return error_response(error.status, str(error), error.param)
        except EngineDeadError:
            self.died += 1
            self._die(request)
            raise asyncio.CancelledError from None
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.active -= 1

    def _die(self, request: web.Request) -> None:
        assert request.transport is not None
        request.transport.abort()
        self._death = asyncio.get_running_loop().create_task(self.stop())

    async def _checked(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = orjson.loads(raw)
        self.requests.append({"path": request.path, "body": body, "raw": raw, "headers": dict(request.headers)})
        key = self.config.api_key
        if key and request.headers.get("authorization") != f"Bearer {key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        fault = self._take_fault()
        if fault.isdigit():
            return error_response(int(fault), f"injected {fault}", None)
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "reset":
            assert request.transport is not None
            request.transport.abort()
        self._validate(body)
        assert self._session is not None
        prompt = await read(body, self._session)
        if self.config.role == "encode":
            return await self._encode(body, prompt, fault)
        return await self._serve(request, body, prompt, fault)

    def _validate(self, body: dict[str, Any]) -> None:
        model = body.get("model", self.config.models[0])
        if model not in self.config.models:
            names = ", ".join(self.config.models)
            raise RequestError(404, f"The model `{model}` does not exist. Valid aliases: {names}.", "model")
        for name in ("max_tokens", "max_completion_tokens"):
            if body.get(name) is not None and body[name] < 1:
                value = body[name]
                raise RequestError(400, f"{name} must be at least 1, got {value}. (parameter={name}, value={value})", name)
        if body.get("stream_options") and not body.get("stream"):
            raise RequestError(400, "Stream options can only be defined when `stream=True`.", "stream_options")

    async def _encode(self, body: dict[str, Any], prompt: Prompt, fault: str) -> web.Response:
        store = self.shared.embeddings
        params: dict[str, Any] = {}
        for index, one in enumerate(prompt.media):
            if store.get(one.digest) is None:
                store[one.digest] = None  # being written
                await asyncio.sleep(self.config.encode_ms / 1000)
                store[one.digest] = content_digest(one.content or b"")
            metadata = {} if fault == "wrong_metadata" else {"image_grid_thw": [1, 24, 32]}
            params.setdefault(one.digest, {"item_indices": [], "metadata": metadata})["item_indices"].append(index)
        reply = completion(body, prompt, [[]], "stop")
        reply["ec_transfer_params"] = encoder_reply(params, self.config.version)
        return web.json_response(reply, dumps=dumps)

    def _contents(self, body: dict[str, Any], prompt: Prompt) -> list[str]:
        """Digests of the media; dies where a real engine would."""
        kv = body.get("kv_transfer_params") or {}
        if kv.get("do_remote_prefill"):
            held = self.shared.blocks.pop(kv.get("remote_request_id", ""), None)
            if held is None:
                raise RequestError(500, "EngineCore encountered an issue: KV load failure")
            return held.split() if prompt.media else []
        found = []
        for one in prompt.media:
            stored = self.shared.embeddings.get(one.digest, "")
            if stored is None or (one.reference and not stored):
                raise EngineDeadError(one.digest)
            found.append(stored if one.reference else content_digest(one.content or b""))
        return found

    async def _serve(self, request: web.Request, body: dict[str, Any], prompt: Prompt, fault: str) -> web.StreamResponse:
        contents = self._contents(body, prompt)
        if prompt.tokens > self.config.max_model_len:
            raise RequestError(400, f"This model's maximum context length is {self.config.max_model_len} tokens.", "messages")
        await asyncio.sleep(self.config.prefill_ms / 1000)
        kv = body.get("kv_transfer_params") or {}
        count = body.get("max_completion_tokens") or body.get("max_tokens") or self.config.output_tokens
        words = answer(prompt.text, contents, count)
        if body.get("stream"):
            return await self._stream(request, body, prompt, words, fault)
        await asyncio.sleep(self.config.token_ms * count / 1000)
        reply = completion(body, prompt, [words] * (body.get("n") or 1), "length")
        if kv.get("do_remote_decode"):
            name = f"{reply['id']}-{uuid.uuid4().hex[:8]}"
            self.shared.blocks[name] = " ".join(contents)
            reply["kv_transfer_params"] = handles(name, self.boot, prompt.tokens)
        return web.json_response(reply, dumps=dumps)

    async def _stream(
        self, request: web.Request, body: dict[str, Any], prompt: Prompt, words: list[str], fault: str
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        if fault == "error_event":
            await response.write(
                event({"error": {"message": "injected", "type": "InternalServerError", "param": None, "code": 500}})
            )
            await response.write(b"data: [DONE]\n\n")
            return response
        await response.write(event(chunk(body, {"role": "assistant", "content": ""}, None)))
        for index, word in enumerate(words):
            await asyncio.sleep(self.config.token_ms / 1000)
            if fault == "die_mid_stream" and index == len(words) // 2:
                assert request.transport is not None
                request.transport.abort()
            last = index == len(words) - 1
            await response.write(event(chunk(body, {"content": word}, "length" if last else None)))
        if (body.get("stream_options") or {}).get("include_usage"):
            await response.write(event({**chunk(body, {}, None), "choices": [], "usage": usage(prompt, len(words))}))
        await response.write(b"data: [DONE]\n\n")
        return response


class Cluster:
    """Several engines in this process with one embedding store; an async context manager."""

    def __init__(self, *, config: EngineConfig | None = None, **roles: int) -> None:
        base = config or EngineConfig()
        self.shared = Shared()
        self.engines: dict[str, list[Engine]] = {
            role: [Engine(dataclasses.replace(base, role=role), self.shared) for _ in range(count)] for role, count in roles.items()
        }

    def __getitem__(self, role: str) -> list[Engine]:
        return self.engines[role]

    def urls(self, role: str) -> str:
        """URLs of a role, comma separated."""
        return ",".join(engine.url for engine in self.engines.get(role, []))

    def all(self) -> list[Engine]:
        """Every engine."""
        return [engine for engines in self.engines.values() for engine in engines]

    async def __aenter__(self) -> Cluster:
        for engine in self.all():
            await engine.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for engine in self.all():
            with contextlib.suppress(OSError):
                await engine.stop()


def dumps(value: Any) -> str:
    """JSON text."""
    return orjson.dumps(value).decode()


def content_digest(content: bytes) -> str:
    """Name of a picture's content."""
    return uuid.uuid5(uuid.NAMESPACE_OID, content.hex()).hex


def error_response(status: int, message: str, param: str | None) -> web.Response:
    """An error as vLLM words it."""
    kind = {400: "BadRequestError", 404: "NotFoundError"}.get(status, "InternalServerError")
    return web.json_response({"error": {"message": message, "type": kind, "param": param, "code": status}}, status=status)


def encoder_reply(params: dict[str, Any], version: str) -> Any:
    """`ec_transfer_params` in the shape of a version."""
    minor = int(version.split(".")[1])
    if minor < 28:
        return None
    if minor < 30:
        return {"ec_items": [{"mm_hash": key, **entry["metadata"]} for key, entry in params.items()]}
    if minor < 31:
        return {key: {"metadata": entry["metadata"]} for key, entry in params.items()}
    return params


def handles(name: str, boot: str, tokens: int) -> dict[str, Any]:
    """NIXL pull handles."""
    return {
        "do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [list(range(1, tokens // 32 + 2))],
        "remote_engine_id": boot, "remote_request_id": name, "remote_host": "localhost", "remote_port": 5600, "tp_size": 1,
        "dcp_size": 1, "pp_size": 1, "remote_num_tokens": tokens, "remote_blocks_expiry_time": None, "transfer_mode": "pull",
        "remote_prefill_cached_tokens": 0,
    }  # fmt: skip


def usage(prompt: Prompt, tokens: int) -> dict[str, Any]:
    """Token counts."""
    details = {
        "cached_tokens": 0,
        "created_cache_tokens": 0,
        "multimodal_tokens": {"image": ITEM_TOKENS * len(prompt.media)},
    }
    return {
        "prompt_tokens": prompt.tokens, "total_tokens": prompt.tokens + tokens, "completion_tokens": tokens,
        "prompt_tokens_details": details, "completion_tokens_details": None,
    }  # fmt: skip


def completion(body: dict[str, Any], prompt: Prompt, choices: list[list[str]], finish: str) -> dict[str, Any]:
    """A whole answer."""
    chat = "messages" in body
    listed: list[dict[str, Any]] = []
    for index, words in enumerate(choices):
        text = "".join(words)
        message = {"role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None, "function_call": None,
                   "reasoning": None}  # fmt: skip
        choice = {"message": message} if chat else {"text": text, "prompt_logprobs": None, "prompt_token_ids": None}
        listed.append({"index": index, **choice, "logprobs": None, "finish_reason": finish, "stop_reason": None, "token_ids": None,
                       "routed_experts": None})  # fmt: skip
    head = {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None} if chat else {}
    return {
        "id": ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex[:16],
        "object": "chat.completion" if chat else "text_completion", "created": int(time.time()),
        "model": body.get("model"), "choices": listed, "service_tier": None, "system_fingerprint": "vllm-0.32.0-mock",
        "usage": usage(prompt, sum(map(len, choices))), **head, "kv_transfer_params": None, "ec_transfer_params": None,
        "metrics": None,
    }  # fmt: skip


def chunk(body: dict[str, Any], delta: dict[str, Any], finish: str | None) -> dict[str, Any]:
    """One event of a stream."""
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish}
    if "messages" in body:
        return {"id": "chatcmpl-mock", "object": "chat.completion.chunk", "created": int(time.time()), "model": body.get("model"),
                "choices": [{**choice, "delta": delta}]}  # fmt: skip
    choice["text"] = delta.get("content", "")
    return {"id": "cmpl-mock", "object": "text_completion", "created": int(time.time()), "model": body.get("model"),
            "choices": [choice]}  # fmt: skip


def event(value: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"
