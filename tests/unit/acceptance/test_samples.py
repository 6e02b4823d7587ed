"""The machine beside a run: what is not known stays so, and a daemon that goes away costs samples and nothing else."""

from __future__ import annotations

import threading
import time
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from draftd.client.client import CallError, DraftdClient
from draftd.protocol import duration
from draftd.v1 import control_pb2 as control
from draftd_acceptance import session as module
from draftd_acceptance.folder import RunFolder
from draftd_acceptance.session import Session, sampling
from draftd_acceptance.ticks import MachineSample, Stage, sample
from tests.in_process_daemon import serving
from tests.scripted import scripted_models
from tests.wait_until import until


def test_machine_sample_of_empty_status_has_none_for_unread_values() -> None:
    found = sample(control.GetStatusResponse(), Stage.SOAK, 3, "k4", 7.5)
    assert (found.stage, found.session, found.arm, found.elapsed) == (Stage.SOAK, 3, "k4", 7.5)
    unknown = {name for name in (f.name for f in fields(MachineSample)) if getattr(found, name) is None}
    assert unknown == {
        "resident", "available", "headroom", "floor", "pressure", "swap_in", "mlx_active", "mlx_cache",
        "thermal", "throttles", "temperature", "watts",
    }  # fmt: skip


def test_machine_sample_keeps_zero_reading_distinct_from_none() -> None:
    hardware = control.Hardware(memory_headroom_bytes=0, swap_in_bytes=0, throttles=0, power={"cpu": 0.0})
    found = sample(control.GetStatusResponse(hardware=hardware), Stage.SOAK, 1, "", 0.0)
    assert (found.headroom, found.swap_in, found.throttles, found.watts) == (0, 0, 0, 0.0)


def test_machine_sample_maps_unspecified_pressure_and_thermal_level_to_none() -> None:
    hardware = control.Hardware(
        memory_pressure=control.MEMORY_PRESSURE_UNSPECIFIED, thermal_level=control.THERMAL_LEVEL_UNSPECIFIED
    )
    found = sample(control.GetStatusResponse(hardware=hardware), Stage.SOAK, 1, "", 0.0)
    assert (found.pressure, found.thermal) == (None, None)


def test_machine_sample_maps_each_hardware_status_field() -> None:
    hardware = control.Hardware(
        memory_pressure=control.MEMORY_PRESSURE_WARN,
        memory_headroom_bytes=-1,
        memory_floor_bytes=2,
        memory_available_bytes=3,
        critical_pressure=duration(5.5),
        swap_in_bytes=7,
        process_resident_bytes=8,
        mlx_active_bytes=9,
        mlx_cache_bytes=10,
        thermal_level=control.THERMAL_LEVEL_HEAVY,
        throttles=12,
        temperatures={"a": 40.0, "b": 71.5, "c": 60.0},
        power={"cpu": 10.0, "gpu": 5.5},
    )
    found = sample(control.GetStatusResponse(hardware=hardware), Stage.SWEEP, 1, "k4", 0.0)
    assert (found.pressure, found.thermal) == ("warn", "heavy")
    assert (found.headroom, found.floor, found.available) == (-1, 2, 3)
    assert (found.critical_seconds, found.swap_in, found.resident) == (5.5, 7, 8)
    assert (found.mlx_active, found.mlx_cache, found.throttles) == (9, 10, 12)
    assert (found.temperature, found.watts) == (71.5, 15.5)


def session(client: Any, number: int = 1, began: float = 0.0) -> Session:
    return Session(client, RunFolder(Path("unused")), number, began)


def alive() -> bool:
    return any(thread.name == "draftd-sampler" for thread in threading.enumerate())


def test_machine_sampling_records_current_arm_and_continues_after_failed_calls() -> None:
    """Every second call fails: the others are kept, each under the arm that was in hand when it was asked."""
    calls, kept = 0, []

    def status(timeout: float) -> control.GetStatusResponse:
        nonlocal calls
        calls += 1
        if calls % 2 == 0:
            raise CallError(grpc.RpcError("gone"))
        return control.GetStatusResponse()

    client: Any = SimpleNamespace(status=status)
    began = time.perf_counter() - 50
    measuring = session(client, 2, began)
    with sampling(measuring, Stage.SWEEP, kept.append, period_seconds=0.002):
        until(lambda: len(kept) >= 2)
        measuring.in_hand.append("k4")
        before = len(kept)
        until(lambda: len(kept) >= before + 3)
    assert not alive()
    ended = len(kept)
    assert {one.arm for one in kept} == {"", "k4"}
    assert [one.arm for one in kept] == sorted(one.arm for one in kept)
    assert all(one.session == 2 and 50 <= one.elapsed < 100 for one in kept)
    assert [one.elapsed for one in kept] == sorted(one.elapsed for one in kept)
    time.sleep(0.02)
    assert len(kept) == ended


def test_machine_sampling_stops_at_once_during_pause_between_samples() -> None:
    """A sampler with an hour to wait is joined at once; the first sample is taken at the start."""
    kept: list[MachineSample] = []
    client: Any = SimpleNamespace(status=lambda timeout: control.GetStatusResponse())
    with sampling(session(client), Stage.SWEEP, kept.append, period_seconds=3600):
        until(lambda: len(kept) == 1)
    assert not alive()


def test_machine_sampling_ends_despite_hanging_status_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call has a deadline; were it not kept, the block still ends, a second after."""
    monkeypatch.setattr(module, "_SAMPLE_SECONDS", -0.9)
    asked, release = threading.Event(), threading.Event()
    deadlines = []

    def status(timeout: float) -> control.GetStatusResponse:
        deadlines.append(timeout)
        asked.set()
        release.wait(30)
        return control.GetStatusResponse()

    client: Any = SimpleNamespace(status=status)
    try:
        with sampling(session(client), Stage.SWEEP, lambda one: None, period_seconds=0.01):
            assert asked.wait(10)
        assert alive()
        assert deadlines == [-0.9]
    finally:
        release.set()
    until(lambda: not alive())


def test_machine_sampling_continues_without_samples_after_daemon_stops(tmp_path: Path) -> None:
    kept: list[MachineSample] = []
    with serving(tmp_path, lambda: scripted_models(0.7)) as served:
        client = DraftdClient(served.target)
        try:
            with sampling(session(client), Stage.SOAK, kept.append, period_seconds=0.005):
                until(lambda: len(kept) >= 3)
                served.stop()
                served.join()
                counted = len(kept)
                time.sleep(0.1)
                assert alive()
                assert len(kept) <= counted + 1
        finally:
            client.close()
    assert not alive()
