"""The record of what was chosen for a request and why."""

from __future__ import annotations

import dataclasses

import orjson

REFERENCE_FAILED = "reference_failed"


@dataclasses.dataclass(slots=True)
class Decision:
    """Which worker did what, in how many milliseconds. `kind` is one of `whole`, `encode-decode`, `prefill-decode`,
    `encode-prefill-decode`; `reused` counts media whose embedding was there already, `decoded` pictures decoded here."""

    kind: str = "whole"
    reason: str = ""
    encode: list[str] = dataclasses.field(default_factory=list)
    prefill: str = ""
    decode: str = ""
    items: int = 0
    reused: int = 0
    decoded: int = 0
    encode_ms: float = 0.0
    prefill_ms: float = 0.0
    first_byte_ms: float = 0.0
    attempts: int = 0
    degraded: str = ""

    def next_attempt(self) -> Decision:
        """The record of another attempt: nothing of this one is true of it but that references had failed."""
        degraded = self.degraded if self.degraded == REFERENCE_FAILED else ""
        return Decision(items=self.items, decoded=self.decoded, attempts=self.attempts + 1, degraded=degraded)

    def headers(self) -> bytes:
        """Response headers for a client that asked to be told."""
        lines = [
            f"x-epd-router-decision: {self.kind}",
            f"x-epd-router-encode: {','.join(self.encode)}",
            f"x-epd-router-prefill: {self.prefill}",
            f"x-epd-router-decode: {self.decode}",
            f"x-epd-router-items: {self.items};reused={self.reused};decoded={self.decoded}",
            f"x-epd-router-timing: encode;dur={self.encode_ms:.1f}, prefill;dur={self.prefill_ms:.1f}",
            f"x-epd-router-attempts: {self.attempts}",
        ]
        return ("\r\n".join(lines) + "\r\n").encode("latin-1")

    def json(self) -> bytes:
        """For logs."""
        return orjson.dumps(self)
