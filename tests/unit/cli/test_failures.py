"""Errors as people see them."""

from __future__ import annotations

import grpc
import pytest

from draftd.cli.failures import explain
from draftd.client.client import CallError
from draftd.errors import ConfigError, ModelLoadError


class Refusal(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    """What a stub raises."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return ()


Refusal.__abstractmethods__ = frozenset()  # the rest of grpc.Call is of no concern here


@pytest.mark.parametrize(
    ("code", "details", "message", "exit_code"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "top_p: got 0", "top_p: got 0", 2),
        (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses", "no daemon answers", 1),
        (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses: Socket closed", "use TLS", 1),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", "the daemon stopped or was killed", 1),
        (grpc.StatusCode.UNAVAILABLE, "recvmsg:Connection reset by peer", "the daemon stopped or was killed", 1),
        (grpc.StatusCode.UNAVAILABLE, "loading the model", "unavailable: loading the model", 1),
        (grpc.StatusCode.UNAUTHENTICATED, "no token", "DRAFTD_TOKEN", 1),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "64 wait", "resource exhausted: 64 wait", 1),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", "deadline exceeded", 1),
    ],
)
def test_a_refused_call_is_one_line(code: grpc.StatusCode, details: str, message: str, exit_code: int) -> None:
    failure = explain(CallError(Refusal(code, details)))
    assert failure is not None
    assert message in failure.message
    assert failure.code == exit_code


def test_a_wrong_setting_is_asked_wrongly_and_a_missing_model_has_failed() -> None:
    wrong, missing = explain(ConfigError("server.port", 1, "2")), explain(ModelLoadError("no such folder"))
    assert wrong is not None
    assert missing is not None
    assert (wrong.code, missing.code) == (2, 1)


def test_a_missing_file_is_named() -> None:
    failure = explain(FileNotFoundError(2, "No such file or directory", "prompts.txt"))
    assert failure is not None
    assert failure.message == "prompts.txt: No such file or directory"


def test_bytes_that_are_no_text_are_asked_wrongly() -> None:
    failure = explain(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"))
    assert failure is not None
    assert failure.code == 2


def test_a_bug_keeps_its_traceback() -> None:
    assert explain(KeyError("x")) is None
