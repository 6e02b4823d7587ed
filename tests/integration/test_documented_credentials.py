"""The documents' commands that make credentials, or use them, do what is said: a daemon serves with what they make, and
a client connects to it."""

from __future__ import annotations

import os
import plistlib
import re
import subprocess
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from draftd.cli.main import build_app
from draftd.settings import load_settings
from tests import forked_daemon
from tests.code_blocks import texts_of
from tests.wait_until import until

DOCS = Path(__file__).parents[2] / "docs"
WITHOUT_SETTINGS = {name: value for name, value in os.environ.items() if not name.startswith(("DRAFTD_", "OTEL_"))}
NANO = Path(str(files("draftd.models.nano")))
# Stands in for `draftd`: says how it was called, and with which environment.
_RECORDER = """#!/bin/sh
env -0 >environ
printf '%s\\0' "$@" >arguments
"""


def run(folder: Path, commands: str, **environ: str) -> str:
    """What they print. Each must succeed."""
    whole = {**WITHOUT_SETTINGS, **environ}
    done = subprocess.run(["sh", "-eu"], input=commands, cwd=folder, env=whole, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def recorded(folder: Path, commands: str) -> tuple[list[str], dict[str, str]]:
    """Runs what a document says, but for `draftd`. Returns its arguments, and the DRAFTD_* variables that it gets."""
    binary = folder / ".venv" / "bin" / "draftd"
    binary.parent.mkdir(parents=True)
    binary.write_text(_RECORDER)
    binary.chmod(0o755)
    run(folder, commands)
    variables = (one.partition("=") for one in (folder / "environ").read_text().split("\0"))
    environ = {name: value for name, _, value in variables if name.startswith("DRAFTD_")}
    return (folder / "arguments").read_text().split("\0")[:-1], environ


def command_in(folder: str, *arguments: str) -> None:
    """For a forked process: `draftd` in this folder."""
    os.chdir(folder)
    forked_daemon.command(*arguments)


def status(**environ: str) -> Result:
    """Of `draftd status`."""
    return CliRunner().invoke(build_app(), ["status"], env=environ)


def environ_of(folder: Path, more: Mapping[str, str]) -> dict[str, str]:
    own = {"DRAFTD_SERVER__PORT": "0", "DRAFTD_FLAG__FILE": str(folder / "flags.json"), "XDG_STATE_HOME": str(folder)}
    return {**WITHOUT_SETTINGS, **own, **more}


def test_documented_commands_make_credentials_that_daemon_and_clients_accept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve, clients = texts_of("operations.md", "sh", "openssl req")
    (connect,) = texts_of("operations.md", "sh", "DRAFTD_TLS_CA")
    (alerts,) = texts_of("fallback.md", "sh", "DRAFTD_WEBHOOK__SECRET")
    arguments, environ = recorded(tmp_path, serve)
    run(tmp_path, clients)
    token, secret = (run(tmp_path, "openssl rand -hex 32").strip() for _ in range(2))
    webhook = {"DRAFTD_WEBHOOK__TOKEN": token, "DRAFTD_WEBHOOK__SECRET": secret}
    more = {**webhook, "DRAFTD_WEBHOOK__PORT": "0", "DRAFTD_SERVER__TLS_CLIENT_CA": "clients.pem"}
    monkeypatch.chdir(tmp_path)
    with forked_daemon.serving(
        command_in, str(tmp_path), *arguments, environ=environ_of(tmp_path, environ | more)
    ) as daemon:
        assert not [line for line in daemon.lines if "warning: " in line], "the certificate is as it should be"
        shown = connect.replace("mini.lan:50551", f"localhost:{daemon.port}").replace(
            "…", environ["DRAFTD_SERVER__TOKEN"]
        )
        variables = dict(re.findall(r"(DRAFTD_\w+)=(\S+)", shown))
        assert status(**variables).exit_code == 1, "it wants a client's certificate"
        variables |= {"DRAFTD_TLS_CERT": "laptop.pem", "DRAFTD_TLS_KEY": "laptop.key"}
        answer = status(**variables)
        assert answer.exit_code == 0, answer.output
        port = next(found[1] for line in daemon.lines if (found := re.search(r"alerts are taken on port (\d+)", line)))
        answers = run(tmp_path, alerts.replace("50552", port), **webhook)
        assert answers.count('"result": "no_level"') == 2, answers


def test_documented_launchd_setup_writes_the_settings_its_service_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (setup,) = texts_of("operations.md", "sh", "launchctl bootstrap")
    here = "\n".join(line for line in setup.splitlines() if not line.startswith(("launchctl", "tail")))
    run(DOCS.parent, here, HOME=str(tmp_path), USER="alice")
    recipe = plistlib.loads((tmp_path / "Library/LaunchAgents/draftd.serve.plist").read_bytes())
    assert recipe["ProgramArguments"][-1] == "/Users/alice/.config/draftd.toml"
    config = tmp_path / ".config/draftd.toml"
    assert config.stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("HOME", str(tmp_path))
    log = load_settings(config, {}, {}).log.file
    assert log == tmp_path / "Library/Logs/draftd.log"
    assert f"~/{log.relative_to(tmp_path)}" in setup, "and it is what is looked at"
    assert Path(recipe["StandardErrorPath"]).name != log.name, "launchd does not rename its own by size"


def test_documented_remote_setup_connects_an_edge_to_its_verifier(
    tmp_path: Path,
) -> None:
    (make,), (toml,), (ask,) = (
        texts_of("remote.md", *one) for one in (("sh", "openssl"), ("toml", "[remote]"), ("sh", "draftd status"))
    )
    arguments, environ = recorded(tmp_path, make)
    for name, model in (("Qwen3-32B-4bit", "target"), ("Qwen3-8B-4bit", "target"), ("Qwen3-0.6B-4bit", "draft")):
        (tmp_path / name).symlink_to(NANO / model)
    with forked_daemon.serving(
        command_in, str(tmp_path), *arguments, environ=environ_of(tmp_path, environ)
    ) as verifier:
        target = f"localhost:{verifier.port}"
        config = toml.replace("gpu.lan:50551", target).replace("…", environ["DRAFTD_SERVER__TOKEN"])
        (tmp_path / "draftd.toml").write_text(config)
        edge_folder = tmp_path / "edge"
        edge_folder.mkdir()
        serve = ["serve", "--config", "draftd.toml"]
        with forked_daemon.serving(command_in, str(tmp_path), *serve, environ=environ_of(edge_folder, {})) as edge:
            said = re.search(r"draftd status +# (.+)", ask)
            assert said is not None
            wanted = said[1].replace("gpu.lan:50551", target).replace("Qwen3-32B-4bit", "nano/target")

            def up() -> bool:
                return " ".join(wanted.split()) in " ".join(status(DRAFTD_TARGET=edge.address).output.split())

            until(up, 20)
