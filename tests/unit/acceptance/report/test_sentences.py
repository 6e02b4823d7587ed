"""The report's sentences: a chart of one point becomes one, and brackets are not nested."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from draftd_acceptance.gate.judge import not_judged
from draftd_acceptance.report.charts import Series, lines, parts, ranges
from draftd_acceptance.report.figures import interval, spoken
from draftd_acceptance.report.render import html, markdown, report
from draftd_acceptance.statistics import Interval
from draftd_acceptance.ticks import AUTOREGRESSIVE, Arm, Stage
from tests.synthetic_run import Truth, synthetic_run
from tests.unit.acceptance.report.conftest import SMALL, Page, charts, drawn, words

POINT = Interval(2.0, 1.5, 2.5, 8)
ONE: dict[str, Any] = {"groups": ("code",), "prompts": 1, "repetitions": 1, "tokens": 16}


@pytest.mark.parametrize(
    ("chart", "single"),
    [
        (lambda at: lines("x", [Series("a", "second", at, [3.0] * len(at))], across="minutes", up="GB"), (True, False)),
        (lambda at: ranges("x", {f"{n}": {"a": POINT} for n in at}, {"a": "second"}, unit="ms"), (True, False)),
        (lambda at: parts("x", {f"{n}": {"queue": 0.5} for n in at}, {"queue": "second"}), (True, False)),
    ],
    ids=["lines", "ranges", "parts"],
)
def test_report_chart_with_single_point_or_row_is_not_drawn(chart: Any, single: tuple[bool, bool]) -> None:
    found = chart([1.0]), chart([1.0, 2.0])
    assert tuple(one.single for one in found) == single
    assert [bool(one.drawing) for one in found] == [False, True]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A report on one of everything: a kind of prompt, a block length, a repetition, a window, a reading."""
    arms, path = (AUTOREGRESSIVE, Arm(1)), tmp_path_factory.mktemp("runs") / "one"
    folder = synthetic_run(path, stages=(Stage.SWEEP, Stage.SOAK), arms=arms, soak_seconds=60, **ONE)
    readings = (path / "machine.jsonl").read_text().splitlines()
    last = next(line for line in reversed(readings) if '"stage":"soak"' in line)
    (path / "machine.jsonl").write_text(last + "\n")
    return report(folder, not_judged("it is too short"))


@pytest.fixture(scope="module")
def page(one: dict[str, Any]) -> Page:
    return Page(html(one))


def test_report_replaces_single_point_chart_with_sentence(page: Page) -> None:
    assert charts(page.section("lengths")) == ["Decode throughput by block length"]  # beside autoregressive decoding
    said = words(page.section("lengths"))
    assert "The target accepts 100 % of the tokens that blocks of 1 draft" in said
    assert "Blocks of 1 yield 2.00 of at most 2 tokens" in said
    assert charts(page.section("prompts")) == []
    assert re.search(
        r"The first token of code prompts comes after [\d.]+ ms with drafts", words(page.section("prompts"))
    )


def test_report_of_soak_with_one_window_and_reading_has_sentences_instead_of_charts(page: Page) -> None:
    assert charts(page.section("soak")) == []
    said = words(page.section("soak"))
    for sentence in (
        r"The only reading shows 6\.\d+ GB for the daemon’s process and 5\.\d+ GB for MLX with its cache\.",
        r"The only reading shows 3\.\d+ GB free above the floor\.",
        r"The target accepted \d+ % of the drafted tokens in the only window\.",
        r"All streams together decoded [\d.]+ tokens/s in the only window\.",
        r"95 % of tokens came within [\d.]+ ms in the only window\.",
        r"The only reading of the hottest sensor is [\d.]+ °C\.",
    ):
        assert re.search(sentence, said), sentence


def test_report_markdown_of_single_point_chart_does_not_mention_axis(one: dict[str, Any]) -> None:
    (told,) = [line for line in markdown(one).splitlines() if line.startswith("- *Acceptance by block length*")]
    assert told.endswith("first tokens.")
    assert "axis" not in told


def test_report_comparison_of_one_common_arm_is_sentence_instead_of_chart(run: Path) -> None:
    folder = synthetic_run(run, stages=(Stage.SWEEP,), **{**SMALL, "arms": (AUTOREGRESSIVE,)})
    section = drawn(folder, folder).section("comparison")
    assert charts(section) == []
    assert "For autoregressive decoding it is 1.00 times that of run" in words(section)


def test_report_states_concurrent_arms_cannot_be_compared_without_single_request_arm(run: Path) -> None:
    arms = (Arm(0, None, concurrency=2), Arm(2, concurrency=2))
    made = drawn(synthetic_run(run, stages=(Stage.SWEEP,), **{**SMALL, "arms": arms}))
    assert (
        made.lead("concurrency")
        == "2 requests at a time cannot be compared with one alone, because none was measured alone."
    )
    assert charts(made.section("concurrency")) == []
    assert "times the throughput of autoregressive decoding" in words(made.section("concurrency"))


def test_report_states_that_drafts_pay_for_no_prompt_group_when_slower(run: Path) -> None:
    slow = synthetic_run(
        run, stages=(Stage.SWEEP,), truth=Truth(alpha=0.02), **{**SMALL, "arms": (AUTOREGRESSIVE, Arm(2))}
    )
    made = drawn(slow)
    assert "Drafts pay for no kind of prompt. They make " in words(made.section("prompts"))
    assert "1.0 in the median with drafts." in words(made.section("latency"))
    assert "is slower than autoregressive decoding" in made.lead("approaches")


def test_report_sentences_start_with_capital_and_end_with_full_stop(page: Page, full_page: Page) -> None:
    for made in (page, full_page):
        said = [
            words(one) for one in made.root.iter() if {"lead", "note", "reading"} & set(one.get("class", "").split())
        ]
        said += [words(one) for one in made.root.iter("desc")]
        assert len(said) > 12
        for sentence in said:
            assert re.match(r"[A-Z0-9“]", sentence), sentence
            assert sentence.endswith("."), sentence
            assert not re.search(r"\. [a-z]|\([^)]*\(|\.\.|  | [.,;]", sentence), sentence


def test_report_markdown_has_no_empty_or_adjacent_parentheses(full_markdown: str) -> None:
    assert ") (" not in full_markdown
    assert "()" not in full_markdown


@pytest.mark.parametrize(
    ("arm", "said"),
    [
        ("ar", "autoregressive decoding"),
        ("k4", "speculative decoding in blocks of 4"),
        ("auto6", "speculative decoding at automatic depth up to 6"),
        ("k4-prompt_lookup", "speculative decoding with prompt lookup in blocks of 4"),
        ("k4-t0.8-x2", "speculative decoding in blocks of 4 at temperature 0.8 with 2 requests at a time"),
        ("of no version", "of no version"),
    ],
)
def test_report_spells_out_sweep_arm_id_for_use_within_sentence(arm: str, said: str) -> None:
    assert spoken(arm) == said


def test_report_interval_text_states_single_answer_instead_of_bounds() -> None:
    assert interval(POINT) == "95 % interval 1.50 to 2.50"
    assert interval(Interval(2.0, 2.0, 2.0, 1)) == "from one answer"
