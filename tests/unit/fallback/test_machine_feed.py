"""The hardware's readings in the guard: each counts once, and unknown values stay unknown."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftd.fallback.signal_feed import MachineFeed
from draftd.fallback.signals import MachineReading
from draftd.hardware.state import HardwareSample, HardwareState, MemoryPressure, ThermalLevel


@dataclass
class View:
    state: HardwareState | None = None
    errors: dict[str, int] = field(default_factory=dict)


def reading(at: float, pressure: MemoryPressure | None = None, thermal: ThermalLevel | None = None) -> HardwareState:
    return HardwareState(HardwareSample(memory_pressure=pressure, thermal_level=thermal), at, swap_ins=7)


def test_machine_feed_yields_each_hardware_reading_once_with_unknown_values_as_none() -> None:
    view = View()
    feed = MachineFeed(view, lambda: 0.0)
    assert feed.reading() is None
    view.state = reading(0.0)
    assert feed.reading() == MachineReading(None, None, 7)
    assert feed.reading() is None
    view.state = reading(5.0, MemoryPressure.WARN, ThermalLevel.MODERATE)
    assert feed.reading() == MachineReading(False, False, 7)
    view.state = reading(10.0, MemoryPressure.CRITICAL, ThermalLevel.TRAPPING)
    assert feed.reading() == MachineReading(True, True, 7)


def test_machine_feed_reports_no_pressure_once_when_hardware_readings_stop() -> None:
    now, view = 0.0, View(reading(0.0, MemoryPressure.CRITICAL))
    feed = MachineFeed(view, lambda: now)
    assert feed.reading() == MachineReading(True, None, 7)
    now = 59.0
    assert feed.reading() is None
    now = 61.0
    assert feed.reading() == MachineReading(False, False, None)
    assert feed.reading() is None
    view.state = reading(70.0, MemoryPressure.CRITICAL)
    assert feed.reading() == MachineReading(True, None, 7)


def test_machine_feed_does_not_report_end_of_readings_during_a_long_reading_period() -> None:
    now, view = 0.0, View(reading(0.0))
    feed = MachineFeed(view, lambda: now)
    feed.reading()
    now, view.state = 600.0, reading(600.0, MemoryPressure.CRITICAL)
    assert feed.reading() == MachineReading(True, None, 7)
    now = 2000.0
    assert feed.reading() is None
    now = 2401.0
    assert feed.reading() == MachineReading(False, False, None)
