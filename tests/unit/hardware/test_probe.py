"""A probe keeps its readings apart: what fails is absent and counted, and the rest goes on."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

import pytest

from draftd.hardware.common import common_readings
from draftd.hardware.probe import Reading, ReadingsProbe, ScriptedProbe
from draftd.hardware.sample import HardwareSample, MemoryPressure


def fails() -> HardwareSample:
    raise OSError("on purpose")


def test_a_reading_that_fails_costs_only_its_own_values() -> None:
    probe = ReadingsProbe(
        [
            Reading("total", lambda: HardwareSample(memory_total=24)),
            Reading("broken", fails),
            Reading("swap", lambda: HardwareSample(swap_used=0)),
        ]
    )
    assert probe.sample() == HardwareSample(memory_total=24, swap_used=0)
    assert probe.sample() == HardwareSample(memory_total=24, swap_used=0)
    assert probe.errors == {"broken": 2}


def test_a_reading_that_hangs_costs_only_its_own_values_and_leaves_one_thread() -> None:
    released = threading.Event()
    asked = 0

    def hangs() -> HardwareSample:
        nonlocal asked
        asked += 1
        released.wait(30)
        return HardwareSample(gpu_memory=7)

    probe = ReadingsProbe(
        [Reading("gpu", hangs), Reading("swap", lambda: HardwareSample(swap_used=0))], reading_seconds=0.05
    )
    threads = threading.active_count()
    for _ in range(5):
        assert probe.sample() == HardwareSample(swap_used=0)
    assert probe.errors == {"gpu": 5}
    assert asked == 1
    assert threading.active_count() == threads + 2  # the one that hangs, and the one that goes on
    released.set()
    deadline = time.monotonic() + 10
    while probe.sample() != HardwareSample(gpu_memory=7, swap_used=0):
        assert time.monotonic() < deadline
    assert asked == 2  # once it has returned it is asked again; its late answer was nobody's


def test_a_failure_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    probe = ReadingsProbe([Reading("gpu", fails)])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            probe.sample()
    assert len(caplog.records) == 1
    assert "cannot read gpu" in caplog.text


def test_errors_that_were_asked_for_do_not_change_under_the_reader() -> None:
    probe = ReadingsProbe([Reading("broken", fails)])
    probe.sample()
    before = probe.errors
    probe.sample()
    assert before == {"broken": 1}


def test_what_is_absent_in_one_reading_takes_nothing_from_another() -> None:
    first = HardwareSample(memory_total=24, memory_pressure=MemoryPressure.NORMAL)
    assert first.merged(HardwareSample(swap_used=1)) == HardwareSample(
        memory_total=24, memory_pressure=MemoryPressure.NORMAL, swap_used=1
    )


def test_zero_is_a_value() -> None:
    assert HardwareSample(swap_used=5).merged(HardwareSample(swap_used=0)).swap_used == 0


def test_a_script_ends_in_its_last_sample() -> None:
    first, last = HardwareSample(memory_total=1), HardwareSample(memory_total=2)
    probe = ScriptedProbe([first, ValueError("on purpose"), last])
    assert probe.sample() is first
    with pytest.raises(ValueError, match="on purpose"):
        probe.sample()
    assert [probe.sample(), probe.sample()] == [last, last]
    assert probe.taken == 4


def test_a_script_has_at_least_one_sample() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ScriptedProbe([])


@dataclass
class Bytes:
    active: int = 3
    cache: int = 0
    peak: int = 5
    working_set: int | None = None


def test_mlx_s_memory_is_injected() -> None:
    found = ReadingsProbe(common_readings(Bytes)).sample()
    assert (found.mlx_active, found.mlx_cache, found.mlx_peak, found.mlx_working_set) == (3, 0, 5, None)


def test_an_mlx_that_fails_costs_nothing_else() -> None:
    def broken() -> Bytes:
        raise RuntimeError("on purpose")

    probe = ReadingsProbe(common_readings(broken))
    found = probe.sample()
    assert found.memory_total
    assert found.mlx_active is None
    assert probe.errors == {"mlx": 1}


@pytest.mark.parametrize("plugged_in", [True, False])
def test_the_power_source(monkeypatch: pytest.MonkeyPatch, plugged_in: bool) -> None:
    battery = type("Battery", (), {"power_plugged": plugged_in})()
    monkeypatch.setattr("psutil.sensors_battery", lambda: battery)
    assert ReadingsProbe(common_readings(lambda: None)).sample().plugged_in is plugged_in


def test_a_machine_without_a_battery_has_no_power_source_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.sensors_battery", lambda: None)
    assert ReadingsProbe(common_readings(lambda: None)).sample().plugged_in is None


def test_a_closed_probe_leaves_no_thread() -> None:
    threads = threading.active_count()
    probe = ReadingsProbe([Reading("swap", lambda: HardwareSample(swap_used=0))])
    probe.sample()
    assert threading.active_count() == threads + 1
    probe.close(5)
    assert threading.active_count() == threads
