"""Watchers miss no transition, see none twice, and use bounded memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import pytest

from draftd.errors import ClientStalled, InvalidRequest, NotServing, QueueFull
from draftd.journal import Journal, Subject, Transition
from draftd.service.transitions import MOST_WATCHERS, Transitions

T = TypeVar("T")


def record(journal: Journal, count: int = 1) -> None:
    for _ in range(count):
        journal.record(Subject.LEVEL, "full", "short_block 3", "drift")


def transitions_of(journal: Journal, **options: Any) -> Transitions:
    return Transitions(journal, asyncio.Event(), **options)


Read = Callable[[int], Awaitable[list[int]]]


@asynccontextmanager
async def feed(transitions: Transitions, after: int | None) -> AsyncIterator[Read]:
    """Watches in a task of its own; what it gives reads the numbers of so many transitions, or raises what ended the
    watch."""
    told: asyncio.Queue[int] = asyncio.Queue()
    begun = asyncio.Event()

    async def begin() -> None:
        begun.set()

    async def send(transition: Transition) -> None:
        told.put_nowait(transition.number)

    watch = asyncio.create_task(transitions.watch(after, begin, send))

    async def unless_ended(wanted: Awaitable[T]) -> T:
        asked = asyncio.ensure_future(wanted)
        await asyncio.wait((asked, watch), return_when=asyncio.FIRST_COMPLETED, timeout=20)
        if not asked.done():
            asked.cancel()
            watch.result()
        return asked.result()

    async def read(count: int) -> list[int]:
        return [await unless_ended(told.get()) for _ in range(count)]

    await unless_ended(begun.wait())
    yield read
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)


def test_transition_watch_sends_past_transitions_before_new_ones() -> None:
    async def watched() -> list[int]:
        journal = Journal()
        record(journal, 5)
        async with feed(transitions_of(journal), 2) as read:
            record(journal)
            return await read(4)

    assert asyncio.run(watched()) == [3, 4, 5, 6]


def test_transition_watch_without_a_number_sends_only_new_transitions() -> None:
    async def watched() -> list[int]:
        journal = Journal()
        record(journal, 5)
        async with feed(transitions_of(journal), None) as read:
            record(journal, 2)
            return await read(2)

    assert asyncio.run(watched()) == [6, 7]


def test_transition_recorded_while_a_watch_begins_is_sent_once() -> None:
    class Racing(Journal):
        """Records one more before what is kept is known, and one right after: the first time."""

        raced = False

        def latest(self, count: int) -> tuple[Transition, ...]:
            if count == 1 or self.raced:
                return super().latest(count)
            self.raced = True
            record(self)
            found = super().latest(count)
            record(self)
            return found

    async def watched() -> list[int]:
        journal = Racing()
        record(journal, 2)
        async with feed(transitions_of(journal), 0) as read:
            record(journal)
            return await read(5)

    assert asyncio.run(watched()) == [1, 2, 3, 4, 5]


def test_transitions_recorded_on_other_threads_reach_the_watcher_in_order() -> None:
    journal, room = Journal(), threading.Semaphore(32)

    def recording() -> None:
        for _ in range(125):
            assert room.acquire(timeout=20)
            record(journal)

    async def watched() -> list[int]:
        async with feed(transitions_of(journal), None) as read:
            threads = [threading.Thread(target=recording) for _ in range(4)]
            for thread in threads:
                thread.start()
            found = []
            for _ in range(500):
                found += await read(1)
                room.release()
            for thread in threads:
                thread.join()
            return found

    assert asyncio.run(watched()) == list(range(1, 501))


def test_lagging_transition_watcher_is_ended_with_the_number_to_resume_after() -> None:
    async def watched() -> tuple[list[int], str]:
        journal = Journal()
        async with feed(transitions_of(journal), None) as read:
            record(journal, 64)
            found = await read(64)
            record(journal, 1001)  # one more than the limit
            with pytest.raises(ClientStalled) as stalled:
                await read(1)
            return found, stalled.value.message

    found, message = asyncio.run(watched())
    assert found == list(range(1, 65))
    assert "fell more than 1000 transitions behind; watch again with after_number 64" in message


def test_transition_watch_replays_a_long_history_without_stalling() -> None:
    async def watched() -> list[int]:
        journal = Journal()
        record(journal, 200)
        async with feed(transitions_of(journal), 0) as read:
            record(journal)
            return await read(201)

    assert asyncio.run(watched()) == list(range(1, 202))


def test_transition_watchers_over_the_limit_are_refused_until_a_watcher_leaves() -> None:
    async def watched() -> None:
        journal = Journal()
        watchers = transitions_of(journal)
        async with AsyncExitStack() as others:
            for _ in range(MOST_WATCHERS - 1):
                await others.enter_async_context(feed(watchers, None))
            async with feed(watchers, None):
                with pytest.raises(QueueFull, match=f"already {MOST_WATCHERS} watchers"):
                    await others.enter_async_context(feed(watchers, None))
            async with feed(watchers, None) as read:
                record(journal)
                assert await read(1) == [1]
        assert watchers.watchers == 0
        assert not journal._listeners

    asyncio.run(watched())


def test_transition_watch_sends_each_transition_until_the_daemon_stops() -> None:
    async def watched() -> list[object]:
        journal, stopping = Journal(), asyncio.Event()
        record(journal, 3)
        told: list[object] = []

        async def begun() -> None:
            told.append("begun")

        async def send(transition: Transition) -> None:
            told.append(transition.number)
            if transition.number == 3:
                record(journal)
            if transition.number == 4:
                stopping.set()

        with pytest.raises(NotServing, match="the daemon is stopping"):
            await Transitions(journal, stopping).watch(1, begun, send)
        assert not journal._listeners
        return told

    assert asyncio.run(watched()) == ["begun", 2, 3, 4]


def test_transition_watcher_that_never_reads_is_ended() -> None:
    async def stuck(*given: object) -> None:
        await asyncio.Event().wait()

    async def watched() -> None:
        journal = Journal()
        with pytest.raises(ClientStalled, match="the client read nothing"):
            await transitions_of(journal, write_stall_seconds=0.05).watch(None, stuck, stuck)  # type: ignore[arg-type]
        assert not journal._listeners

    asyncio.run(watched())


def test_transition_list_returns_the_latest_after_a_number_up_to_a_limit() -> None:
    journal = Journal()
    record(journal, 150)

    def numbers(limit: int, after: int) -> list[int]:
        return [one.number for one in transitions_of(journal).latest(limit, after)]

    assert numbers(0, 0) == list(range(51, 151))
    assert numbers(1000, 0) == list(range(1, 151))
    assert numbers(2, 0) == [149, 150]
    assert numbers(100, 147) == [148, 149, 150]
    assert numbers(1, 147) == [150]
    assert numbers(0, 150) == []
    for limit in (-1, 1001, -(2**31), 2**31 - 1):
        with pytest.raises(InvalidRequest, match="limit: got .*; allowed: 1 to 1000; 0 means 100"):
            numbers(limit, 0)


@pytest.mark.parametrize("after", [-1, 8, 2**63 - 1])
async def test_transition_number_outside_the_recorded_range_is_refused(after: int) -> None:
    journal = Journal()
    record(journal, 7)
    transitions = transitions_of(journal)
    with pytest.raises(InvalidRequest, match="after_number: got .*; allowed: 0 to 7"):
        transitions.latest(0, after)
    with pytest.raises(InvalidRequest, match="after_number: got .*; allowed: 0 to 7"):
        async with feed(transitions, after):
            pass


async def test_empty_transition_journal_accepts_only_after_number_zero() -> None:
    assert transitions_of(Journal()).latest(0, 0) == []
    with pytest.raises(InvalidRequest, match="allowed: 0 to 0"):
        transitions_of(Journal()).latest(0, 1)
