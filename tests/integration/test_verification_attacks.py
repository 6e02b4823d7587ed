"""Peers with a valid token that mean ill, all at once: others are answered, and what is held stays bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.verify_attack import ATTACKS, attacked
from draftd.service.peers import MOST_UNREAD
from tests.in_process_daemon import Served, collect, serving
from tests.scripted import scripted_models
from tests.wait_until import repeating, until

TOKEN, CONTEXT = "0123456789abcdef", 512
PEERS, SEQUENCES, QUEUE = 5, 6, 16


@pytest.mark.timeout(150)
def test_verifier_answers_local_requests_while_malicious_edges_attack(tmp_path: Path) -> None:
    """One of them finds no place among so many, now and then: that is among what is refused."""
    with serving(
        tmp_path,
        lambda: scripted_models(0.7, context_length=CONTEXT, step_seconds=0.002),
        token=TOKEN,
        server={"write_stall_seconds": 1},
        engine={"queue_capacity": QUEUE},
        verify={"enabled": True, "peers": PEERS, "sequences_per_peer": SEQUENCES, "idle_seconds": 1},
    ) as served:
        service, worker = served.daemon.verification, served.worker

        def bounded() -> None:
            status = worker.status()
            assert status.queued <= QUEUE
            assert service.status().open_sequences <= PEERS * SEQUENCES
            for peer in service._peers:
                assert len(peer.leaving) <= SEQUENCES + 1
                assert peer.connection is None or len(peer.connection._unread) <= MOST_UNREAD

        wanted = [answer(served, token) for token in range(4)]
        with attacked(served.target, list(ATTACKS), CONTEXT, TOKEN), repeating(bounded, 0.02):
            until(lambda: service.status().total.stale > 20 and service.status().total.tokens > 20, 30)
            assert [answer(served, token) for token in range(4)] == wanted
            until(lambda: service.status().total.discarded > 0, 30)  # of texts that were opened anew
            until(lambda: service.status().total.connections > len(ATTACKS), 30)
            until(lambda: service.status().total.opened > SEQUENCES and service.status().total.refused > 20, 30)
        until(lambda: service.status().open_sequences == 0)
        until(lambda: worker.status().active == worker.status().queued == worker.status().kv_cache_bytes == 0)
        until(lambda: service.status().peers == {})
        assert answer(served, 1) == wanted[1]


def answer(served: Served, token: int) -> list[int]:
    found = collect(served.client.generate(tokens=[1, 2, token], max_tokens=16))
    assert found.error is None
    return found.tokens
