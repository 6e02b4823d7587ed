"""Instruments made from the catalog, and their values from requests and the engine."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation
from opentelemetry.trace import Tracer
from opentelemetry.util.types import AttributeValue

from draftd.core import DecodeRequest, DrafterName
from draftd.counts import DraftCounts, StepCounts
from draftd.engine.observer import EngineObserver, EngineStatus
from draftd.hardware.state import HardwareView
from draftd.outcome import Outcome
from draftd.strategies import Strategy
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry import catalog_remote as remote
from draftd.telemetry.attributes import InstrumentKind, Metric
from draftd.telemetry.recording import FailureGuard, Labels, ModelNames

Observe = Callable[[], Iterable[Observation]]
Values = float | None | Mapping[Any, float | None]
_S = TypeVar("_S")


def observe_each(
    source: Callable[[], _S | None],
    table: Mapping[Metric, Callable[[_S], Values]],
    labels: Callable[[], Labels | None] = dict,
) -> dict[str, Observe]:
    """Returns observable metrics by name; `table` reads their values from the source at collection.

    A mapping is one series per key; a key is one value or a tuple of values, for those attributes of the metric that
    `labels` does not set. Nothing is shown while the source, the labels or a value is None."""

    def observe(metric: Metric, read: Callable[[_S], Values]) -> list[Observation]:
        value, shared = source(), labels()
        return [] if value is None or shared is None else observations(metric, read(value), shared)

    return {metric.name: partial(observe, metric, read) for metric, read in table.items()}


def observations(metric: Metric, values: Values, labels: Labels) -> list[Observation]:
    open_to = [attribute.name for attribute in metric.attributes if attribute.name not in labels]
    return [
        Observation(
            int(value) if isinstance(value, bool) else value,
            labels | dict(zip(open_to, key if isinstance(key, tuple) else (key,), strict=True)),
        )
        for key, value in (values if isinstance(values, Mapping) else {(): values}).items()
        if value is not None
    ]


class Metrics:
    """All instruments of the catalog on one meter."""

    def __init__(self, meter: Meter, guard: FailureGuard) -> None:
        self._meter, self._guard = meter, guard
        self._histograms: dict[str, Histogram] = {}
        self._counters: dict[str, Counter] = {}
        for metric in catalog.METRICS:
            name, unit, brief = metric.name, metric.unit, metric.brief
            if metric.kind is InstrumentKind.HISTOGRAM:
                self._histograms[name] = meter.create_histogram(
                    name, unit, brief, explicit_bucket_boundaries_advisory=metric.buckets
                )
            elif metric.kind is InstrumentKind.COUNTER:
                self._counters[name] = meter.create_counter(name, unit, brief)

    def observe(self, observed: Mapping[str, Observe]) -> None:
        """Adds observable instruments. `observed`: their observers, by name."""
        meter = self._meter
        create = {
            InstrumentKind.GAUGE: meter.create_observable_gauge,
            InstrumentKind.UP_DOWN_COUNTER: meter.create_observable_up_down_counter,
            InstrumentKind.OBSERVABLE_COUNTER: meter.create_observable_counter,
        }
        for metric in catalog.METRICS:
            if metric.kind in create:
                shown = partial(self._shown, observed[metric.name])
                create[metric.kind](metric.name, [shown], metric.unit, metric.brief)

    def record(
        self, metric: Metric, value: float, attributes: Mapping[str, AttributeValue], context: Context | None = None
    ) -> None:
        """Records a value on a histogram. `context` links the exemplar to its span."""
        self._histograms[metric.name].record(value, attributes, context)

    def count(
        self, metric: Metric, attributes: Mapping[str, str], context: Context | None = None, amount: float = 1
    ) -> None:
        """Adds to a counter."""
        self._counters[metric.name].add(amount, attributes, context)

    def _shown(self, observe: Observe, options: CallbackOptions) -> Iterable[Observation]:
        with self._guard.part("metrics"):
            return list(observe())
        return []


@dataclass(frozen=True, slots=True)
class Recording:
    """The tracer, meters and names to record with. If nothing is exported, requests and calls are not recorded."""

    tracer: Tracer
    metrics: Metrics
    naming: ModelNames
    hardware: HardwareView
    guard: FailureGuard
    exporting: bool = True
    capture_content: bool = False


@dataclass(slots=True)
class LedgerEntry:
    """The sums for one label set."""

    labels: Labels
    counts: DraftCounts = field(default_factory=DraftCounts)
    input_tokens: int = 0
    drafter_errors: int = 0
    verifier_errors: int = 0


class Ledger:
    """Sums of the engine's steps by label set. Written on the engine thread, a microsecond or two per step; read on the
    exporter's. Nothing is sampled or lost: a collector receives the engine's own counts."""

    def __init__(self, naming: ModelNames) -> None:
        self._naming = naming
        self.lock = threading.Lock()  # held while a step is added, so that its figures stay consistent
        self._entries: dict[tuple[str | None, ...], LedgerEntry] = {}
        self._page: tuple[LedgerEntry, ...] = ()
        self._readers: set[str] = set()

    def entry(self, request: DecodeRequest, drafter: DrafterName | None, strategy: Strategy) -> LedgerEntry:
        """Returns the entry to add to; its labels are read-only. `drafter`, `strategy`: of the step, or of the
        request's plan."""
        plan = request.plan
        key = (plan.mode, drafter, plan.level.name, strategy, request.workload, request.tier)
        entry = self._entries.get(key)
        if entry is None:
            entry = LedgerEntry(
                self._naming.labels(replace(plan, drafter=drafter, strategy=strategy), request.workload, request.tier)
            )
            with self.lock:
                self._entries[key] = entry
        return entry

    def entry_of(self, request: DecodeRequest) -> LedgerEntry:
        """Returns the entry of a request's plan."""
        return self.entry(request, request.plan.drafter, request.plan.strategy)

    def read(self, reader: str) -> tuple[LedgerEntry, ...]:
        """Returns a copy of the sums, the same for all readers of one collection, so that `drafted = accepted + rolled
        back` holds in every export. `reader`: a metric's name. A reader that already had the present copy begins a new
        collection, with a new copy."""
        with self.lock:
            if reader in self._readers or not self._readers:
                self._page = tuple(copy.deepcopy(entry) for entry in self._entries.values())
                self._readers.clear()
            self._readers.add(reader)
            return self._page


