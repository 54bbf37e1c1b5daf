"""Errors as Python exceptions, by layer and by cause.

The registry (code, HTTP status, OpenAI type, hint) is one table shared with Rust: `_core.error_table()`.
"""

from __future__ import annotations

from typing import NamedTuple

import orjson

from epd_router._core import BodyError, HttpError, error_table


class ErrorKind(NamedTuple):
    """One row of the registry: what a client sees and what to do about it."""

    code: str
    status: int
    type: str
    hint: str


ERRORS: dict[str, ErrorKind] = {row[0]: ErrorKind(*row) for row in error_table()}


class EpdRouterError(Exception):
    """Base of everything the router raises on purpose. `code` is a key of `ERRORS`."""

    def __init__(
        self, code: str, message: str, *, param: str | None = None, retry_after: int | None = None, hint: bool = True
    ) -> None:
        super().__init__(message)
        self.kind = ERRORS[code]
        self.param = param
        self.retry_after = retry_after
        self.message = f"{message}. {self.kind.hint}" if hint and self.kind.hint else message

    @property
    def code(self) -> str:
        """Stable machine-readable code."""
        return self.kind.code

    @property
    def status(self) -> int:
        """HTTP status of the answer."""
        return self.kind.status

    def json(self) -> bytes:
        """The OpenAI error object."""
        return orjson.dumps({"error": {"message": self.message, "type": self.kind.type, "param": self.param, "code": self.code}})


class ConfigError(EpdRouterError, ValueError):
    """The options do not describe a router that can run; raised at start-up only."""

    def __init__(self, message: str) -> None:
        super().__init__("invalid_value", message, hint=False)


class ClientError(EpdRouterError):
    """The request is at fault; never retried, never counted against a worker."""


class MediaError(ClientError):
    """One picture, video or audio clip of the request is at fault; `param` names it."""


class WorkerError(EpdRouterError):
    """No worker could serve a stage. `stage` is `encode`, `prefill`, `decode` or `whole`."""

    def __init__(self, code: str, message: str, *, stage: str, retry_after: int | None = None) -> None:
        super().__init__(code, message, retry_after=retry_after)
        self.stage = stage


class NoWorkerError(WorkerError):
    """A stage has no healthy worker now."""


class StageTimeoutError(WorkerError, TimeoutError):
    """A stage missed its deadline."""


def shutting_down() -> NoWorkerError:
    """This router drains."""
    return NoWorkerError("shutting_down", "the router is shutting down", stage="whole", retry_after=1)


def from_core(error: BodyError | HttpError) -> ClientError:
    """The exception for what the Rust core refused."""
    return ClientError(error.code, error.message, param=getattr(error, "param", None))
