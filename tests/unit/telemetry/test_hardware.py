"""The machine's metrics: every known value, and none for an unknown one."""

from __future__ import annotations

import os
from collections.abc import Callable
from unittest import mock

import pytest

from draftd.errors import NotServing
from draftd.hardware.state import HardwareSample, HardwareState, HardwareView, MemoryPressure
from draftd.settings import TelemetrySettings
from draftd.telemetry import catalog
from draftd.telemetry.setup import Sources, Telemetry
from tests.otlp import OtlpReceiver
from tests.unit.telemetry.scene import INFO, STATUS, Scene, errors_of

PREFIXES = ("system.", "process.", "hw.", "draftd.memory.", "draftd.thermal.", "draftd.power.", "draftd.hardware.")
MACHINE = {metric.name for metric in catalog.METRICS if metric.name.startswith(PREFIXES)}
SPAN_ATTRIBUTES = {"draftd.memory.pressure", "draftd.memory.headroom", "draftd.thermal.level"}


VALUES = {
    catalog.MEMORY_HEADROOM: 3_000,
    catalog.MEMORY_FLOOR: 10_000,
    catalog.MEMORY_PRESSURE: 1,
    catalog.MEMORY_CRITICAL: 2.5,
    catalog.MEMORY_SWAP_INS: 4_096,
    catalog.MEMORY_WORKING_SET: 17_000,
    catalog.MEMORY_GPU: 1_000,
    catalog.MEMORY_FREE: 0.37,
    catalog.POWER_LOW_MODE: 0,
    catalog.POWER_PLUGGED_IN: 1,
    catalog.THERMAL_LEVEL: 2,
    catalog.THERMAL_THROTTLES: 4,
    catalog.SYSTEM_MEMORY_LIMIT: 24_000,
    catalog.PROCESS_MEMORY: 900,
}
SERIES = [
    (catalog.SYSTEM_MEMORY_USAGE, "system.memory.state", {"free": 6_000, "wired": 18_000}),
    (catalog.SYSTEM_MEMORY_UTILIZATION, "system.memory.state", {"free": 0.25, "wired": 0.75}),
    (catalog.SYSTEM_PAGING_USAGE, "system.paging.state", {"used": 700, "free": 0}),
    (catalog.SYSTEM_PAGING_OPERATIONS, "system.paging.direction", {"in": 33}),
    (catalog.MEMORY_MLX, "draftd.memory.mlx.state", {"active": 500, "cache": 0, "peak": 600}),
    (catalog.GPU_UTILIZATION, "hw.id", {"gpu": 0.25}),
    (catalog.HW_TEMPERATURE, "hw.id", {"cpu": 43.5, "gpu": 36.5}),
    (catalog.HW_FAN_SPEED, "hw.id", {"fan0": 999}),
    (catalog.HW_POWER, "hw.id", {"cpu": 3.5, "gpu": 0, "ram": 0.5, "system": 9.5}),
    (catalog.HW_POWER, "hw.type", {"cpu": 3.5, "gpu": 0, "memory": 0.5, "enclosure": 9.5}),
    (catalog.HARDWARE_ERRORS, "draftd.hardware.reading", {"macmon": 2}),
]


def test_every_known_hardware_value_is_exported_as_a_metric(scene: Scene, receiver: OtlpReceiver) -> None:
    scene.telemetry.shutdown(30.0)
    points = {metric: [(point.value, point.attributes) for point in receiver.points(metric.name)] for metric in VALUES}
    assert points == {metric: [(value, {})] for metric, value in VALUES.items()}
    for metric, attribute, values in SERIES:
        assert receiver.by(metric.name, attribute) == values, metric.name
    assert {metric.name for metric in (*VALUES, *(metric for metric, _, _ in SERIES))} == MACHINE


@pytest.mark.parametrize(
    "state", [None, HardwareState(HardwareSample(), 100.0)], ids=["no sample yet", "nothing known"]
)
def test_unknown_hardware_values_are_exported_neither_as_metrics_nor_on_spans(
    open_scene: Callable[..., Scene], receiver: OtlpReceiver, state: HardwareState | None
) -> None:
    scene = open_scene(receiver.environ(), hardware=HardwareView(state))
    scene.serve()
    scene.telemetry.shutdown(30.0)
    assert receiver.metric_names() & MACHINE == set()
    assert "draftd.tokens" in receiver.metric_names()
    (span,) = receiver.spans("chat nano")
    assert span.attributes.keys() & SPAN_ATTRIBUTES == set()
    assert errors_of(scene.telemetry) == {}


def test_hardware_values_of_zero_are_exported(open_scene: Callable[..., Scene], receiver: OtlpReceiver) -> None:
    calm = HardwareState(HardwareSample(memory_pressure=MemoryPressure.NORMAL), 100.0, headroom=0, throttles=0)
    scene = open_scene(receiver.environ(), hardware=HardwareView(calm))
    scene.serve()
    scene.telemetry.shutdown(30.0)
    names = {"draftd.memory.pressure", "draftd.memory.headroom", "draftd.thermal.throttles"}
    assert receiver.metric_names() & MACHINE == names
    assert [receiver.total(name) for name in names] == [0, 0, 0]
    (span,) = receiver.spans("chat nano")
    assert (span.attributes["draftd.memory.pressure"], span.attributes["draftd.memory.headroom"]) == (0, 0)


def test_inference_span_has_memory_pressure_headroom_and_thermal_level(scene: Scene, receiver: OtlpReceiver) -> None:
    scene.serve()
    scene.telemetry.begin_inference(scene.start()).refuse(NotServing("draining"))
    scene.telemetry.shutdown(30.0)
    readings = [{name: span.attributes[name] for name in SPAN_ATTRIBUTES} for span in receiver.spans("chat nano")]
    reading = {"draftd.memory.pressure": 1, "draftd.memory.headroom": 3_000, "draftd.thermal.level": 2}
    assert readings == [reading, reading]


def test_telemetry_without_a_hardware_view_exports_no_hardware_metrics(receiver: OtlpReceiver) -> None:
    with mock.patch.dict(os.environ, receiver.environ()):
        telemetry = Telemetry.start(TelemetrySettings())
    telemetry.observe(Sources(lambda: INFO, lambda: STATUS))
    telemetry.shutdown(30.0)
    assert "draftd.engine.weights" in receiver.metric_names()
    assert receiver.metric_names() & MACHINE == set()
