"""Which stage, which failure, what next: the whole retry policy as one table.

Rules apply before the client has a byte. After that a broken stream gets one error event and a closed connection, and
nothing is retried. Client errors (4xx) are relayed, never retried and never held against a worker.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Stage(enum.Enum):
    """What a worker does for one request. `WHOLE` is all of it."""

    ENCODE = "encode"
    PREFILL = "prefill"
    DECODE = "decode"
    WHOLE = "whole"


class Cause(enum.Enum):
    """How a stage failed."""

    CONNECT = "connect"  # no connection: the worker saw nothing
    BROKEN = "broken"  # the connection ended in mid-answer
    TIMEOUT = "timeout"  # the stage deadline passed
    GATEWAY = "gateway"  # 502 or 504
    BUSY = "busy"  # 429 or 503: a routing signal, not a fault
    ERROR = "error"  # 500, also as first event of a stream
    CLIENT = "client"  # any other 4xx


class Action(enum.Enum):
    """What happens next, as long as attempts are left."""

    OTHER = "another worker, everything after the embeddings anew with new handles"
    ENCODER = "the next encoder once, then --encode-fallback"
    RAW = "a request with media once more, with the media itself in place of references"
    RELAY = "the worker's answer goes to the client"
    FAIL = "the request fails"


class Rule(NamedTuple):
    """One row: the action, and the error code when no attempt or worker is left ('' relays the worker's answer)."""

    action: Action
    code: str


_GONE = (Cause.CONNECT, Cause.BROKEN, Cause.GATEWAY)

TABLE: dict[tuple[Stage, Cause], Rule] = {
    **{(Stage.ENCODE, cause): Rule(Action.ENCODER, "encode_failed") for cause in (*_GONE, Cause.ERROR, Cause.BUSY)},
    (Stage.ENCODE, Cause.TIMEOUT): Rule(Action.ENCODER, "stage_timeout"),
    (Stage.ENCODE, Cause.CLIENT): Rule(Action.RELAY, ""),
    **{(Stage.PREFILL, cause): Rule(Action.OTHER, "prefill_failed") for cause in _GONE},
    (Stage.PREFILL, Cause.BUSY): Rule(Action.OTHER, ""),
    (Stage.PREFILL, Cause.ERROR): Rule(Action.RAW, "prefill_failed"),
    (Stage.PREFILL, Cause.TIMEOUT): Rule(Action.FAIL, "stage_timeout"),
    (Stage.PREFILL, Cause.CLIENT): Rule(Action.RELAY, ""),
    **{(Stage.DECODE, cause): Rule(Action.OTHER, "decode_failed") for cause in _GONE},
    (Stage.DECODE, Cause.BUSY): Rule(Action.OTHER, ""),
    (Stage.DECODE, Cause.ERROR): Rule(Action.OTHER, ""),
    (Stage.DECODE, Cause.TIMEOUT): Rule(Action.FAIL, "stage_timeout"),
    (Stage.DECODE, Cause.CLIENT): Rule(Action.RELAY, ""),
    **{(Stage.WHOLE, cause): Rule(Action.OTHER, "worker_failed") for cause in _GONE},
    (Stage.WHOLE, Cause.BUSY): Rule(Action.OTHER, ""),
    (Stage.WHOLE, Cause.ERROR): Rule(Action.RAW, ""),
    (Stage.WHOLE, Cause.TIMEOUT): Rule(Action.FAIL, "stage_timeout"),
    (Stage.WHOLE, Cause.CLIENT): Rule(Action.RELAY, ""),
}

# The error code of a stage that failed for good.
FAILED = {
    Stage.ENCODE: "encode_failed",
    Stage.PREFILL: "prefill_failed",
    Stage.DECODE: "decode_failed",
    Stage.WHOLE: "worker_failed",
}

# A 500 on a request with media is worth one more try even where the media went along: a request that vLLM 0.32 refused after
# preprocessing leaves its media cache out of step, and the next one with that picture gets a 500, the one after it an answer.
#
# A worker whose process is gone drops every embedding reference it was sent, and one sent a reference to an embedding
# that is missing dies of it. So after these causes the next attempt carries the media itself.
SUSPECT_REFERENCE = frozenset({Cause.BROKEN, Cause.ERROR})

_BY_STATUS = {429: Cause.BUSY, 503: Cause.BUSY, 502: Cause.GATEWAY, 504: Cause.GATEWAY}


def cause_of_status(status: int) -> Cause | None:
    """The cause that an answer's status stands for; None for success."""
    if status < 400:
        return None
    return _BY_STATUS.get(status, Cause.ERROR if status >= 500 else Cause.CLIENT)
