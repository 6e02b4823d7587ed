"""Records from rank 0 to its followers, and how each of them notices that the others are lost."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from draftd.engine.ranks.channel import Progress, RanksLost, RecordReceiver
from draftd.group import Loss
from draftd.ranks.frames import VERSION, FrameKind, frame
from tests.conftest import NanoPair
from tests.fake_ranks import TIMEOUT_SECONDS, Channels
from tests.proxy import Proxy
from tests.wait_until import until

BOUND = 5 * TIMEOUT_SECONDS  # until all ranks must have noticed a loss; the machine is shared


class ExecutingFollower:
    """A follower that executes records on a thread, as long as `going` is set."""

    def __init__(self, receiver: RecordReceiver) -> None:
        self.records, self.ended, self.lost = list[bytes](), False, False
        self.going = threading.Event()
        self.going.set()
        self._receiver = receiver
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with contextlib.suppress(RanksLost):
            while (record := self._receiver.receive()) is not None:
                self.going.wait()
                self.records.append(record)
                self._receiver.report_progress(Progress(len(self.records), 7, collective_seconds=0.5))
            self.ended = True


class Group:
    """Channels with executing followers. `send` reports rank 0's progress too."""

    def __init__(self, channels: Channels) -> None:
        self.channels, self.leader = channels, channels.leader
        self.followers = [ExecutingFollower(receiver) for receiver in channels.followers]

    def send(self, count: int, *, executes: bool = True) -> None:
        for _ in range(count):
            self.leader.send(b"record %d" % self.leader.records)
            if executes:
                self.leader.report_progress(Progress(self.leader.records, 3, collective_seconds=0.25))


@contextlib.contextmanager
def group(pair: NanoPair, ranks: int = 2, **options: Any) -> Iterator[Group]:
    channels = Channels(pair.draft, ranks, **options)
    channel_group = Group(channels)
    try:
        yield channel_group
    finally:
        for follower in channel_group.followers:
            follower.going.set()
        channels.close()


def wait_for_losses(channel_group: Group, *ranks: int) -> dict[int, RanksLost]:
    until(lambda: set(ranks) <= set(channel_group.channels.lost), BOUND, "the loss to be noticed")
    return channel_group.channels.lost


def test_rank_records_reach_all_followers_complete_and_in_order(nano_pair: NanoPair) -> None:
    with group(nano_pair, 3) as ranks:
        ranks.send(3000)  # more than the backlog: rank 0 waits meanwhile
        until(lambda: all(rank.lag == 0 for rank in ranks.leader.ranks()), BOUND)
        assert ranks.leader.record_bytes == sum(len(b"record %d" % number) for number in range(3000))
        ranks.channels.close()
        for follower in ranks.followers:
            follower.thread.join(5)
            assert follower.ended
            assert follower.records == [b"record %d" % number for number in range(3000)]
        assert ranks.channels.lost == {}


def test_each_rank_reports_its_record_count_and_memory_and_collective_time(nano_pair: NanoPair) -> None:
    with group(nano_pair) as ranks:
        ranks.send(2)
        until(lambda: ranks.leader.ranks()[1].records == 2, BOUND)
        rank_0, rank_1 = ranks.leader.ranks()
        assert (rank_0.rank, rank_0.records, rank_0.memory_bytes, rank_0.collective_seconds) == (0, 2, 3, 0.25)
        assert (rank_1.rank, rank_1.lag, rank_1.memory_bytes, rank_1.collective_seconds) == (1, 0, 7, 0.5)
        assert rank_1.host == socket.gethostname()


def test_idle_rank_group_is_not_reported_as_lost(nano_pair: NanoPair) -> None:
    with group(nano_pair, timeout_seconds=0.5) as ranks:
        ranks.send(1)
        time.sleep(1.5)
        ranks.send(1)
        assert ranks.channels.lost == {}


def test_first_rank_record_waits_until_followers_have_read_weights(nano_pair: NanoPair) -> None:
    channels = Channels(nano_pair.draft)
    sending = threading.Thread(target=lambda: channels.leader.send(b"first"), daemon=True)
    sending.start()
    time.sleep(0.1)
    assert channels.leader.records == 0
    assert channels.followers[0].receive() == b"first"
    sending.join(5)
    channels.close()


def test_follower_that_does_not_read_its_weights_in_time_ends_the_rank_group(nano_pair: NanoPair) -> None:
    channels = Channels(nano_pair.draft, start_seconds=0.3)
    with pytest.raises(RanksLost, match=r"rank 1 on \S+ has not read its weights within 0.3 s"):
        channels.leader.send(b"first")
    channels.close()


