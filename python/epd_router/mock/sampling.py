"""What a request asks of the engine, checked as vLLM checks it."""

from __future__ import annotations

from typing import Any

from epd_router.mock import tokenizer
from epd_router.mock.config import EngineConfig
from epd_router.mock.errors import ApiError, bad_value, invalid
from epd_router.mock.prompt import answer


class Sampling:
    """The parameters of one request that a mock honours."""

    def __init__(self, body: dict[str, Any], config: EngineConfig) -> None:
        self.chat = "messages" in body
        self.model: str = body.get("model") or config.models[0]
        self.stream = bool(body.get("stream"))
        self.include_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self.continuous_usage = bool((body.get("stream_options") or {}).get("continuous_usage_stats"))
        self.n: int = body.get("n") or 1
        self.min_tokens: int = body.get("min_tokens") or 0
        self.prompt_logprobs: int | None = body.get("prompt_logprobs")
        self.logprobs: int | None = _logprobs(body, chat=self.chat)
        self.token_ids = bool(body.get("return_token_ids"))
        self.echo = bool(body.get("echo")) and not self.chat
        self.salt: str | None = body.get("cache_salt")
        self.full_report = (body.get("vllm_xargs") or {}).get("kv_cache_report_mode") == "full"
        self._body = body
        self._config = config
        self._given = next((name for name in ("max_completion_tokens", "max_tokens") if body.get(name) is not None), None)
        self.max_tokens: int = body[self._given] if self._given else config.output_tokens
        self._ignore_eos = bool(body.get("ignore_eos"))

    def check_form(self) -> None:
        """What is refused before the messages are looked at."""
        names = self._config.models
        if self.model not in names:
            raise ApiError(404, f"The model `{self.model}` does not exist. Valid aliases: {', '.join(names)}.", param="model")
        if self._body.get("stream_options") and not self.stream:
            invalid("Stream options can only be defined when `stream=True`.", "stream_options")
        if self.prompt_logprobs is not None and self.stream:
            bad_value("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs", self.prompt_logprobs)

    def check_values(self, prompt_tokens: int) -> None:
        """What is refused after the media were preprocessed."""
        if self._given and self.max_tokens < 1:
            bad_value(f"{self._given} must be at least 1, got {self.max_tokens}.", self._given, self.max_tokens)
        if self.min_tokens > self.max_tokens:
            text = f"min_tokens must be less than or equal to max_tokens={self.max_tokens}, got {self.min_tokens}."
            bad_value(text, "min_tokens", self.min_tokens)
        if self.n < 1:
            bad_value(f"n must be at least 1, got {self.n}.", "n", self.n)
        limit = self._config.max_model_len
        if self._given and prompt_tokens + self.max_tokens > limit:
            text = f"This model's maximum context length is {limit} tokens. However, you requested {self.max_tokens} output "
            text += f"tokens and your prompt contains at least {prompt_tokens} input tokens."
            bad_value(text, "input_tokens", prompt_tokens)

    def answer(self, seed: str, choice: int) -> tuple[list[int], str]:
        """Token ids of one choice, and why it ended."""
        end = self._config.stop_after
        if self._config.encodes_only:
            # Before 0.28 an encoder emitted dummy tokens until it had as many as asked for.
            return ([], "stop") if self._config.minor >= 28 else ([0] * self.max_tokens, "length")
        if end and not self._ignore_eos and self.min_tokens < end <= self.max_tokens:
            return [*answer(seed, choice, end - 1), tokenizer.IM_END], "stop"
        return answer(seed, choice, self.max_tokens), "length"


def _logprobs(body: dict[str, Any], *, chat: bool) -> int | None:
    asked = body.get("logprobs")
    if chat:
        return (body.get("top_logprobs") or 0) if asked else None
    return None if asked is None or asked is False else int(asked)
