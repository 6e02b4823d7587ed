"""macOS: the system's answers are decoded; without Apple's libraries the calls fail one by one.

Every raw value is written from Apple's headers and the tools' documented output: none was recorded on a Mac.
"""

from __future__ import annotations

import json
import platform
import struct
import sys
from collections.abc import Callable
from typing import Any

import pytest

from draftd.hardware import apple, darwin, system
from draftd.hardware.apple import SystemApple
from draftd.hardware.monitor import HardwareProbe
from draftd.hardware.state import HardwareSample, MemoryPressure, ThermalLevel

GIB = 1024**3
PAGE = 16384

# mach/vm_statistics.h: struct vm_statistics64, with one field after those that are read.
VM_STATISTICS = struct.pack(
    "<4I9Q2I4Q4IQ",
    1_000, 2_000, 3_000, 4_000,  # free, active, inactive, wired
    11, 12, 13, 14, 15, 16, 17, 18, 19,  # zero fills, reactivations, page-ins, page-outs, faults and so on
    21, 22,  # purgeable, speculative
    31, 32, 33, 34,  # decompressions, compressions, swap-ins, swap-outs
    5_000, 42, 43, 44,  # compressor's pages, throttled, external, internal
    51,  # uncompressed pages in the compressor
)  # fmt: skip
# sys/sysctl.h: struct xsw_usage.
SWAP = struct.pack("<QQQII", 4 * GIB, 3 * GIB, 1 * GIB, PAGE, 1)
IOREG = """\
+-o AGXAcceleratorG16G  <class AGXAcceleratorG16G, id 0x1000004c5, registered, matched, active, busy 0 (0 ms), retain 94>
    {
      "IOClass" = "AGXAcceleratorG16G"
      "PerformanceStatistics" = {"In use system memory (driver)"=0,"Alloc system memory"=6442450944,"Tiler Utilization %"=3,"recoveryCount"=0,"Renderer Utilization %"=3,"Device Utilization %"=4,"In use system memory"=1073741824}
      "model" = "Apple M4"
    }
"""  # noqa: E501
# The example of macmon's readme, shortened.
MACMON: dict[str, object] = {
    "timestamp": "2025-02-24T20:38:15.427569+00:00",
    "temp": {"cpu_temp_avg": 43.73614, "gpu_temp_avg": 36.95167},
    "memory": {"ram_total": 25769803776, "ram_usage": 20985479168},
    "fans": [{"name": "fan0", "rpm": 999, "max_rpm": 4900}, {"name": "fan1", "rpm": 1200, "max_rpm": 5200}],
    "cpu_power": 0.20486385,
    "gpu_power": 0.017451683,
    "ane_power": 0.0,
    "all_power": 0.22231553,
    "sys_power": 5.876533,
    "ram_power": 0.11635789,
}


def int32(value: int) -> bytes:
    return struct.pack("<i", value)


class RecordedApple:
    """Answers like a Mac with 24 GB. Calls named in `missing` raise OSError."""

    page_size = PAGE

    def __init__(self, missing: set[str] | None = None) -> None:
        self.missing = missing or set()
        self.commands: list[tuple[str, ...]] = []

    def thermal_pressure(self) -> int:
        return self._unless("thermal_pressure", 2)

    def thermal_state(self) -> int:
        return self._unless("thermal_state", 1)

    def low_power(self) -> bool:
        return bool(self._unless("low_power", 1))

    def sysctl(self, name: str) -> bytes:
        answers = {
            "kern.memorystatus_vm_pressure_level": int32(2),
            "kern.memorystatus_level": int32(37),
            "vm.swapusage": SWAP,
        }
        if name in self.missing:
            raise OSError(name)
        return answers[name]

    def vm_statistics(self) -> bytes:
        self._unless("vm_statistics", 0)
        return VM_STATISTICS

    def run(self, command: tuple[str, ...]) -> str:
        self.commands.append(command)
        if command[0] in self.missing:
            raise OSError(command[0])
        return IOREG if command[0].endswith("ioreg") else json.dumps(MACMON) + "\n"

    def _unless(self, name: str, value: int) -> int:
        if name in self.missing:
            raise OSError(name)
        return value


def test_macos_readings_fill_every_field_of_hardware_sample() -> None:
    probe = HardwareProbe(darwin.darwin_readings(RecordedApple(), "/opt/homebrew/bin/macmon"))
    assert probe.sample() == HardwareSample(
        memory_free_share=0.37,
        memory_states={
            "free": 1_000 * PAGE,
            "active": 2_000 * PAGE,
            "inactive": 3_000 * PAGE,
            "wired": 4_000 * PAGE,
            "compressed": 5_000 * PAGE,
        },
        memory_pressure=MemoryPressure.WARN,
        swap_used=1 * GIB,
        swap_free=3 * GIB,
        swap_in_pages=33,
        swap_in_bytes=33 * PAGE,
        gpu_memory=1073741824,
        gpu_utilization=0.04,
        thermal_level=ThermalLevel.HEAVY,
        low_power=True,
        temperatures={"cpu": 43.73614, "gpu": 36.95167},
        fans={"fan0": 999.0, "fan1": 1200.0},
        power={"cpu": 0.20486385, "gpu": 0.017451683, "ane": 0.0, "ram": 0.11635789, "system": 5.876533},
    )
    assert probe.errors == {}