class MetricsObserver(EngineObserver):
    """The engine's observer: steps go to the ledger, times between chunks to their histogram."""

    def __init__(self, ledger: Ledger, metrics: Metrics, guard: FailureGuard) -> None:
        self._ledger, self._metrics, self._guard = ledger, metrics, guard

    def on_step(self, request: DecodeRequest, result: StepCounts, gap: float | None) -> None:
        try:  # cheaper than `with`: called for each sequence of each step
            entry = self._ledger.entry(request, result.drafter, result.strategy)
            with self._ledger.lock:
                entry.counts.add(result)
            if gap is not None:
                self._metrics.record(catalog.INTER_CHUNK_DURATION, gap, entry.labels)
        except Exception as error:
            self._guard.caught("observer", error)

    def on_round_trip(self, request: DecodeRequest, seconds: float) -> None:
        with self._guard.part("observer"):
            labels = self._ledger.entry_of(request).labels
            self._metrics.record(remote.ROUND_TRIP, seconds, {a.MODEL.name: labels[a.MODEL.name]})

    def on_drafter_error(self, request: DecodeRequest, drafter: DrafterName | None, message: str) -> None:
        with self._guard.part("observer"):
            self._ledger.entry(request, drafter, request.plan.strategy).drafter_errors += 1

    def on_verifier_error(self, request: DecodeRequest, message: str) -> None:
        with self._guard.part("observer"):
            self._ledger.entry_of(request).verifier_errors += 1

    def on_finish(self, request: DecodeRequest, outcome: Outcome) -> None:
        with self._guard.part("observer"):
            self._ledger.entry_of(request).input_tokens += outcome.stats.prompt_tokens


