"""A real OTLP receiver for tests: gRPC or HTTP on loopback. It keeps all that it receives, and can be slow, refuse, or
be killed.

    with OtlpReceiver() as receiver:
        run_something(environ=receiver.environ())
        assert receiver.total("draftd.tokens", {"gen_ai.token.type": "output"}) == 42
        assert receiver.spans("chat nano")[0].attributes["draftd.mode"] == "speculative"
"""

from __future__ import annotations

import gzip
import http.server
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

Value = Any
Attributes = dict[str, Value]

# By the path of its HTTP endpoint: the gRPC service, what is asked of it, what it answers, and where its items lie.
_SIGNALS: dict[str, tuple[str, Any, Any, tuple[str, str, str]]] = {
    "traces": (
        "trace.v1.TraceService",
        traces.ExportTraceServiceRequest,
        traces.ExportTraceServiceResponse,
        ("resource_spans", "scope_spans", "spans"),
    ),
    "metrics": (
        "metrics.v1.MetricsService",
        metrics.ExportMetricsServiceRequest,
        metrics.ExportMetricsServiceResponse,
        ("resource_metrics", "scope_metrics", "metrics"),
    ),
    "logs": (
        "logs.v1.LogsService",
        logs.ExportLogsServiceRequest,
        logs.ExportLogsServiceResponse,
        ("resource_logs", "scope_logs", "log_records"),
    ),
}
_HTTP_STATUS = {
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
}


@dataclass(frozen=True)
class SpanRecord:
    """A span as Python values. Ids are hex; `parent_id` is empty at the root; times are epoch nanoseconds."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: str
    status: str
    message: str
    start: int
    end: int
    attributes: Attributes
    resource: Attributes
    scope: str


@dataclass(frozen=True)
class EventRecord:
    """A log record that is an event."""

    name: str
    trace_id: str
    span_id: str
    severity: int
    attributes: Attributes
    resource: Attributes


@dataclass(frozen=True)
class Point:
    """One series of a metric. `value` is the number, or a histogram's sum; `count` and `buckets` are a histogram's."""

    name: str
    unit: str
    kind: str
    attributes: Attributes
    value: float
    count: int = 0
    bounds: tuple[float, ...] = ()
    buckets: tuple[int, ...] = ()
    exemplars: int = 0


@dataclass
class Store:
    """All requests received, in order."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    traces: list[Any] = field(default_factory=list)
    metrics: list[Any] = field(default_factory=list)
    logs: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


