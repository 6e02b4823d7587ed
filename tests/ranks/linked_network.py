"""Ranks of a launcher, with a network between them that loses data."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import grpc
import pytest

from draftd.client.client import CallError
from draftd.core import ModePreference
from tests.ranks.linked import LinkedRanks, linked_ranks
from tests.wait_until import until

PATIENCE = 240.0  # of a busy machine


class Asked:
    """A long request on a thread: whether its first token came, and how it ended."""

    def __init__(self, ranks: LinkedRanks) -> None:
        self.begun = False
        self.error: CallError | None = None
        self.thread = threading.Thread(target=self._run, args=(ranks,), daemon=True)
        self.thread.start()

    def _run(self, ranks: LinkedRanks) -> None:
        try:
            for event in ranks.client.generate("Once", max_tokens=4000, mode=ModePreference.AUTOREGRESSIVE):
                self.begun = self.begun or event.HasField("chunk")
        except CallError as error:
            self.error = error


def running(ranks: LinkedRanks) -> Asked:
    """Returns a running request. Health is reported a moment after the group was lost, so a refused request is sent
    again."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        asked = Asked(ranks)
        until(lambda asked=asked: asked.begun or not asked.thread.is_alive(), PATIENCE)  # type: ignore[misc]
        if asked.begun:
            return asked
        time.sleep(0.2)
    raise AssertionError(f"no request runs: {ranks.lines}")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lost_network_ends_requests_and_ranks_serve_again(tmp_path: Path) -> None:
    settings = {"distributed.timeout_seconds": 8, "model.draft_path": "", "server.drain_seconds": 1}
    with linked_ranks(tmp_path, **settings) as ranks:
        faults = [(ranks.ring[0], "swallow"), (ranks.ring[1], "cut"), (ranks.control, "swallow")]
        for number, (proxy, fault) in enumerate(faults, 1):
            ranks.serving(PATIENCE)
            asked = running(ranks)
            getattr(proxy, fault)()
            asked.thread.join(PATIENCE)
            proxy.restore()
            assert asked.error is not None, f"it did not fail: {ranks.lines}"
            assert asked.error.code is grpc.StatusCode.UNAVAILABLE
            assert asked.error.retry_after
            assert sum(ranks.lost().values()) >= number
        ranks.serving(PATIENCE)
        running(ranks)  # else it might begin anew just then, and could not tell rank 1
        assert ranks.stop(60) == [0, 0]
        until(lambda: all("Traceback" not in line for lines in ranks.lines for line in lines), 1)
