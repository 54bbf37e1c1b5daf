"""Lean stand-in for one vLLM 0.32 server: fixed answers over raw HTTP/1.1, so that what a run measures is the router.

One process per role. Shapes follow the recorded wire samples; nothing is computed, nothing waits, except that a
streamed answer sends one event each `INTERVAL` seconds. Every event carries the sender's monotonic clock as its
token text, so that the load generator can tell how long each chunk was on its way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import time
from functools import lru_cache
from typing import Any, cast

import uvloop

CHUNKS = 64
INTERVAL = 0.010
MODEL = "tiny"
CREATED = 1_795_980_178
HEAD_ROOM = 256 * 1024
STREAM_PROBE_LIMIT = 64 * 1024
STAMP = b'"content":"'
STAMP_DIGITS = 17
GRID = {"image_grid_thw": [1, 24, 32]}
REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 411: "Length Required", 500: "Internal Server Error"}


def http_answer(status: int, body: bytes, kind: str = "application/json") -> bytes:
    """Give the whole answer as uvicorn would send it."""
    head = (
        f"HTTP/1.1 {status} {REASONS[status]}\r\ndate: Sat, 29 Nov 2026 21:00:00 GMT\r\nserver: uvicorn\r\n"
        f"content-length: {len(body)}\r\ncontent-type: {kind}\r\n\r\n"
    )
    return head.encode() + body


def completion(content: str, finish: str, **extra: Any) -> bytes:
    """Give a chat completion body in vLLM's field order."""
    message = {"role": "assistant", "content": content, "refusal": None, "annotations": None, "audio": None}
    message |= {"function_call": None, "reasoning": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    choice |= {"token_ids": None, "routed_experts": None}
    body: dict[str, Any] = {"id": "chatcmpl-bench", "object": "chat.completion", "created": CREATED, "model": MODEL}
    body |= {"choices": [choice], "service_tier": None, "system_fingerprint": "vllm-0.32.0-bench"}
    body["usage"] = {"prompt_tokens": 623, "total_tokens": 687, "completion_tokens": 64, "prompt_tokens_details": None}
    body |= {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None}
    body |= {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
    return json.dumps(body | extra, separators=(",", ":")).encode()


def prefill_handles() -> dict[str, Any]:
    """Give the NIXL handles that a prefill worker returns."""
    handles: dict[str, Any] = {"do_remote_prefill": True, "do_remote_decode": False}
    handles |= {"remote_block_ids": [list(range(15, 35))], "remote_engine_id": "7ad1aa70-1eea-4fc3-9fd9-7e40a5a1c00f"}
    handles |= {"remote_request_id": "chatcmpl-bench-a73c319d", "remote_host": "127.0.0.1", "remote_port": 20002}
    handles |= {"tp_size": 1, "dcp_size": 1, "pp_size": 1, "remote_num_tokens": 623}
    handles |= {"remote_blocks_expiry_time": None, "transfer_mode": "pull", "remote_prefill_cached_tokens": 0}
    return handles


def encode_answer(uuids: list[str]) -> bytes:
    """Give the reply of the encode leg: one entry for each distinct item."""
    entries: dict[str, Any] = {}
    for place, uuid in enumerate(uuids):
        entries.setdefault(uuid, {"item_indices": [], "metadata": GRID})["item_indices"].append(place)
    return http_answer(200, completion("", "stop", ec_transfer_params=entries))


def models() -> bytes:
    """Give the body of /v1/models."""
    card = {"id": MODEL, "object": "model", "created": CREATED, "owned_by": "vllm", "root": MODEL, "parent": None}
    return json.dumps({"object": "list", "data": [card | {"max_model_len": 131072, "permission": []}]}).encode()


METRICS = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.0
"""
ANSWER_BODY = completion("All that is gold does not glitter, not all those who wander are lost. " * 6, "length")
ANSWER = http_answer(200, ANSWER_BODY)
PREFILLED = http_answer(200, completion("", "length", kv_transfer_params=prefill_handles()))
GETS = {
    "/health": http_answer(200, b"", "text/plain"),
    "/v1/models": http_answer(200, models()),
    "/version": http_answer(200, b'{"version":"0.32.0"}'),
    "/load": http_answer(200, b'{"server_load":0}'),
    "/metrics": http_answer(200, METRICS, "text/plain; version=1.0.0; charset=utf-8"),
}
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ndate: Sat, 29 Nov 2026 21:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


def error_answer(status: int, message: str) -> bytes:
    """Give a vLLM error object."""
    error = {"message": message, "type": "BadRequestError", "param": None, "code": status}
    return http_answer(status, json.dumps({"error": error}).encode())


def frame(event: bytes) -> bytes:
    """Give one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(event), event)


def sse_event(stamp: str, finish: str | None) -> bytes:
    """Give one event of a streamed chat completion."""
    choice = {"index": 0, "delta": {"content": stamp}, "logprobs": None, "finish_reason": finish, "token_ids": None}
    body = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": CREATED, "model": MODEL}
    return b"data: %b\n\n" % json.dumps(body | {"choices": [choice]}, separators=(",", ":")).encode()


EVENT_BEFORE, EVENT_AFTER = frame(sse_event("0" * STAMP_DIGITS, None)).split(b"0" * STAMP_DIGITS)
LAST_BEFORE, LAST_AFTER = frame(sse_event("0" * STAMP_DIGITS, "length")).split(b"0" * STAMP_DIGITS)
STREAM_END = frame(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def find_uuids(body: bytearray, stop: int) -> list[str]:
    """Give the media uuids of an encode request in order."""
    found = []
    at = body.find(b'"uuid"', 0, stop)
    while at >= 0:
        start = body.index(b'"', body.index(b":", at + 6) + 1) + 1
        end = body.index(b'"', start)
        found.append(body[start:end].decode())
        at = body.find(b'"uuid"', end, stop)
    return found


@lru_cache(maxsize=256)
def parse_head(head: bytes) -> tuple[str, str, int]:
    """Give method, path and body length (-1: not announced) of a request head."""
    line, *fields = head.split(b"\r\n")
    method, path, _ = line.decode().split(" ", 2)
    length = 0
    for field in fields:
        name, _, value = field.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
        elif name.lower() == b"transfer-encoding":
            return method, path, -1
    return method, path, length


class EngineConnection(asyncio.BufferedProtocol):
    """One keep-alive connection of one role."""

    def __init__(self, role: str, loop: asyncio.AbstractEventLoop) -> None:
        self.role = role
        self.loop = loop
        self.buffer = bytearray(HEAD_ROOM)
        self.filled = 0
        self.need = 0
        self.path = ""
        self.method = ""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self.buffer)[self.filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.filled += nbytes
        if not self.need and not self.take_head():
            return
        if self.filled >= self.need:
            self.answer()
            self.filled = self.need = 0

    def take_head(self) -> bool:
        """Read the head when it is complete; make room for the body, which stays in the buffer behind it."""
        end = self.buffer.find(b"\r\n\r\n", 0, self.filled)
        if end < 0:
            return False
        self.method, self.path, length = parse_head(bytes(self.buffer[:end]))
        if length < 0:
            self.send(error_answer(411, "the mock engine wants content-length"))
            self.filled = 0
            return False
        self.need = end + 4 + length
        if self.need > len(self.buffer):
            self.buffer = self.buffer[: self.filled] + bytearray(self.need + HEAD_ROOM - self.filled)
        return True

    def send(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def answer(self) -> None:
        if self.method == "GET":
            self.send(GETS.get(self.path) or error_answer(404, "Not Found"))
        elif self.path not in ("/v1/chat/completions", "/v1/completions"):
            self.send(error_answer(404, "Not Found"))
        elif self.role == "encode":
            self.send(encode_answer(find_uuids(self.buffer, self.need)))
        elif self.role == "prefill":
            self.answer_stage(b'"do_remote_decode":', PREFILLED)
        elif self.role == "decode":
            self.answer_stage(b'"remote_block_ids":', ANSWER)
        elif self.wants_stream():
            self.start_stream()
        else:
            self.send(ANSWER)

    def wants_stream(self) -> bool:
        if self.need > STREAM_PROBE_LIMIT:
            return False
        return any(self.buffer.find(mark, 0, self.need) >= 0 for mark in (b'"stream": true', b'"stream":true'))

    def answer_stage(self, mark: bytes, answer: bytes) -> None:
        """Answer a leg that must carry transfer parameters; a leg without them is a fault of the router."""
        found = self.buffer.find(mark, 0, self.need) >= 0
        self.send(answer if found else error_answer(400, f"{self.role} leg without kv_transfer_params"))

    def start_stream(self) -> None:
        self.send(STREAM_HEAD)
        self.next_event(CHUNKS, self.loop.time())

    def next_event(self, left: int, due: float) -> None:
        if self.transport is None:
            return
        stamp = b"%017.6f" % time.monotonic()
        if left == 1:
            self.transport.write(LAST_BEFORE + stamp + LAST_AFTER + STREAM_END)
            return
        self.transport.write(EVENT_BEFORE + stamp + EVENT_AFTER)
        self.loop.call_at(due + INTERVAL, self.next_event, left - 1, due + INTERVAL)


async def serve(role: str, listener: socket.socket) -> None:
    """Serve until the process is ended."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: EngineConnection(role, loop), sock=listener, backlog=1024)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--role", choices=["aggregated", "encode", "prefill", "decode"], default="aggregated")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args(argv)
    listener = socket.create_server(("127.0.0.1", options.port))
    uvloop.run(serve(options.role, listener))


if __name__ == "__main__":
    main(sys.argv[1:])
