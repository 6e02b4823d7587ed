"""What a process may use of its machine, from recorded trees; and from the machine that the test runs on."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

import psutil
import pytest

from draftd.hardware import device as device_module
from draftd.hardware.apple import SystemApple
from draftd.hardware.device import device

linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc and control groups are Linux's")
X86 = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Processor  \nmodel name\t: another\n"
PI = "processor\t: 0\nBogoMIPS\t: 108.00\nCPU part\t: 0xd0b\n\nModel\t\t: Raspberry Pi 5 Model B Rev 1.0\n"
ARM = "processor\t: 0\nBogoMIPS\t: 108.00\nCPU part\t: 0xd0b\n"


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def groups(**limits: str) -> dict[str, str]:
    """The daemon's own group and the one above it, by file: `own_cpu` is the own one's cpu.max."""
    place = {"own": "sys/fs/cgroup/outer/own", "outer": "sys/fs/cgroup/outer"}
    made = {"proc/self/cgroup": "0::/outer/own\n"}
    for name, text in limits.items():
        group, kind = name.split("_")
        made[f"{place[group]}/{kind}.max"] = f"{text}\n"
    return made


@linux
@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [(X86, "Intel(R) Xeon(R) Processor"), (PI, "Raspberry Pi 5 Model B Rev 1.0"), (ARM, platform.machine())],
)
def test_a_processor_is_called_as_it_calls_itself(tmp_path: Path, cpuinfo: str, name: str) -> None:
    assert device(tree(tmp_path, {"proc/cpuinfo": cpuinfo})).name == name


@linux
def test_without_limits_it_is_the_whole_machine(tmp_path: Path) -> None:
    for files in ({}, groups(own_cpu="max 100000", own_memory="max", outer_memory="max"), {"proc/self/cgroup": "1:x"}):
        found = device(tree(tmp_path / str(len(files)), files))
        assert (found.cores, found.memory_bytes) == (
            len(os.sched_getaffinity(0)),
            psutil.virtual_memory().total,
        )


@linux
@pytest.mark.parametrize(
    ("limits", "cores", "memory"),
    [
        ({"own_cpu": "100000 100000"}, 1, None),
        ({"own_cpu": "max 100000", "outer_cpu": "150000 100000"}, 2, None),  # a part of a core is one
        ({"own_cpu": "300000 100000", "outer_cpu": "50000 100000"}, 1, None),
        ({"own_memory": "max", "outer_memory": "1000000"}, None, 1_000_000),
        ({"own_memory": "500000", "outer_memory": "1000000"}, None, 500_000),
        ({"own_memory": "1000000", "outer_memory": "500000"}, None, 500_000),
        ({"own_memory": str(2**60)}, None, None),
        ({"own_cpu": "nonsense"}, None, None),
    ],
)
def test_the_tightest_control_group_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, str], cores: int | None, memory: int | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    found = device(tree(tmp_path, groups(**limits)))
    assert found.cores == (cores or 8)
    assert found.memory_bytes == (memory or psutil.virtual_memory().total)


def test_a_mac_says_which_chip_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def sysctl(self: SystemApple, name: str) -> bytes:
        asked.append(name)
        return b"Apple M4 Pro\0"

    monkeypatch.setattr(device_module.sys, "platform", "darwin")
    monkeypatch.setattr(SystemApple, "sysctl", sysctl)
    assert device().name == "Apple M4 Pro"
    assert asked == ["machdep.cpu.brand_string"]


def test_a_mac_that_does_not_say_is_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def sysctl(self: SystemApple, name: str) -> bytes:
        raise OSError("no such name")

    monkeypatch.setattr(device_module.sys, "platform", "darwin")
    monkeypatch.setattr(SystemApple, "sysctl", sysctl)
    assert device().name == platform.machine()


def test_the_machine_at_hand_has_a_name_cores_and_memory() -> None:
    found = device()
    assert found.name
    assert 1 <= found.cores <= (os.cpu_count() or 1)
    assert 0 < found.memory_bytes <= psutil.virtual_memory().total
