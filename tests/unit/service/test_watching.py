"""Those who watch: nothing is missed, nothing comes twice, nothing grows without bound."""

from __future__ import annotations

import asyncio
import threading

import pytest

from draftd.errors import ClientStalled, QueueFull
from draftd.fallback.journal import Journal, Subject, Transition
from draftd.service.watching import Feed, Watchers, last_number


def record(journal: Journal, count: int = 1) -> None:
    for _ in range(count):
        journal.record(Subject.LEVEL, "full", "short_block 3", "drift")


async def read(feed: Feed, count: int) -> list[int]:
    async with asyncio.timeout(20):
        return [(await feed.take()).number for _ in range(count)]


def test_what_is_kept_comes_first_then_what_happens() -> None:
    async def watched() -> list[int]:
        journal = Journal()
        record(journal, 5)
        with Watchers(journal).feed(2) as feed:
            record(journal)
            return await read(feed, 4)

    assert asyncio.run(watched()) == [3, 4, 5, 6]


def test_without_a_number_only_what_happens_from_now_on_comes() -> None:
    async def watched() -> list[int]:
        journal = Journal()
        record(journal, 5)
        with Watchers(journal).feed(None) as feed:
            record(journal, 2)
            return await read(feed, 2)

    assert asyncio.run(watched()) == [6, 7]


def test_a_transition_between_listening_and_looking_comes_once() -> None:
    class Racing(Journal):
        """Records one more before what is kept is known, and one right after."""

        def latest(self, count: int) -> tuple[Transition, ...]:
            if count == 1:
                return super().latest(count)
            record(self)
            found = super().latest(count)
            record(self)
            return found

    async def watched() -> list[int]:
        journal = Racing()
        record(journal, 2)
        with Watchers(journal).feed(0) as feed:
            record(journal)
            return await read(feed, 5)

    assert asyncio.run(watched()) == [1, 2, 3, 4, 5]


def test_what_is_recorded_on_another_thread_wakes_the_watcher() -> None:
    async def watched() -> list[int]:
        journal = Journal()
        with Watchers(journal).feed(None) as feed:
            reading = asyncio.ensure_future(read(feed, 500))
            await asyncio.sleep(0)
            threads = [threading.Thread(target=slowly, args=(journal, 125)) for _ in range(4)]
            for thread in threads:
                thread.start()
            found = await reading
            for thread in threads:
                thread.join()
            return found

    def slowly(journal: Journal, count: int) -> None:
        for _ in range(count):
            record(journal)
            threading.Event().wait(0.001)

    assert asyncio.run(watched()) == list(range(1, 501))


def test_a_watcher_that_falls_behind_gets_what_was_kept_and_then_where_to_go_on() -> None:
    async def watched() -> tuple[list[int], str]:
        journal = Journal()
        with Watchers(journal).feed(None) as feed:
            record(journal, 200)
            found = await read(feed, 64)
            record(journal)  # there is room again, but a hole before it
            with pytest.raises(ClientStalled) as stalled:
                await read(feed, 1)
            return found, stalled.value.message

    found, message = asyncio.run(watched())
    assert found == list(range(1, 65))
    assert "watch again with after_number 64" in message


def test_a_long_past_is_not_falling_behind() -> None:
    async def watched() -> list[int]:
        journal = Journal()
        record(journal, 200)
        with Watchers(journal).feed(0) as feed:
            record(journal)
            return await read(feed, 201)

    assert asyncio.run(watched()) == list(range(1, 202))


def test_no_more_may_watch_than_the_limit_and_who_goes_makes_room() -> None:
    async def watched() -> None:
        journal = Journal()
        watchers = Watchers(journal, limit=2)
        with watchers.feed(None):
            with watchers.feed(None), pytest.raises(QueueFull, match="2 watch already"), watchers.feed(None):
                pass
            with watchers.feed(None) as feed:
                record(journal)
                assert await read(feed, 1) == [1]
        assert watchers.open == 0
        assert not journal._listeners

    asyncio.run(watched())


def test_a_journal_that_outlives_the_loop_is_not_disturbed() -> None:
    journal = Journal()

    async def leave() -> Feed:
        return Feed(0)

    feed = asyncio.run(leave())
    journal.listen(feed.put)
    record(journal)
    assert last_number(journal) == 1


def test_the_last_number_of_nothing_is_nought() -> None:
    assert last_number(Journal()) == 0
