"""Linux: samples and limits of a process, from recorded file trees and from the machine that runs the test."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from draftd.hardware.linux import linux_readings, pressure_level
from draftd.hardware.monitor import HardwareProbe
from draftd.hardware.state import HardwareSample, MemoryPressure
from draftd.hardware.system import device, system_probe

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="psutil's Linux functions")

X86 = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Processor  \nmodel name\t: another\n"
PI = "processor\t: 0\nBogoMIPS\t: 108.00\nCPU part\t: 0xd0b\n\nModel\t\t: Raspberry Pi 5 Model B Rev 1.0\n"
ARM = "processor\t: 0\nBogoMIPS\t: 108.00\nCPU part\t: 0xd0b\n"
KIB = 1024
CALM = "some avg10=0.00 avg60=0.01 avg300=0.00 total=29213\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=28194\n"
MEMINFO = """\
MemTotal:       24684096 kB
MemFree:        20000000 kB
MemAvailable:   24093628 kB
Buffers:          100000 kB
Cached:          3000000 kB
SwapCached:            0 kB
Active:           123456 kB
Inactive:         123456 kB
Shmem:                 0 kB
SReclaimable:     400000 kB
"""


def stalls(some: float, full: float) -> str:
    rest = "avg60=99.00 avg300=99.00 total=1"
    return f"some avg10={some:.2f} {rest}\nfull avg10={full:.2f} {rest}\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def take_sample(root: Path) -> HardwareSample:
    probe = HardwareProbe(linux_readings(root))
    sample = probe.sample()
    assert probe.errors == {}
    return sample


def group(folder: str, limit: str, current: int, cache: int = 0) -> dict[str, str]:
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{current}\n",
        f"{folder}/memory.stat": f"anon 4096\nfile {cache}\ninactive_file {cache}\nactive_file 0\n",
    }


@pytest.mark.parametrize(
    ("some", "full", "level"),
    [
        (0.0, 0.0, MemoryPressure.NORMAL),
        (9.99, 0.0, MemoryPressure.NORMAL),
        (10.0, 0.0, MemoryPressure.WARN),
        (90.0, 9.99, MemoryPressure.WARN),
        (10.0, 10.0, MemoryPressure.CRITICAL),
    ],
)
def test_linux_memory_stall_shares_map_to_pressure_levels(
    tmp_path: Path, some: float, full: float, level: MemoryPressure
) -> None:
    assert take_sample(tree(tmp_path, {"proc/pressure/memory": stalls(some, full)})).memory_pressure is level


@pytest.mark.parametrize("text", ["", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", "full avg10=x"])
def test_unreadable_linux_memory_stalls_raise_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="expected a line `some`"):
        pressure_level(text)


def test_linux_without_proc_and_sys_files_gives_absent_values_and_no_errors(tmp_path: Path) -> None:
    sample = take_sample(tmp_path)
    absent = ("memory_pressure", "cgroup_limit", "cgroup_used", "swap_in_pages", "swap_in_bytes")
    assert [getattr(sample, name) for name in (*absent, "temperatures")] == [None] * 6


def test_linux_memory_states_add_up_to_total_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    states = linux_readings()["memory_states"]().memory_states
    assert states is not None
    assert states == {
        "used": 1_184_096 * KIB,
        "free": 20_000_000 * KIB,
        "buffers": 100_000 * KIB,
        "cached": 3_400_000 * KIB,
    }
    assert sum(states.values()) == 24_684_096 * KIB


def test_linux_swap_ins_are_reported_in_pages_and_bytes(tmp_path: Path) -> None:
    sample = take_sample(tree(tmp_path, {"proc/vmstat": "pgpgin 99\npswpin 7\npswpout 8\n"}))
    assert sample.swap_in_pages == 7
    assert sample.swap_in_bytes == 7 * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("mount", ["sys/fs/cgroup", "sys/fs/cgroup/unified"])
def test_linux_sample_has_memory_limit_and_use_of_its_control_group(tmp_path: Path, mount: str) -> None:
    own = "system.slice/draftd.service"
    files = {"proc/self/cgroup": f"4:memory:/elsewhere\n0::/{own}\n"} | group(f"{mount}/{own}", "8000", 5000, 1000)
    sample = take_sample(tree(tmp_path, files))
    assert (sample.cgroup_limit, sample.cgroup_used) == (8000, 4000)


def test_control_group_with_least_memory_left_determines_limit_and_use(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/a/b\n"}
    files |= group("sys/fs/cgroup/a", "9000", 8000) | group("sys/fs/cgroup/a/b", "5000", 1000)
    sample = take_sample(tree(tmp_path, files))
    assert (sample.cgroup_limit, sample.cgroup_used) == (9000, 8000)


def test_control_group_without_memory_limit_is_absent_from_sample(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/a\n"} | group("sys/fs/cgroup/a", "max", 1000)
    assert take_sample(tree(tmp_path, files)).cgroup_limit is None


@pytest.mark.parametrize(
    ("limit", "level"),
    [("9000", MemoryPressure.CRITICAL), ("max", MemoryPressure.NORMAL)],
    ids=["limited", "unlimited"],
)
def test_limited_control_group_uses_its_own_memory_stalls_for_pressure_level(
    tmp_path: Path, limit: str, level: MemoryPressure
) -> None:
    files = {"proc/self/cgroup": "0::/a\n", "proc/pressure/memory": CALM}
    files |= group("sys/fs/cgroup/a", limit, 1000) | {"sys/fs/cgroup/a/memory.pressure": stalls(50, 50)}
    assert take_sample(tree(tmp_path, files)).memory_pressure is level


def test_linux_thermal_zones_are_reported_in_degrees_by_name(tmp_path: Path) -> None:
    files = {
        "sys/class/thermal/thermal_zone0/temp": "45500\n",
        "sys/class/thermal/thermal_zone0/type": "x86_pkg_temp\n",
        "sys/class/thermal/thermal_zone1/temp": "-2000\n",
        "sys/class/thermal/thermal_zone2/type": "switched_off\n",
        "sys/class/thermal/cooling_device0/temp": "1\n",
    }
    assert take_sample(tree(tmp_path, files)).temperatures == {"x86_pkg_temp.0": 45.5, "thermal_zone1": -2.0}


def test_linux_fans_are_named_by_chip_and_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fans = {"it8720": [SimpleNamespace(label="", current=999), SimpleNamespace(label="", current=0)]}
    monkeypatch.setattr(psutil, "sensors_fans", lambda: fans)
    assert take_sample(tmp_path).fans == {"it8720.0": 999.0, "it8720.1": 0.0}


def test_broken_linux_file_leaves_only_its_own_values_absent(tmp_path: Path) -> None:
    files = {"proc/pressure/memory": "nonsense", "proc/vmstat": "pswpin 7\n"}
    probe = HardwareProbe(linux_readings(tree(tmp_path, files)))
    sample = probe.sample()
    assert sample.memory_pressure is None
    assert sample.memory_states is not None
    assert sample.swap_in_pages == 7
    assert probe.errors == {"pressure": 1}


def groups(**limits: str) -> dict[str, str]:
    """Files of the daemon's control group and of the group above it. `own_cpu` is the daemon's cpu.max, `outer_cpu` the
    other group's."""
    place = {"own": "sys/fs/cgroup/outer/own", "outer": "sys/fs/cgroup/outer"}
    files = {"proc/self/cgroup": "0::/outer/own\n"}
    for name, text in limits.items():
        group, kind = name.split("_")
        files[f"{place[group]}/{kind}.max"] = f"{text}\n"
    return files


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [(X86, "Intel(R) Xeon(R) Processor"), (PI, "Raspberry Pi 5 Model B Rev 1.0"), (ARM, platform.machine())],
)
def test_linux_device_name_is_processor_or_board_name(tmp_path: Path, cpuinfo: str, name: str) -> None:
    assert device(tree(tmp_path, {"proc/cpuinfo": cpuinfo})).name == name


