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


async def test_tokens_of_the_engine_arrive_whole_and_in_order() -> None:
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


async def test_a_step_wakes_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_a_wake_up_that_cannot_be_written_delays_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    mailbox = Mailbox(asyncio.get_running_loop())
    monkeypatch.setattr(mailbox, "_write", lambda *_: -1)
    streams = [TokenStream(mailbox, lambda outcome: None) for _ in range(2)]
    for number in range(3):
        for s in streams:
            s.on_tokens(emission(number))
        async with asyncio.timeout(30):
            assert [await s.take() for s in streams] == [emission(number)] * 2


async def test_a_stream_that_fails_delays_no_other() -> None:
    mailbox = Mailbox(asyncio.get_running_loop())

    def fails(outcome: Outcome) -> None:
        raise RuntimeError("the span is broken")

    gone, other = TokenStream(mailbox, fails), TokenStream(mailbox, lambda outcome: None)
    gone.abandon()
    gone.on_finish(outcome())
    other.on_tokens(emission(1))
    async with asyncio.timeout(30):
        assert await other.take() == emission(1)


async def test_the_engine_does_not_give_up_the_interpreter_lock_to_post() -> None:
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


async def test_a_slow_client_gets_what_has_gathered_in_one_message() -> None:
    s = stream()
    for i in range(100):
        s.on_tokens(emission(i))
    await asyncio.sleep(0.01)
    taken = await s.take()
    assert taken == emission(*range(100))


async def test_tokens_merged_into_a_message_are_bounded() -> None:
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


async def test_the_end_is_heard_late_when_the_handler_has_gone() -> None:
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


async def test_a_cancelled_wait_leaves_the_stream_usable() -> None:
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


async def test_a_write_that_never_ends_is_given_up() -> None:
    with pytest.raises(ClientStalled, match=r"nothing was read for 0\.05 s"):
        await stuck(0.05)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_waiting_for_the_engine_is_no_stall() -> None:
    async with stall_guard(0.05) as write:
        for _ in range(3):
            await asyncio.sleep(0.1)
            await write(asyncio.sleep(0.01))


async def test_many_short_writes_are_no_stall() -> None:
    async with stall_guard(2.0) as write:
        for _ in range(80):
            await write(asyncio.sleep(0.04))


async def test_write_without_a_time_limit_waits_on() -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stuck(None), 0.1)


async def test_the_clients_own_cancellation_stays_a_cancellation() -> None:
    task = asyncio.create_task(stuck(10))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_error_within_a_time_limit_propagates_and_leaves_no_timer() -> None:
    with pytest.raises(ValueError, match="own"):
        await failing()
    await asyncio.sleep(0.05)
