"""The monitor samples on its own thread: the latest state is there at once, and nothing that hangs holds it up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping

import pytest

from draftd.hardware.monitor import HardwareMonitor
from draftd.hardware.probe import ScriptedProbe
from draftd.hardware.sample import HardwareSample, MemoryPressure
from tests.waiting import until

CRITICAL = HardwareSample(memory_pressure=MemoryPressure.CRITICAL)


class HangingProbe:
    """The first sample comes, the next one never does until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.hangs = threading.Event()
        self.thread = ""
        self.errors: Mapping[str, int] = {}

    def sample(self) -> HardwareSample:
        if self.thread:
            self.hangs.set()
            self.released.wait(60)
        self.thread = threading.current_thread().name
        return HardwareSample(memory_total=24)


@pytest.fixture
def hanging() -> Iterator[HangingProbe]:
    probe = HangingProbe()
    yield probe
    probe.released.set()


def test_samples_follow_each_other_at_the_period() -> None:
    probe = ScriptedProbe([HardwareSample(memory_total=1), HardwareSample(memory_total=2)])
    monitor = HardwareMonitor(probe, period_seconds=0.05)
    assert monitor.state is None
    began = time.monotonic()
    monitor.start()
    until(lambda: probe.taken >= 4)
    assert time.monotonic() - began >= 0.15, "three periods lie between four samples"
    assert monitor.close(5.0)
    assert probe.closed
    assert monitor.state is not None
    assert monitor.state.sample.memory_total == 2


def test_the_first_sample_is_taken_at_once() -> None:
    monitor = HardwareMonitor(ScriptedProbe([CRITICAL]), period_seconds=3600)
    monitor.start()
    until(lambda: monitor.state is not None)
    began = time.monotonic()
    assert monitor.close(5.0)
    assert time.monotonic() - began < 5, "a period is not waited out"


def test_after_closing_no_sample_is_taken() -> None:
    probe = ScriptedProbe([CRITICAL])
    monitor = HardwareMonitor(probe, period_seconds=0.01)
    monitor.start()
    until(lambda: probe.taken > 0)
    assert monitor.close(5.0)
    taken = probe.taken
    time.sleep(0.05)
    assert probe.taken == taken


def test_the_state_carries_over_from_sample_to_sample() -> None:
    ticks = iter(range(0, 1_000_000, 7))
    probe = ScriptedProbe([CRITICAL, CRITICAL, HardwareSample(memory_pressure=MemoryPressure.NORMAL)])
    monitor = HardwareMonitor(probe, period_seconds=0.01, clock=lambda: float(next(ticks)))
    monitor.start()
    until(lambda: probe.taken >= 5)
    monitor.close(5.0)
    assert monitor.state is not None
    assert monitor.state.critical_seconds == 14.0


def test_the_floor_is_the_configured_one() -> None:
    sample = HardwareSample(memory_total=24, memory_available=20)
    monitor = HardwareMonitor(ScriptedProbe([sample]), period_seconds=60, memory_floor=5)
    monitor.start()
    until(lambda: monitor.state is not None)
    monitor.close(5.0)
    assert monitor.state is not None
    assert (monitor.state.floor, monitor.state.headroom) == (5, 15)


def test_a_hung_reading_blocks_neither_reader_nor_closing(hanging: HangingProbe) -> None:
    monitor = HardwareMonitor(hanging, period_seconds=0.01)
    monitor.start()
    assert hanging.hangs.wait(10)
    began = time.monotonic()
    assert monitor.state is not None
    assert monitor.state.sample.memory_total == 24
    assert not monitor.close(0.1), "it says that something was left behind"
    assert time.monotonic() - began < 5


def test_the_thread_is_its_own_and_does_not_keep_the_process(hanging: HangingProbe) -> None:
    monitor = HardwareMonitor(hanging, period_seconds=0.01)
    monitor.start()
    assert hanging.hangs.wait(10)
    assert hanging.thread != threading.current_thread().name
    (thread,) = [thread for thread in threading.enumerate() if thread.name == hanging.thread]
    assert thread.daemon
    monitor.close(0.0)


def test_a_probe_that_fails_is_counted_and_asked_again() -> None:
    probe = ScriptedProbe([CRITICAL, ValueError("on purpose"), HardwareSample(memory_total=2)], {"gpu": 3})
    monitor = HardwareMonitor(probe, period_seconds=0.01)
    assert monitor.errors == {"gpu": 3}
    monitor.start()
    until(lambda: probe.taken >= 4)
    monitor.close(5.0)
    assert monitor.errors == {"gpu": 3, "probe": 1}
    assert monitor.state is not None
    assert monitor.state.sample.memory_total == 2


def test_closing_what_never_started_is_no_error() -> None:
    assert HardwareMonitor(ScriptedProbe([CRITICAL]), period_seconds=1).close(0.0)