def test_device_without_control_group_limits_reports_whole_machine(tmp_path: Path) -> None:
    for files in ({}, groups(own_cpu="max 100000", own_memory="max", outer_memory="max"), {"proc/self/cgroup": "1:x"}):
        machine = device(tree(tmp_path / str(len(files)), files))
        assert (machine.cores, machine.memory_bytes) == (
            len(os.sched_getaffinity(0)),
            psutil.virtual_memory().total,
        )


@pytest.mark.parametrize(
    ("limits", "cores", "memory"),
    [
        ({"own_cpu": "100000 100000"}, 1, None),
        ({"own_cpu": "max 100000", "outer_cpu": "150000 100000"}, 2, None),  # a part of a core counts as a whole one
        ({"own_cpu": "300000 100000", "outer_cpu": "50000 100000"}, 1, None),
        ({"own_memory": "max", "outer_memory": "1000000"}, None, 1_000_000),
        ({"own_memory": "500000", "outer_memory": "1000000"}, None, 500_000),
        ({"own_memory": "1000000", "outer_memory": "500000"}, None, 500_000),
        ({"own_memory": str(2**60)}, None, None),
        ({"own_cpu": "nonsense"}, None, None),
    ],
)
def test_tightest_control_group_limit_determines_device_cores_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, str], cores: int | None, memory: int | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    machine = device(tree(tmp_path, groups(**limits)))
    assert machine.cores == (cores or 8)
    assert machine.memory_bytes == (memory or psutil.virtual_memory().total)


def test_sample_of_current_linux_machine_has_plausible_memory_values() -> None:
    probe = system_probe()
    sample = probe.sample()
    assert probe.errors == {}
    assert sample.memory_total is not None
    assert sample.memory_total > 2**28
    assert sample.memory_available is not None
    assert 0 < sample.memory_available <= sample.memory_total
    assert sample.memory_states is not None
    assert sum(sample.memory_states.values()) == pytest.approx(sample.memory_total, rel=0.01)
    assert sample.process_resident is not None
    assert 2**20 < sample.process_resident < sample.memory_total
    assert sample.mlx_active is None, "no model is loaded"
    machine = device()
    assert machine.name
    assert 1 <= machine.cores <= (os.cpu_count() or 1)
    assert 0 < machine.memory_bytes <= sample.memory_total
