"""Telemetry of remote decoding: gauges and counters of both sides, and the verifier's spans."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from draftd.engine.observer import EngineStatus
from draftd.engine.remote.verifier_link import LinkState
from draftd.fallback.state import FallbackState
from draftd.strategies import PeerCounts, RemoteCounts, VerificationStatus
from draftd.telemetry import attributes as a
from draftd.telemetry import catalog_remote as catalog
from draftd.telemetry.attributes import Metric
from draftd.telemetry.metrics import Observe, Recording, Values, observe_each
from draftd.telemetry.recording import ModelNames, Stopwatch, attributes_of

_MESSAGE_LIMIT = 256  # characters of an error on a span
_W3C = TraceContextTextMapPropagator()  # between daemons, whatever format callers use

# Shown by a counter for all requests, and by a span for one.
COUNTS: Mapping[Metric, Callable[[RemoteCounts], float]] = {
    catalog.STEPS: lambda c: c.steps,
    catalog.PROPOSED: lambda c: c.proposed,
    catalog.WASTED: lambda c: c.wasted,
    catalog.VERDICTS: lambda c: c.verdicts,
    catalog.HIDDEN: lambda c: c.hidden,
    catalog.TOKENS: lambda c: c.tokens,
    catalog.LATE: lambda c: c.late,
    catalog.REOPENED: lambda c: c.reopened,
    catalog.TARGET_TIME: lambda c: c.target_seconds,
    catalog.QUEUE_TIME: lambda c: c.queue_seconds,
}
_LINK: Mapping[Metric, Callable[[LinkState], Values]] = {
    catalog.UP: lambda s: s.up,
    catalog.CONNECTIONS: lambda s: s.connections,
    catalog.ERRORS: lambda s: s.failures,
    catalog.IO: lambda s: {"transmit": s.bytes_sent, "receive": s.bytes_received},
}
_ENGINE: Mapping[Metric, Callable[[EngineStatus], Values]] = {
    catalog.OPEN_SEQUENCES: lambda s: s.remote.open_sequences,
    catalog.IN_FLIGHT: lambda s: s.remote.in_flight,
    catalog.BREAK_EVEN: lambda s: s.remote.break_even,
    catalog.FAILOVERS: lambda s: s.remote.counts.failed_over,
}
VERIFIED: Mapping[Metric, Callable[[PeerCounts], float]] = {
    catalog.VERIFY_STEPS: lambda c: c.steps,
    catalog.VERIFY_STALE: lambda c: c.stale,
    catalog.VERIFY_VERDICTS: lambda c: c.verdicts,
    catalog.VERIFY_DRAFTED: lambda c: c.drafted,
    catalog.VERIFY_ACCEPTED: lambda c: c.accepted,
    catalog.VERIFY_TOKENS: lambda c: c.tokens,
    catalog.VERIFY_DISCARDED: lambda c: c.discarded,
    catalog.VERIFY_WASTED: lambda c: c.wasted,
    catalog.VERIFY_TARGET_TIME: lambda c: c.target_seconds,
    catalog.VERIFY_QUEUE_TIME: lambda c: c.queue_seconds,
}
_PEERS: Mapping[Metric, Callable[[VerificationStatus], Values]] = {
    catalog.PEERS: lambda s: len(s.peers),
    catalog.SEQUENCES: lambda s: s.open_sequences,
    catalog.VERIFY_CONNECTIONS: lambda s: s.total.connections,
    catalog.VERIFY_OPENED: lambda s: s.total.opened,
    catalog.VERIFY_REFUSED: lambda s: s.refusals,
    catalog.VERIFY_IO: lambda s: {"transmit": s.total.bytes_sent, "receive": s.total.bytes_received},
}


def observed_remote(
    status: Callable[[], EngineStatus | None],
    link: Callable[[], LinkState | None],
    verification: Callable[[], VerificationStatus | None],
    fallback: Callable[[], FallbackState | None],
    naming: ModelNames,
) -> dict[str, Observe]:
    """Returns the observers of both sides' metrics by name. `link` returns None if this daemon has no remote,
    `verification` if it is no verifier: then that side shows nothing."""

    def engine() -> EngineStatus | None:
        return None if link() is None else status()

    judged: Mapping[Metric, Callable[[FallbackState], Values]] = {
        catalog.LEVEL: lambda now: None if now.remote is None else now.remote.level,
        catalog.SPEEDUP: lambda now: None if now.remote is None else now.remote.speedup,
    }

    return {
        **observe_each(link, _LINK, naming.model_label),
        **observe_each(engine, _ENGINE, naming.model_label),
        **observe_each(engine, {metric: _remote(read) for metric, read in COUNTS.items()}, naming.model_label),
        **observe_each(verification, _PEERS, naming.model_label),
        **observe_each(verification, {metric: _total(read) for metric, read in VERIFIED.items()}, naming.model_label),
        **observe_each(fallback, judged, naming.model_label),
    }


def _remote(read: Callable[[RemoteCounts], float]) -> Callable[[EngineStatus], Values]:
    return lambda status: read(status.remote.counts)


def _total(read: Callable[[PeerCounts], float]) -> Callable[[VerificationStatus], Values]:
    return lambda status: read(status.total)


def remote_attributes(counts: RemoteCounts) -> dict[str, AttributeValue]:
    """Returns the attributes of one request's span."""
    times = {a.ROUND_TRIPS: counts.round_trips, a.ROUND_TRIP_TIME: counts.round_trip_seconds}
    return {metric.name: read(counts) for metric, read in COUNTS.items()} | attributes_of(times)


def trace_of(span: Span) -> str:
    """Returns the span's W3C `traceparent`, by which another daemon makes it the parent; empty if it is not
    recorded."""
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


class VerificationSpan:
    """The span of one sequence that is verified for an edge. Never raises; a second end is ignored."""

    def __init__(self, on: Recording, trace: str, prompt_tokens: int) -> None:
        """`trace`: the edge's span, as it sent it; if malformed, a new trace begins."""
        self._on, self._watch = on, Stopwatch()
        self._span: Span = INVALID_SPAN
        self._ended = not on.exporting
        if self._ended:
            return
        with on.guard.part("span"):
            info = on.naming.info()
            self._span = on.tracer.start_span(
                catalog.VERIFY_SPAN.name,
                context=_W3C.extract({"traceparent": [trace]}, Context()),
                kind=SpanKind.SERVER,
                attributes=attributes_of({a.MODEL: None if info is None else info.model, a.USAGE_INPUT: prompt_tokens}),
                start_time=self._watch.start,
            )

    def end(self, counts: PeerCounts, how: str, error: str = "") -> None:
        """Ends the span. `counts`: the sequence's own. `how`: a value of `draftd.verify.end`."""
        if self._ended:
            return
        self._ended = True
        with self._on.guard.part("span"):
            self._span.set_attributes({metric.name: read(counts) for metric, read in VERIFIED.items()})
            self._span.set_attribute(a.VERIFY_END.name, how)
            if error:
                self._span.set_status(Status(StatusCode.ERROR, error[:_MESSAGE_LIMIT]))
            self._span.end(self._watch.start + self._watch.nanoseconds)
