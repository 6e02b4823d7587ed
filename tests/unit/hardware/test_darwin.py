"""What macOS answers, decoded. Every raw value is written from Apple's headers and the tools' documented output:
none was recorded on a Mac."""

from __future__ import annotations

import json
import struct

import pytest

from draftd.hardware import darwin
from draftd.hardware.probe import ReadingsProbe
from draftd.hardware.sample import HardwareSample, MemoryPressure, ThermalLevel, ThermalState

GIB = 1024**3
PAGE = 16384

# mach/vm_statistics.h: struct vm_statistics64, with the field that follows what is read.
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
    """Answers as a Mac with 24 GB would; whatever is named in `missing` raises."""

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


def test_a_whole_sample() -> None:
    probe = ReadingsProbe(darwin.darwin_readings(RecordedApple(), "/opt/homebrew/bin/macmon"))
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
        thermal_state=ThermalState.FAIR,
        low_power=True,
        temperatures={"cpu": 43.73614, "gpu": 36.95167},
        fans={"fan0": 999.0, "fan1": 1200.0},
        power={"cpu": 0.20486385, "gpu": 0.017451683, "ane": 0.0, "ram": 0.11635789, "system": 5.876533},
    )
    assert probe.errors == {}


@pytest.mark.parametrize(
    ("missing", "reading", "absent"),
    [
        ("thermal_pressure", "thermal_pressure", {"thermal_level"}),
        ("thermal_state", "thermal_state", {"thermal_state"}),
        ("low_power", "low_power", {"low_power"}),
        ("kern.memorystatus_vm_pressure_level", "pressure", {"memory_pressure"}),
        ("kern.memorystatus_level", "free_share", {"memory_free_share"}),
        ("vm.swapusage", "swap", {"swap_used", "swap_free"}),
        ("vm_statistics", "memory_states", {"memory_states", "swap_in_pages", "swap_in_bytes"}),
        ("/usr/sbin/ioreg", "gpu", {"gpu_memory", "gpu_utilization"}),
        ("/bin/macmon", "macmon", {"temperatures", "fans", "power"}),
    ],
)
def test_what_fails_costs_only_its_own_values(missing: str, reading: str, absent: set[str]) -> None:
    whole = ReadingsProbe(darwin.darwin_readings(RecordedApple(), "/bin/macmon")).sample()
    probe = ReadingsProbe(darwin.darwin_readings(RecordedApple({missing}), "/bin/macmon"))
    found = probe.sample()
    lost = {name for name in HardwareSample.__slots__ if getattr(found, name) != getattr(whole, name)}
    assert lost == absent
    assert all(getattr(found, name) is None for name in absent)
    assert probe.errors == {reading: 1}


def test_without_macmon_there_is_no_temperature_and_no_error() -> None:
    apple = RecordedApple()
    probe = ReadingsProbe(darwin.darwin_readings(apple, None))
    found = probe.sample()
    assert (found.temperatures, found.fans, found.power) == (None, None, None)
    assert probe.errors == {}
    assert [command[0] for command in apple.commands] == ["/usr/sbin/ioreg"]


@pytest.mark.parametrize(
    ("raw", "level"),
    [(1, MemoryPressure.NORMAL), (2, MemoryPressure.WARN), (4, MemoryPressure.CRITICAL)],
)
def test_every_level_of_memory_pressure(raw: int, level: MemoryPressure) -> None:
    assert darwin.pressure_sample(int32(raw)).memory_pressure is level


@pytest.mark.parametrize("raw", [int32(0), int32(3), int32(-1), b"", b"\1\0\0\0\0\0\0\0"])
def test_a_memory_pressure_that_is_not_known_is_an_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match="expected"):
        darwin.pressure_sample(raw)


@pytest.mark.parametrize("raw", range(5))
def test_every_level_of_thermal_pressure(raw: int) -> None:
    apple = RecordedApple()
    apple.thermal_pressure = lambda: raw  # type: ignore[method-assign]
    level = ReadingsProbe(darwin.darwin_readings(apple, None)).sample().thermal_level
    assert level is not None
    assert (level, level.name) == (raw, ("NOMINAL", "MODERATE", "HEAVY", "TRAPPING", "SLEEPING")[raw])


@pytest.mark.parametrize("raw", range(4))
def test_every_thermal_state(raw: int) -> None:
    apple = RecordedApple()
    apple.thermal_state = lambda: raw  # type: ignore[method-assign]
    state = ReadingsProbe(darwin.darwin_readings(apple, None)).sample().thermal_state
    assert state is not None
    assert (state, state.name) == (raw, ("NOMINAL", "FAIR", "SERIOUS", "CRITICAL")[raw])


