"""Errors as people see them."""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from pathlib import Path

import grpc
import pytest

from draftd.cli import main
from draftd.cli.failures import explain
from draftd.client.client import CallError
from draftd.errors import ConfigError, ModelLoadError
from tests.unit.cli.conftest import in_process


class Refusal(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    """The error that a stub raises."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return ()


Refusal.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]  # the rest of grpc.Call is of no concern here


@pytest.mark.parametrize(
    ("code", "details", "message", "exit_code"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "top_p: got 0", "top_p: got 0", 2),
        (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses", "no daemon answers", 1),
        (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses: Socket closed", "use TLS", 1),
        (
            grpc.StatusCode.UNAVAILABLE,
            "failed to connect to all addresses; Failed parsing HTTP/2 (Trying to connect an http1.x server)",
            "an HTTP server answers there",
            1,
        ),
        (grpc.StatusCode.UNAVAILABLE, "errors resolving bad::host: [field:…]", "the target's host has no address", 1),
        (
            grpc.StatusCode.UNAVAILABLE,
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused",
            "running there? (127.0.0.1:1: Connection refused)",
            1,
        ),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", "the daemon stopped or was killed", 1),
        (grpc.StatusCode.UNAVAILABLE, "recvmsg:Connection reset by peer", "the daemon stopped or was killed", 1),
        (grpc.StatusCode.UNAVAILABLE, "loading the model", "unavailable: loading the model", 1),
        (grpc.StatusCode.UNAUTHENTICATED, "no token", "DRAFTD_TOKEN", 1),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "64 wait", "resource exhausted: 64 wait", 1),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", "deadline exceeded", 1),
    ],
)
def test_cli_explains_each_grpc_error_status_with_a_message_and_exit_code(
    code: grpc.StatusCode, details: str, message: str, exit_code: int
) -> None:
    failure = explain(CallError(Refusal(code, details)))
    assert failure is not None
    assert message in failure.message
    assert failure.code == exit_code


def test_cli_error_with_a_daemon_reason_prints_only_the_daemon_message() -> None:
    error = CallError(
        Refusal(grpc.StatusCode.FAILED_PRECONDITION, "the request demands speculation: flag: off (default variant)")
    )
    error.reason = "speculation_unavailable"
    failure = explain(error)
    assert failure is not None
    assert failure.message == "the request demands speculation: flag: off (default variant)"


def test_cli_exits_2_on_a_wrong_setting_and_1_on_a_model_load_error() -> None:
    wrong, missing = explain(ConfigError("server.port", 1, "2")), explain(ModelLoadError("no such folder"))
    assert wrong is not None
    assert missing is not None
    assert (wrong.code, missing.code) == (2, 1)


def test_cli_error_for_a_missing_file_names_the_file() -> None:
    failure = explain(FileNotFoundError(2, "No such file or directory", "prompts.txt"))
    assert failure is not None
    assert failure.message == "prompts.txt: No such file or directory"


def test_cli_exits_2_on_input_that_is_not_utf_8() -> None:
    failure = explain(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"))
    assert failure is not None
    assert failure.code == 2


def test_cli_does_not_explain_unexpected_exceptions_so_they_keep_their_traceback() -> None:
    assert explain(KeyError("x")) is None


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        (["report", "--run", "."], "matplotlib", "report"),
        (["accept"], "matplotlib", "report"),
        (["dashboards", "push"], "grafana_client", "grafana"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_command_lacking_an_optional_package_names_the_extra_and_still_shows_help(
    command: list[str], package: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    imported = (package, "draftd_acceptance.report", "draftd.cli.grafana")
    for module in [name for name in sys.modules if name.startswith(imported)]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)  # not to be imported
    assert in_process([*command, "--help"], monkeypatch, capsys).code == 0
    ran = in_process(command, monkeypatch, capsys)
    assert ran.code == 2  # of `accept` 1 would say that the pair is not fit
    assert ran.err.splitlines() == [
        f"draftd: this needs {package.replace('_', '-')}, which is not installed: "
        f"install draftd with its extra {extra} (see `draftd docs getting-started`)"
    ]


def test_without_acceptance_package_only_its_commands_fail_and_name_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    for name, (place, _) in main.COMMANDS.items():  # type: ignore[attr-defined]
        ran = in_process([name, "--help"], monkeypatch, capsys)
        missing = (
            "draftd: this needs draftd-acceptance, which is not installed: install draftd again "
            "(see `draftd docs getting-started`)\n"
        )
        assert (ran.code, ran.err) == ((2, missing) if place == main.HARNESS else (0, "")), name  # type: ignore[attr-defined]


def test_every_command_entry_point_in_pyproject_is_listed_and_loads() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    points = project["entry-points"][main.ENTRY_POINTS]  # type: ignore[attr-defined]
    assert set(points) == {name for name, (place, _) in main.COMMANDS.items() if place == main.HARNESS}  # type: ignore[attr-defined]
    for name, place in points.items():
        assert callable(importlib.metadata.EntryPoint(name, place, main.ENTRY_POINTS).load())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("serve --port abc", "--port: got 'abc'; allowed: a whole number"),
        ("events --limit 0", "--limit: got '0'; allowed: a whole number from 1 to 1000"),
        ("top --interval x", "--interval: got 'x'; allowed: a number from 0.2 to 60.0"),
        ("generate --mode fast hi", "--mode: got 'fast'; allowed: auto, speculative, autoregressive"),
        ("generate -w poem hi", "--workload: got 'poem'; allowed: code, tool_call, chat, prose, edit"),
        ("flag set maybe", "VARIANT: got 'maybe'; allowed: on, off, local, remote, speculative, auto"),
        ("flag set", "VARIANT is missing; allowed: on, off, local, remote, speculative, auto (draftd flag set --help)"),
        (
            "generate --temprature 1",
            "--temprature: no such option; did you mean --temperature? (draftd generate --help)",
        ),
        ("serv", "serv: no such command; did you mean serve? (draftd --help)"),
        ("status extra", "extra: one argument too many (draftd status --help)"),
        ("top --save", "--save: a value must follow it"),
        ("level --json hold full", "give --json after `hold`"),
        ("serve --tls-cert /none", "server.tls_cert: got '/none'; allowed: an existing file"),
        (
            "serve /models/a",
            "argument: got '/models/a'; allowed: no argument: use --model /models/a, or --set NAME=VALUE",
        ),
    ],
)
def test_wrong_command_line_exits_2_with_one_line_naming_argument_and_allowed_values(
    command: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = in_process(command.split(), monkeypatch, capsys)
    assert (ran.code, ran.out, ran.err) == (2, "", f"draftd: {told}\n")
