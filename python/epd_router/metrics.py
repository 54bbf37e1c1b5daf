"""Every metric once. Names and labels are the field's; the reference page is generated from here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from epd_router import __version__

if TYPE_CHECKING:
    from epd_router.media.shared import SharedFiles
    from epd_router.pipeline import Pipeline
    from epd_router.workers import Fleet

DURATIONS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0)
MAX_MODELS = 1000  # label values; beyond them `other`


class Metrics:
    """The router's instruments, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "epd_router_requests", "Requests answered", ["model", "decision", "status_class"], registry=registry
        )
        self.errors = Counter(
            "epd_router_errors", "Errors answered by the router itself, and clients that left", ["code"], registry=registry
        )
        self.duration = Histogram(
            "epd_router_request_duration_seconds", "Whole request", ["decision"], buckets=DURATIONS, registry=registry
        )
        self.first_token = Histogram(
            "epd_router_time_to_first_token_seconds",
            "Until the first byte of the answer",
            ["decision"],
            buckets=FIRST_TOKEN,
            registry=registry,
        )
        self.in_flight = Gauge("epd_router_in_flight", "Requests being served", registry=registry)
        self.stage_duration = Histogram(
            "epd_router_stage_duration_seconds",
            "One stage of a request",
            ["stage"],
            buckets=DURATIONS,
            registry=registry,
        )
        self.encode_requests = Counter(
            "epd_router_encode_requests", "Requests sent to encode workers", ["worker"], registry=registry
        )
        self.embeddings = Counter(
            "epd_router_embedding_lookups", "Media whose embedding was looked up", ["result"], registry=registry
        )
        self.media = Counter("epd_router_media_items", "Media parts received", ["modality", "source"], registry=registry)
        self.decodes = Counter("epd_router_media_decodes", "Pictures to be named by their pixels", ["result"], registry=registry)
        self.passed = Counter(
            "epd_router_media_passed_through", "Pictures that are left to the engine to decode", ["reason"], registry=registry
        )
        self.handoffs = Counter(
            "epd_router_media_handoffs", "Media given to workers, by how and as what", ["way", "form"], registry=registry
        )
        self.retries = Counter("epd_router_retries", "Stages tried again", ["stage", "reason"], registry=registry)
        self.degraded = Counter("epd_router_degraded_requests", "Requests served degraded", ["reason"], registry=registry)
        self.build = Gauge("epd_router_build_info", "Always 1", ["version"], registry=registry)
        self.build.labels(__version__).set(1)
        self._models: dict[str, str] = {}
        # Children by their labels: a look-up here costs a tenth of prometheus_client's own.
        self._answered: dict[tuple[str | None, str, str], Counter] = {}
        self._timed: dict[str, tuple[Histogram, Histogram]] = {}

    def model_label(self, model: str | None) -> str:
        """A bounded label value for a model name."""
        name = model or ""
        if name not in self._models and len(self._models) >= MAX_MODELS:
            return "other"
        return self._models.setdefault(name, name)

    def answered(self, model: str | None, decision: str, status: str, seconds: float) -> None:
        """Count one request."""
        key = (model, decision, status)
        child = self._answered.get(key)
        if child is None:
            child = self.requests.labels(self.model_label(model), decision, status)
            if len(self._answered) < MAX_MODELS:
                self._answered[key] = child
        child.inc()
        self._children(decision)[0].observe(seconds)

    def first_byte(self, decision: str, seconds: float) -> None:
        """Note the time to the first byte."""
        self._children(decision)[1].observe(seconds)

    def _children(self, decision: str) -> tuple[Histogram, Histogram]:
        children = self._timed.get(decision)
        if children is None:
            children = self._timed[decision] = (self.duration.labels(decision), self.first_token.labels(decision))
        return children

    def watch(self, fleet: Fleet, pipeline: Pipeline) -> None:
        """Show what is read when scraped, so that no request pays for it: the worker table, the requests in flight."""
        self.registry.register(FleetCollector(fleet))
        self.in_flight.set_function(lambda: pipeline.in_flight)

    def watch_media(self, fetches: Mapping[str, int], files: SharedFiles | None) -> None:
        """The same for media: how URLs were looked up, and what hand-off files hold."""
        self.registry.register(FetchCollector(fetches))
        if files is not None:
            held = Gauge("epd_router_media_shm_bytes", "Bytes of hand-off files", registry=self.registry)
            held.set_function(lambda: files.held)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self.registry)


class FetchCollector(Collector):
    """Reads the counts of the downloads."""

    def __init__(self, results: Mapping[str, int]) -> None:
        self._results = results

    def describe(self) -> Iterator[Metric]:
        """The family without samples."""
        return iter([self._family()])

    def collect(self) -> Iterator[Metric]:
        """One sample for each result."""
        family = self._family()
        for result, count in self._results.items():
            family.add_metric([result], count)
        return iter([family])

    @staticmethod
    def _family() -> CounterMetricFamily:
        return CounterMetricFamily("epd_router_media_fetches", "Media URLs looked up", labels=["result"])


class FleetCollector(Collector):
    """Reads the worker table."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def describe(self) -> Iterator[Metric]:
        """The families without samples."""
        return iter(self._families())

    def collect(self) -> Iterator[Metric]:
        """One sample for each worker."""
        healthy, outstanding, active = families = self._families()
        for worker in self._fleet:
            labels = [worker.id, worker.role.value]
            healthy.add_metric(labels, float(worker.healthy))
            outstanding.add_metric(labels, worker.load.outstanding)
            active.add_metric(labels, worker.load.active)
        return iter(families)

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
        labels = ["worker", "stage"]
        return (
            GaugeMetricFamily("epd_router_worker_healthy", "1 when the worker may be given work", labels=labels),
            GaugeMetricFamily("epd_router_worker_load", "Predicted outstanding work, tokens", labels=labels),
            GaugeMetricFamily("epd_router_worker_active_requests", "Requests at the worker", labels=labels),
        )
