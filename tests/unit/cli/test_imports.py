"""MLX is imported after the BLAS is chosen: before that, on Linux, it takes its own, some fifty times slower."""

from __future__ import annotations

import subprocess
import sys


def test_the_daemon_is_put_together_without_mlx() -> None:
    code = "import sys, draftd.cli.serve; sys.exit([name for name in sys.modules if name.startswith('mlx')] or 0)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
