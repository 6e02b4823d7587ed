"""The socket pair between the daemon and its engine's process: whole messages, and waits that end."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from draftd.process.ipc import MessagePipe


@pytest.fixture
def pipes() -> Iterator[tuple[MessagePipe, MessagePipe]]:
    with ExitStack() as stack:
        here, there = (stack.enter_context(closing(MessagePipe(end))) for end in socket.socketpair())
        yield here, there


def test_engine_pipe_delivers_messages_of_all_sizes_whole(pipes: tuple[MessagePipe, MessagePipe]) -> None:
    here, there = pipes
    for messages in (["one", 2], [b"x" * 20_000], []):
        here.send(messages)
        assert there.receive() == messages


def test_silent_or_blocked_engine_pipe_raises_timeout(pipes: tuple[MessagePipe, MessagePipe]) -> None:
    """A stopped process may also fall silent within a message, or read nothing."""
    here, there = pipes
    here.limit_waits(0.05)
    with pytest.raises(TimeoutError):
        here.receive()
    there._end.sendall(b"\0\0")
    with pytest.raises(TimeoutError):
        here.receive()
    with pytest.raises(TimeoutError):
        here.send([b"x" * (1 << 24)])


def test_closed_engine_pipe_raises_on_send_and_receive(pipes: tuple[MessagePipe, MessagePipe]) -> None:
    here, there = pipes
    there.close()
    with pytest.raises(ConnectionResetError):
        here.receive()
    with pytest.raises(BrokenPipeError):
        here.send(["late"])