@pytest.mark.parametrize(
    ("missing", "reading", "absent"),
    [
        ("low_power", "low_power", {"low_power"}),
        ("kern.memorystatus_vm_pressure_level", "pressure", {"memory_pressure"}),
        ("kern.memorystatus_level", "free_share", {"memory_free_share"}),
        ("vm.swapusage", "swap", {"swap_used", "swap_free"}),
        ("vm_statistics", "memory_states", {"memory_states", "swap_in_pages", "swap_in_bytes"}),
        ("/usr/sbin/ioreg", "gpu", {"gpu_memory", "gpu_utilization"}),
        ("/bin/macmon", "macmon", {"temperatures", "fans", "power"}),
    ],
)
def test_failing_macos_call_leaves_only_its_own_values_absent(missing: str, reading: str, absent: set[str]) -> None:
    whole = HardwareProbe(darwin.darwin_readings(RecordedApple(), "/bin/macmon")).sample()
    probe = HardwareProbe(darwin.darwin_readings(RecordedApple({missing}), "/bin/macmon"))
    sample = probe.sample()
    differing = {name for name in HardwareSample.__slots__ if getattr(sample, name) != getattr(whole, name)}
    assert differing == absent
    assert all(getattr(sample, name) is None for name in absent)
    assert probe.errors == {reading: 1}


@pytest.mark.parametrize(
    ("missing", "level"),
    [
        ({"thermal_state"}, ThermalLevel.HEAVY),
        ({"thermal_pressure"}, ThermalLevel.MODERATE),
        ({"thermal_pressure", "thermal_state"}, None),
    ],
)
def test_thermal_level_falls_back_from_fine_to_coarse_macos_scale(
    missing: set[str], level: ThermalLevel | None
) -> None:
    probe = HardwareProbe(darwin.darwin_readings(RecordedApple(missing), None))
    assert probe.sample().thermal_level is level
    assert probe.errors == dict.fromkeys(missing, 1)


def test_missing_macmon_leaves_temperatures_fans_and_power_absent_without_error() -> None:
    apple = RecordedApple()
    probe = HardwareProbe(darwin.darwin_readings(apple, None))
    sample = probe.sample()
    assert (sample.temperatures, sample.fans, sample.power) == (None, None, None)
    assert probe.errors == {}
    assert [command[0] for command in apple.commands] == ["/usr/sbin/ioreg"]


def sample_with(**answers: object) -> HardwareSample:
    """A sample of a Mac without macmon. `answers`: what its calls return, by name."""
    recorded = RecordedApple()
    for name, answer in answers.items():
        setattr(recorded, name, lambda answer=answer: answer)
    return HardwareProbe(darwin.darwin_readings(recorded, None)).sample()


@pytest.mark.parametrize(
    ("raw", "level"), [(1, MemoryPressure.NORMAL), (2, MemoryPressure.WARN), (4, MemoryPressure.CRITICAL)]
)
def test_macos_memory_pressure_levels_are_decoded(raw: int, level: MemoryPressure) -> None:
    assert darwin.pressure_sample(int32(raw)).memory_pressure is level


def test_macos_thermal_levels_are_decoded() -> None:
    levels = [sample_with(thermal_pressure=raw).thermal_level for raw in range(5)]
    assert levels == list(ThermalLevel)
    assert [level.name for level in levels] == ["NOMINAL", "MODERATE", "HEAVY", "TRAPPING", "SLEEPING"]
    assert sample_with(thermal_pressure=33, thermal_state=9).thermal_level is None, "an unknown level is absent"


