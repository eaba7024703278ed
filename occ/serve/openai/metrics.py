"""Prometheus metrics of the OpenAI server."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from occ.generation.batch_scheduler import BatchScheduler

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Metrics of one server.

    Attributes:
        requests: answers by path and status.
        first: seconds to the first token.
        seconds: seconds of whole answers.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter("occ_requests", "Answers.", ["path", "status"], registry=self._registry)
        self.first = Histogram(
            "occ_time_to_first_token_seconds", "Time to the first token.", buckets=_SECONDS, registry=self._registry
        )
        self.seconds = Histogram("occ_request_seconds", "Of answers.", buckets=_SECONDS, registry=self._registry)

    def watch(self, scheduler: BatchScheduler) -> None:
        """Include a scheduler's counters."""
        self._registry.register(_SchedulerCollector(scheduler))

    def text(self) -> bytes:
        """The metrics as text, for `GET /metrics`."""
        return generate_latest(self._registry)


class _SchedulerCollector:
    def __init__(self, scheduler: BatchScheduler) -> None:
        self._scheduler = scheduler

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        s = self._scheduler
        running, waiting = s.counts()
        yield GaugeMetricFamily("occ_requests_running", "Requests in progress.", running)
        yield GaugeMetricFamily("occ_requests_waiting", "Requests that are waiting.", waiting)
        yield CounterMetricFamily("occ_steps", "Decoding steps of the model.", s.steps)
        yield CounterMetricFamily("occ_generated_tokens", "Tokens that were generated.", s.generated)
        yield CounterMetricFamily(
            "occ_prompt_tokens", "Prompt tokens that were processed, without cached ones.", s.prefilled
        )
