"""Errors as vLLM words and frames them."""

from __future__ import annotations

from typing import NoReturn

import orjson

_TYPES = {
    400: "BadRequestError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class ApiError(Exception):
    """An error answer: HTTP status, message, OpenAI `type` and `param`.

    Errors that no handler of the server expected (`handled` is false) lack the headers of its middleware. Those of the
    `engine` behind the server come after the status of a stream, as an event.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        kind: str | None = None,
        handled: bool = True,
        engine: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.handled = handled
        self.engine = engine
        self.message = message
        self.param = param
        self.kind = kind or _TYPES.get(status, "InternalServerError")

    def body(self) -> bytes:
        """The JSON answer."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return orjson.dumps({"error": error})


class EngineDeadError(Exception):
    """The request hit something that ends a real engine process."""


def failed() -> ApiError:
    """The engine gave up one request: blocks or embeddings could not be loaded."""
    return ApiError(500, "Internal server error", engine=True)


def dead() -> ApiError:
    """What requests get while the engine is dead and its server is not yet."""
    return ApiError(500, "EngineCore encountered an issue.", engine=True)


def invalid(message: str, param: str | None = None) -> NoReturn:
    """Raise a 400 whose message ends as vLLM's validation errors do."""
    raise ApiError(400, message, param=param)


def bad_value(message: str, name: str, value: object) -> NoReturn:
    """Raise a 400 for one wrong parameter."""
    raise ApiError(400, f"{message} (parameter={name}, value={value})", param=name)


def bad_field(kind: str, location: str, message: str, given: object) -> NoReturn:
    """Raise a 400 as FastAPI's validation reports it."""
    detail = {"type": kind, "loc": location, "msg": message, "input": shown(given)}
    raise ApiError(400, f"1 validation error:\n  {detail}", param=location, kind="Bad Request")


def shown(value: object) -> str:
    """A value as vLLM's validation messages print it: containers only by size."""
    if isinstance(value, dict):
        return f"<dict of {len(value)} items>"
    if isinstance(value, list):
        return f"<list of {len(value)} items>"
    return str(value)


# Recorded for a role that is no string: one line for each kind of message that pydantic tried.
_ROLES = ("Developer", "System", "User", "Assistant", "Tool")


def bad_role(index: int, role: object, message: object) -> NoReturn:
    """Raise the 400 for a message whose role is no string."""
    at = f"body.messages.{index}"
    lines: list[dict[str, object]] = [_literal(at, name, role) for name in _ROLES]
    lines.append(_missing(f"{at}.ChatCompletionToolMessageParam.tool_call_id", message))
    lines.append(_missing(f"{at}.ChatCompletionFunctionMessageParam.name", message))
    lines.append(_literal(at, "Function", role))
    custom = f"{at}.CustomChatCompletionMessageParam.role"
    lines.append({"type": "string_type", "loc": custom, "msg": "Input should be a valid string", "input": shown(role)})
    lines.append(_missing(f"{at}.Message.author", message))
    text = "".join(f"\n  {line}" for line in lines)
    first = f"{at}.ChatCompletionDeveloperMessageParam.role"
    raise ApiError(400, f"11 validation errors:{text}\n  ...and 1 more errors", param=first, kind="Bad Request")


def _literal(at: str, name: str, given: object) -> dict[str, object]:
    expected = f"'{name.lower()}'"
    return {
        "type": "literal_error",
        "loc": f"{at}.ChatCompletion{name}MessageParam.role",
        "msg": f"Input should be {expected}",
        "input": shown(given),
        "ctx": {"expected": expected},
    }


def _missing(location: str, given: object) -> dict[str, object]:
    return {"type": "missing", "loc": location, "msg": "Field required", "input": shown(given)}
