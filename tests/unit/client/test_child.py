"""A daemon as a child process: heard while it starts, stopped when the block ends, explained when it fails."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from draftd.client.child import clean_environ, serving
from draftd.errors import DraftdError
from tests.wait_until import until

ENVIRON = dict(os.environ)


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_daemon_child_process_reports_address_and_stops_at_block_end() -> None:
    program = (
        "import sys, time; print('2026-11-23T06:15:07.123+01:00 draftd: loading', file=sys.stderr);"
        "print('2026-11-23T06:15:08.456+01:00 draftd: serving a model on 127.0.0.1:1234', file=sys.stderr, flush=True);"
        "time.sleep(60)"
    )
    heard: list[str] = []
    began = time.monotonic()
    with serving(python(program), ENVIRON, timeout=20, on_line=heard.append) as ready:
        assert (ready.model, ready.address) == ("a model", "127.0.0.1:1234")
    assert heard == ["loading"]
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("before", ["draftd: ", "2026-11-23T06:15:07.123+01:00 draftd: error: ", ""])
def test_failed_daemon_child_process_error_quotes_exit_code_and_last_line(before: str) -> None:
    program = f"import sys; print('{before}no such model', file=sys.stderr); sys.exit(3)"
    with pytest.raises(DraftdError, match="exit code 3: no such model"), serving(python(program), ENVIRON, timeout=20):
        pass


def test_silent_daemon_child_process_times_out() -> None:
    program = "import time; time.sleep(60)"
    with pytest.raises(DraftdError, match="said nothing"), serving(python(program), ENVIRON, timeout=0.5):
        pass


def test_daemon_child_process_with_much_output_does_not_block_while_serving(tmp_path: Path) -> None:
    program = (
        "import sys; print('draftd: serving m on h:1', file=sys.stderr, flush=True);"
        f"[print('x' * 1000, file=sys.stderr) for _ in range(2000)]; open({str(tmp_path / 'said')!r}, 'x')"
    )
    with serving(python(program), ENVIRON, timeout=20):
        until((tmp_path / "said").exists, 20)


def test_demo_daemon_environment_inherits_only_model_and_telemetry_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DRAFTD_SERVER__HOST", "DRAFTD_CONFIG", "DRAFTD_FLAG__PROVIDER", "DRAFTD_LOG__FORMAT"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("DRAFTD_MODEL__PATH", "somewhere")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
    kept = {name for name in clean_environ("/tmp/flags.json") if name.startswith(("DRAFTD_", "OTEL_"))}
    assert kept == {"DRAFTD_MODEL__PATH", "DRAFTD_FLAG__FILE", "OTEL_EXPORTER_OTLP_ENDPOINT"}
