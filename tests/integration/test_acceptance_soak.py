"""A leak planted in a daemon fails its soak; the same daemon without it passes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from draftd_acceptance import soak
from draftd_acceptance.folder import RunFolder
from draftd_acceptance.soak import SoakResult, soak_result
from tests.scripted_daemon import scripted_daemon

SECONDS = 12


def soaked(folder: Path, **numbers: float) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """A short soak by the command itself, of a daemon that is a process of its own."""
    folder.mkdir()
    options = ["--duration", SECONDS, "--every", 0.1, "--window", 4, "--max-tokens", 32, "--streams", 2]
    with scripted_daemon(folder, hardware_seconds=0.1, step_seconds=0.01, context_length=16384, **numbers) as daemon:
        where = ["--target", f"127.0.0.1:{daemon.port}", "--run", folder / "run", "--json"]
        ran = subprocess.run(
            [sys.executable, "-m", "draftd.cli.main", "soak", *map(str, [*options, *where])],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "OTEL_SDK_DISABLED": "true"},
        )
    assert ran.stdout, ran.stderr
    return ran, json.loads(ran.stdout)


def judged(folder: Path) -> SoakResult:
    found = soak_result(RunFolder.open(folder / "run"))
    assert found is not None
    return found


@pytest.mark.slow
def test_soak_fails_a_daemon_with_a_memory_leak_and_passes_a_daemon_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(2) as both:  # at the same time: a soak is mostly waiting
        leaking = both.submit(soaked, tmp_path / "leaking", leaked_bytes=3_000_000)
        sound = both.submit(soaked, tmp_path / "sound")

    # So short a soak claims nothing of hours and days. Here it is to be long enough: what leaks does so from the start.
    _, said = leaking.result()
    assert said["too_few_samples"]
    assert (said["grows_without_bound"], said["days_to_exhaustion"]) == (False, None)
    monkeypatch.setattr(soak, "LEAST_SECONDS", SECONDS / 2)
    result = judged(tmp_path / "leaking")
    assert result.complaints[0].startswith("memory grows without bound: the daemon's resident set by")
    assert result.days_to_exhaustion is not None
    assert result.days_to_exhaustion < 1
    # What was leaked is known: so much with each request. The interval holds it.
    truth = result.requests * 3e6 / result.seconds
    assert result.resident is not None
    assert result.resident.slope.low < 1.3 * truth
    assert result.resident.slope.high > 0.7 * truth
    assert result.errors == 0

    ran, said = sound.result()
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("draftd:") == 0
    result = judged(tmp_path / "sound")
    assert not result.grows_without_bound
    assert result.days_to_exhaustion == math.inf
    assert said["complete"]
    assert said["errors"] == 0
    assert said["seconds"] >= SECONDS
    assert said["peak_resident"] > 1e7
    assert len(said["windows"]) >= 3
    assert all(window["acceptance"] is not None for window in said["windows"])
    assert all(0.2 < window["acceptance"] < 0.95 for window in said["windows"])
