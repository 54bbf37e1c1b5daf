"""Engines for demo, tests and benches: the wire of vLLM without a model."""

from epd_router.mock.engine import Cluster, Engine, EngineConfig, Fault

__all__ = ["Cluster", "Engine", "EngineConfig", "Fault"]
