"""A greedy text that is not the target's own: an error where nothing excuses it, told where rounding may."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftd.fallback.reports import CanaryOutcome, Divergence
from draftd.fallback.signals import NEAR_TIE, broken, complaint, described, tolerated

gaps = st.floats(allow_nan=False, allow_infinity=False)


def outcome(name: str, divergence: Divergence | None) -> CanaryOutcome:
    return CanaryOutcome(name, True, True, divergence)


@pytest.mark.parametrize("backend", ["cpu (openblas)", "cpu (reference)", "scripted", "test", ""])
@given(gap=gaps | st.none(), at=st.integers(0, 100))
def test_on_a_cpu_every_divergence_is_an_error(backend: str, gap: float | None, at: int) -> None:
    assert broken(Divergence(at, gap), tolerated(backend))


@given(gap=gaps)
def test_on_metal_only_one_beyond_a_near_tie_is_whichever_way_it_leans(gap: float) -> None:
    assert broken(Divergence(3, gap), tolerated("metal")) == (abs(gap) > NEAR_TIE)


def test_on_metal_one_whose_gap_is_not_known_is_told_and_no_more() -> None:
    assert not broken(Divergence(3, None), tolerated("metal"))


@given(st.lists(st.none() | st.builds(Divergence, st.integers(0, 50), gaps | st.none()), max_size=8))
def test_a_complaint_is_made_exactly_where_a_text_is_broken(found: list[Divergence | None]) -> None:
    outcomes = [outcome(f"c{n}", divergence) for n, divergence in enumerate(found)]
    for limit in (None, NEAR_TIE):
        assert bool(complaint(outcomes, limit)) == any(d is not None and broken(d, limit) for d in found)


def test_a_complaint_names_the_first_of_them_with_its_place_and_gap() -> None:
    outcomes = [outcome("a", None), outcome("b", Divergence(2, 0.1)), outcome("c", Divergence(7, 3.25))]
    assert complaint(outcomes, NEAR_TIE) == (
        "1 of 3 texts are not the target's own: c leaves the autoregressive text at token 7, logit gap 3.25"
    )
    assert complaint(outcomes, None).startswith("2 of 3 texts are not the target's own: b leaves")
    assert described(Divergence(4, None)) == "leaves the autoregressive text at token 4, logit gap not measured"
