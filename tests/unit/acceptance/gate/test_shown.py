"""Figures as a person reads them."""

from __future__ import annotations

import math

import pytest

from draftd.acceptance.gate import output as shown
from draftd.acceptance.gate.judge import Judgement, Outcome
from draftd.acceptance.gate.metrics import Reading
from draftd.acceptance.gate.spec import Comparison, Criterion


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0213, "s", "21.3 ms"),
        (0.0, "s", "0 s"),
        (600.04, "s", "600 s"),
        (1.1649, "×", "1.165 ×"),
        (0.5504, "1", "0.550"),
        (3, "", "3"),
        (3.14e9, "By", "3.14 GB"),
        (-52e6, "By", "-52 MB"),
        (12, "By", "12 B"),
        (97_300, "By/s", "97.3 kB/s"),
        (7.0, "d", "7 days"),
        (0.382, "d", "9.17 hours"),
        (math.inf, "d", "no end"),
        (81.234, "tokens/s", "81.23 tokens/s"),
    ],
)
def test_figures_have_the_unit_that_reads_best(value: float, unit: str, text: str) -> None:
    assert shown.figure(value, unit) == text


def judged(reading: Reading, **fields: object) -> Judgement:
    criterion = Criterion.model_validate(
        {"name": "x", "metric": "time_to_first_token", "comparison": Comparison.AT_MOST, "threshold": 1.08} | fields
    )
    return Judgement(criterion, "k4", reading, Outcome.PASSED)


def test_an_interval_shares_its_unit_where_both_ends_have_the_same() -> None:
    assert shown.measured(judged(Reading(0.05, 0.04, 0.06))) == "50 ms (40 … 60)"
    assert shown.measured(judged(Reading(0.9, 0.8, 1.2))) == "900 ms (800 ms … 1.2 s)"
    assert shown.measured(judged(Reading(0.05))) == "50 ms"
    assert shown.measured(judged(Reading(None))) == "–"


def test_what_is_wanted_says_against_what_and_by_which_end() -> None:
    plain = judged(Reading(1.0)).criterion
    assert shown.wanted(plain) == "≤ 1.08 s"
    both = judged(Reading(1.0), against="autoregressive", judge="bound", group="code").criterion
    assert shown.wanted(both) == "≤ 1.080 × autoregressive, by its bound"


def test_one_line_explains_it_all() -> None:
    told = judged(Reading(1.2, 1.1, 1.3, 24), against="baseline", group="code")
    assert shown.explanation(told) == (
        "time_to_first_token 1.200 × (1.100 … 1.300), wanted ≤ 1.080 × baseline; k4, code; 24 requests"
    )