# Each counter's value from the sums of one label set; a request's span shows the same for that request alone.
COUNTS: Mapping[Metric, Callable[[DraftCounts], float | list[int]]] = {
    catalog.DRAFTS: lambda c: c.drafts,
    catalog.DRAFT_TOKENS: lambda c: c.drafted,
    catalog.ACCEPTED_TOKENS: lambda c: c.accepted,
    catalog.CUT_TOKENS: lambda c: c.cut,
    catalog.ROLLBACKS: lambda c: c.rollbacks,
    catalog.ROLLED_BACK_TOKENS: lambda c: c.rolled_back,
    catalog.DRAFT_FORWARDS: lambda c: c.draft_forwards,
    catalog.TARGET_FORWARDS: lambda c: c.target_forwards,
    catalog.DRAFT_TIME: lambda c: c.draft_seconds,
    catalog.VERIFY_TIME: lambda c: c.verify_seconds,
    catalog.BREAK_EVEN_TOKENS: lambda c: c.break_even_tokens,
    catalog.UNPRICED_DRAFTS: lambda c: c.unpriced_drafts,
    catalog.PARKED_STEPS: lambda c: c.parked_steps,
    catalog.CAPPED_STEPS: lambda c: c.capped_steps,
    catalog.ACCEPTED_PER_POS: lambda c: c.accepted_per_position,
    catalog.DRAFTED_PER_POS: lambda c: c.drafted_per_position,
}
_ENTRIES: Mapping[Metric, Callable[[LedgerEntry], Values]] = {
    catalog.TOKENS: lambda e: {"input": e.input_tokens, "output": e.counts.emitted},
    catalog.DRAFTER_ERRORS: lambda e: e.drafter_errors,
    catalog.VERIFIER_ERRORS: lambda e: e.verifier_errors,
}
_STATUS: Mapping[Metric, Callable[[EngineStatus], Values]] = {
    catalog.ACTIVE_REQUESTS: lambda s: s.active,
    catalog.QUEUED_REQUESTS: lambda s: s.queued,
    catalog.QUEUE_CAPACITY: lambda s: s.queue_capacity,
    catalog.KV_CACHE: lambda s: s.kv_cache_bytes,
    catalog.KV_CACHE_LIMIT: lambda s: s.kv_cache_limit_bytes,
    catalog.HELD_BACK_REQUESTS: lambda s: s.held_back,
    catalog.WEIGHTS: lambda s: s.weight_bytes,
    catalog.INDEPENDENT: lambda s: None if s.exactness is None else not s.exactness.forward.differs,
    catalog.FLIPS: lambda s: None if s.exactness is None else s.exactness.flips,
    catalog.PREFIX_USAGE: lambda s: s.prefix.bytes,
    catalog.PREFIX_LIMIT: lambda s: s.prefix.limit_bytes,
    catalog.PREFIX_ENTRIES: lambda s: s.prefix.entries,
    catalog.PREFIX_LOOKUPS: lambda s: s.prefix.lookups,
    catalog.PREFIX_HITS: lambda s: s.prefix.hits,
    catalog.PREFIX_READ: lambda s: s.prefix.read_tokens,
    catalog.PREFIX_UNFIT: lambda s: s.prefix.unfit,
}


def observed_engine(
    ledger: Ledger, naming: ModelNames, status: Callable[[], EngineStatus | None], guard: FailureGuard
) -> dict[str, Observe]:
    """Returns the observers of the engine's own metrics by name."""

    def sums(metric: Metric, read: Callable[[LedgerEntry], Values]) -> list[Observation]:
        entries = ledger.read(metric.name)
        return [observation for entry in entries for observation in observations(metric, read(entry), entry.labels)]

    def errors() -> Mapping[str, int]:
        counts, engine_status = guard.counts(), status()
        if engine_status is not None and engine_status.observer_errors:  # caught by the engine: the guard missed it
            counts["observer"] = counts.get("observer", 0) + engine_status.observer_errors
        return counts

    def read_counts(read: Callable[[DraftCounts], float | list[int]], entry: LedgerEntry) -> Values:
        value = read(entry.counts)
        return dict(enumerate(value)) if isinstance(value, list) else value

    return {
        **{metric.name: partial(sums, metric, partial(read_counts, read)) for metric, read in COUNTS.items()},
        **{metric.name: partial(sums, metric, read) for metric, read in _ENTRIES.items()},
        **observe_each(status, _STATUS, naming.model_label),
        **observe_each(errors, {catalog.TELEMETRY_ERRORS: lambda counts: counts}),
    }
