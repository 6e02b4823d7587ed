"""Sampling: a reading that fails or hangs is absent and counted. It delays no other reading, no reader, no closing."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator, Sequence

import pytest

from draftd.hardware.monitor import HardwareMonitor, HardwareProbe, Readings
from draftd.hardware.state import HardwareSample, MemoryPressure
from draftd.hardware.system import common_readings
from tests.wait_until import until

CRITICAL = HardwareSample(memory_pressure=MemoryPressure.CRITICAL)
SWAP: Readings = {"swap": lambda: HardwareSample(swap_used=0)}


def fails() -> HardwareSample:
    raise OSError("on purpose")


class Scripted(HardwareProbe):
    """Returns the samples in turn, then the last one again and again. Raises exceptions among them."""

    def __init__(self, *samples: HardwareSample | Exception) -> None:
        super().__init__({})
        self.samples: Sequence[HardwareSample | Exception] = samples
        self.samples_taken = 0

    def sample(self) -> HardwareSample:
        sample = self.samples[min(self.samples_taken, len(self.samples) - 1)]
        self.samples_taken += 1
        if isinstance(sample, Exception):
            raise sample
        return sample


class Hanging(HardwareProbe):
    """Returns the first sample; the next call blocks until `released` is set."""

    def __init__(self) -> None:
        super().__init__({})
        self.released, self.hangs = threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None

    def sample(self) -> HardwareSample:
        if self.thread is not None:
            self.hangs.set()
            self.released.wait(60)
        self.thread = threading.current_thread()
        return HardwareSample(memory_total=24)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    probe = Hanging()
    yield probe
    probe.released.set()


def test_failing_hardware_reading_leaves_only_its_values_absent_and_warns_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    total: Readings = {"total": lambda: HardwareSample(memory_total=24)}
    probe = HardwareProbe({**total, "broken": fails, **SWAP})
    assert probe.sample() == HardwareSample(memory_total=24, swap_used=0)
    before = probe.errors
    assert probe.sample() == HardwareSample(memory_total=24, swap_used=0)
    assert before == {"broken": 1}, "a mapping that was read does not change"
    assert probe.errors == {"broken": 2}
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "cannot read broken" in record.getMessage()


def test_hanging_hardware_reading_blocks_only_one_thread_and_recovers() -> None:
    released = threading.Event()
    calls = 0

    def hangs() -> HardwareSample:
        nonlocal calls
        calls += 1
        released.wait(60)
        return HardwareSample(gpu_memory=7)

    probe = HardwareProbe({"gpu": hangs, **SWAP}, reading_seconds=0.05)
    threads = threading.active_count()
    for _ in range(5):
        assert probe.sample().gpu_memory is None
    assert probe.errors["gpu"] == 5
    assert calls == 1
    assert threading.active_count() <= threads + 2  # one hangs, the other reads
    released.set()
    until(lambda: probe.sample() == HardwareSample(gpu_memory=7, swap_used=0), 30)
    assert calls >= 2, "a reading that returned late is called again, and its late sample is dropped"


def test_finished_hardware_sample_leaves_no_thread_behind() -> None:
    threads = threading.active_count()
    HardwareProbe({**SWAP, "broken": fails}).sample()
    until(lambda: threading.active_count() == threads)


def test_merged_hardware_sample_takes_zero_as_a_value() -> None:
    first = HardwareSample(memory_total=24, memory_pressure=MemoryPressure.NORMAL, swap_used=5)
    merged = first.merge(HardwareSample(swap_used=0))
    assert merged == HardwareSample(memory_total=24, memory_pressure=MemoryPressure.NORMAL, swap_used=0)


def test_reading_added_to_hardware_probe_gives_values_or_fails_alone() -> None:
    probe = HardwareProbe(common_readings())
    probe.add({"mlx": lambda: HardwareSample(mlx_active=3, mlx_cache=0)})
    sample = probe.sample()
    assert (sample.mlx_active, sample.mlx_cache, sample.mlx_peak) == (3, 0, None)

    def broken() -> HardwareSample:
        raise RuntimeError("on purpose")

    probe = HardwareProbe(common_readings())
    probe.add({"mlx": broken})
    sample = probe.sample()
    assert sample.memory_total
    assert sample.mlx_active is None
    assert probe.errors == {"mlx": 1}


@pytest.mark.parametrize("plugged_in", [True, False, None])
def test_hardware_sample_power_source_comes_from_psutil(
    monkeypatch: pytest.MonkeyPatch, plugged_in: bool | None
) -> None:
    battery = None if plugged_in is None else type("Battery", (), {"power_plugged": plugged_in})()
    monkeypatch.setattr("psutil.sensors_battery", lambda: battery)
    assert HardwareProbe(common_readings()).sample().plugged_in is plugged_in


def test_hardware_monitor_takes_samples_until_closed() -> None:
    probe = Scripted(HardwareSample(memory_total=1), HardwareSample(memory_total=2))
    monitor = HardwareMonitor(probe, period_seconds=0.01)
    assert monitor.state is None
    monitor.start()
    until(lambda: probe.samples_taken >= 4)
    assert monitor.close(30), "the sampling thread has ended"
    assert monitor.state is not None
    assert monitor.state.sample.memory_total == 2


def test_hardware_monitor_samples_at_once_and_closes_without_waiting_a_period() -> None:
    monitor = HardwareMonitor(Scripted(CRITICAL), period_seconds=3600)
    monitor.start()
    until(lambda: monitor.state is not None)
    assert monitor.close(60), "closing does not wait for the end of a period"


def test_hardware_monitor_accumulates_critical_seconds_across_samples() -> None:
    ticks = itertools.count(step=7)
    probe = Scripted(CRITICAL, CRITICAL, HardwareSample(memory_pressure=MemoryPressure.NORMAL))
    monitor = HardwareMonitor(probe, period_seconds=0.01, clock=lambda: float(next(ticks)))
    monitor.start()
    until(lambda: probe.samples_taken >= 5)
    monitor.close(30)
    assert monitor.state is not None
    assert monitor.state.critical_seconds == 14.0


def test_hardware_monitor_uses_configured_memory_floor_for_headroom() -> None:
    probe = Scripted(HardwareSample(memory_total=24, memory_available=20))
    monitor = HardwareMonitor(probe, period_seconds=60, memory_floor=5)
    monitor.start()
    until(lambda: monitor.state is not None)
    monitor.close(30)
    assert monitor.state is not None
    assert (monitor.state.floor, monitor.state.headroom) == (5, 15)


def test_hung_hardware_reading_blocks_neither_state_access_nor_closing(hanging: Hanging) -> None:
    monitor = HardwareMonitor(hanging, period_seconds=0.01)
    monitor.start()
    assert hanging.hangs.wait(30)
    assert monitor.state is not None
    assert monitor.state.sample.memory_total == 24
    assert not monitor.close(0.1), "False: the thread is still running"
    assert hanging.thread is not None
    assert hanging.thread.daemon, "the thread does not keep the process alive"


def test_failing_hardware_probe_is_counted_and_sampled_again() -> None:
    probe = Scripted(CRITICAL, ValueError("on purpose"), HardwareSample(memory_total=2))
    monitor = HardwareMonitor(probe, period_seconds=0.01)
    monitor.start()
    until(lambda: probe.samples_taken >= 4)
    monitor.close(30)
    assert monitor.errors == {"probe": 1}
    assert monitor.state is not None
    assert monitor.state.sample.memory_total == 2


def test_closing_unstarted_hardware_monitor_succeeds() -> None:
    assert HardwareMonitor(Scripted(CRITICAL), period_seconds=1).close(0.0)
