"""The metrics of an engine under vLLM's names and labels."""

from __future__ import annotations

import bisect
import itertools
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import prometheus_client
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from epd_router.mock.config import EngineConfig

Labels = Mapping[str, str]
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
_HTTP = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60)
_TRANSFER = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5)

NIXL_HISTOGRAMS: dict[str, Sequence[float]] = {
    "nixl_xfer_time_seconds": _TRANSFER,
    "nixl_post_time_seconds": (0.001, *_TRANSFER),
    "nixl_bytes_transferred": tuple(2048 * 4**step for step in range(12)),
    "nixl_num_descriptors": (10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10_000, 20_000, 50_000),
}
NIXL_COUNTERS = ("failed_transfers", "failed_notifications", "kv_expired_reqs", "notifications_after_expiry")
HISTOGRAMS: dict[str, Sequence[float]] = {
    "request_prompt_tokens": _COUNTS,
    "request_generation_tokens": _COUNTS,
    "iteration_tokens_total": (1, *(8 * 2**step for step in range(12))),
    "request_max_num_generation_tokens": _COUNTS,
    "request_params_n": (1, 2, 5, 10, 20),
    "request_params_max_tokens": _COUNTS,
    "time_to_first_token_seconds": _FIRST,
    "inter_token_latency_seconds": _TOKEN,
    "request_time_per_output_token_seconds": _TOKEN,
    "e2e_request_latency_seconds": _LATENCY,
    "request_queue_time_seconds": _LATENCY,
    "request_inference_time_seconds": _LATENCY,
    "request_prefill_time_seconds": _LATENCY,
    "request_decode_time_seconds": _LATENCY,
    "request_num_preemptions": (1, 2, 3, 4, 5, 10, 20),
    "request_prefill_kv_computed_tokens": _COUNTS,
}
# Name, label, values. A gauge has no `_total`.
GAUGES: dict[str, tuple[str, Sequence[str]]] = {
    "num_requests_running": ("", ()),
    "num_requests_waiting": ("", ()),
    "num_requests_waiting_by_reason": ("reason", ("capacity", "deferred")),
    "num_requests_kv_fetch_by_stage": ("stage", ("waiting_to_start", "in_progress", "completed_waiting")),
    "engine_sleep_state": ("sleep_state", ("awake", "weights_offloaded", "discard_all")),
    "kv_cache_usage_perc": ("", ()),
}
COUNTERS: dict[str, tuple[str, Sequence[str]]] = {
    "estimated_flops_per_gpu": ("", ()),
    "estimated_read_bytes_per_gpu": ("", ()),
    "estimated_write_bytes_per_gpu": ("", ()),
    "prefix_cache_queries": ("", ()),
    "prefix_cache_hits": ("", ()),
    "external_prefix_cache_queries": ("", ()),
    "external_prefix_cache_hits": ("", ()),
    "mm_cache_queries": ("", ()),
    "mm_cache_hits": ("", ()),
    "num_preemptions": ("", ()),
    "prompt_tokens": ("", ()),
    "prompt_tokens_by_source": ("source", ("local_compute", "local_cache_hit", "external_kv_transfer")),
    "prompt_tokens_cached": ("", ()),
    "prompt_tokens_cached_by_source": ("source", ("device", "host", "p2p", "disk", "external_unspecified")),
    "generation_tokens": ("", ()),
    "request_success": ("finished_reason", ("stop", "length", "abort", "error", "repetition")),
    "admission_rejections": ("reason", ("max_num_queued_reqs", "max_num_queued_tokens")),
}
# Members of the engine's cache settings that a mock does not have.
CACHE_INFO = {
    "_block_size_resolved": "True", "cache_dtype": "auto", "cache_hit_alignment_tokens": "None",
    "enable_mamba_shared_prefix_checkpoint": "False", "enable_prefix_caching": "True", "gpu_memory_utilization": "0.92",
    "hash_block_size": "None", "is_attention_free": "False", "kv_cache_dtype_skip_layers": "[]", "kv_cache_layout": "None",
    "kv_cache_max_concurrency": "64.0", "kv_cache_memory_bytes": "1073741824", "kv_offloading_backend": "native",
    "kv_offloading_size": "None", "kv_sharing_fast_prefill": "False", "mamba_block_size": "None", "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none", "mamba_page_size_padded": "None", "mamba_ssm_cache_dtype": "float32", "num_cpu_blocks": "None",
    "num_gpu_blocks_override": "None", "prefix_cache_retention_interval": "0", "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None", "replayssm_buffer_len": "16", "skip_page_size_padded": "None", "sliding_window": "None",
    "swa_bounded_replay": "True", "use_kda_recoverssm": "False", "use_replayssm": "False", "user_specified_block_size": "True",
}  # fmt: skip


