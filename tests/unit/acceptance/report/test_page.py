"""The page says what was measured: for whole runs, for runs that lack much, and for two runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftd.core import BUILT_IN_DRAFTERS, DrafterName
from draftd_acceptance.cost import break_even
from draftd_acceptance.folder import RunFolder
from draftd_acceptance.gate.judge import judge_run
from draftd_acceptance.gate.spec import load_spec
from draftd_acceptance.report.render import markdown, report
from draftd_acceptance.sweep.result import Sweep, knee
from draftd_acceptance.ticks import AUTOREGRESSIVE, Arm, Stage
from tests.synthetic_run import EXACTNESS, GIB, Truth, manifest, synthetic_run
from tests.unit.acceptance.report.conftest import FEW, SMALL, TRUTH, Page, detail, drawn, text, tone, words


def test_report_page_starts_with_verdict_that_names_failed_criterion(full_page: Page) -> None:
    assert full_page.said("word") == "Not promoted"
    assert full_page.tone == "bad"
    assert "“swap-ins”" in full_page.said("sentence")
    assert next(full_page.root.iter("section")).get("aria-labelledby") == "criteria"
    assert full_page.html.index("Not promoted</p>") < full_page.html.index("<section")


def test_report_criteria_table_shows_measured_value_threshold_and_outcome(full_page: Page) -> None:
    table, *_ = full_page.tables("criteria")
    assert len(table.rows) == 17
    swapped = table.row("Swap-ins")
    assert swapped["Measured"].startswith("400 MB") or swapped["Measured"].startswith("39")
    assert swapped["Wanted"] == "≤ 200 MB"
    assert swapped["Outcome"] == "failed"


def test_report_table_of_arms_shows_known_speed_latency_and_cost_of_synthetic_run(
    full: RunFolder, full_page: Page
) -> None:
    table, *_ = full_page.tables("approaches")
    assert len(table.rows) == len(FEW)
    plain, drafted = table.row("Autoregressive", ""), table.row("Speculative", "2 a step")
    assert float(plain["Decode"]) == pytest.approx(1 / TRUTH.token_seconds, rel=0.03)
    assert float(drafted["Speed-up"]) == pytest.approx(TRUTH.speedup(2), rel=0.08)
    assert float(plain["Token p95"]) == pytest.approx(TRUTH.token_seconds * 1000, rel=0.06)
    waits = [
        t.chunks[0].at for t in full.ticks(Stage.SWEEP) if t.place.arm == "ar" and t.chunks and not t.place.warm_up
    ]
    assert float(plain["First token"]) == pytest.approx(median(waits) * 1000, rel=0.01)
    assert drafted["Same text"] == "all"
    assert plain["Cost"] == "€0.00200"  # 0.36 an hour is 0.0001 a second; 50 tokens a second
    errors = sum(int(found[1]) for r in table.rows if (found := re.search(r"(\d+)\s?errors?", text(r[-1]))))
    assert errors == 2


def test_report_calculator_shows_measured_step_costs_and_break_even_acceptance(full_page: Page) -> None:
    (table,) = full_page.tables("calculator")
    found = table.row("4")
    verify, draft = 1 + 4 * TRUTH.verify_slope, TRUTH.draft_seconds / TRUTH.token_seconds
    assert float(found["v(k)"]) == pytest.approx(verify, rel=0.03)
    even = break_even(4, 4 * draft + verify)
    assert even is not None
    assert float(found["Pays from"].split()[0]) == pytest.approx(even * 100, abs=2)
    assert float(found["Accepted"].split()[0]) == pytest.approx(TRUTH.alpha * 100, abs=4)


def test_report_time_to_useful_answer_is_sum_of_queue_prefill_network_and_decode(full_page: Page) -> None:
    table, *_ = full_page.tables("cost")
    plain = table.row("Autoregressive")
    assert float(plain["Decode"]) == pytest.approx(32 * TRUTH.token_seconds, rel=0.03)
    parts = [float(plain["Decode"]), *(float(plain[name]) / 1000 for name in ("Queue", "Prefill", "Network"))]
    assert float(plain["Useful answer"]) == pytest.approx(sum(parts), rel=0.01)
    assert float(plain["First answer"]) == pytest.approx(sum(parts) + 3.4, rel=0.01)  # as in the manifest


def test_report_marks_knee_block_length_in_chart_table_and_lead_sentence(full: RunFolder, full_page: Page) -> None:
    found = knee(full.ticks(Stage.SWEEP))
    assert found is not None
    assert full_page.lead("lengths") == found.sentence
    assert f"the knee: {found.block_length}" in words(next(full_page.section("lengths").iter("svg")))
    table, *_ = full_page.tables("approaches")
    (marked,) = [detail(cells[0]) for cells in table.rows if "the knee" in text(cells[-1])]
    assert marked.startswith(f"{found.block_length} a step")


def test_report_lists_automatic_depth_among_arms_but_not_among_block_lengths(full: RunFolder, full_page: Page) -> None:
    found = Sweep.read(full)
    assert found is not None
    assert [arm.id for arm in found.arms][:4] == ["ar", "k2", "k4", "auto6"]
    assert [arm.id for arm in found.by_length.values()] == ["ar", "k2", "k4"]
    assert "Automatic" in full_page.html


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """A page on a sweep where drafts delay the first token, acceptance varies, and one text differs."""
    truth, run = Truth(alpha=0.7, spread=0.2, first_token_factor=1.3), tmp_path_factory.mktemp("runs") / "odd"
    folder = synthetic_run(run, stages=(Stage.SWEEP,), truth=truth, **SMALL)
    lines = (run / "sweep.jsonl").read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if '"arm":"k4"' in line and '"warm_up":false' in line)
    lines[at] = re.sub(r'"digest":"\w+"', '"digest":"another"', lines[at])
    (run / "sweep.jsonl").write_text("\n".join(lines) + "\n")
    return drawn(folder)


def test_report_shows_11_of_12_texts_equal_to_autoregressive_when_one_text_differs(odd: Page) -> None:
    table, *_ = odd.tables("approaches")
    found = next(r for r in table.rows if detail(r[0]).startswith("4 a step"))
    same = table.cells("Speculative", detail(found[0]))["Same text"]
    assert text(same) != "all"
    assert detail(same) == "11 of 12"


def test_report_states_first_token_delay_and_best_and_worst_prompt_groups(odd: Page) -> None:
    assert re.search(r"The first token comes (2\d|3\d)\.\d.% later", odd.lead("latency"))
    assert "best on code" in odd.lead("prompts")
    assert "worst on short control" in odd.lead("prompts")


@given(
    block_length=st.integers(0, 16),
    drafter=st.sampled_from(list(BUILT_IN_DRAFTERS)),
    temperature=st.sampled_from([0.0, 0.2, 0.8, 1.0, 1.25]),
    concurrency=st.integers(1, 32),
)
def test_sweep_arm_id_of_any_depth_drafter_and_temperature_parses_back_to_same_arm(
    block_length: int, drafter: DrafterName, temperature: float, concurrency: int
) -> None:
    arm = Arm(block_length, drafter if block_length else None, temperature, concurrency)
    assert Arm.parse(arm.id) == arm


def test_report_lists_arms_left_out_with_reasons_and_request_errors(full_page: Page) -> None:
    said = words(full_page.section("left-out"))
    assert "the daemon drafts 6 tokens a step at most" in said
    assert "Speculative, 8 a step" in said
    assert "UNAVAILABLE: the daemon drains" in said


def test_report_soak_section_charts_memory_acceptance_throughput_and_temperature(full_page: Page) -> None:
    one = full_page.section("soak")
    assert [words(chart.find("h3")) for chart in one.iter("figure")] == [
        "Memory",
        "Free memory above the floor",
        "Acceptance",
        "Throughput",
        "Time between tokens",
        "Temperature",
    ]
    assert "Swapped in 400 MB" in words(one) or "Swapped in 39" in words(one)


def test_report_quality_section_compares_success_rates_with_and_without_drafts(full_page: Page) -> None:
    lead = full_page.lead("quality")
    assert "24 of 24 texts are the same" in lead
    assert "95.8" in lead  # 23 of 24
    assert "no JSON object" in words(full_page.section("quality"))
    assert "All of the 36 answers under a schema are valid." in words(full_page.section("quality"))
    rows = full_page.tables("quality")[0].rows
    assert [[text(cell) for cell in row][1:5] for row in rows] == [
        ["freely", "24", "95.8 %", "95.8 %"], ["under a schema", "18", "100.0 %", "100.0 %"]
    ]  # fmt: skip


def test_report_quality_section_says_whether_texts_depend_on_depth_and_batch(
    full_page: Page, full_markdown: str, run: Path
) -> None:
    measured = (
        "logits are not the same at every size: first at 13 tokens, 13 sequences; at most 2e-06 standard deviations; "
        "about 0.3 of 1,000 greedy tokens would change"
    )
    assert f"Texts at other depths and batches may differ {measured}" in words(full_page.section("quality"))
    assert "Operations that differ layers.0.mlp.up_proj" in words(full_page.section("quality"))
    assert f"- Texts at other depths and batches: may differ ({measured})" in full_markdown
    folder = RunFolder.create(run)
    exact = replace(EXACTNESS, exact=True, forward=replace(EXACTNESS.forward, width=None, batch=None))
    folder.begin_session(manifest(exactness=exact))
    folder.begin_session(manifest(exactness=None))  # not measured yet when the second session began
    assert "Texts at other depths and batches the same exact: " in words(drawn(folder).section("quality"))


def test_report_manifest_section_lists_model_file_hashes(full_page: Page) -> None:
    hashes = [text(cell) for table in full_page.tables("manifest") for row in table.rows for cell in row]
    assert "2e" * 32 in hashes
    assert "5b" * 32 in hashes


def test_report_markdown_has_headings_captions_and_aligned_tables_of_html_page(
    full_page: Page, full_markdown: str
) -> None:
    for title in full_page.root.iter("h2"):
        assert f"## {words(title)}\n" in full_markdown
    said = " ".join(full_markdown.split())
    for table in full_page.root.iter("table"):
        assert words(table.find("caption")) in said
    assert full_markdown.index("Not promoted") < full_markdown.index("## ")
    width = None
    for line in full_markdown.splitlines():
        if not line.startswith("|"):
            width = None
            continue
        cells = len(re.findall(r"(?<!\\)\|", line))
        assert width in (None, cells), line
        width = cells
    assert "<svg" not in full_markdown
    assert "\n\n\n" not in full_markdown


def test_report_markdown_escapes_special_characters_in_settings(run: Path) -> None:
    folder = RunFolder.create(run)
    folder.begin_session(manifest(settings={"x|y": "*z* <b>"}))
    written = markdown(report(folder, judge_run(run, load_spec())))
    assert "| x\\|y | \\*z\\* \\<b> |" in written


def test_report_of_soak_without_sweep_states_missing_sweep(run: Path) -> None:
    made = drawn(synthetic_run(run, stages=(Stage.SOAK,), groups=("code",), soak_seconds=150, tokens=16))
    assert "no sweep" in made.lead("approaches")


def test_report_of_autoregressive_sweep_alone_states_no_speed_up_and_no_block_length(run: Path) -> None:
    made = drawn(synthetic_run(run, stages=(Stage.SWEEP,), **{**SMALL, "arms": (AUTOREGRESSIVE,)}))
    assert "No speed-up is known" in made.lead("approaches")
    assert "No block length was measured" in made.lead("lengths")


def test_report_of_sweep_without_autoregressive_arm_states_unknown_speed_up(run: Path) -> None:
    made = drawn(synthetic_run(run, stages=(Stage.SWEEP,), **{**SMALL, "arms": (Arm(2), Arm(4))}))
    assert "No speed-up is known" in made.lead("approaches")


def test_report_shows_unread_machine_values_as_not_readable_and_not_as_zero(run: Path) -> None:
    folder = synthetic_run(run, stages=(Stage.SOAK,), groups=("code",), soak_seconds=150, tokens=16, throttles=None)
    (run / "machine.jsonl").write_text("")
    made = drawn(folder)
    said = words(made.section("soak"))
    assert "not readable on this machine" in said
    assert "Throttle events 0" not in said
    assert "Memory could not be read" in made.lead("soak")


def test_report_of_short_soak_states_samples_required_for_memory_growth(run: Path) -> None:
    made = drawn(synthetic_run(run, stages=(Stage.SOAK,), groups=("code",), soak_seconds=44, tokens=16, leak=10**7))
    few = "oo few samples: 34 in 33 s after the warm-up, at least 60 in 60 s"
    assert few in made.lead("soak")
    said = words(made.section("soak"))
    assert said.count(few) == 4  # of the process, of MLX, and how long memory lasts
    assert "an hour" not in said
    assert "without bound" not in said


def test_report_of_empty_run_states_not_judged(run: Path) -> None:
    made = drawn(RunFolder.create(run))
    assert made.said("word") == "Not judged"


def test_report_of_run_with_differing_sessions_states_not_judged_and_differing_field(run: Path) -> None:
    made = drawn(synthetic_run(run, manifests=(manifest(), manifest(python="3.12.1")), **SMALL, soak_seconds=60))
    assert made.said("word") == "Not judged"
    assert "python" in made.said("sentence").lower()
    assert "Python is 3.11.9 in session 1 of run, and 3.12.1 in session 2" in words(made.root)


def test_report_soak_chart_omits_time_between_two_sessions(run: Path) -> None:
    folder = synthetic_run(run, stages=(Stage.SOAK,), groups=("code",), soak_seconds=150, tokens=16, headroom=3 * GIB)
    first = folder.samples(Stage.SOAK)
    for tick in folder.ticks(Stage.SOAK):
        folder.keep_tick(replace(tick, place=replace(tick.place, session=2), elapsed=tick.elapsed + 1000))
    for one in first:
        folder.keep_sample(replace(one, session=2, elapsed=one.elapsed + 1000, headroom=GIB))
    folder.keep_sample(replace(first[0], session=2, elapsed=990.0, headroom=0))  # before anything was asked
    free = next(one for one in drawn(folder, pictures=True).root.iter("figure") if one.get("id") == "chart-headroom")
    assert "At least 1.07 GB were free" in words(free.find("figcaption"))
    minutes = [int(words(one)) for one in free.iter("text") if words(one).isdecimal()]
    assert max(minutes) == 5  # twice two and a half, without the time between the sessions
    curve = next(one.get("d", "") for one in free.iter("path") if "--speculative" in one.get("style", ""))
    across = [float(x) for x in re.findall(r"[ML] ([\d.]+) ", curve)]
    assert across == sorted(across)  # the second session is drawn after the first, not over it


def test_report_quality_section_counts_and_names_prompts_with_differing_texts(run: Path) -> None:
    folder = synthetic_run(run, stages=(Stage.QUALITY,))
    lines = (run / "quality.jsonl").read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if '"arm":"k4"' in line and '"json-stock","group":"quality",' in line)
    lines[at] = re.sub(r'"digest":"\w+"', '"digest":"another"', lines[at])
    (run / "quality.jsonl").write_text("\n".join(lines) + "\n")
    made = drawn(folder)
    assert "23 of 24 texts are the same" in made.lead("quality")
    odd = next(table for table in made.tables("quality") if "differ" in table.caption)
    assert odd.row("json-stock")["Same text"] == "no"


# two runs


def test_report_comparison_shows_speed_ratios_and_differing_fields_of_two_runs(run: Path, tmp_path: Path) -> None:
    ours = synthetic_run(run, stages=(Stage.SWEEP,), truth=Truth(token_seconds=0.016), **SMALL)
    theirs = synthetic_run(
        tmp_path / "old", name="old", stages=(Stage.SWEEP,), manifests=(manifest(draftd="0.5.0"),), seed=5, **SMALL
    )
    made = drawn(ours, theirs)
    ratios, fields = made.tables("comparison")
    plain = ratios.row("Autoregressive")
    assert float(plain["Decode throughput"]) == pytest.approx(0.020 / 0.016, rel=0.03)
    assert float(plain["Between tokens, p95"]) == pytest.approx(0.016 / 0.020, rel=0.05)
    assert fields.row("draftd") == {"Field": "draftd", "old": "0.5.0", "This run": "0.6.0", "Matters": "yes"}
    assert "because the runs differ in draftd." in words(made.section("comparison"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """A page that compares a short sweep with itself."""
    folder = synthetic_run(tmp_path_factory.mktemp("runs") / "small", stages=(Stage.SWEEP,), **SMALL)
    return drawn(folder, folder)


def test_report_comparison_of_run_with_itself_shows_no_change(small: Page) -> None:
    assert "0 approaches" in small.lead("comparison")
    assert "the same in all that matters" in words(small.section("comparison"))
    (ratios,) = small.tables("comparison")
    assert ratios.row("Autoregressive")["Decode throughput"] == "1.00"


def test_report_of_sweep_alone_states_missing_soak_and_quality(small: Page) -> None:
    assert "no soak" in small.lead("soak")
    assert "no quality" in small.lead("quality")
    assert small.tables("criteria")[0].row("Swap-ins")["Outcome"] == "not measured"


def test_report_verdict_with_unproven_criteria_is_not_shown_as_failed(small: Page) -> None:
    assert small.said("word") == "Not promoted"
    assert small.tone == "unproven"
    assert "failed:" not in small.said("sentence")
    tones = {tone(cell) for row in small.tables("criteria")[0].rows for cell in row}
    assert {"unproven", "absent"} <= tones
    assert "bad" not in tones