def test_a_thermal_level_that_is_not_known_is_absent_and_counted() -> None:
    apple = RecordedApple()
    apple.thermal_pressure = lambda: 33  # type: ignore[method-assign]
    probe = ReadingsProbe(darwin.darwin_readings(apple, None))
    assert probe.sample().thermal_level is None
    assert probe.errors == {"thermal_pressure": 1}


@pytest.mark.parametrize(("raw", "share"), [(0, 0.0), (1, 0.01), (100, 1.0)])
def test_the_share_of_free_memory(raw: int, share: float) -> None:
    assert darwin.free_share_sample(int32(raw)).memory_free_share == share


@pytest.mark.parametrize("raw", [-1, 101])
def test_a_share_beyond_all_of_it_is_an_error(raw: int) -> None:
    with pytest.raises(ValueError, match="free memory"):
        darwin.free_share_sample(int32(raw))


def test_no_swap_in_use_is_zero_and_not_absent() -> None:
    assert darwin.swap_sample(struct.pack("<QQQII", 0, 0, 0, PAGE, 1)) == HardwareSample(swap_used=0, swap_free=0)


@pytest.mark.parametrize("size", [0, 23])
def test_a_swap_structure_cut_short_is_an_error(size: int) -> None:
    with pytest.raises(ValueError, match=f"{size} bytes, expected 24"):
        darwin.swap_sample(SWAP[:size])


def test_memory_statistics_may_grow_but_not_shrink() -> None:
    assert darwin.pages_sample(VM_STATISTICS + bytes(64), PAGE) == darwin.pages_sample(VM_STATISTICS, PAGE)
    with pytest.raises(ValueError, match="143 bytes"):
        darwin.pages_sample(VM_STATISTICS[:143], PAGE)


def test_a_machine_without_an_accelerator_tells_nothing_of_a_gpu() -> None:
    assert darwin.gpu_sample("") == HardwareSample()


def test_an_accelerator_tells_what_it_names_and_no_more() -> None:
    without_memory = darwin.gpu_sample(IOREG.replace('"In use system memory"=', '"Something else"='))
    assert without_memory == HardwareSample(gpu_utilization=0.04)
    without_share = darwin.gpu_sample(IOREG.replace('"Device Utilization %"=', '"Something else"='))
    assert without_share == HardwareSample(gpu_memory=1073741824)


@pytest.mark.parametrize(("percent", "share"), [(0, 0.0), (1, 0.01), (100, 1.0)])
def test_how_busy_the_gpu_is_as_a_share(percent: int, share: float) -> None:
    text = IOREG.replace('"Device Utilization %"=4', f'"Device Utilization %"={percent}')
    assert darwin.gpu_sample(text).gpu_utilization == share


def test_of_two_accelerators_the_busier_one_counts_and_memory_adds_up() -> None:
    both = darwin.gpu_sample(IOREG + IOREG.replace('"Device Utilization %"=4', '"Device Utilization %"=87'))
    assert both == HardwareSample(gpu_memory=2 * 1073741824, gpu_utilization=0.87)


def test_a_gpu_busier_than_all_the_time_is_an_error() -> None:
    with pytest.raises(ValueError, match="GPU utilization of 101 %"):
        darwin.gpu_sample(IOREG.replace('"Device Utilization %"=4', '"Device Utilization %"=101'))


def test_an_idle_gpu_uses_zero_bytes_and_is_not_absent() -> None:
    assert darwin.gpu_sample(IOREG.replace("=1073741824}", "=0}")).gpu_memory == 0


def test_a_mac_without_fans_or_a_total_has_neither() -> None:
    found = darwin.macmon_sample(json.dumps({**MACMON, "fans": [], "sys_power": 0.0}))
    assert found.fans is None
    assert found.power is not None
    assert set(found.power) == {"cpu", "gpu", "ane", "ram"}


def test_an_older_macmon_that_knows_no_fans() -> None:
    older = {name: value for name, value in MACMON.items() if name != "fans"}
    assert darwin.macmon_sample(json.dumps(older)).fans is None


def test_a_temperature_of_zero_was_not_measured() -> None:
    heat = {"cpu_temp_avg": 0.0, "gpu_temp_avg": 36.0}
    assert darwin.macmon_sample(json.dumps({**MACMON, "temp": heat})).temperatures == {"gpu": 36.0}


@pytest.mark.parametrize("text", ["", "macmon: not supported\n", '{"temp": {"cpu_temp_avg"'])
def test_a_macmon_that_does_not_write_json_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="macmon|Expecting"):
        darwin.macmon_sample(text)