class Histogram:
    """Observations by bucket."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Add observations of one value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)

    def lines(self, name: str, labels: Labels) -> Iterator[str]:
        """The series of the histogram."""
        totals = list(itertools.accumulate(self.counts))
        for bound, total in zip((*map(_bound, self.bounds), "+Inf"), totals, strict=True):
            yield f"{name}_bucket{_labels(labels, {'le': bound})} {float(total)}"
        yield f"{name}_count{_labels(labels)} {float(totals[-1])}"
        yield f"{name}_sum{_labels(labels)} {float(self.sum)}"


class Calls:
    """HTTP calls of one path, method and class of status."""

    def __init__(self) -> None:
        self.times = Histogram((0.1, 0.5, 1))
        self.received = 0
        self.sent = 0


class Metrics:
    """Counts and observations of one engine process; text is made of them when asked for."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._started = time.time()
        self._base = {"engine": "0", "model_name": config.models[0]}
        self._values: defaultdict[tuple[str, str], float] = defaultdict(float)
        self._histograms = {name: Histogram(bounds) for name, bounds in (NIXL_HISTOGRAMS | HISTOGRAMS).items()}
        self._calls: defaultdict[tuple[str, str, int], Calls] = defaultdict(Calls)
        self._times = Histogram(_HTTP)

    def count(self, name: str, amount: float = 1, label: str = "") -> None:
        """Add to a counter."""
        self._values[name, label] += amount

    def set(self, name: str, value: float, label: str = "") -> None:
        """Set a gauge."""
        self._values[name, label] = value

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Add to a histogram."""
        self._histograms[name].observe(value, times)

    def observe_http(self, path: str, method: str, status: int, seconds: float, sizes: tuple[int, int]) -> None:
        """A request was answered; `sizes` are bytes of request and answer."""
        calls = self._calls[path, method, status // 100]
        calls.times.observe(seconds)
        calls.received += sizes[0]
        calls.sent += sizes[1]
        self._times.observe(seconds)

    def text(self) -> str:
        """All of it in Prometheus' format."""
        registry = prometheus_client.CollectorRegistry()
        GCCollector(registry)
        PlatformCollector(registry)
        ProcessCollector(registry=registry)
        return prometheus_client.generate_latest(registry).decode() + "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        if self._config.kv_connected and self._config.kv_connector.startswith("nixl"):
            for name in NIXL_HISTOGRAMS:
                yield from self._histogram(f"vllm:{name}", self._histograms[name], self._base)
            for name in NIXL_COUNTERS:
                yield from self._family(f"nixl_num_{name}", "counter", "", ())
        for name, (label, values) in GAUGES.items():
            yield from self._family(name, "gauge", label, values)
        for name, (label, values) in COUNTERS.items():
            yield from self._family(name, "counter", label, values)
        for name in HISTOGRAMS:
            yield from self._histogram(f"vllm:{name}", self._histograms[name], self._base)
        yield from self._cache_info()
        yield from self._http_lines()

    def _family(self, name: str, kind: str, label: str, values: Sequence[str]) -> Iterator[str]:
        base = {"model_name": self._base["model_name"]} if name == "admission_rejections" else self._base
        full = f"vllm:{name}" + ("_total" if kind == "counter" else "")
        yield from _head(full, kind)
        for value in values or ("",):
            yield f"{full}{_labels(base, {label: value} if label else {})} {float(self._values[name, value])}"
        if kind == "counter":
            yield from self._created(f"vllm:{name}", [{**base, label: value} if label else base for value in values or ("",)])

    def _created(self, name: str, series: Sequence[Labels]) -> Iterator[str]:
        yield from _head(f"{name}_created", "gauge")
        for labels in series:
            yield f"{name}_created{_labels(labels)} {self._started}"

    def _histogram(self, name: str, histogram: Histogram, labels: Labels) -> Iterator[str]:
        yield from _head(name, "histogram")
        yield from histogram.lines(name, labels)
        yield from self._created(name, [labels])

    def _cache_info(self) -> Iterator[str]:
        config = self._config
        sizes = {
            "block_size": config.block_size, "effective_attention_block_size": config.block_size,
            "num_gpu_blocks": config.num_blocks, "kv_cache_size_tokens": config.num_blocks * config.block_size,
        }  # fmt: skip
        own = {name: str(value) for name, value in sizes.items()}
        yield from _head("vllm:cache_config_info", "gauge")
        yield f"vllm:cache_config_info{_labels({'engine': '0'}, {**CACHE_INFO, **own})} 1.0"

    def _http_lines(self) -> Iterator[str]:
        names = [{"handler": path, "method": method, "status": f"{status}xx"} for path, method, status in self._calls]
        yield from _head("http_requests_total", "counter")
        for labels, calls in zip(names, self._calls.values(), strict=True):
            yield f"http_requests_total{_labels(labels)} {float(calls.times.count)}"
        yield from self._created("http_requests", names)
        paths = sorted({labels["handler"] for labels in names})
        for name, attribute in (("http_request_size_bytes", "received"), ("http_response_size_bytes", "sent")):
            yield from _head(name, "summary")
            for path in paths:
                of_path = [calls for (each, _, _), calls in self._calls.items() if each == path]
                yield f"{name}_count{_labels({'handler': path})} {float(sum(calls.times.count for calls in of_path))}"
                yield f"{name}_sum{_labels({'handler': path})} {float(sum(getattr(calls, attribute) for calls in of_path))}"
            yield from self._created(name, [{"handler": path} for path in paths])
        yield from self._histogram("http_request_duration_highr_seconds", self._times, {})
        yield from _head("http_request_duration_seconds", "histogram")
        by_call = [{"handler": path, "method": method} for path, method, _ in self._calls]
        for labels, calls in zip(by_call, self._calls.values(), strict=True):
            yield from calls.times.lines("http_request_duration_seconds", labels)
        yield from self._created("http_request_duration_seconds", by_call)


def _head(name: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {name.removeprefix('vllm:').replace('_', ' ')}"
    yield f"# TYPE {name} {kind}"


def _labels(base: Labels, more: Labels | None = None) -> str:
    merged = {**base, **(more or {})}
    return "{" + ",".join(f'{name}="{merged[name]}"' for name in sorted(merged)) + "}" if merged else ""


def _bound(value: float) -> str:
    """A bucket's bound as Prometheus' client writes it."""
    text = repr(float(value))
    digits = text.partition(".")[0]
    if len(digits) <= 6:
        return text
    return f"{digits[0]}.{(digits[1:] + text.partition('.')[2]).rstrip('0') or '0'}e+{len(digits) - 1:02}"
