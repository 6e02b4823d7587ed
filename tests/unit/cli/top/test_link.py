"""Asking a daemon that may be away: over which connection, and how often."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from draftd.cli.top.link import Link, pause
from draftd.client.client import DraftdClient
from draftd.errors import NotServing
from draftd.v1 import control_pb2 as pb
from tests.unit.cli.top.snapshots import status


class Answering:
    """A client that knows its answers beforehand."""

    def __init__(self, *answers: pb.GetStatusResponse | Exception) -> None:
        self.answers, self.closed = list(answers), False

    def status(self, *, timeout: float) -> pb.GetStatusResponse:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed = True


def linked(*clients: Answering) -> Link:
    left = iter(clients)
    return Link(lambda: cast(DraftdClient, next(left)))


def test_one_connection_is_kept_while_it_answers_and_a_new_one_made_when_it_fails() -> None:
    first = Answering(status(1), status(2), NotServing("gone"))
    second = Answering(status(3))
    link = linked(first, second)
    assert [link.ask().result(5).status.output_tokens for _ in range(2)] == [1, 2]
    with pytest.raises(NotServing, match="gone"):
        link.ask().result(5)
    assert first.closed
    assert link.ask().result(5).status.output_tokens == 3
    link.close()
    assert second.closed


def test_whoever_waits_is_woken_by_an_answer_and_by_a_failure() -> None:
    woken = threading.Semaphore(0)
    link = Link(lambda: cast(DraftdClient, Answering(status(), NotServing("gone"))), woken.release)
    for _ in range(2):
        link.ask()
        assert woken.acquire(timeout=5)
    link.close()


@pytest.mark.parametrize(
    ("failures", "interval", "seconds"),
    [
        (1, 1.0, 1.0),
        (2, 1.0, 2.0),
        (3, 1.0, 4.0),
        (5, 1.0, 10.0),
        (10_000, 1.0, 10.0),
        (1, 60.0, 60.0),
        (9, 60.0, 60.0),
    ],
)
def test_the_pause_doubles_up_to_ten_seconds_or_one_interval(failures: int, interval: float, seconds: float) -> None:
    assert pause(failures, interval) == seconds
