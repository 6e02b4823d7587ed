"""An OTLP receiver that accepts all telemetry and discards it, so that the cost of exporting can be measured.

Prints its address, then serves until its input ends.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2_grpc as logs_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as traces_grpc


class Traces(traces_grpc.TraceServiceServicer):
    def Export(self, request: traces.ExportTraceServiceRequest, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return traces.ExportTraceServiceResponse()


class Metrics(metrics_grpc.MetricsServiceServicer):
    def Export(self, request: metrics.ExportMetricsServiceRequest, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return metrics.ExportMetricsServiceResponse()


class Logs(logs_grpc.LogsServiceServicer):
    def Export(self, request: logs.ExportLogsServiceRequest, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return logs.ExportLogsServiceResponse()


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    traces_grpc.add_TraceServiceServicer_to_server(Traces(), server)  # type: ignore[no-untyped-call]
    metrics_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)  # type: ignore[no-untyped-call]
    logs_grpc.add_LogsServiceServicer_to_server(Logs(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"http://127.0.0.1:{port}", flush=True)
    sys.stdin.read()
    server.stop(grace=1).wait()


if __name__ == "__main__":
    main()
