"""What an answer may still bring, from how long its kind was before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftd.core import FinishReason, Origin, WorkloadClass
from draftd.engine.depth.acceptance_rates import AnswerLengths
from draftd.engine.sequence import DecodeSequence
from tests.rig import Collected, autoregressive, request

CODE, CHAT = WorkloadClass.CODE, WorkloadClass.CHAT


def row(
    kind: WorkloadClass = CODE, emitted: int = 0, allowed: int = 1000, origin: Origin = Origin.CLIENT
) -> DecodeSequence:
    asked = replace(request([1], autoregressive(), max_tokens=allowed), workload=kind, origin=origin)
    made = DecodeSequence.of(asked, Collected(), 4096)
    made.stats.counts.emitted = emitted
    assert made.emitted == emitted
    return made


def ended(lengths: AnswerLengths, *tokens: int, reason: FinishReason = FinishReason.STOP, **more: object) -> None:
    for one in tokens:
        over = row(emitted=one, **more)  # type: ignore[arg-type]
        over.finish = reason
        lengths.finished(over)


def test_before_any_was_seen_it_is_a_guess_and_never_more_than_it_may_be() -> None:
    lengths = AnswerLengths()
    assert lengths.left(row()) == 128
    assert lengths.left(row(allowed=50)) == 50
    assert lengths.left(row(allowed=50, emitted=40)) == 10


def test_it_is_the_mean_of_its_kind_before_long() -> None:
    lengths = AnswerLengths()
    ended(lengths, *[20] * 12)
    assert lengths.left(row()) == pytest.approx(44, abs=3)
    ended(lengths, *[20] * 40)
    assert lengths.left(row()) == pytest.approx(20, abs=6)
    assert lengths.left(row(emitted=500)) == lengths.left(row()), "however long it is already"
    assert lengths.left(row(CHAT)) == 128, "other kinds have lengths of their own"


def test_what_was_long_ago_is_forgotten() -> None:
    lengths = AnswerLengths()
    ended(lengths, *[20] * 300, *[200] * 300)
    assert lengths.left(row()) > 190


@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.DEADLINE, FinishReason.ERROR])
def test_an_answer_that_was_broken_off_says_nothing(reason: FinishReason) -> None:
    lengths = AnswerLengths()
    ended(lengths, *[3] * 50, reason=reason)
    assert lengths.left(row()) == 128


def test_nor_does_what_the_daemon_asks_itself() -> None:
    lengths = AnswerLengths()
    ended(lengths, *[3] * 50, origin=Origin.PROBE)
    assert lengths.left(row()) == 128
