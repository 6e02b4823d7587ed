"""What the client leaves behind where the wait for an answer is ended from without."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from draftd.client.client import DraftdClient

_CALLS = [
    pytest.param(lambda client: list(client.generate("Hello", timeout=10)), id="generate"),
    pytest.param(lambda client: list(client.watch(timeout=10)), id="watch"),
]


@pytest.fixture
def silent() -> Iterator[DraftdClient]:
    """A client of a server that takes connections, and never answers. Ctrl-C interrupts, which whoever runs the
    tests in the background has it not do."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            yield DraftdClient(f"127.0.0.1:{listening.getsockname()[1]}")
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("call", [*_CALLS, pytest.param(DraftdClient.status, id="status")])
def test_client_connection_closes_after_an_interrupted_call(
    silent: DraftdClient, call: Callable[[DraftdClient], object]
) -> None:
    threading.Timer(0.3, signal.raise_signal, (signal.SIGINT,)).start()
    with pytest.raises(KeyboardInterrupt):
        call(silent)
    assert _closes(silent)


@pytest.mark.parametrize("call", _CALLS)
@pytest.mark.parametrize("moment", ["_run_channel_spin_thread", "_event_handler"])
def test_client_connection_closes_after_a_call_interrupted_at_its_start(
    silent: DraftdClient, call: Callable[[DraftdClient], object], moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = getattr(grpc._channel, moment)

    def interrupted(*given: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return begin(*given)

    monkeypatch.setattr(grpc._channel, moment, interrupted)
    with pytest.raises(KeyboardInterrupt):
        call(silent)
    assert _closes(silent)


def test_client_call_keeps_an_ignored_sigint_ignored(silent: DraftdClient) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        answer = silent.generate("Hello", timeout=0.2)
        with pytest.raises(Exception, match="DEADLINE_EXCEEDED|UNAVAILABLE"):
            next(answer)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
        silent.close()


def _closes(client: DraftdClient) -> bool:
    closing = threading.Thread(target=client.close, daemon=True)
    closing.start()
    closing.join(5)
    return not closing.is_alive()
