"""Runs one client against the two daemons."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

from tests.clients.catalog import NOT_INSTALLED, Client
from tests.clients.install import NotInstalled, command_of
from tests.clients.terminal import TERMINAL

_SECONDS = 240.0
OK, NOT_APPLICABLE = "ok", "n/a"
_FOREIGN = ("DRAFTD_", "OTEL_", "OPENAI_", "ANTHROPIC_", "CLAUDE", "CODEX_", "LANGSMITH_", "LANGCHAIN_", "LITELLM_")


@dataclass(frozen=True)
class Daemons:
    """URLs of the two daemons, without a path."""

    real: str
    talker: str


def examine(client: Client, daemons: Daemons) -> dict[str, str]:
    """Returns the result of each check: `ok`, `n/a`, or the reason of its failure."""
    results: dict[str, str] = dict.fromkeys(client.missing, NOT_APPLICABLE)
    try:
        command = command_of(client)
    except NotInstalled as error:
        expected = client.name in NOT_INSTALLED
        return results | dict.fromkeys(client.checks, NOT_APPLICABLE if expected else f"not installed: {error}")
    if client.name in TERMINAL:
        with tempfile.TemporaryDirectory(prefix="draftd-clients-") as folder:
            return results | TERMINAL[client.name](folder, daemons.talker, environment()).examine(client.checks)
    return results | run_script([*command, daemons.real, daemons.talker], client.checks)


def run_script(command: list[str], checks: tuple[str, ...]) -> dict[str, str]:
    """Runs a script that prints a line of JSON per check. Returns the results of these checks."""
    with tempfile.TemporaryDirectory(prefix="draftd-clients-") as folder:
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=_SECONDS, check=False
            )
            output, why = done.stdout, f"it ended with {done.returncode}: {done.stderr.strip()[-1000:]}"
        except subprocess.TimeoutExpired as error:
            output, why = (error.stdout or b"").decode(errors="replace"), f"it took more than {_SECONDS:g} s"
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    by_name = {line["name"]: OK if line["ok"] else str(line["detail"]) for line in lines}
    return {check: by_name.get(check, why) for check in checks}


def environment() -> Mapping[str, str]:
    """Returns this process's environment without the variables that would send a client elsewhere."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    kept.pop("PYTHONPATH", None)
    local = "127.0.0.1,localhost"
    return {**kept, "NO_PROXY": local, "no_proxy": local, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