def test_death_of_a_follower_rank_is_noticed_by_all_ranks(nano_pair: NanoPair) -> None:
    with group(nano_pair, 3) as ranks:
        ranks.send(5)
        ranks.channels.followers[0]._sock.shutdown(socket.SHUT_RDWR)  # as the system does for a process that is killed
        losses = wait_for_losses(ranks, 0)
        assert losses[0].loss is Loss.DIED
        assert losses[0].message.startswith("rank 1 on ")
        with pytest.raises(RanksLost, match="rank 1 on"):
            ranks.send(1)
        ranks.leader.close("rank 1 died")
        assert wait_for_losses(ranks, 2)[2].message == "rank 0: rank 1 died"


def test_follower_ranks_notice_death_of_rank_0(nano_pair: NanoPair) -> None:
    with group(nano_pair) as ranks:
        ranks.send(5)
        ranks.leader._receivers[0].follower.sock.shutdown(socket.SHUT_RDWR)
        loss = wait_for_losses(ranks, 1)[1]
        assert (loss.loss, loss.message) == (Loss.DIED, "rank 0 is gone: its connection ended")


@pytest.mark.parametrize("fault", ["swallow", "cut"])
def test_lost_connection_between_ranks_is_noticed_at_both_ends(nano_pair: NanoPair, fault: str) -> None:
    proxies = list[Proxy]()

    def through(address: str, rank: int) -> str:
        host, _, port = address.rpartition(":")
        proxies.append(Proxy(host, int(port)))
        return proxies[-1].target

    with group(nano_pair, address=through) as ranks:
        ranks.send(5)
        getattr(proxies[0], fault)()
        expected = Loss.SILENT if fault == "swallow" else Loss.DIED
        losses = wait_for_losses(ranks, 0, 1)
        assert {losses[0].loss, losses[1].loss} == {expected}
    proxies[0].close()


def test_follower_rank_that_does_not_finish_its_step_is_reported_as_stalled(nano_pair: NanoPair) -> None:
    with group(nano_pair) as ranks:
        ranks.send(5)
        ranks.followers[0].going.clear()
        ranks.send(1)
        losses = wait_for_losses(ranks, 0, 1)
        assert losses[0].loss is Loss.STALLED
        assert "rank 1 on" in losses[0].message
        assert losses[1].loss in (Loss.STALLED, Loss.FAILED)


def test_rank_0_that_does_not_finish_its_step_is_reported_as_stalled(nano_pair: NanoPair) -> None:
    with group(nano_pair) as ranks:
        ranks.send(5)
        ranks.send(1, executes=False)
        loss = wait_for_losses(ranks, 0)[0]
        assert (loss.loss, loss.message) == (Loss.STALLED, "rank 0 on here has not ended a step for 1 s")


def test_follower_rank_exceeding_its_record_backlog_ends_the_group(nano_pair: NanoPair) -> None:
    with group(nano_pair, backlog=10) as ranks:
        ranks.followers[0].going.clear()
        start = time.monotonic()
        with pytest.raises(RanksLost, match=r"rank 1 on \S+ has not ended a step for 1 s"):
            ranks.send(20)
        assert time.monotonic() - start < BOUND
        assert ranks.leader.records == 11


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (
            b"\0\0\0\1" + bytes([VERSION, FrameKind.RECORD]) + bytes(8) + b"\0\0\0\0" + b"?",
            "the frame's checksum is wrong",
        ),
        (frame(FrameKind.RECORD, 3, b"third"), "record 3 follows record 1: one is missing or repeated"),
    ],
    ids=["damaged", "out of order"],
)
def test_damaged_or_misordered_rank_records_end_the_group(nano_pair: NanoPair, data: bytes, why: str) -> None:
    with group(nano_pair) as ranks:
        ranks.send(1)
        ranks.leader._receivers[0].follower.sock.send(data)
        assert wait_for_losses(ranks, 1)[1].message == f"rank 0 sends what cannot be read: {why}"


def test_failure_of_a_follower_rank_is_reported_to_rank_0(nano_pair: NanoPair) -> None:
    with group(nano_pair) as ranks:
        ranks.send(1)
        ranks.channels.followers[0].send_failure("its disk is gone")
        loss = wait_for_losses(ranks, 0)[0]
        assert loss.loss is Loss.FAILED
        assert loss.message.endswith(": its disk is gone")