@pytest.mark.parametrize(
    ("decode", "raw", "message"),
    [
        *((darwin.pressure_sample, int32(level), "expected one of") for level in (0, 3, -1)),
        (darwin.pressure_sample, b"", "0 bytes, expected 4"),
        (darwin.pressure_sample, bytes(8), "8 bytes, expected 4"),
        (darwin.free_share_sample, int32(-1), "free memory -1 %"),
        (darwin.free_share_sample, int32(101), "free memory 101 %"),
        (darwin.swap_sample, b"", "0 bytes, expected 24"),
        (darwin.swap_sample, SWAP[:23], "23 bytes, expected 24"),
        (lambda raw: darwin.pages_sample(raw, PAGE), VM_STATISTICS[:143], "143 bytes"),
        (darwin.gpu_sample, IOREG.replace('"Device Utilization %"=4', '"Device Utilization %"=101'), "101 %"),
        (darwin.macmon_sample, "", "Macmon"),
        (darwin.macmon_sample, "macmon: not supported\n", "Macmon"),
        (darwin.macmon_sample, '{"temp": {"cpu_temp_avg"', "Macmon"),
        (darwin.macmon_sample, '{"temp": {"cpu_temp_avg": "hot"}}', "temp"),
    ],
)
def test_impossible_macos_answers_raise_value_error(
    decode: Callable[[Any], HardwareSample], raw: bytes | str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        decode(raw)


def test_zero_macos_readings_count_as_values() -> None:
    assert darwin.swap_sample(struct.pack("<QQQII", 0, 0, 0, PAGE, 1)) == HardwareSample(swap_used=0, swap_free=0)
    assert darwin.gpu_sample(IOREG.replace("=1073741824}", "=0}")).gpu_memory == 0
    assert [darwin.free_share_sample(int32(n)).memory_free_share for n in (0, 1, 100)] == [0.0, 0.01, 1.0]


def test_macos_vm_statistics_struct_with_appended_fields_is_still_decoded() -> None:
    assert darwin.pages_sample(VM_STATISTICS + bytes(64), PAGE) == darwin.pages_sample(VM_STATISTICS, PAGE)


def test_missing_macos_gpu_values_are_absent_and_several_gpus_are_combined() -> None:
    assert darwin.gpu_sample("") == HardwareSample(), "there is no accelerator"
    without_memory = IOREG.replace('"In use system memory"=', '"Something else"=')
    assert darwin.gpu_sample(without_memory) == HardwareSample(gpu_utilization=0.04)
    without_share = IOREG.replace('"Device Utilization %"=', '"Something else"=')
    assert darwin.gpu_sample(without_share) == HardwareSample(gpu_memory=1073741824)
    for percent, share in ((0, 0.0), (1, 0.01), (100, 1.0)):
        text = IOREG.replace('"Device Utilization %"=4', f'"Device Utilization %"={percent}')
        assert darwin.gpu_sample(text).gpu_utilization == share
    two = darwin.gpu_sample(IOREG + IOREG.replace('"Device Utilization %"=4', '"Device Utilization %"=87'))
    assert two == HardwareSample(gpu_memory=2 * 1073741824, gpu_utilization=0.87), (
        "memory adds up, the busier one counts"
    )


def test_values_macmon_does_not_measure_are_absent() -> None:
    without = darwin.macmon_sample(json.dumps({**MACMON, "fans": [], "sys_power": 0.0}))
    assert without.fans is None
    assert set(without.power or ()) == {"cpu", "gpu", "ane", "ram"}
    older = {name: value for name, value in MACMON.items() if name != "fans"}
    assert darwin.macmon_sample(json.dumps(older)).fans is None
    heat = {"cpu_temp_avg": 0.0, "gpu_temp_avg": 36.0}
    assert darwin.macmon_sample(json.dumps({**MACMON, "temp": heat})).temperatures == {"gpu": 36.0}


@pytest.mark.skipif(sys.platform == "darwin", reason="Apple's libraries are here")
def test_macos_readings_without_apple_libraries_each_fail_separately() -> None:
    readings = darwin.darwin_readings(SystemApple(), "/nowhere/macmon")
    probe = HardwareProbe(readings)
    assert probe.sample() == HardwareSample()
    assert probe.errors == dict.fromkeys(readings, 1)


def test_macos_command_failure_or_timeout_raises_oserror(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SystemApple().run((sys.executable, "-c", "print('4 %')")) == "4 %\n"
    with pytest.raises(OSError, match="status 3"):
        SystemApple().run((sys.executable, "-c", "raise SystemExit(3)"))
    monkeypatch.setattr(apple, "_COMMAND_SECONDS", 0.2)
    with pytest.raises(OSError, match="timed out"):
        SystemApple().run((sys.executable, "-c", "import time; time.sleep(3600)"))


@pytest.mark.parametrize(("answer", "name"), [(b"Apple M4 Pro\0", "Apple M4 Pro"), (None, platform.machine())])
def test_mac_device_name_is_its_chip_or_else_its_architecture(
    monkeypatch: pytest.MonkeyPatch, answer: bytes | None, name: str
) -> None:
    def sysctl(self: SystemApple, key: str) -> bytes:
        if answer is None:
            raise OSError("no such name")
        assert key == "machdep.cpu.brand_string"
        return answer

    monkeypatch.setattr(system.sys, "platform", "darwin")  # type: ignore[attr-defined]
    monkeypatch.setattr(SystemApple, "sysctl", sysctl)
    assert system.device().name == name
