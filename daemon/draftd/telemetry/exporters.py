"""Which exporters the OTEL_* environment asks for, made by the classes that read the rest of it themselves."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any

from opentelemetry.metrics import MeterProvider
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import TextMapPropagator

# gRPC waits ever longer between attempts to connect, up to two minutes, and a new channel to the same place inherits
# the wait. A collector that comes back shall be found within seconds.
_CHANNEL = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 5_000))

_PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


class Signal(enum.StrEnum):
    """The three signals, as variables spell them."""

    TRACES = "TRACES"
    METRICS = "METRICS"
    LOGS = "LOGS"


def wanted(signal: Signal, environ: Mapping[str, str]) -> list[str]:
    """Names of the exporters to use for a signal: what OTEL_*_EXPORTER says, else `otlp` where there is an endpoint.

    Nothing set means none. The specification's default endpoint is used only when `otlp` is asked for by name.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    asked = environ.get(f"OTEL_{signal}_EXPORTER", "").strip()
    if asked:
        return [name for part in asked.split(",") if (name := part.strip().lower()) and name != "none"]
    general = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    return ["otlp"] if environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "").strip() or general else []


Maker = Callable[[MeterProvider], Any]  # makes an exporter, which may count on the given meters what it delivers


def load(signal: Signal, name: str, environ: Mapping[str, str]) -> Maker:
    """What makes the exporter of that name. Raises ValueError, saying what is allowed, for one that is not there."""
    if name == "otlp":
        variable = f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"
        protocol = environ.get(variable, "").strip() or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").strip()
        if protocol and protocol not in _PROTOCOLS:
            raise ValueError(f"OTLP protocol {protocol!r}; allowed: {', '.join(_PROTOCOLS)}")
        name = _PROTOCOLS[protocol or "grpc"]
    made: Callable[..., Any] = _entry(f"opentelemetry_{signal.lower()}_exporter", name)
    if name not in _PROTOCOLS.values():
        return lambda meters: made()
    channel = {"channel_options": _CHANNEL} if name == _PROTOCOLS["grpc"] else {}
    return lambda meters: made(meter_provider=meters, **channel)


def propagator(environ: Mapping[str, str]) -> TextMapPropagator:
    """What OTEL_PROPAGATORS asks for; W3C trace context and baggage by default."""
    asked = environ.get("OTEL_PROPAGATORS", "").strip() or "tracecontext,baggage"
    names = [name for part in asked.split(",") if (name := part.strip()) and name != "none"]
    return CompositePropagator([_entry("opentelemetry_propagator", name)() for name in dict.fromkeys(names)])


@contextmanager
def environment(environ: Mapping[str, str]) -> Iterator[None]:
    """Shows the SDK, which reads the process's environment, the one that was handed over, and then its own again."""
    given = {key: value for key, value in environ.items() if key.startswith("OTEL_")}
    present = {key: value for key, value in os.environ.items() if key.startswith("OTEL_")}
    if given == present:
        yield
        return
    try:
        for key in present:
            del os.environ[key]
        os.environ.update(given)
        yield
    finally:
        for key in given:
            os.environ.pop(key, None)
        os.environ.update(present)


def _entry(group: str, name: str) -> Any:
    found = {entry.name: entry for entry in entry_points(group=group)}
    if name not in found:
        raise ValueError(f"{name!r} is not installed in {group}; there are: {', '.join(sorted(found))}")
    return found[name].load()
