"""Imports: MLX comes after the choice of the BLAS, or on Linux it takes its own, some fifty times slower; and packages
of the extras are imported only where they are needed."""

from __future__ import annotations

import subprocess
import sys

_WITHOUT_EXTRAS = "import sys; sys.modules |= dict.fromkeys(['matplotlib', 'grafana_client', 'niquests', 'scipy'])\n"


def run(code: str) -> None:
    ran = subprocess.run([sys.executable, "-c", _WITHOUT_EXTRAS + code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_importing_the_serve_module_imports_no_mlx_and_no_optional_extras() -> None:
    run("import draftd.cli.serve; sys.exit([name for name in sys.modules if name.startswith('mlx')] or 0)")


def test_every_cli_command_loads_without_the_optional_extras_installed() -> None:
    run("from draftd.cli.main import COMMANDS, load\nfor name in COMMANDS: load(name)")
