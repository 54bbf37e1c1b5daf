"""What is known of one request on its way through the stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epd_router.decision import Decision
from epd_router.failures import TABLE, Cause, Rule, Stage
from epd_router.lifecycle import Event, State, after

if TYPE_CHECKING:
    from collections.abc import Sequence

    from epd_router._core import Item, Scan
    from epd_router.ingress import Exchange
    from epd_router.media.medium import Medium
    from epd_router.workers import Pools, Worker

ITEM_TOKENS = 1024  # predicted cost of a picture, until its size is known
DECODE_TOKENS = 256  # predicted answer when the request does not limit it


class StageFailedError(Exception):
    """One stage of one attempt failed. `answer` is the worker's own, if it gave one."""

    def __init__(
        self, stage: Stage, cause: Cause, message: str, *, worker: Worker | None = None, answer: tuple[int, bytes] | None = None
    ) -> None:
        super().__init__(message)
        self.stage = stage
        self.cause = cause
        self.message = message
        self.worker = worker
        self.answer = answer

    @property
    def rule(self) -> Rule:
        """What follows."""
        return TABLE[self.stage, self.cause]


class Request:
    """One request: the client's exchange, what the scan found, and the state of the current attempt."""

    __slots__ = (
        "avoid",
        "body",
        "decision",
        "exchange",
        "ids",
        "items",
        "media",
        "pools",
        "raw",
        "referenced",
        "scan",
        "state",
        "whole",
    )

    def __init__(self, exchange: Exchange, scan: Scan, pools: Pools) -> None:
        self.exchange = exchange
        self.body = exchange.body
        self.scan = scan
        self.items: Sequence[Item] = scan.items
        self.pools = pools
        self.decision = Decision(items=len(self.items))
        self.state = State.RECEIVED
        self.media: list[Medium] = []  # in the order of the items; empty where nobody asked what they are
        self.ids: list[str] = []  # media ids, in the order of the items; empty where nothing is to be encoded
        self.avoid: list[Worker] = []  # workers that failed this request
        self.raw = False  # references have failed: send the media themselves
        self.referenced = False  # this attempt has references
        self.whole = ""  # why one worker must do all of it

    def advance(self, event: Event) -> None:
        """Walk the state table."""
        self.state = after(self.state, event)

    @property
    def prompt_cost(self) -> float:
        """Predicted prefill work, tokens."""
        return self.scan.text_bytes / 4 + ITEM_TOKENS * len(self.items) + 1

    @property
    def answer_cost(self) -> float:
        """Predicted decode work, tokens."""
        return float(self.scan.max_tokens or DECODE_TOKENS)

    @property
    def leg_id(self) -> str:
        """Request id of the prefill and decode legs of this attempt. Connectors that let the two meet by it must not find
        what an earlier attempt left behind."""
        attempts = self.decision.attempts
        return self.exchange.request_id if attempts < 2 else f"{self.exchange.request_id}-{attempts}"
