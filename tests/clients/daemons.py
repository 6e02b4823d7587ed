"""The daemons that the clients talk to, each in a process of its own with an HTTP port."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from draftd.cli.serve import run_daemon
from draftd.engine.pair import LoadedModels
from draftd.models.blas import load_blas
from draftd.settings import EngineSettings, FlagSettings, ServerSettings, Settings
from tests import forked_daemon

_HTTP = re.compile(r"draftd: HTTP on (http://\S+)/v1")
_ALIASES = ("claude-*", "gpt-*")


@contextlib.contextmanager
def real_daemon(model: Path) -> Iterator[str]:
    """Serves a model's folder as `draftd serve` does. Yields the URL, without a path."""
    with tempfile.TemporaryDirectory(prefix="draftd-clients-") as folder:
        environ = {
            **_environment(folder),
            "DRAFTD_MODEL__PATH": str(model),
            "DRAFTD_FLAG__FILE": str(Path(folder) / "flags.json"),
            "DRAFTD_SERVER__PORT": "0",
            "DRAFTD_SERVER__HTTP_PORT": "0",
            "DRAFTD_SERVER__HTTP_ALIASES": ",".join(_ALIASES),
        }
        with forked_daemon.daemon(forked_daemon.command, "serve", environ=environ) as daemon:
            yield _url(daemon)


@contextlib.contextmanager
def talking_daemon() -> Iterator[str]:
    """Serves the model that writes what the conversation asks for. Yields the URL, without a path."""
    with (
        tempfile.TemporaryDirectory(prefix="draftd-clients-") as folder,
        forked_daemon.daemon(serve_talker, folder, environ=_environment(folder)) as daemon,
    ):
        yield _url(daemon)


def serve_talker(folder: str) -> int:
    """Runs the process of `talking_daemon`. Returns its exit code."""

    def load(progress: object) -> LoadedModels:
        load_blas()
        from tests.clients.talker import talking_models  # brings MLX in, after the BLAS

        tokenizer = Path(folder) / "tokenizer"
        tokenizer.mkdir()
        return talking_models(tokenizer)

    settings = Settings(
        server=ServerSettings(port=0, http_port=0, http_aliases=_ALIASES),
        engine=EngineSettings(),
        flag=FlagSettings(file=Path(folder) / "flags.json"),
    )
    return run_daemon(settings, announce=lambda line: print(f"draftd: {line}", file=sys.stderr, flush=True), load=load)


def _environment(state: str) -> Mapping[str, str]:
    """This process's environment without settings of a daemon. Metrics are only shown over HTTP."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DRAFTD_", "OTEL_"))}
    exporters = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "METRICS", "LOGS")}
    return {**kept, **exporters, "XDG_STATE_HOME": state}


def _url(daemon: forked_daemon.Daemon) -> str:
    return next(found[1] for line in daemon.lines if (found := _HTTP.search(line)))
