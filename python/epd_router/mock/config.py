"""What one mock engine is: every setting once, as a dataclass field that is also a command line flag (see `cli.py`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from epd_router.mock.faults import Fault

Role = Literal["encode", "prefill", "decode", "prefill_decode", "aggregated"]
KVDriver = Literal["nixl-pull", "nixl-push", "mooncake", "store"]
ECDriver = Literal["shared", "nixl", "mooncake"]

T = TypeVar("T")


def _option(default: T, text: str) -> T:
    chosen: T = field(default=default, metadata={"help": text})
    return chosen


@dataclass
class EngineConfig:
    """Settings of a mock engine. Times are milliseconds unless the name ends in `_s`."""

    role: Role = _option("aggregated", "what the engine does for a request")
    models: list[str] = field(default_factory=lambda: ["tiny"], metadata={"help": "served model names, comma separated"})
    version: str = _option("0.32.0", "vLLM release to imitate, 0.26 to 0.32")
    kv: KVDriver = _option("nixl-pull", "KV connector of prefill and decode engines")
    ec: ECDriver = _option("shared", "embedding connector of encode and consuming engines")
    ec_consumer: bool | None = _option(None, "load embeddings of encoders; default: prefill and prefill_decode do")
    engine_id: str | None = _option(None, "engine id of the first start; random when absent and after a restart")

    encode_ms: float = _option(0.0, "encoder time per picture; pictures are encoded one after the other")
    prefill_ms: float = _option(0.0, "time per 1000 prompt tokens that are not cached; prompts run one after the other")
    token_ms: float = _option(0.0, "time per output token")
    kv_transfer_ms: float = _option(0.0, "time between admission at decode and the pull of the KV blocks")
    ec_write_ms: float = _option(1.0, "how long an embedding stays half written in the shared store")

    output_tokens: int = _option(16, "tokens of an answer without max_tokens")
    stop_after: int | None = _option(None, "the model's own end of answer after so many tokens (ignore_eos overrides)")
    max_model_len: int = _option(8192, "context length")
    block_size: int = _option(32, "tokens per KV block")
    num_blocks: int = _option(16384, "KV blocks; least recently used ones are evicted")
    encoder_cache_items: int = _option(256, "embeddings kept in the process")
    processor_cache_items: int = _option(4096, "preprocessed items kept by uuid or content hash")
    max_images: int = _option(999, "--limit-mm-per-prompt of images")
    max_running: int | None = _option(None, "further requests get 503, as with --max-num-queued-reqs")

    api_key: str | None = _option(None, "bearer token that guards /v1, /v2, /inference and /cohere")
    keepalive_s: float = _option(5.0, "idle seconds before a connection is closed")
    prompt_tokens_details: bool = _option(True, "report cached and multimodal tokens in usage")
    request_id_headers: bool = _option(True, "echo X-Request-Id as a header")
    trust_request_mm_kwargs: bool = _option(False, "accept mm_processor_kwargs and media_io_kwargs in requests (0.31+)")
    allowed_local_media_path: str | None = _option(None, "folder that file:// URLs may name")
    full_decode: bool = _option(True, "decode pictures with Pillow; without it only headers and end markers are read")

    kv_lease_s: float = _option(30.0, "seconds that prefill keeps blocks nobody pulled")
    kv_wait_s: float = _option(60.0, "seconds that decode waits for a pushed or Mooncake transfer")
    kv_load_failure_policy: Literal["fail", "recompute"] = _option("fail", "decode's answer to blocks it cannot load")
    ec_wait_s: float = _option(60.0, "seconds that a consumer waits for a NIXL or Mooncake embedding")
    bootstrap_port: int | None = _option(None, "extra port for Mooncake's /query; the main port answers it too")

    kv_events: bool = _option(False, "publish KV events over ZMQ")
    kv_events_endpoint: str = _option("tcp://127.0.0.1:0", "PUB address; port 0 is found at GET /kv_event_sources")
    kv_events_replay_endpoint: str = _option("tcp://127.0.0.1:0", "ROUTER address for replays")
    kv_events_topic: str = _option("kv-events", "topic frame")
    kv_events_buffer: int = _option(10_000, "batches kept for replay")

    death: Literal["reset", "500"] = _option("reset", "what requests in flight see when the engine dies")
    log_requests: int = _option(2000, "requests kept in the log")
    log_bytes: int = _option(64 << 20, "bytes of bodies kept in the log")
    faults: list[Fault] = field(default_factory=list, metadata={"help": ""})

    @property
    def minor(self) -> int:
        """Minor number of the imitated release: 32 for 0.32.0."""
        return int(self.version.split(".")[1])

    @property
    def encodes_only(self) -> bool:
        """A producer-only engine: no KV cache, no sampling."""
        return self.role == "encode"

    @property
    def kv_connected(self) -> bool:
        """Whether the engine has a KV connector; such engines are `kv_both`, as usual deployments are."""
        return self.role in ("prefill", "decode")

    @property
    def consumes_embeddings(self) -> bool:
        """Whether the engine is an EC consumer."""
        if self.ec_consumer is None:
            return self.role in ("prefill", "prefill_decode")
        return self.ec_consumer and not self.encodes_only

    @property
    def accepts_references(self) -> bool:
        """Whether metadata-only media are allowed: 0.28+, any EC or KV consumer (vllm.md 2.1)."""
        return self.minor >= 28 and (self.consumes_embeddings or self.kv_connected)

    @property
    def block_tags(self) -> bool:
        """Whether extra keys inside the block hash are tagged tuples."""
        return self.minor >= 31
