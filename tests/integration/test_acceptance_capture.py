"""The harness's times against those of the wire: a relay between it and a real daemon, which knows neither.

Bounds. Never: a chunk is heard before it passed, or a first token is earlier than the daemon's own account of it. The
nearest quarter of the gaps between chunks, of the times of tokens, and of the times to the first token, agree within 2
ms, of steps that take 8: a harness that is late, or reckons wrongly, is so always; a busy machine makes single ones
late by any amount.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest

from draftd.client import timing
from draftd.client.client import Ask, DraftdClient
from draftd.client.timing import Capture, capture, quantile
from draftd.core import ModePreference
from draftd.v1 import inference_pb2 as pb
from draftd_acceptance import ticks as figures
from draftd_acceptance.cost import measured_costs
from draftd_acceptance.session import tick_of
from draftd_acceptance.ticks import Tick
from tests.fake_ticks import place
from tests.scripted_daemon import scripted_daemon
from tests.wait_until import until
from tests.wire_relay import Message, relaying

_STEP = 0.008
_NEAR = 0.002
_ASKED = 10


@dataclass(frozen=True)
class Heard:
    """One answer, by the harness and by the wire."""

    taken: Capture
    tick: Tick
    asked: Message
    answered: tuple[Message, ...]

    @property
    def chunks(self) -> list[tuple[float, int]]:
        """When each with tokens passed, since the request did, and how many it had."""
        parsed = [
            (message.at - self.asked.at, pb.GenerateResponse.FromString(message.content)) for message in self.answered
        ]
        return [(at, len(said.chunk.token_ids)) for at, said in parsed if said.chunk.token_ids]


def _quantile(values: list[float], q: float) -> float:
    found = quantile(values, q)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Heard]]:
    """Autoregressive and speculative answers in turn."""
    folder = tmp_path_factory.mktemp("served")
    # A process of its own: what the engine does must not keep this one's threads from looking at the clock.
    with (
        scripted_daemon(folder, step_seconds=_STEP) as daemon,
        relaying(daemon.port) as relay,
        DraftdClient(relay.target) as client,
    ):
        until(client.serving, 30)
        found, began = [], time.perf_counter()
        for number in range(_ASKED):
            relay.asked.clear()
            relay.answered.clear()
            mode = (ModePreference.AUTOREGRESSIVE, ModePreference.SPECULATIVE)[number % 2]
            taken = capture(client, Ask(prompt=f"prompt {number}", max_tokens=25, mode=mode), timeout=60)
            tick = tick_of(taken, place("k4" if number % 2 else "ar", f"p{number}"), began)
            found.append(Heard(taken, tick, relay.asked[0], tuple(relay.answered)))
        yield found


def test_chunks_recorded_by_acceptance_client_equal_responses_seen_by_wire_relay(heard: list[Heard]) -> None:
    for one in heard:
        assert figures.usable(one.tick)
        assert [m.content for m in one.answered] == [r.SerializeToString() for r in one.taken.responses]
        assert [chunk.tokens for chunk in one.tick.chunks] == [tokens for _, tokens in one.chunks]
        assert sum(chunk.tokens for chunk in one.tick.chunks) == one.tick.output_tokens == 25


def test_acceptance_client_records_chunk_arrival_no_earlier_than_wire_relay(heard: list[Heard]) -> None:
    for one in heard:
        for arrival, message in zip(one.taken.arrivals, one.answered, strict=True):
            assert one.taken.began + arrival >= message.at
        assert one.taken.began <= one.asked.at


def test_time_to_first_token_recorded_by_acceptance_client_matches_wire_relay(heard: list[Heard]) -> None:
    apart = []
    for one in heard:
        ours = timing.time_to_first_token(one.tick)
        assert ours is not None
        assert ours >= one.chunks[0][0]
        apart.append(ours - one.chunks[0][0])
    assert _quantile(apart, 0.25) < _NEAR


@pytest.mark.parametrize("arm", ["ar", "k4"])
def test_chunk_and_token_gaps_recorded_by_acceptance_client_match_wire_relay(heard: list[Heard], arm: str) -> None:
    chunks, tokens, several = [], [], []
    for one in heard:
        if one.tick.place.arm != arm:
            continue
        wire = [(b[0] - a[0], b[1]) for a, b in pairwise(one.chunks)]
        ours = timing.inter_chunk(one.tick)
        chunks += [abs(a - b) for a, (b, _) in zip(ours, wire, strict=True)]
        each = [(gap / count, count) for gap, count in wire for _ in range(count)]
        apart = [(abs(a - b), count) for a, (b, count) in zip(timing.inter_token(one.tick), each, strict=True)]
        tokens += [seconds for seconds, _ in apart]
        several += [seconds for seconds, count in apart if count > 1]
    assert _quantile(chunks, 0.25) < _NEAR
    assert _quantile(tokens, 0.25) < _NEAR
    if arm == "k4":
        assert _quantile(several, 0.25) < _NEAR
    # The bound means something: the gaps are several times as long.
    assert _quantile([gap for one in heard for gap in timing.inter_chunk(one.tick)], 0.5) > 3 * _NEAR


def test_server_reported_timings_lie_within_the_client_measured_ones(heard: list[Heard]) -> None:
    for one in heard:
        served, first = one.tick.served, timing.time_to_first_token(one.tick)
        assert served is not None
        assert None not in (served.queue, served.prefill, served.time_to_first_token, served.total, first)
        # The prompt's last forward gives the first token: the parts are the whole, give or take a rounding.
        assert served.queue + served.prefill <= served.time_to_first_token + 1e-6  # type: ignore[operator]
        assert served.time_to_first_token <= first  # type: ignore[operator]
        assert served.time_to_first_token <= served.total <= one.tick.ended  # type: ignore[operator]
        assert figures.network(one.tick) >= 0  # type: ignore[operator]


def test_measured_decode_and_verify_costs_are_at_least_the_scripted_models_step_time(heard: list[Heard]) -> None:
    costs = measured_costs([one.tick for one in heard])
    assert costs is not None
    assert costs.draft_seconds is not None
    assert costs.autoregressive_seconds >= _STEP
    assert costs.verify_seconds[4] >= _STEP
    assert costs.draft_seconds < costs.verify_seconds[4]
