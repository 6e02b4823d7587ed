"""Series that queries use but the catalog does not define: the collector's own metrics, and Prometheus's about its
targets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class External:
    """A series that another program provides. `name` is its name in Prometheus, `labels` are those that queries use."""

    name: str
    source: str
    labels: tuple[str, ...] = ()

    @property
    def prometheus(self) -> str:
        return self.name


PROMETHEUS = "Prometheus, of each target that it scrapes"
# Counters lack `_total`, because the reader that otel-collector/config.yaml sets up names them so.
COLLECTOR = "the collector's own metrics, service.telemetry in otel-collector/config.yaml"
SPAN_METRICS = "the span_metrics connector in otel-collector/config.yaml"

UP = External("up", PROMETHEUS, ("job", "instance"))
SCRAPE_DURATION = External("scrape_duration_seconds", PROMETHEUS, ("job", "instance"))
SCRAPED_SAMPLES = External("scrape_samples_scraped", PROMETHEUS, ("job", "instance"))

SIGNALS: tuple[str, ...] = ("spans", "metric_points", "log_records")
ACCEPTED = tuple(External(f"otelcol_receiver_accepted_{signal}", COLLECTOR, ("transport",)) for signal in SIGNALS)
REFUSED = tuple(External(f"otelcol_receiver_refused_{signal}", COLLECTOR, ("transport",)) for signal in SIGNALS)
FAILED = tuple(External(f"otelcol_receiver_failed_{signal}", COLLECTOR, ("transport",)) for signal in SIGNALS)
SENT = tuple(External(f"otelcol_exporter_sent_{signal}", COLLECTOR, ("exporter",)) for signal in SIGNALS)
SEND_FAILED = tuple(External(f"otelcol_exporter_send_failed_{signal}", COLLECTOR, ("exporter",)) for signal in SIGNALS)
ENQUEUE_FAILED = tuple(
    External(f"otelcol_exporter_enqueue_failed_{signal}", COLLECTOR, ("exporter",)) for signal in SIGNALS
)
QUEUE_SIZE = External("otelcol_exporter_queue_size", COLLECTOR, ("exporter", "data_type"))
QUEUE_CAPACITY = External("otelcol_exporter_queue_capacity", COLLECTOR, ("exporter", "data_type"))
COLLECTOR_UPTIME = External("otelcol_process_uptime", COLLECTOR)
COLLECTOR_MEMORY = External("otelcol_process_memory_rss", COLLECTOR)
TRACES_KEPT = External("otelcol_processor_tail_sampling_count_traces_sampled", COLLECTOR, ("policy", "decision"))
TRACES_DECIDED = External("otelcol_processor_tail_sampling_global_count_traces_sampled", COLLECTOR, ("decision",))
TRACES_TOO_EARLY = External("otelcol_processor_tail_sampling_sampling_trace_dropped_too_early", COLLECTOR)

SPAN_CALLS = External(
    "draftd_traces_calls_total",
    SPAN_METRICS,
    ("instance", "span_name", "status_code", "draftd_mode", "draftd_workload"),
)

EXTERNALS: tuple[External, ...] = (
    UP,
    SCRAPE_DURATION,
    SCRAPED_SAMPLES,
    *ACCEPTED,
    *REFUSED,
    *FAILED,
    *SENT,
    *SEND_FAILED,
    *ENQUEUE_FAILED,
    QUEUE_SIZE,
    QUEUE_CAPACITY,
    COLLECTOR_UPTIME,
    COLLECTOR_MEMORY,
    TRACES_KEPT,
    TRACES_DECIDED,
    TRACES_TOO_EARLY,
    SPAN_CALLS,
)
