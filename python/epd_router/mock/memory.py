"""What one engine process knows and loses when it ends."""

from __future__ import annotations

import uuid

from epd_router.mock.blocks import BlockPool
from epd_router.mock.config import EngineConfig
from epd_router.mock.ec import Embeddings
from epd_router.mock.events import Publisher
from epd_router.mock.kv import Leases
from epd_router.mock.metrics import Metrics
from epd_router.mock.processor import ProcessorCache


class Memory:
    """The state of one process."""

    def __init__(self, config: EngineConfig) -> None:
        self.engine_id = config.engine_id or str(uuid.uuid4())
        self.fingerprint = f"vllm-{config.version}-{uuid.uuid4().hex[:8]}"
        self.events = Publisher(config)
        self.blocks = BlockPool(config, self.events.publish)
        self.leases = Leases(config.kv_lease_s)
        self.processor = ProcessorCache(config)
        self.embeddings = Embeddings(config.encoder_cache_items)
        self.metrics = Metrics(config)
