"""Clients that take nothing."""

from __future__ import annotations

import asyncio

import pytest

from draftd.errors import ClientStalled
from draftd.service.stall import StallGuard


async def stuck(seconds: float | None) -> None:
    """A write that never ends."""
    async with StallGuard(seconds) as guard:
        guard.writing()
        await asyncio.sleep(10)


async def failing() -> None:
    async with StallGuard(0.02) as guard:
        guard.writing()
        raise ValueError("own")


async def test_a_write_that_never_ends_is_given_up() -> None:
    with pytest.raises(ClientStalled, match=r"nothing was read for 0\.05 s"):
        await stuck(0.05)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_waiting_for_the_engine_is_no_stall() -> None:
    async with StallGuard(0.05) as guard:
        for _ in range(3):
            await asyncio.sleep(0.1)
            guard.writing()
            await asyncio.sleep(0.01)
            guard.written()


async def test_many_short_writes_are_no_stall() -> None:
    async with StallGuard(0.5) as guard:
        for _ in range(80):
            guard.writing()
            await asyncio.sleep(0.01)
            guard.written()


async def test_without_a_limit_it_waits() -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stuck(None), 0.1)


async def test_the_clients_own_cancellation_stays_a_cancellation() -> None:
    task = asyncio.create_task(stuck(10))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_inside_passes_and_leaves_no_timer() -> None:
    with pytest.raises(ValueError, match="own"):
        await failing()
    await asyncio.sleep(0.05)
