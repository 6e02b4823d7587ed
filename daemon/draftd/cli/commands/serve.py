"""`draftd serve`: runs the daemon until it is stopped."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from draftd.cli import options
from draftd.cli.failures import explain
from draftd.ranks.plan import launched_rank
from draftd.settings import Settings

_listen = partial(typer.Option, rich_help_panel="Where to listen")
_shared = partial(typer.Option, rich_help_panel="Which processes share the model")


@dataclass(frozen=True)
class ListenOptions:
    """The addresses to listen on, and their certificate."""

    host: Annotated[
        str | None, _listen("--host", help="Address to listen on. Beyond loopback, TLS and a token are required.")
    ] = None
    port: Annotated[int | None, _listen("--port", help="Port of the gRPC server. 0: any free port.")] = None
    http_port: Annotated[
        str | None,
        _listen(
            "--http-port",
            metavar="PORT",
            help="Port of the HTTP server for OpenAI's and Anthropic's protocols. 0: any free port; off: no HTTP. "
            "Unset: 8080 on loopback, if free.",
        ),
    ] = None
    tls_cert: Annotated[Path | None, _listen("--tls-cert", help="Certificate chain (PEM) of both servers.")] = None
    tls_key: Annotated[Path | None, _listen("--tls-key", help="Private key (PEM) of --tls-cert.")] = None

    def settings(self) -> dict[str, object]:
        """Returns the options by the dotted names of their settings."""
        return {
            "server.host": self.host,
            "server.port": self.port,
            "server.http_port": self.http_port,
            "server.tls_cert": self.tls_cert,
            "server.tls_key": self.tls_key,
        }


@options.with_options(
    "draftd serve",
    "draftd serve --model ./Qwen3-8B-4bit --draft-model ./Qwen3-0.6B-4bit --max-draft-tokens 3",
    "draftd serve --ranks 2",
    "OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317 draftd serve --set engine.queue_capacity=16",
)
def command(
    served: options.ServeOptions,
    drafting: options.DraftOptions,
    listening: ListenOptions,
    adapter_path: options.AdapterPath = None,
    max_batch: Annotated[
        int | None, options.decoding("--max-batch", help="Most requests decoded together. Further requests wait.")
    ] = None,
    flag_file: Annotated[
        Path | None,
        typer.Option("--flag-file", help="File of the feature flags. All daemons that name this file follow it."),
    ] = None,
    ranks: Annotated[int | None, _shared("--ranks", help="Processes on this machine that share the model.")] = None,
    hostfile: Annotated[
        Path | None,
        _shared("--hostfile", help="JSON file of the machines that share the model, in the format of mlx.launch."),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option("--log-level", help="Lowest severity to log: debug, info, warning or error.")
    ] = None,
) -> None:
    """Serve a model over gRPC and HTTP until SIGTERM or Ctrl-C.

    A setting comes from the first of these that has it: an option here, its DRAFTD_* variable, the TOML file, the
    default. [bold]draftd docs configuration[/] lists all settings.

    The OTEL_* variables say where telemetry is sent. Without them nothing is sent.
    """
    overrides = {
        "model.adapter_path": adapter_path,
        "model.drafter": drafting.drafter,
        "engine.max_draft_tokens": drafting.max_draft_tokens,
        "engine.depth_mode": drafting.depth_mode,
        "engine.max_batch": max_batch,
        **listening.settings(),
        "flag.file": flag_file,
        "distributed.ranks": ranks,
        "distributed.hostfile": hostfile,
        "log.level": log_level,
    }
    read = partial(served.settings, overrides)
    settings = read()
    exit_logged(partial(_run, settings, announcer(), read))


def _run(settings: Settings, announce: Callable[[str], None], read: Callable[[], Settings]) -> int:
    """Serves as a daemon, or as a follower if a launcher gave this process a rank above 0. Returns the exit code."""
    if (rank := launched_rank(os.environ)) is not None and rank > 0:
        from draftd.cli.follow import run_launched

        return run_launched(settings, announce)
    from draftd.cli.serve import run_daemon  # imports the whole server, which --help does not need

    return run_daemon(settings, announce=announce, read=read)


def exit_logged(run: Callable[[], int], prefix: str = "") -> NoReturn:
    """Runs a daemon or a follower, and exits with its code. An error is logged, after `prefix`, because a supervisor
    keeps only the log."""
    try:
        code = run()
    except Exception as error:
        failure = explain(error)
        if failure is None:
            raise
        logging.getLogger("draftd.daemon").error("%s%s", prefix, failure.message)
        code = failure.code
    raise typer.Exit(code)


def announcer() -> Callable[[str], None]:
    """Returns the function that logs announcements, whatever the log level: scripts wait for the line with the port."""
    log = logging.getLogger("draftd.daemon")
    log.setLevel(logging.INFO)
    return lambda line: log.info("%s", line)
