"""A daemon of a part's own, with the settings that it asks for."""

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

# The pair is measured, not the ladder: nothing steps it down, and nothing runs beside what is measured.
_QUIET = {"fallback.guard": "false", "fallback.canary_period_seconds": 0, "fallback.probe_share": 0}


@contextlib.contextmanager
def daemon(
    pair: Pair, settings: Mapping[str, object] | None = None, environ: Mapping[str, str] | None = None
) -> Iterator[DraftdClient]:
    """A daemon on `pair`, ready, for as long as the block lasts, and a client of it.

    `settings` are draftd's own, by name (`{"engine.max_batch": 16}`): what is not named has its default, whatever this
    process's environment says. Nothing is exported, nothing of it is kept. `environ` is added to the child's
    environment. Raises DraftdError with what the child said where it ends before it serves."""
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
            wait_until_idle([process_at(child.address)])  # what it measures when idle would slow the other arms
            yield client


def without_reuse() -> dict[str, object]:
    """The setting that has draftd keep nothing of a finished prompt."""
    return {"engine.prefix_cache_bytes": 0} if "prefix_cache_bytes" in EngineSettings.model_fields else {}
