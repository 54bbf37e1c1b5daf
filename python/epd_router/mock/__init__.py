"""Engines for demo and tests: the wire of vLLM without a model."""

from epd_router.mock.cluster import Cluster
from epd_router.mock.config import EngineConfig
from epd_router.mock.engine import Engine
from epd_router.mock.faults import Fault
from epd_router.mock.stores import Shared

__all__ = ["Cluster", "Engine", "EngineConfig", "Fault", "Shared"]
