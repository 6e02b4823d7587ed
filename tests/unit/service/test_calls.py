"""Requests in hand."""

from __future__ import annotations

from draftd.service.calls import Calls


async def test_draining_waits_for_the_last_and_not_for_ever() -> None:
    calls = Calls(10)
    assert await calls.wait_none(0.01)
    calls.enter("a")
    calls.enter("b")
    calls.leave("a")
    assert not await calls.wait_none(0.01)
    calls.leave("b")
    calls.leave("b")
    assert await calls.wait_none(0.01)
    assert calls.open == 0
