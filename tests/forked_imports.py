"""Imports every module that a daemon needs, once, in the server from which tests.forked_daemon forks daemons."""

from __future__ import annotations

from draftd.models.blas import load_blas

load_blas()

import draftd.cli.commands.serve  # noqa: E402
import draftd.cli.main  # noqa: E402
import draftd.cli.serve  # noqa: E402
import draftd.engine.pair  # noqa: E402, F401
import tests.scripted  # noqa: E402, F401
from draftd.engine import calibration  # noqa: E402

calibration._MEASURES_THE_REST = False  # as in conftest.py
