"""The page of runs in which much is missing, or is not what it was; and of two runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from draftd.acceptance.folder import RunFolder
from draftd.acceptance.report.render import html
from draftd.acceptance.report.soak import soak_charts
from draftd.acceptance.soak import soak_result
from draftd.acceptance.ticks import AUTOREGRESSIVE, Arm, Stage
from tests.acceptance import GIB, Truth, manifest, synthetic_run
from tests.unit.acceptance.report.conftest import SMALL, drawn, row, section, words


def test_a_sweep_alone_is_a_whole_page_that_says_what_is_missing(run: Path) -> None:
    made = drawn(synthetic_run(run, stages=(Stage.SWEEP,), **SMALL))
    assert "no soak" in section(made, "soak").lead
    assert "no quality" in section(made, "quality").lead
    (table,) = section(made, "criteria").tables
    unmeasured = row(table, "Swap-ins")
    assert unmeasured["Outcome"] == "not measured"
    assert html(made)


def test_a_soak_alone_is_a_whole_page_too(run: Path) -> None:
    made = drawn(synthetic_run(run, stages=(Stage.SOAK,), groups=("code",), soak_seconds=150, tokens=16))
    assert "no sweep" in section(made, "approaches").lead
    assert html(made)


def test_autoregressive_decoding_alone_gives_no_speed_up_and_no_curve(run: Path) -> None:
    made = drawn(synthetic_run(run, stages=(Stage.SWEEP,), **{**SMALL, "arms": (AUTOREGRESSIVE,)}))
    assert "no speed-up is known" in section(made, "approaches").lead
    assert "No block length was measured" in section(made, "lengths").lead
    assert html(made)


def test_drafts_without_autoregressive_decoding_beside_them_are_shown_without_ratios(run: Path) -> None:
    made = drawn(synthetic_run(run, stages=(Stage.SWEEP,), **{**SMALL, "arms": (Arm(2), Arm(4))}))
    assert html(made)
    assert "no speed-up is known" in section(made, "approaches").lead


def test_what_the_machine_does_not_tell_is_not_told_as_nought(run: Path) -> None:
    folder = synthetic_run(run, stages=(Stage.SOAK,), groups=("code",), soak_seconds=150, tokens=16, throttles=None)
    (run / "machine.jsonl").write_text("")
    one = section(drawn(folder), "soak")
    assert "not readable on this machine" in words(one)
    assert "Throttle events 0" not in words(one)
    assert "Memory could not be read" in one.lead


def test_a_run_that_holds_nothing_says_so(run: Path) -> None:
    made = drawn(RunFolder.create(run))
    assert made.word == "Not judged"
    assert html(made)


def test_not_enough_is_told_apart_from_not_good_enough(run: Path) -> None:
    made = drawn(synthetic_run(run, stages=(Stage.SWEEP,), **SMALL))
    assert made.word == "Not promoted"
    assert made.tone == "unproven"
    assert "Failed:" not in made.sentence
    tones = {cell.tone for r in section(made, "criteria").tables[0].rows for cell in r}
    assert {"unproven", "absent"} <= tones
    assert "bad" not in tones


def test_sessions_that_differ_are_not_judged_and_the_page_says_why(run: Path) -> None:
    made = drawn(synthetic_run(run, manifests=(manifest(), manifest(python="3.12.1")), **SMALL, soak_seconds=60))
    assert made.word == "Not judged"
    assert "python" in made.sentence.lower()
    assert "differ in python" in words(section(made, "manifest"))


def test_a_soak_in_two_sessions_is_drawn_as_one(run: Path) -> None:
    folder = synthetic_run(run, stages=(Stage.SOAK,), groups=("code",), soak_seconds=150, tokens=16, headroom=3 * GIB)
    first = folder.samples(Stage.SOAK)
    for tick in folder.ticks(Stage.SOAK):
        folder.keep_tick(replace(tick, place=replace(tick.place, session=2), elapsed=tick.elapsed + 1000))
    for one in first:
        folder.keep_sample(replace(one, session=2, elapsed=one.elapsed + 1000, headroom=GIB))
    folder.keep_sample(replace(first[0], session=2, elapsed=990.0, headroom=0))  # before anything was asked
    result = soak_result(folder)
    assert result is not None
    memory = soak_charts(folder.ticks(Stage.SOAK), folder.samples(Stage.SOAK), result.windows)[1]
    assert "At the least 1.07 GB were free" in memory.reading
    minutes = [float(found) for found in re.findall(r">(\d+)</text>", memory.svg)]
    assert max(minutes) == 5  # twice two and a half, and nothing of the time between
    curve, *_ = re.findall(r'<path d="([^"]+)"[^>]*stroke: var\(--speculative\)', memory.svg)
    across = [float(x) for x in re.findall(r"[ML] ([\d.]+) ", curve)]
    assert across == sorted(across)  # the second after the first, not over it


def test_texts_that_differ_are_counted_and_named(run: Path) -> None:
    folder = synthetic_run(run, stages=(Stage.QUALITY,))
    lines = (run / "quality.jsonl").read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if '"arm":"k4"' in line and '"json-stock"' in line)
    lines[at] = re.sub(r'"digest":"\w+"', '"digest":"another"', lines[at])
    (run / "quality.jsonl").write_text("\n".join(lines) + "\n")
    one = section(drawn(folder), "quality")
    assert "23 of 24 texts are the same" in one.lead
    odd = next(table for table in one.tables if "differ" in table.caption)
    assert row(odd, "json-stock")["Same text"] == "no"


# two runs


def test_a_faster_run_is_told_as_faster_beside_another(run: Path, tmp_path: Path) -> None:
    ours = synthetic_run(run, stages=(Stage.SWEEP,), truth=Truth(token_seconds=0.016), **SMALL)
    theirs = synthetic_run(
        tmp_path / "old", name="old", stages=(Stage.SWEEP,), manifests=(manifest(draftd="0.5.0"),), seed=5, **SMALL
    )
    one = section(drawn(ours, theirs), "comparison")
    ratios, fields = one.tables
    plain = row(ratios, "Autoregressive")
    assert float(plain["Decode throughput"]) == pytest.approx(0.020 / 0.016, rel=0.03)
    assert float(plain["Between tokens, p95"]) == pytest.approx(0.016 / 0.020, rel=0.05)
    assert row(fields, "draftd") == {"Field": "draftd", "old": "0.5.0", "This run": "0.6.0", "Matters": "yes"}
    assert "differs in what matters (draftd)" in words(one)


def test_the_same_run_beside_itself_shows_no_change(run: Path) -> None:
    folder = synthetic_run(run, stages=(Stage.SWEEP,), **SMALL)
    one = section(drawn(folder, folder), "comparison")
    assert "0 approaches" in one.lead.replace("\N{NO-BREAK SPACE}", " ")
    assert "the same in all that matters" in words(one)
    (ratios,) = one.tables
    assert row(ratios, "Autoregressive")["Decode throughput"] == "1.00"