class OtlpReceiver:
    """Listens on a free loopback port. `refuse` is a status to answer with, `delay` the seconds before any answer.

    `metric_interval` is in milliseconds. The SDK allows each collection that long, the last one too: if a test reads
    only what is sent at shutdown, a long one keeps a busy machine from losing it.
    """

    def __init__(self, protocol: str = "grpc", metric_interval: int = 500) -> None:
        self.protocol, self.metric_interval = protocol, metric_interval
        self.store = Store()
        self.refuse: grpc.StatusCode | None = None
        self.delay = 0.0
        self.port = 0
        self.calls = 0  # attempts, refused ones included
        self._grpc: grpc.Server | None = None
        self._http: http.server.ThreadingHTTPServer | None = None
        self._released = threading.Event()

    # Its life.

    def start(self) -> OtlpReceiver:
        """Listens, on its earlier port if it had one."""
        self._released.clear()
        if self.protocol == "grpc":
            server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
            server.add_generic_rpc_handlers([self._service(kind) for kind in _SIGNALS])
            self.port = server.add_insecure_port(f"127.0.0.1:{self.port}")
            server.start()
            self._grpc = server
        else:
            self._http = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), _handler(self))
            self._http.daemon_threads = True
            self.port = self._http.server_address[1]
            threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def kill(self) -> None:
        """Stops at once, even in a call. What was received stays; `start` resumes on the same port."""
        self._released.set()
        if self._grpc is not None:
            self._grpc.stop(0).wait()
            self._grpc = None
        if self._http is not None:
            self._http.shutdown()
            self._http.server_close()
            self._http = None

    def __enter__(self) -> OtlpReceiver:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environ(self, **more: str) -> dict[str, str]:
        """Returns variables that make a program export here, with intervals short enough for a test."""
        found = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc" if self.protocol == "grpc" else "http/protobuf",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_BLRP_SCHEDULE_DELAY": "100",
            "OTEL_METRIC_EXPORT_INTERVAL": str(self.metric_interval),
        }
        return found | more

    # What it received.

    def spans(self, name: str | None = None) -> list[SpanRecord]:
        """Returns spans in order of arrival, each once, however often it was sent."""
        found: dict[str, SpanRecord] = {}
        for resource, scope, span in self.items("traces"):
            if name is None or span.name == name:
                found.setdefault(span.span_id.hex(), _span(span, resource, scope))
        return list(found.values())

    def events(self, name: str | None = None) -> list[EventRecord]:
        """Returns log records in order of arrival."""
        return [
            EventRecord(
                log.event_name,
                log.trace_id.hex(),
                log.span_id.hex(),
                log.severity_number,
                attributes_of(log.attributes),
                resource,
            )
            for resource, _, log in self.items("logs")
            if name is None or log.event_name == name
        ]

    def points(self, name: str, where: Mapping[str, Value] | None = None) -> list[Point]:
        """Returns the latest value of each series of a metric whose attributes include `where`. Cumulative series of
        several processes stay separate; `total` adds them up."""
        latest: dict[tuple[str, str], Point] = {}
        for resource, _, metric in self.items("metrics"):
            for point in _points(metric) if metric.name == name else ():
                if all(point.attributes.get(k) == v for k, v in (where or {}).items()):
                    latest[str(sorted(resource.items())), str(sorted(point.attributes.items()))] = point
        return list(latest.values())

    def total(self, name: str, where: Mapping[str, Value] | None = None) -> float:
        """Returns the sum over all series: of numbers, or of a histogram's values."""
        return sum(point.value for point in self.points(name, where))

    def count(self, name: str, where: Mapping[str, Value] | None = None) -> int:
        """Returns the number of values recorded in a histogram."""
        return sum(point.count for point in self.points(name, where))

    def by(self, name: str, attribute: str, where: Mapping[str, Value] | None = None) -> dict[Value, float]:
        """Returns sums by the values of one attribute."""
        found: dict[Value, float] = {}
        for point in self.points(name, where):
            key = point.attributes.get(attribute)
            found[key] = found.get(key, 0) + point.value
        return found

    def metric_names(self) -> set[str]:
        return {metric.name for _, _, metric in self.items("metrics")}

    def items(self, kind: str) -> Iterator[tuple[Attributes, str, Any]]:
        """Yields each item of one signal, with its resource and the name of its scope."""
        resources, scopes, items = _SIGNALS[kind][3]
        with self.store.lock:
            requests = list(getattr(self.store, kind))
        for request in requests:
            for group in getattr(request, resources):
                resource = attributes_of(group.resource.attributes)
                for scoped in getattr(group, scopes):
                    for item in getattr(scoped, items):
                        yield resource, scoped.scope.name, item

    def wait_for(self, condition: Callable[[], bool], timeout: float = 10.0) -> bool:
        """Waits until `condition` is true. Returns False if it is not in time."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if condition():
                return True
            time.sleep(0.02)
        return condition()

    # How it answers.

    def take(self, kind: str, request: Any, headers: dict[str, str]) -> grpc.StatusCode | None:
        """Stores one request, or returns the status to refuse it with."""
        self.calls += 1
        if self.delay:
            self._released.wait(self.delay)
        if self.refuse is not None:
            return self.refuse
        with self.store.lock:
            getattr(self.store, kind).append(request)
            self.store.headers.append(headers)
        return None

    def _service(self, kind: str) -> grpc.GenericRpcHandler[Any, Any]:
        service, request_class, response_class, _ = _SIGNALS[kind]

        def export(request: Any, context: grpc.ServicerContext) -> Any:
            headers = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
            refused = self.take(kind, request, headers)
            if refused is not None:
                context.abort(refused, "refused by the test")
            return response_class()

        method = grpc.unary_unary_rpc_method_handler(export, request_class.FromString, response_class.SerializeToString)
        return grpc.method_handlers_generic_handler(f"opentelemetry.proto.collector.{service}", {"Export": method})


def _handler(receiver: OtlpReceiver) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            kind = self.path.removeprefix("/v1/")
            headers = {key.lower(): value for key, value in self.headers.items()}
            refused = receiver.take(kind, _SIGNALS[kind][1].FromString(body), headers)
            self.send_response(200 if refused is None else _HTTP_STATUS.get(refused, 500))
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return None

    return Handler


def _value(value: AnyValue) -> Value:
    which = value.WhichOneof("value")
    if which is None:
        return None
    if which == "array_value":
        return [_value(item) for item in value.array_value.values]
    if which == "kvlist_value":
        return attributes_of(value.kvlist_value.values)
    return getattr(value, which)


def attributes_of(pairs: Any) -> Attributes:
    return {pair.key: _value(pair.value) for pair in pairs}


def _span(span: trace_pb2.Span, resource: Attributes, scope: str) -> SpanRecord:
    return SpanRecord(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        status=trace_pb2.Status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_"),
        message=span.status.message,
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=attributes_of(span.attributes),
        resource=resource,
        scope=scope,
    )


def _points(metric: metrics_pb2.Metric) -> list[Point]:
    which = str(metric.WhichOneof("data"))
    data = getattr(metric, which)
    if which in ("sum", "histogram"):
        assert data.aggregation_temporality == metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE, metric.name
    found = []
    for point in data.data_points:
        common = (metric.name, metric.unit, which, attributes_of(point.attributes))
        exemplars = len(point.exemplars)
        if which == "histogram":
            bounds, buckets = tuple(point.explicit_bounds), tuple(point.bucket_counts)
            found.append(Point(*common, point.sum, point.count, bounds, buckets, exemplars))
        else:
            value = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
            found.append(Point(*common, value, exemplars=exemplars))
    return found
