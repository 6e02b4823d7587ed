"""Starting up: help is quick because nothing heavy is imported for it, and every command explains itself."""

from __future__ import annotations

import io
import plistlib
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftd.cli import main
from draftd.cli.commands.serve import announcer
from draftd.cli.logs import configure
from draftd.cli.main import build_app
from draftd.fronts.daemon import _CLOSE_SECONDS
from draftd.settings import LogSettings, ServerSettings

GROUPS = {
    "flag": ("get", "set"),
    "level": ("get", "hold", "release"),
    "canary": ("run",),
    "draft": ("reload",),
    "prefix": ("pin", "list", "drop"),
    "dashboards": ("push",),
}
COMMANDS = [
    *([name] for name in main.COMMANDS if name not in GROUPS or name == "level"),  # type: ignore[attr-defined]
    *([group, name] for group, names in GROUPS.items() for name in names),
]
HEAVY = (
    "mlx",
    "mlx_lm",
    "transformers",
    "grpc",
    "opentelemetry",
    "openfeature",
    "numpy",
    "scipy",
    "textual",
    "matplotlib",
)


def test_building_the_cli_imports_no_heavy_modules() -> None:
    program = (
        "import sys; from draftd.cli.main import build_app; build_app();"
        f"print([m for m in {HEAVY} if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_cli_command_help_includes_an_example(command: list[str]) -> None:
    result = CliRunner().invoke(build_app(), [*command, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output
    assert f"draftd {' '.join(command)}" in result.output.split("Example")[1]


@pytest.mark.parametrize("name", main.COMMANDS)  # type: ignore[attr-defined]
def test_listed_summary_of_each_command_is_the_beginning_of_its_help(name: str) -> None:
    line = main.COMMANDS[name][1]  # type: ignore[attr-defined]
    whole = " ".join((main.load(name).help or "").split())  # type: ignore[attr-defined]
    assert whole.startswith(line.rstrip(".?"))


@pytest.mark.parametrize("start", ["from draftd.cli import main; main()", "import draftd.__main__"])
@pytest.mark.parametrize("module", ["draftd.cli.main", "typer", "draftd.cli.commands.status"])
def test_keyboard_interrupt_during_cli_imports_exits_130_silently(start: str, module: str) -> None:
    program = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        f"sys.argv = ['draftd', 'status']; {start}"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_draftd_without_arguments_lists_its_commands() -> None:
    result = CliRunner().invoke(build_app(), [])
    assert "serve" in result.output
    assert "doctor" in result.output


def test_serving_announcement_is_logged_at_any_log_level() -> None:
    stream = io.StringIO()
    announce = announcer()
    configure(LogSettings(level="error"), stream)
    announce("serving a model on 127.0.0.1:1")
    assert stream.getvalue().endswith(" draftd: serving a model on 127.0.0.1:1\n")


@pytest.mark.parametrize(
    ("line", "completed"),
    [("draftd gen", "generate"), ("draftd generate --max-t", "--max-tokens"), ("draftd flag s", "set")],
)
def test_bash_completion_completes_commands_and_their_options(line: str, completed: str) -> None:
    words = {"_DRAFTD_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    assert completed in CliRunner().invoke(build_app(), [], prog_name="draftd", env=words).output.split()


def test_launchd_plist_starts_serve_and_sets_exit_timeout_above_drain_time() -> None:
    path = Path(__file__).parents[3] / "docs" / "launchd" / "draftd.serve.plist"
    recipe = plistlib.loads(path.read_bytes())
    assert recipe["Label"] == path.stem
    assert recipe["ProgramArguments"][1:3] == ["serve", "--config"]
    assert recipe["ExitTimeOut"] > ServerSettings().drain_seconds + _CLOSE_SECONDS
    assert recipe["Umask"] == 0o77
