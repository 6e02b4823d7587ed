"""The figures of one request, on ticks whose figures are plain to see."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.client import timing
from draftd.core import FinishReason
from draftd.counts import DraftCounts
from draftd_acceptance import ticks as figures
from draftd_acceptance.summary import METRICS, per_position
from draftd_acceptance.ticks import ServerTiming, Tick
from tests.fake_ticks import place, tick

_TIMED = tick(
    chunks=[(0.5, 2), (0.8, 3), (1.0, 1)],
    ended=1.1,
    served=ServerTiming(queue=0.01, prefill=0.2, time_to_first_token=0.45, total=1.05),
    counts=DraftCounts(
        steps=3, drafts=2, drafted=8, accepted=3, drafted_per_position=[2, 2, 2, 2], accepted_per_position=[2, 1]
    ),
)
_EMPTY = tick(chunks=[], ended=0.2)


def test_request_timing_figures_match_hand_computed_values() -> None:
    assert timing.time_to_first_token(_TIMED) == 0.5
    assert METRICS["queue"].values(_TIMED) == (0.01,)
    assert METRICS["prefill"].values(_TIMED) == (0.2,)
    assert figures.network(_TIMED) == pytest.approx(0.05)
    assert timing.decode_tokens_per_second(_TIMED) == pytest.approx(4 / 0.5)
    assert timing.inter_chunk(_TIMED) == pytest.approx((0.3, 0.2))
    assert timing.inter_token(_TIMED) == pytest.approx((0.1, 0.1, 0.1, 0.2))
    assert figures.time_per_output_token(_TIMED) == pytest.approx(0.6 / 5)
    assert figures.output_tokens_per_second(_TIMED) == pytest.approx(6 / 1.1)
    assert per_position(_TIMED.counts) == (1.0, 0.5, 0.0, 0.0)
    assert METRICS["acceptance_at_position_0"].values(_TIMED) == (1.0,)


@pytest.mark.parametrize(
    "figure",
    [
        timing.time_to_first_token,
        METRICS["queue"].figure,
        METRICS["prefill"].figure,
        figures.network,
        timing.decode_tokens_per_second,
        figures.time_per_output_token,
        figures.output_tokens_per_second,
        METRICS["acceptance_at_position_0"].figure,
    ],
)
def test_request_timing_figures_of_empty_answer_are_none(figure) -> None:  # type: ignore[no-untyped-def]
    assert figure(_EMPTY) is None


def test_single_chunk_answer_has_time_to_first_token_but_no_decode_rate() -> None:
    one = tick(chunks=[(0.5, 3)], ended=0.6)
    assert timing.time_to_first_token(one) == 0.5
    assert timing.decode_tokens_per_second(one) is None
    assert (timing.inter_chunk(one), timing.inter_token(one)) == ((), ())
    assert figures.time_per_output_token(one) == pytest.approx(0.05)
    assert figures.time_per_output_token(tick(chunks=[(0.5, 1)], ended=0.6)) is None


def test_decode_rate_of_chunks_arriving_simultaneously_is_none() -> None:
    assert timing.decode_tokens_per_second(tick(chunks=[(0.5, 1), (0.5, 1)])) is None


def test_acceptance_of_never_drafted_position_is_none() -> None:
    counts = DraftCounts(drafted_per_position=[3, 0], accepted_per_position=[3, 0])
    assert per_position(counts) == (1.0, None)


def test_request_timing_of_unreached_server_stage_is_none() -> None:
    served = tick(served=ServerTiming(queue=0.1, prefill=None, time_to_first_token=None, total=None))
    assert [METRICS[name].figure(served) for name in ("queue", "prefill", "network")] == [0.1, None, None]


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.001, 2), st.integers(1, 8)), min_size=2, max_size=20))
def test_inter_token_times_sum_to_inter_chunk_times_and_match_decode_rate(steps: list[tuple[float, int]]) -> None:
    at, chunks = 0.0, []
    for gap, tokens in steps:
        at += gap
        chunks.append((at, tokens))
    found = tick(chunks=chunks)
    rate = timing.decode_tokens_per_second(found)
    assert rate is not None
    assert sum(timing.inter_token(found)) == pytest.approx(sum(timing.inter_chunk(found)))
    assert len(timing.inter_token(found)) / sum(timing.inter_token(found)) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("found", "counts"),
    [
        (tick(), True),
        (tick(reason=FinishReason.LENGTH), True),
        (tick(reason=None), False),
        (tick(reason=FinishReason.CANCELLED), False),
        (tick(reason=FinishReason.DEADLINE), False),
        (tick(reason=FinishReason.ERROR), False),
        (tick(error="UNAVAILABLE: gone"), False),
        (tick(place(warm_up=True)), False),
    ],
)
def test_only_complete_answers_outside_warm_up_are_usable_for_metrics(found: Tick, counts: bool) -> None:
    assert figures.usable(found) is counts
