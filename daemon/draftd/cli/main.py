"""The `draftd` command: finds and runs a command, and turns an error into one line."""

from __future__ import annotations

import importlib
import io
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from draftd import __version__
from draftd.cli.failures import ASKED_WRONGLY, explain
from draftd.cli.output import complain

HARNESS = "draftd_acceptance"
ENTRY_POINTS = "draftd.commands"

#: The commands in the order of the help. Each has its module and function (or group of functions by name), or the
#: package that has an entry point of its name; and its line in the help. A module is imported when its command is
#: called.
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("serve.command", "Serve a model over gRPC and HTTP until SIGTERM or Ctrl-C."),
    "follow": ("follow.command", "Run a follower: one rank of a target that several machines serve together."),
    "generate": ("generate.command", "Stream one answer. On a terminal, without a prompt, hold a chat."),
    "compare": ("compare.compare", "Decode the same prompts with and without drafts, and compare."),
    "route": (
        "route.command",
        "Show where a request would be decoded (locally, remotely or by both together), and why.",
    ),
    "status": ("status.command", "Show what a running daemon serves, how busy it is, and how well drafting works."),
    "top": ("top.command", "Watch a running daemon: throughput, acceptance, depth, level, queue, memory, heat."),
    "depth": ("drafts.depth", "Show what drafting costs on this machine, and how often drafted tokens are accepted."),
    "events": (
        "fallback.events",
        "Show changes of the feature flag, the fallback level and the link to the remote, oldest first.",
    ),
    "probe": (
        "fallback.probe",
        "Decode a few prompts at a higher level, and say whether the daemon may step up to it.",
    ),
    "doctor": (
        "doctor.command",
        "Check the machine, models, ports, folders, the remote and the collector. Say what the models can do.",
    ),
    "docs": ("docs.command", "List the documents that come with draftd, or print one as Markdown."),
    "demo": (
        "compare.demo",
        "Start a daemon with the embedded pair of models, and show answers with and without drafts.",
    ),
    "freeze": (HARNESS, "Write the manifest of a daemon: its model files, programs, machine, settings."),
    "accept": (
        HARNESS,
        "Judge whether a daemon is fit for production: freeze, sweep, soak, quality, gate and report in turn.",
    ),
    "sweep": (HARNESS, "Decode the same prompts in different ways, and compare their speed."),
    "soak": (
        HARNESS,
        "Decode several requests at a time without a pause, and check whether memory grows without bound.",
    ),
    "quality": (HARNESS, "Check answers to frozen JSON and tool-call prompts, with and without drafts."),
    "gate": (HARNESS, "Judge a run by criteria."),
    "report": (HARNESS, "Write a run's report.html and report.md."),
    "flag": (
        "flag.GROUP",
        "Show or set the flags speculative-decoding and decoding-strategy, which act on the next request.",
    ),
    "level": ("fallback.LEVEL", "Show the fallback level and its cause, hold a level, or release it."),
    "canary": (
        "fallback.CANARY",
        "Run the quality canaries: frozen prompts whose answers are checked, with and without drafts.",
    ),
    "prefix": (
        "prefix.GROUP",
        "Pin, list or drop prefixes: beginnings of texts that a daemon keeps on disk under a name.",
    ),
    "draft": ("drafts.GROUP", "Reload the draft model of a running daemon."),
    "dashboards": (
        "dashboards.GROUP",
        "Put the dashboards and alert rules that come with draftd into a Grafana.",
    ),
}


class _Commands(TyperGroup):
    """Lists commands without importing them, and imports the one that is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, help=line) for name, (_, line) in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load(name), rest


def load(name: str) -> Any:
    """Imports and returns a command, or a group of commands."""
    commands, line = find(name), COMMANDS[name][1]
    if callable(commands):
        app = _app(add_completion=False)
        app.command(name)(commands)
        return typer.main.get_command(app)
    alone = commands.get("")  # what the group runs without a subcommand; else it shows its help
    shown = {"no_args_is_help": True, "help": line} if alone is None else {"invoke_without_command": True}
    app = _app(add_completion=False, **shown)
    app.callback()(alone or (lambda: None))  # without a callback a single command would replace the group
    for sub, command in commands.items():
        if sub:
            app.command(sub)(command)
    return typer.main.get_command(app)


def find(name: str) -> Any:
    """Returns the function of that name, or a group's functions by name. Raises ModuleNotFoundError."""
    module, _, function = COMMANDS[name][0].partition(".")
    if function:
        return getattr(importlib.import_module(f"draftd.cli.commands.{module}"), function)
    from importlib.metadata import entry_points  # takes ten milliseconds that other commands save

    for point in entry_points(group=ENTRY_POINTS, name=name):
        return point.load()
    raise ModuleNotFoundError(name=module)


def _app(**attributes: Any) -> typer.Typer:
    return typer.Typer(
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **attributes,
    )


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"draftd {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Serve an MLX language model over gRPC and HTTP, with speculative or autoregressive decoding.

    Start with [bold]draftd demo[/]. Or run [bold]draftd serve[/] in one terminal and
    [bold]draftd generate "What is the capital of France?"[/] in another.
    """


def build_app() -> typer.Typer:
    """Builds the app with all commands."""
    app = _app(name="draftd", cls=_Commands, no_args_is_help=True)
    app.callback(cls=_Commands, no_args_is_help=True)(_root)
    return app


def main() -> None:
    """Runs the command line. Exit codes: 0 success; 1 a failure, or a check found a fault; 2 wrong usage; 130
    interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows another
    # Hides gRPC's own lines about failed connections: the call's error has the same text.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        code = build_app()(prog_name="draftd", standalone_mode=False)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the help was shown
            sys.exit(ASKED_WRONGLY)
        failure = explain(error)
        if failure is None:
            raise
        complain(failure.message)
        sys.exit(failure.code)
    if code:
        sys.exit(code)


if __name__ == "__main__":
    main()
