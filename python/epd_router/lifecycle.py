"""The life of a request as a table: state and event give the next state. No I/O.

Every path through the pipeline walks this table, so a transition that is not in it is a bug and raises. The diagram in
the documentation is generated from it.
"""

from __future__ import annotations

import enum


class State(enum.Enum):
    """Where a request is."""

    RECEIVED = "received"
    IDENTIFIED = "identified"
    ADMITTED = "admitted"
    PLACED = "placed"
    ENCODING = "encoding"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    STREAMING = "streaming"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    __hash__ = object.__hash__  # members are singletons; the table is looked up several times per request


class Event(enum.Enum):
    """What happened to it."""

    IDENTIFY = "identify"
    ADMIT = "admit"
    PLACE = "place"
    ENCODE = "encode"
    PREFILL = "prefill"
    DECODE = "decode"
    COMMIT = "commit"
    RETRY = "retry"
    FINISH = "finish"
    FAIL = "fail"
    CANCEL = "cancel"

    __hash__ = object.__hash__


FINAL = frozenset({State.DONE, State.FAILED, State.CANCELLED})

_FORWARD: dict[tuple[State, Event], State] = {
    (State.RECEIVED, Event.IDENTIFY): State.IDENTIFIED,
    (State.IDENTIFIED, Event.ADMIT): State.ADMITTED,
    (State.ADMITTED, Event.PLACE): State.PLACED,
    (State.PLACED, Event.ENCODE): State.ENCODING,
    (State.PLACED, Event.PREFILL): State.PREFILLING,
    (State.PLACED, Event.DECODE): State.DECODING,
    (State.ENCODING, Event.PREFILL): State.PREFILLING,
    (State.ENCODING, Event.DECODE): State.DECODING,
    (State.PREFILLING, Event.DECODE): State.DECODING,
    (State.DECODING, Event.COMMIT): State.STREAMING,
    # What a worker says of a bad picture or prompt is the client's answer, whatever the stage.
    (State.ENCODING, Event.COMMIT): State.STREAMING,
    (State.PREFILLING, Event.COMMIT): State.STREAMING,
    (State.STREAMING, Event.FINISH): State.DONE,
    # Before the client has a byte, a failed stage sends the request back to placement.
    (State.ENCODING, Event.RETRY): State.ADMITTED,
    (State.PREFILLING, Event.RETRY): State.ADMITTED,
    (State.DECODING, Event.RETRY): State.ADMITTED,
}

TABLE: dict[tuple[State, Event], State] = {
    **_FORWARD,
    **{(state, Event.FAIL): State.FAILED for state in State if state not in FINAL},
    **{(state, Event.CANCEL): State.CANCELLED for state in State if state not in FINAL},
}


def after(state: State, event: Event) -> State:
    """The next state. Raises ValueError for a transition that cannot happen."""
    try:
        return TABLE[state, event]
    except KeyError:
        raise ValueError(f"{event.value} cannot follow {state.value}") from None


def mermaid() -> str:
    """The table as a Mermaid state diagram (the ways to failed and cancelled are drawn once)."""
    lines = ["stateDiagram-v2", "    [*] --> received"]
    lines += [f"    {state.value} --> {target.value}: {event.value}" for (state, event), target in _FORWARD.items()]
    lines += [f"    {state.value} --> [*]" for state in State if state in FINAL]
    lines += ["    note right of failed: from every state", "    note right of cancelled: from every state"]
    return "\n".join(lines)
