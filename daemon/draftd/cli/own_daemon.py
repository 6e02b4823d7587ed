"""Daemons that commands start for themselves: the demo, and a run of the acceptance harness."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

from rich.markup import escape

from draftd.cli import output
from draftd.client.child import Serving, clean_environ, serve_command, serving
from draftd.settings import Settings

_SILENCE_SECONDS = 600.0  # while a large model is read, or downloaded


@contextlib.contextmanager
def own_daemon(*arguments: str) -> Iterator[Serving]:
    """Runs `draftd serve` with these arguments, on a free port of loopback and with its own file of flags. Shows the
    daemon's lines until it serves."""
    with tempfile.TemporaryDirectory(prefix="draftd-run-") as folder, contextlib.ExitStack() as stack:
        with output.stderr().status("starting a daemon") as status:
            child = serving(
                serve_command("--host", "127.0.0.1", "--port", "0", *arguments),
                clean_environ(f"{folder}/flags.json"),
                timeout=_SILENCE_SECONDS,
                on_line=lambda line: status.update(escape(line)),
            )
            daemon = stack.enter_context(child)
        yield daemon


def measured_daemon(settings: Settings, block_length: int) -> contextlib.AbstractContextManager[Serving]:
    """Runs a daemon with the explicitly set values of those sections of `settings` that decide how it decodes. Blocks
    of `block_length` are allowed. Fallback signals, canaries and probes are off, so that they do not disturb the
    measurement."""
    chosen: dict[str, object] = {}
    for section in ("model", "engine", "hardware", "cost", "distributed"):
        values = getattr(settings, section)
        chosen |= {f"{section}.{name}": getattr(values, name) for name in values.model_fields_set}
    chosen["engine.max_draft_tokens"] = max(settings.engine.max_draft_tokens, block_length)
    chosen["hardware.period_seconds"] = min(settings.hardware.period_seconds, 0.5)
    chosen |= {"fallback.guard": "false", "fallback.canary_period_seconds": 0, "fallback.probe_share": 0}
    assignments = [f"--set={name}={value}" for name, value in chosen.items() if value is not None]
    return own_daemon("--log-level", "warning", *assignments)
