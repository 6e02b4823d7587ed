"""Instruments, made from the catalog and from nothing else, and what is recorded on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation

from draftd.core import DecodeRequest, Outcome, RoundResult
from draftd.engine.observer import EngineStatus
from draftd.hardware.state import HardwareView
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry.catalog import Kind, Metric
from draftd.telemetry.decisions import Decisions, observed_decisions
from draftd.telemetry.guard import Guard
from draftd.telemetry.hardware import observed_hardware
from draftd.telemetry.labels import Naming
from draftd.telemetry.ledger import Entry, Ledger

Attributes = Mapping[str, str]
Reading = Callable[[Entry], float]
Gauge = Callable[[EngineStatus], int]


# Which sum of the ledger each counter shows.
_SUMS: tuple[tuple[Metric, Reading], ...] = (
    (catalog.DRAFTS, lambda e: e.counts.drafts),
    (catalog.DRAFT_TOKENS, lambda e: e.counts.drafted),
    (catalog.ACCEPTED_TOKENS, lambda e: e.counts.accepted),
    (catalog.ROLLBACKS, lambda e: e.counts.rollbacks),
    (catalog.ROLLED_BACK_TOKENS, lambda e: e.counts.rolled_back),
    (catalog.DRAFT_FORWARDS, lambda e: e.counts.draft_forwards),
    (catalog.TARGET_FORWARDS, lambda e: e.counts.target_forwards),
    (catalog.DRAFT_TIME, lambda e: e.counts.draft_seconds),
    (catalog.VERIFY_TIME, lambda e: e.counts.verify_seconds),
    (catalog.BREAK_EVEN_TOKENS, lambda e: e.counts.break_even_tokens),
    (catalog.PARKED_ROUNDS, lambda e: e.counts.parked_rounds),
    (catalog.CAPPED_ROUNDS, lambda e: e.counts.capped_rounds),
    (catalog.DRAFTER_ERRORS, lambda e: e.drafter_errors),
    (catalog.VERIFIER_ERRORS, lambda e: e.verifier_errors),
)
_BY_POSITION: tuple[tuple[Metric, Callable[[Entry], list[int]]], ...] = (
    (catalog.ACCEPTED_PER_POS, lambda e: e.counts.accepted_per_position),
    (catalog.DRAFTED_PER_POS, lambda e: e.counts.drafted_per_position),
)
# What is read off the engine's status, sums among it.
_GAUGES: tuple[tuple[Metric, Gauge], ...] = (
    (catalog.ACTIVE_REQUESTS, lambda s: s.active),
    (catalog.QUEUED_REQUESTS, lambda s: s.queued),
    (catalog.QUEUE_CAPACITY, lambda s: s.queue_capacity),
    (catalog.KV_CACHE, lambda s: s.kv_cache_bytes),
    (catalog.KV_CACHE_LIMIT, lambda s: s.kv_cache_limit_bytes),
    (catalog.HELD_BACK_REQUESTS, lambda s: s.held_back),
    (catalog.WEIGHTS, lambda s: s.weight_bytes),
    (catalog.PREFIX_USAGE, lambda s: s.prefix.bytes),
    (catalog.PREFIX_LIMIT, lambda s: s.prefix.limit_bytes),
    (catalog.PREFIX_ENTRIES, lambda s: s.prefix.entries),
    (catalog.PREFIX_LOOKUPS, lambda s: s.prefix.lookups),
    (catalog.PREFIX_HITS, lambda s: s.prefix.hits),
    (catalog.PREFIX_READ, lambda s: s.prefix.read_tokens),
)


class Metrics:
    """All instruments of the catalog on one meter."""

    def __init__(
        self,
        meter: Meter,
        *,
        ledger: Ledger,
        naming: Naming,
        status: Callable[[], EngineStatus | None],
        hardware: HardwareView,
        guard: Guard,
        decisions: Decisions | None = None,
    ) -> None:
        self._meter = meter
        self._ledger = ledger
        self._naming = naming
        self._status = status
        self._hardware = hardware
        self._decisions = decisions or Decisions()
        self._guard = guard
        self._histograms: dict[str, Histogram] = {}
        self._counters: dict[str, Counter] = {}
        observed = self._observed()
        for metric in catalog.METRICS:
            self._create(metric, observed)
        assert not observed, f"read but not in the catalog: {sorted(observed)}"

    def record(self, metric: Metric, value: float, attributes: Attributes, context: Context | None = None) -> None:
        """Records on a histogram. `context` links the exemplar to its span."""
        self._histograms[metric.name].record(value, attributes, context)

    def count(self, metric: Metric, attributes: Attributes, context: Context | None = None) -> None:
        """Adds one to a counter."""
        self._counters[metric.name].add(1, attributes, context)

    def _create(self, metric: Metric, observed: dict[str, Callable[[], Iterable[Observation]]]) -> None:
        name, unit, brief = metric.name, metric.unit, metric.brief
        if metric.kind is Kind.HISTOGRAM:
            self._histograms[name] = self._meter.create_histogram(
                name, unit, brief, explicit_bucket_boundaries_advisory=metric.buckets
            )
        elif metric.kind is Kind.COUNTER:
            self._counters[name] = self._meter.create_counter(name, unit, brief)
        else:
            callback = self._guarded(observed.pop(name))
            if metric.kind is Kind.GAUGE:
                self._meter.create_observable_gauge(name, [callback], unit, brief)
            elif metric.kind is Kind.UP_DOWN_COUNTER:
                self._meter.create_observable_up_down_counter(name, [callback], unit, brief)
            else:
                self._meter.create_observable_counter(name, [callback], unit, brief)

    def _guarded(
        self, observe: Callable[[], Iterable[Observation]]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def callback(options: CallbackOptions) -> Iterable[Observation]:
            try:
                return list(observe())
            except Exception as error:
                self._guard.caught("metrics", error)
                return []

        return callback

    def _observed(self) -> dict[str, Callable[[], Iterable[Observation]]]:
        found = observed_hardware(self._hardware)
        for metric, reading in _SUMS:
            found[metric.name] = lambda m=metric, r=reading: (  # type: ignore[misc]
                Observation(r(e), e.labels) for e in self._ledger.read(m.name)
            )
        for metric, series in _BY_POSITION:
            found[metric.name] = lambda m=metric, s=series: (  # type: ignore[misc]
                Observation(count, {**e.labels, a.POSITION.name: i})
                for e in self._ledger.read(m.name)
                for i, count in enumerate(s(e))
            )
        for metric, gauge in _GAUGES:
            found[metric.name] = lambda g=gauge: self._gauge(g)  # type: ignore[misc]
        found |= observed_decisions(self._decisions, self._naming)
        found[catalog.TOKENS.name] = self._tokens
        found[catalog.TELEMETRY_ERRORS.name] = self._errors
        return found

    def _errors(self) -> Iterable[Observation]:
        counts, status = self._guard.counts(), self._status()
        if status is not None and status.observer_errors:  # what the engine had to catch: the guard missed it
            counts["observer"] = counts.get("observer", 0) + status.observer_errors
        for part, count in counts.items():
            yield Observation(count, {a.TELEMETRY_PART.name: part})

    def _gauge(self, gauge: Gauge) -> Iterable[Observation]:
        status = self._status()
        if status is not None and self._naming.info() is not None:  # under another name they would count twice
            yield Observation(gauge(status), {a.MODEL.name: self._naming.model()})

    def _tokens(self) -> Iterable[Observation]:
        for entry in self._ledger.read(catalog.TOKENS.name):
            yield Observation(entry.input_tokens, {**entry.labels, a.TOKEN_TYPE.name: "input"})
            yield Observation(entry.counts.emitted, {**entry.labels, a.TOKEN_TYPE.name: "output"})


class MetricsObserver:
    """The engine's observer: rounds go to the ledger, the time between chunks to its histogram."""

    def __init__(self, ledger: Ledger, metrics: Metrics, guard: Guard) -> None:
        self._ledger = ledger
        self._metrics = metrics
        self._guard = guard

    def on_round(self, request: DecodeRequest, result: RoundResult, gap: float | None) -> None:
        try:
            entry = self._ledger.entry(request)
            self._ledger.add_round(entry, result)
            if gap is not None:
                self._metrics.record(catalog.INTER_CHUNK_DURATION, gap, entry.labels)
        except Exception as error:
            self._guard.caught("observer", error)

    def on_drafter_error(self, request: DecodeRequest, message: str) -> None:
        try:
            self._ledger.add_drafter_error(self._ledger.entry(request))
        except Exception as error:
            self._guard.caught("observer", error)

    def on_verifier_error(self, request: DecodeRequest, message: str) -> None:
        try:
            self._ledger.add_verifier_error(self._ledger.entry(request))
        except Exception as error:
            self._guard.caught("observer", error)

    def on_finish(self, request: DecodeRequest, outcome: Outcome) -> None:
        try:
            self._ledger.add_input(self._ledger.entry(request), outcome.stats.prompt_tokens)
        except Exception as error:
            self._guard.caught("observer", error)
