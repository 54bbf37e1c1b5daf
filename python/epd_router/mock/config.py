"""What one mock engine is: every setting once, as a dataclass field that is also a command line flag."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
ROLES = ("aggregated", "encode", "prefill", "decode", "prefill_decode")
KV_CONNECTORS = ("nixl", "nixl-push", "mooncake", "store")
EC_CONNECTORS = ("example", "nixl", "mooncake")


def _option(default: T, text: str, choices: tuple[str, ...] = ()) -> T:
    chosen: T = field(default=default, metadata={"help": text, "choices": choices})
    return chosen


@dataclass
class EngineConfig:
    """Settings of a mock engine. Names ending in `_ms` are milliseconds, in `_s` seconds."""

    role: str = _option("aggregated", "what the engine does for a request", ROLES)
    models: tuple[str, ...] = _option(("tiny",), "served model names, comma separated")
    version: str = _option("0.32.0", "vLLM release to imitate, 0.26 to 0.32")
    kv_connector: str = _option("nixl", "how prefill hands KV blocks to decode", KV_CONNECTORS)
    ec_connector: str = _option("example", "how encoders hand embeddings on", EC_CONNECTORS)
    ec_consumer: bool = _option(False, "load embeddings on a decode engine too")
    engine_id: str = _option("", "engine id of the KV connector; a new one for each start when empty")

    encode_ms: float = _option(0.0, "time per picture that is not in the embedding cache")
    prefill_ms: float = _option(0.0, "time per prompt")
    token_ms: float = _option(0.0, "time per output token")
    kv_transfer_ms: float = _option(0.0, "time between admission at decode and the pull of the blocks")
    ec_write_ms: float = _option(1.0, "how long an embedding stays half written in the shared store")
    slow_start_ms: float = _option(0.0, "time after the start in which health and requests get 503")
    death_ms: float = _option(50.0, "time between the death of the engine and the end of its server")

    output_tokens: int = _option(16, "tokens of an answer without max_tokens")
    stop_after: int = _option(0, "the model ends its answer with this token; 0 is never")
    max_model_len: int = _option(8192, "context length")
    max_images: int = _option(999, "pictures in one prompt")
    max_queued: int = _option(0, "requests at once, further ones get 503; 0 is no limit")
    min_pixels: int = _option(3136, "smallest picture area after resizing")
    max_pixels: int = _option(12_845_056, "largest picture area after resizing")
    block_size: int = _option(32, "tokens of a KV block")
    num_blocks: int = _option(16384, "KV blocks; the least recently used are evicted")
    processor_cache_items: int = _option(4096, "preprocessed items that are kept")
    encoder_cache_items: int = _option(256, "embeddings kept in memory")

    api_key: str = _option("", "bearer token that guards /v1, /v2, /inference and /cohere")
    prompt_tokens_details: bool = _option(True, "report cached and multimodal tokens in usage")
    request_id_headers: bool = _option(True, "echo X-Request-Id as a header")
    trust_request_mm_kwargs: bool = _option(True, "accept mm_processor_kwargs and media_io_kwargs in requests")
    allowed_local_media_path: str = _option("", "folder that file: URLs may name")

    kv_lease_s: float = _option(30.0, "seconds that prefill keeps blocks nobody pulled")
    kv_wait_s: float = _option(60.0, "seconds that decode waits for pushed blocks")
    kv_load_failure_policy: str = _option("fail", "what decode does about blocks it cannot load", ("fail", "recompute"))
    ec_wait_s: float = _option(60.0, "seconds that a consumer waits for an embedding")
    bootstrap_port: int = _option(0, "port of Mooncake's bootstrap server; 0 is any")

    kv_events_endpoint: str = _option("", "PUB address of KV events, such as tcp://*:0; none are published when empty")
    kv_events_replay_endpoint: str = _option("", "ROUTER address for replays")
    kv_events_topic: str = _option("kv-events", "topic frame")
    kv_events_buffer: int = _option(10_000, "batches kept for replay")

    @property
    def minor(self) -> int:
        """Minor number of the imitated release: 32 for 0.32.0."""
        return int(self.version.split(".")[1])

    @property
    def encodes_only(self) -> bool:
        """A producer: no KV cache, no sampling."""
        return self.role == "encode"

    @property
    def kv_connected(self) -> bool:
        """Whether the engine has a KV connector; such engines can both send and receive."""
        return self.role in {"prefill", "decode"}

    @property
    def consumes_embeddings(self) -> bool:
        """Whether the engine loads embeddings that encoders stored."""
        return self.role in {"prefill", "prefill_decode"} or (self.role == "decode" and self.ec_consumer)

    @property
    def accepts_references(self) -> bool:
        """Whether media may come as metadata only: from 0.28 on, on consumers of embeddings or KV."""
        return self.minor >= 28 and (self.consumes_embeddings or self.kv_connected)
