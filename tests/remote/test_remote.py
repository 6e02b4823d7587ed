"""Two daemons and a network that breaks: a small part of `python -m tests.remote`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.remote import faults, parity
from tests.remote.asking import Reference, Wanted
from tests.remote.daemons import DRAFT, NO_DRAFT, TARGET, Two, draft_edge, two_daemons, until_remote

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

PROBE_SECONDS = 0.5
EDGE = draft_edge(default_strategy="speculative", probe_seconds=PROBE_SECONDS, step_seconds=3, connect_seconds=3)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    with two_daemons(edge=EDGE, verifier=NO_DRAFT, folder=tmp_path_factory.mktemp("remote") / "two") as two:
        until_remote(two, 60)
        two.network(0.01)
        yield two


@pytest.fixture(scope="module")
def target() -> Iterator[Reference]:
    reference = Reference(TARGET)
    yield reference
    reference.close()


@pytest.fixture(scope="module")
def draft() -> Iterator[Reference]:
    reference = Reference(DRAFT)
    yield reference
    reference.close()


def test_remote_text_and_token_counts_survive_connection_resets(two: Two, target: Reference) -> None:
    found = parity.run([two], target, parity.prompts(3), round_trips=(0.01,), depths=(0, 4), most=24, every=(8, 40))
    assert not found.broken
    assert found.requests == 12
    assert found.reopened > 0
    assert found.drafted > 0
    decided, applied = two.tokens()
    assert decided == applied > 0


def test_remote_outage_loses_no_request_and_corrupts_no_text(two: Two, target: Reference, draft: Reference) -> None:
    cut = replace(faults.CUT, seconds=0.3)
    wanted = [Wanted(text, 48, None if i % 2 else 70 + i) for i, text in enumerate(parity.prompts(12))]
    found = faults.run(two, target, draft, wanted, probe_seconds=PROBE_SECONDS, faults=(cut, faults.KILL), each=6)
    assert not found.broken
    assert found.requests == 12
    assert found.failed_over > 0
    assert found.injected.total() == 2
