"""From the engine thread to the client: nothing lost, nothing doubled, one wake-up, merging and giving up."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import pytest

from draftd.core import FinishReason
from draftd.errors import ClientStalled
from draftd.outcome import Emission, Outcome, RequestStats
from draftd.service.stream import Mailbox, TokenStream, stall_guard


def outcome() -> Outcome:
    return Outcome(FinishReason.STOP, RequestStats(prompt_tokens=1, arrival=0.0))


def emission(*tokens: int) -> Emission:
    return Emission(tokens, tuple(token % 2 == 0 for token in tokens))


def stream() -> TokenStream:
    return TokenStream(Mailbox(asyncio.get_running_loop()), lambda outcome: None)


async def test_engine_tokens_reach_each_stream_completely_and_in_order() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    streams = [TokenStream(mailbox, lambda outcome: None) for _ in range(4)]

    def engine() -> None:
        for i in range(500):
            for s in streams:
                s.on_tokens(emission(i))
        for s in streams:
            s.on_finish(outcome())

    thread = threading.Thread(target=engine)
    thread.start()
    for s in streams:
        got: list[int] = []
        while (taken := await s.take()) is not None:
            assert taken.from_draft == tuple(token % 2 == 0 for token in taken.tokens)
            got += taken.tokens
        assert got == list(range(500))
        assert s.exhausted
    thread.join()


async def test_engine_step_wakes_the_event_loop_once_for_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    written: list[bytes] = []
    real = mailbox._write

    def counting(descriptor: int, data: bytes, size: int) -> int:
        written.append(data)
        return real(descriptor, data, size)

    monkeypatch.setattr(mailbox, "_write", counting)
    streams = [TokenStream(mailbox, lambda outcome: None) for _ in range(8)]
    for s in streams:
        s.on_tokens(emission(1))
    assert len(written) == 1
    assert [await s.take() for s in streams] == [emission(1)] * 8


async def test_failed_wake_up_write_delays_no_token_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    monkeypatch.setattr(mailbox, "_write", lambda *_: -1)
    streams = [TokenStream(mailbox, lambda outcome: None) for _ in range(2)]
    for number in range(3):
        for s in streams:
            s.on_tokens(emission(number))
        async with asyncio.timeout(30):
            assert [await s.take() for s in streams] == [emission(number)] * 2


async def test_token_stream_whose_handler_raises_delays_no_other_stream() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())

    def fails(outcome: Outcome) -> None:
        raise RuntimeError("the span is broken")

    gone, other = TokenStream(mailbox, fails), TokenStream(mailbox, lambda outcome: None)
    gone.abandon()
    gone.on_finish(outcome())
    other.on_tokens(emission(1))
    async with asyncio.timeout(30):
        assert await other.take() == emission(1)


async def test_engine_posts_tokens_without_giving_up_the_interpreter_lock() -> None:
    """The loop's thread, blocked in its selector, must not run between two posts of one step."""
    mailbox = Mailbox(asyncio.get_running_loop())
    heard: list[object] = []

    class Heard(TokenStream):
        def receive(self, item: Emission | Outcome) -> None:
            heard.append(item)

    def engine() -> None:
        sys.setswitchinterval(10.0)  # the lock is never taken: it can only be given
        try:
            for i in range(200):
                before = len(heard)
                Heard(mailbox, lambda outcome: None).on_tokens(emission(i))
                spin = time.perf_counter() + 0.0005
                while time.perf_counter() < spin:
                    pass
                assert len(heard) == before
                time.sleep(0.001)  # gives it up, as waiting for MLX does
        finally:
            sys.setswitchinterval(0.005)

    await asyncio.to_thread(engine)
    assert len(heard) == 200


async def test_token_stream_merges_waiting_tokens_into_one_message() -> None:
    s = stream()
    for i in range(100):
        s.on_tokens(emission(i))
    await asyncio.sleep(0.01)
    taken = await s.take()
    assert taken == emission(*range(100))


async def test_token_stream_merges_at_most_4096_tokens_into_a_message() -> None:
    s = stream()
    for i in range(5000):
        s.on_tokens(emission(i))
    s.on_finish(outcome())
    await asyncio.sleep(0.01)
    first, second = await s.take(), await s.take()
    assert first is not None
    assert second is not None
    assert len(first.tokens) == 4096
    assert first.tokens + second.tokens == tuple(range(5000))
    assert await s.take() is None


async def test_abandoned_token_stream_still_reports_the_outcome() -> None:
    late: list[Outcome] = []
    s = TokenStream(Mailbox(asyncio.get_running_loop()), late.append)
    s.on_tokens(emission(1))
    await asyncio.sleep(0.01)
    s.abandon()
    s.on_tokens(emission(2))
    s.on_finish(end := outcome())
    await asyncio.sleep(0.01)
    assert late == [end]
    assert s.exhausted  # nothing is kept for a handler that has gone


async def test_token_stream_stays_usable_after_a_cancelled_wait() -> None:
    s = stream()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await s.take()
    s.on_tokens(emission(7))
    assert await s.take() == emission(7)


async def test_posts_to_a_closed_mailbox_are_ignored() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    s = TokenStream(mailbox, lambda outcome: None)
    mailbox.close()
    mailbox.close()
    s.on_tokens(emission(1))
    s.on_finish(outcome())
    await asyncio.sleep(0.01)
    assert s.outcome is None


async def stuck(seconds: float | None) -> None:
    """A write that never ends."""
    async with stall_guard(seconds) as write:
        await write(asyncio.sleep(10))


async def raising() -> None:
    raise ValueError("own")


async def failing() -> None:
    async with stall_guard(0.02) as write:
        await write(raising())


async def test_client_write_that_never_ends_fails_as_stalled() -> None:
    with pytest.raises(ClientStalled, match=r"the client read nothing for 0\.05 s"):
        await stuck(0.05)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_waiting_for_the_engine_does_not_count_as_a_client_stall() -> None:
    async with stall_guard(0.05) as write:
        for _ in range(3):
            await asyncio.sleep(0.1)
            await write(asyncio.sleep(0.01))


async def test_many_short_client_writes_do_not_count_as_a_stall() -> None:
    async with stall_guard(2.0) as write:
        for _ in range(80):
            await write(asyncio.sleep(0.04))


async def test_client_write_without_a_stall_limit_is_not_ended() -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stuck(None), 0.1)


async def test_cancellation_of_a_stalled_write_stays_a_cancellation() -> None:
    task = asyncio.create_task(stuck(10))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_error_of_a_stall_guarded_write_propagates() -> None:
    with pytest.raises(ValueError, match="own"):
        await failing()
    await asyncio.sleep(0.05)
