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

BOUND = 5 * TIMEOUT_SECONDS  # within which all are to know; the machine is shared


class Executing:
    """A follower that executes, on a thread: counts, and stops where it is told to."""

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
                self._receiver.executed(Progress(len(self.records), 7, collective_seconds=0.5))
            self.ended = True


class Group:
    """Channels, with followers that execute, and rank 0's own progress."""

    def __init__(self, channels: Channels) -> None:
        self.channels, self.leader = channels, channels.leader
        self.executing = [Executing(one) for one in channels.followers]

    def send(self, count: int, *, executes: bool = True) -> None:
        for _ in range(count):
            self.leader.send(b"record %d" % self.leader.records)
            if executes:
                self.leader.executed(Progress(self.leader.records, 3, collective_seconds=0.25))


@contextlib.contextmanager
def group(pair: NanoPair, ranks: int = 2, **given: Any) -> Iterator[Group]:
    channels = Channels(pair.draft, ranks, **given)
    made = Group(channels)
    try:
        yield made
    finally:
        for one in made.executing:
            one.going.set()
        channels.close()


def losses(made: Group, *ranks: int) -> dict[int, RanksLost]:
    until(lambda: set(ranks) <= set(made.channels.lost), BOUND, "that the loss is noticed")
    return made.channels.lost


def test_records_arrive_whole_and_in_order(nano_pair: NanoPair) -> None:
    with group(nano_pair, 3) as made:
        made.send(3000)  # more than the backlog: rank 0 waits meanwhile
        until(lambda: all(rank.lag == 0 for rank in made.leader.ranks()), BOUND)
        assert made.leader.record_bytes == sum(len(b"record %d" % number) for number in range(3000))
        made.channels.close()
        for one in made.executing:
            one.thread.join(5)
            assert one.ended
            assert one.records == [b"record %d" % number for number in range(3000)]
        assert made.channels.lost == {}


def test_ranks_report_records_memory_and_collective_time(nano_pair: NanoPair) -> None:
    with group(nano_pair) as made:
        made.send(2)
        until(lambda: made.leader.ranks()[1].records == 2, BOUND)
        zero, one = made.leader.ranks()
        assert (zero.rank, zero.records, zero.memory_bytes, zero.collective_seconds) == (0, 2, 3, 0.25)
        assert (one.rank, one.lag, one.memory_bytes, one.collective_seconds) == (1, 0, 7, 0.5)
        assert one.host == socket.gethostname()


def test_idle_group_of_ranks_is_not_lost(nano_pair: NanoPair) -> None:
    with group(nano_pair, timeout_seconds=0.5) as made:
        made.send(1)
        time.sleep(1.5)
        made.send(1)
        assert made.channels.lost == {}


def test_first_record_waits_for_weights(nano_pair: NanoPair) -> None:
    channels = Channels(nano_pair.draft)
    sending = threading.Thread(target=lambda: channels.leader.send(b"first"), daemon=True)
    sending.start()
    time.sleep(0.1)
    assert channels.leader.records == 0
    assert channels.followers[0].receive() == b"first"
    sending.join(5)
    channels.close()


def test_weights_that_are_not_read_end_the_group(nano_pair: NanoPair) -> None:
    channels = Channels(nano_pair.draft, start_seconds=0.3)
    with pytest.raises(RanksLost, match=r"rank 1 on \S+ has not read its weights within 0.3 s"):
        channels.leader.send(b"first")
    channels.close()


def test_rank_that_dies_is_noticed_by_all(nano_pair: NanoPair) -> None:
    with group(nano_pair, 3) as made:
        made.send(5)
        made.channels.followers[0]._sock.shutdown(socket.SHUT_RDWR)  # as the system does for a process that is killed
        lost = losses(made, 0)
        assert lost[0].loss is Loss.DIED
        assert lost[0].message.startswith("rank 1 on ")
        with pytest.raises(RanksLost, match="rank 1 on"):
            made.send(1)
        made.leader.close("rank 1 died")
        assert losses(made, 2)[2].message == "rank 0: rank 1 died"


def test_rank_0_that_dies_is_noticed(nano_pair: NanoPair) -> None:
    with group(nano_pair) as made:
        made.send(5)
        made.leader._receivers[0].follower.sock.shutdown(socket.SHUT_RDWR)
        lost = losses(made, 1)[1]
        assert (lost.loss, lost.message) == (Loss.DIED, "rank 0 is gone: its connection ended")


@pytest.mark.parametrize("fault", ["swallow", "cut"])
def test_cut_connection_is_noticed_at_both_ends(nano_pair: NanoPair, fault: str) -> None:
    proxies = list[Proxy]()

    def through(address: str, rank: int) -> str:
        host, _, port = address.rpartition(":")
        proxies.append(Proxy(host, int(port)))
        return proxies[-1].target

    with group(nano_pair, address=through) as made:
        made.send(5)
        getattr(proxies[0], fault)()
        wanted = Loss.SILENT if fault == "swallow" else Loss.DIED
        found = losses(made, 0, 1)
        assert {found[0].loss, found[1].loss} == {wanted}
    proxies[0].close()


def test_rank_that_does_not_end_its_step_is_noticed(nano_pair: NanoPair) -> None:
    with group(nano_pair) as made:
        made.send(5)
        made.executing[0].going.clear()
        made.send(1)
        found = losses(made, 0, 1)
        assert found[0].loss is Loss.STALLED
        assert "rank 1 on" in found[0].message
        assert found[1].loss in (Loss.STALLED, Loss.FAILED)


def test_rank_0_that_does_not_end_its_step_is_noticed(nano_pair: NanoPair) -> None:
    with group(nano_pair) as made:
        made.send(5)
        made.send(1, executes=False)
        found = losses(made, 0)[0]
        assert (found.loss, found.message) == (Loss.STALLED, "rank 0 on here has not ended a step for 1 s")


def test_rank_that_stays_behind_ends_the_group(nano_pair: NanoPair) -> None:
    with group(nano_pair, backlog=10) as made:
        made.executing[0].going.clear()
        began = time.monotonic()
        with pytest.raises(RanksLost, match=r"rank 1 on \S+ has not ended a step for 1 s"):
            made.send(20)
        assert time.monotonic() - began < BOUND
        assert made.leader.records == 11


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\0\0\0\1" + bytes([VERSION, FrameKind.RECORD]) + bytes(8) + b"\0\0\0\0" + b"?", "its checksum is wrong"),
        (frame(FrameKind.RECORD, 3, b"third"), "record 3 after record 1"),
    ],
    ids=["damaged", "out of order"],
)
def test_wrong_records_end_the_group(nano_pair: NanoPair, data: bytes, why: str) -> None:
    with group(nano_pair) as made:
        made.send(1)
        made.leader._receivers[0].follower.sock.send(data)
        assert losses(made, 1)[1].message == f"rank 0 sends what cannot be read: {why}"


def test_failure_of_a_rank_is_told(nano_pair: NanoPair) -> None:
    with group(nano_pair) as made:
        made.send(1)
        made.channels.followers[0].send_failure("its disk is gone")
        found = losses(made, 0)[0]
        assert found.loss is Loss.FAILED
        assert found.message.endswith(": its disk is gone")
