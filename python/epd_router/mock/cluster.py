"""Several engines in one process."""

from __future__ import annotations

import contextlib
import dataclasses

from epd_router.mock.config import EngineConfig
from epd_router.mock.engine import Engine
from epd_router.mock.stores import Shared


class Cluster:
    """Engines by role with common stores; an async context manager."""

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
            await engine.wait_end()
            with contextlib.suppress(OSError):
                await engine.stop()
