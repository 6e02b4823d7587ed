"""Starts a daemon for one part of a benchmark."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.idle import process_at, wait_until_idle
from benchmarks.peers.part import Pair
from draftd.client.child import clean_environ, serve_command, serving
from draftd.client.client import DraftdClient
from draftd.settings import EngineSettings

_START_SECONDS = 600.0

# The pair is measured, not the fallback: no signal lowers its level, and no canary or probe runs meanwhile.
_QUIET = {"fallback.guard": "false", "fallback.canary_period_seconds": 0, "fallback.probe_share": 0}


@contextlib.contextmanager
def daemon(
    pair: Pair, settings: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None
) -> Iterator[DraftdClient]:
    """Starts a daemon on `pair` and yields a client of it once it is loaded and idle. `settings` are draftd's, by name
    (`{"engine.max_batch": 16}`); the others have their defaults, whatever this process's environment says. `environ` is
    added to its environment. It exports no telemetry, and its state is deleted. Raises DraftdError with its output if
    it ends before it serves."""
    with tempfile.TemporaryDirectory(prefix="draftd-bench-") as folder:
        inherited = clean_environ("")
        base = {name: value for name, value in inherited.items() if not name.startswith(("OTEL_", "DRAFTD_"))}
        base |= {"DRAFTD_FLAG__FILE": str(Path(folder) / "flags.json"), "XDG_STATE_HOME": folder}
        command = serve_command("--model", pair.model, "--host", "127.0.0.1", "--port", "0")
        command += ["--draft-model", pair.draft] if pair.draft else []
        for name, value in {**_QUIET, **(settings or {})}.items():
            command += ["--set", f"{name}={value}"]
        with (
            serving(command, base | dict(environ or {}), timeout=_START_SECONDS) as child,
            DraftdClient(child.address) as client,
        ):
            client.wait_until_loaded(_START_SECONDS)
            wait_until_idle([process_at(child.address)])  # its measurements while idle would slow the other arms
            yield client


def without_reuse() -> dict[str, object]:
    """Returns the setting that turns the prefix cache off."""
    return {"engine.prefix_cache_bytes": 0} if "prefix_cache_bytes" in EngineSettings.model_fields else {}
