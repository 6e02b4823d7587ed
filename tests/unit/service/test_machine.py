"""The machine's state to protobuf: all that is known, and nothing for what is not."""

from __future__ import annotations

import pytest

from draftd.fronts.grpc.machine import hardware
from draftd.hardware.sample import HardwareSample, MemoryPressure, ThermalLevel
from draftd.hardware.state import FixedView, HardwareState
from draftd.v1 import control_pb2 as pb


def test_before_the_first_sample_there_is_nothing_to_tell() -> None:
    assert hardware(FixedView(), 5.0) is None


def test_what_is_not_known_is_unset() -> None:
    found = hardware(FixedView(HardwareState(HardwareSample(), at=3.0)), 5.0)
    assert found is not None
    assert [field.name for field, _ in found.ListFields()] == ["age"]
    assert found.age.seconds == 2


def test_zero_is_set() -> None:
    calm = HardwareSample(
        memory_pressure=MemoryPressure.NORMAL, swap_used=0, mlx_active=0, gpu_utilization=0.0, low_power=False,
        plugged_in=False,
    )  # fmt: skip
    found = hardware(
        FixedView(HardwareState(calm, 3.0, headroom=0, critical_seconds=0.0, throttles=0, swap_ins=0)), 5.0
    )
    assert found is not None
    names = {field.name for field, _ in found.ListFields()}
    assert names == {
        "age", "memory_pressure", "memory_headroom_bytes", "critical_pressure", "swap_used_bytes", "swap_in_bytes",
        "mlx_active_bytes", "gpu_utilization", "throttles", "low_power", "on_mains",
    }  # fmt: skip


def test_everything_has_its_own_field() -> None:
    sample = HardwareSample(
        memory_pressure=MemoryPressure.CRITICAL,
        swap_used=7,
        process_resident=10,
        mlx_active=11,
        mlx_cache=12,
        mlx_peak=13,
        mlx_working_set=14,
        gpu_memory=15,
        gpu_utilization=0.5,
        low_power=True,
        plugged_in=True,
        temperatures={"cpu": 40.0},
        fans={"fan0": 900.0},
        power={"gpu": 3.0},
    )
    state = HardwareState(
        sample, 3.0, limit=1, available=2, floor=3, headroom=-1, critical_seconds=4.5,
        thermal_level=ThermalLevel.HEAVY, throttles=6, swap_ins=8,
    )  # fmt: skip
    found = hardware(FixedView(state, errors={"macmon": 2}), 3.5)
    expected = pb.Hardware(
        memory_pressure=pb.MEMORY_PRESSURE_CRITICAL,
        memory_headroom_bytes=-1,
        memory_floor_bytes=3,
        memory_available_bytes=2,
        memory_limit_bytes=1,
        swap_used_bytes=7,
        swap_in_bytes=8,
        process_resident_bytes=10,
        mlx_active_bytes=11,
        mlx_cache_bytes=12,
        mlx_peak_bytes=13,
        mlx_working_set_bytes=14,
        gpu_memory_bytes=15,
        gpu_utilization=0.5,
        thermal_level=pb.THERMAL_LEVEL_HEAVY,
        throttles=6,
        low_power=True,
        on_mains=True,
        temperatures={"cpu": 40.0},
        fans={"fan0": 900.0},
        power={"gpu": 3.0},
        errors={"macmon": 2},
    )
    expected.age.nanos = 500_000_000
    expected.critical_pressure.FromMilliseconds(4_500)
    assert found == expected


@pytest.mark.parametrize("level", ThermalLevel)
def test_every_thermal_level_has_the_same_name_in_the_contract(level: ThermalLevel) -> None:
    found = hardware(FixedView(HardwareState(HardwareSample(), 3.0, thermal_level=level)), 5.0)
    assert found is not None
    assert pb.ThermalLevel.Name(found.thermal_level) == f"THERMAL_LEVEL_{level.name}"


@pytest.mark.parametrize("pressure", MemoryPressure)
def test_every_pressure_has_the_same_name_in_the_contract(pressure: MemoryPressure) -> None:
    found = hardware(FixedView(HardwareState(HardwareSample(memory_pressure=pressure), 3.0)), 5.0)
    assert found is not None
    assert pb.MemoryPressure.Name(found.memory_pressure) == f"MEMORY_PRESSURE_{pressure.name}"
