"""mlx-lm's import leaves the process as it was."""

from __future__ import annotations

import subprocess
import sys

import pytest

_IMPORT = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, {limits})
import draftd.models.mlx_lm
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
resource.setrlimit(resource.RLIMIT_NOFILE, (300, {limits}[1]))
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize("limits", [(1000, 1000), (1000, 4500)])
def test_importing_mlx_lm_does_not_change_open_file_limit(limits: tuple[int, int]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _IMPORT.format(limits=limits)], capture_output=True, text=True, timeout=120
    )
    assert ran.stdout.splitlines() == [f"{limits[0]} {limits[1]}", f"300 {limits[1]}"], ran.stderr
