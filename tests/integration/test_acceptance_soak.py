"""A leak planted in a daemon fails its soak; the same daemon without it passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.slow
def test_a_daemon_that_leaks_fails_its_soak_and_the_same_without_the_leak_passes(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as both:  # at the same time: a soak is mostly waiting
        leaking = both.submit(soaked, tmp_path / "leaking", leaked_bytes=3_000_000)
        sound = both.submit(soaked, tmp_path / "sound")

    ran, said = leaking.result()
    assert ran.returncode == 1
    assert "memory grows without bound: the daemon's resident set by" in ran.stderr
    assert said["grows_without_bound"]
    assert said["days_to_exhaustion"] < 1
    # What was leaked is known: so much with each request. The interval holds it.
    truth = said["requests"] * 3e6 / said["seconds"]
    assert said["resident"]["slope"]["low"] < 1.3 * truth
    assert said["resident"]["slope"]["high"] > 0.7 * truth
    assert said["errors"] == 0

    ran, said = sound.result()
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("draftd:") == 0
    assert not said["grows_without_bound"]
    assert said["days_to_exhaustion"] is None  # without end
    assert said["complete"]
    assert said["errors"] == 0
    assert said["seconds"] >= SECONDS
    assert said["peak_resident"] > 1e7
    assert [window["acceptance"] is not None for window in said["windows"]] == [True] * 3
    assert all(0.2 < window["acceptance"] < 0.95 for window in said["windows"])
