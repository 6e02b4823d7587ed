"""The engine's inbox: who may wait, and whose place is free again when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftd.core import DecodeRequest, FinishReason
from draftd.engine.inbox import Arrival, Inbox
from draftd.errors import QueueFull
from tests.rig import Collected, autoregressive, request


def asked(number: int, client: str = "one") -> DecodeRequest:
    return replace(request([1, 2], autoregressive()), id=f"{client} {number}", client=client)


def opened(capacity: int) -> Inbox:
    inbox = Inbox(capacity, max_batch=2)
    inbox.open()
    return inbox


@pytest.mark.parametrize("taken", [False, True])
def test_cancelled_request_frees_its_queue_place_at_once(taken: bool) -> None:
    inbox = opened(4)
    requests = [asked(number) for number in range(4)]
    for one in requests:
        inbox.submit(Arrival(one, Collected()))
    if taken:
        inbox.take(0)
        inbox.report(0, requests, 0, 1.0)
    with pytest.raises(QueueFull):
        inbox.submit(Arrival(asked(4), Collected()))
    for one in requests[:2]:
        inbox.end(one.id, FinishReason.CANCELLED)
    assert inbox.counts == (0, 2)
    inbox.report(0, requests if taken else [], 0, 1.0)  # the engine has not swept them out yet
    assert inbox.counts == (0, 2)
    inbox.submit(Arrival(asked(5), Collected()))
    left = inbox.take(0)
    assert left is not None
    assert set(left.endings) == {one.id for one in requests[:2]}, "their ends are told all the same"


def test_single_connection_cannot_take_all_queue_places() -> None:
    inbox = opened(64)
    for number in range(56):
        inbox.submit(Arrival(asked(number), Collected()))
    with pytest.raises(QueueFull, match="for other connections") as refused:
        inbox.submit(Arrival(asked(57), Collected()))
    assert refused.value.retry_after
    for number in range(4):
        inbox.submit(Arrival(asked(number, "another"), Collected()))
    assert inbox.counts == (0, 60)


def test_choices_of_one_request_are_queued_all_together_or_refused() -> None:
    inbox = opened(64)
    choices = [Arrival(asked(number), Collected()) for number in range(8)]
    for number in range(7):
        inbox.submit(*(one._replace(request=asked(10 * number + i)) for i, one in enumerate(choices)))
    with pytest.raises(QueueFull, match="for other connections"):
        inbox.submit(*choices[:2])
    with pytest.raises(QueueFull, match="56 requests are waiting, and 9 more came; at most 64 may"):
        inbox.submit(*(Arrival(asked(number, "another"), Collected()) for number in range(9)))
    assert inbox.counts == (0, 56)
    inbox.submit(*(Arrival(asked(number, "another"), Collected()) for number in range(7)))
    assert inbox.counts == (0, 63)


def test_requests_cancelled_before_engine_takes_them_are_bounded() -> None:
    inbox = opened(2)
    for number in range(4096):
        inbox.submit(Arrival(one := asked(number), Collected()))
        inbox.end(one.id, FinishReason.CANCELLED)
    with pytest.raises(QueueFull):
        inbox.submit(Arrival(asked(-1), Collected()))
    assert inbox.take(0) is not None
    inbox.submit(Arrival(asked(-1), Collected()))
