"""Quality is judged by what was said; a checker that is broken, in either direction, shows and proves nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from draftd.canaries import checkers
from draftd.canaries.checkers import ExpectedToolCall, JsonObject, NoToolCall
from draftd.canaries.prompts import Canary, FrozenPrompts
from draftd.canaries.selftest import faults, right, spoilt
from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, FinishReason
from draftd.v1 import inference_pb2 as pb
from draftd_acceptance import quality
from draftd_acceptance.folder import RunError, RunFolder
from draftd_acceptance.options import OptionError, QualityOptions
from draftd_acceptance.quality import (
    GROUP,
    SCHEMAS,
    QualityResult,
    quality_complete,
    quality_prompts,
    quality_result,
    run_quality,
)
from draftd_acceptance.session import Advance, Session
from draftd_acceptance.ticks import Stage, Tick
from tests.in_process_daemon import serving
from tests.scripted import scripted_models
from tests.synthetic_run import manifest, synthetic_run

CANARIES = FrozenPrompts.of_package().canaries
MODEL = pb.GetModelResponse(drafters=[DRAFT_MODEL], max_draft_tokens=4)


def judged(folder: RunFolder, canaries: Sequence[Canary] | None = None) -> QualityResult:
    found = quality_result(folder, canaries)
    assert found is not None
    return found


def recorded(tmp_path: Path, failing: int = 1, drafted: int = 1) -> RunFolder:
    return synthetic_run(
        tmp_path / f"run-{failing}-{drafted}", stages=[Stage.QUALITY], failing=failing, failing_drafted=drafted
    )


class TestCheckers:
    def test_shipped_canary_checkers_pass_self_check(self) -> None:
        assert faults(CANARIES) == ()

    def test_canary_self_check_has_right_and_at_least_three_spoilt_answers_per_checker(self) -> None:
        for canary in CANARIES:
            assert len(list(right(canary.check))) >= 1
            assert len(list(spoilt(canary.check))) >= 3

    @pytest.mark.parametrize("kind", [JsonObject, ExpectedToolCall, NoToolCall])
    @pytest.mark.parametrize(
        ("broken", "what"),
        [
            (lambda self, answer: "", "accepts what is wrong"),
            (lambda self, answer: "no", "rejects what is right: no"),
        ],
        ids=["accepts all", "rejects all"],
    )
    def test_quality_stage_complains_of_broken_canary_checker_by_name(
        self,
        kind: type,
        broken: Callable[[object, str], str],
        what: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        folder = recorded(tmp_path, 0, 0)
        assert judged(folder).complaints == ()
        monkeypatch.setattr(kind, "complaint", broken)
        result = judged(folder)
        assert result.faults
        first = next(canary.id for canary in CANARIES if isinstance(canary.check, kind))
        assert f"nothing is shown, because the checker of {first} is broken: {what}" in result.complaints[0]

    @pytest.mark.parametrize(
        ("name", "broken"),
        [
            ("_said", lambda answer: answer),  # counts the thought as text
            ("_same", lambda value, wanted: True),
            ("_alike", lambda value, wanted: True),
            ("objects", lambda answer: iter(())),
            ("calls", lambda answer: iter(())),
        ],
    )
    def test_canary_self_check_detects_checker_with_one_broken_helper(
        self, name: str, broken: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checkers, name, broken)
        assert faults(CANARIES)


class TestResult:
    def test_quality_result_computes_success_shares_and_difference_from_recorded_texts(self, tmp_path: Path) -> None:
        result = judged(recorded(tmp_path, 2, 5))
        assert result.greedy.autoregressive == pytest.approx(22 / 24)
        assert result.greedy.speculative == pytest.approx(19 / 24)
        assert result.greedy.difference is not None
        assert result.greedy.difference.estimate == pytest.approx(-3 / 24)
        assert result.greedy.difference.low < -3 / 24 < result.greedy.difference.high <= 0
        assert result.greedy.prompts[0].autoregressive.complaint == "no JSON object"
        assert "79.2% pass with drafts, and 91.7% without" in result.complaints[0]

    def test_quality_result_has_no_complaint_when_drafts_succeed_at_least_as_often(self, tmp_path: Path) -> None:
        for failing, drafted in ((0, 0), (3, 3), (4, 2)):
            assert judged(recorded(tmp_path, failing, drafted)).complaints == ()

    def test_quality_result_complains_when_no_prompt_passes_without_drafts(self, tmp_path: Path) -> None:
        (said,) = judged(recorded(tmp_path, 24, 24)).complaints
        assert "no prompt passes its check even without drafts" in said

    def test_quality_result_counts_unanswered_prompt_as_missing_and_not_as_wrong(self, tmp_path: Path) -> None:
        folder = recorded(tmp_path)
        lines = (folder.path / "quality.jsonl").read_text().splitlines()
        (folder.path / "quality.jsonl").write_text("\n".join(lines[:-3]) + "\n")
        result = judged(folder)
        assert len(result.greedy.missing) == 2
        assert result.complaints == ("2 of 24 prompts were not answered both with and without drafts",)
        assert result.greedy.difference is not None
        assert result.greedy.difference.samples == 22

    def test_quality_result_counts_failed_request_as_missing_despite_correct_text(self, tmp_path: Path) -> None:
        folder = recorded(tmp_path)
        lines = (folder.path / "quality.jsonl").read_text().splitlines()
        last = folder.ticks(Stage.QUALITY)[-1]
        (folder.path / "quality.jsonl").write_text("\n".join(lines[:-1]) + "\n")
        folder.keep_tick(replace(last, error="DEADLINE_EXCEEDED: too slow"))
        assert judged(folder).greedy.missing == (last.place.prompt,)

    def test_quality_result_uses_repeated_answer_after_failed_request(self, tmp_path: Path) -> None:
        folder = recorded(tmp_path)
        ticks = folder.ticks(Stage.QUALITY)
        (folder.path / "quality.jsonl").unlink()
        for tick in ticks:
            folder.keep_tick(replace(tick, error="UNAVAILABLE: gone", text=None, finish_reason=None))
        assert len(judged(folder).greedy.missing) == 24
        for tick in ticks:
            folder.keep_tick(tick)
        result = judged(folder)
        assert result.greedy.missing == ()
        assert (result.errors, result.error_examples) == (84, ("UNAVAILABLE: gone",))

    def test_quality_result_counts_prompts_with_identical_text(self, tmp_path: Path) -> None:
        folder = recorded(tmp_path)
        last = folder.ticks(Stage.QUALITY)[-1]
        folder.keep_tick(replace(last, digest="another"))
        result = judged(folder)
        assert result.greedy.identical == 23
        assert result.greedy.prompts[-1].identical is False

    def test_quality_result_reports_sampled_success_shares_apart_from_greedy(self, tmp_path: Path) -> None:
        folder = recorded(tmp_path, 0, 0)

        def sampled(tick: Tick, repetition: int) -> Tick:
            arm = f"{tick.place.arm}-t0.8"
            wrong = repetition == 1 and arm.startswith("k4")
            place = replace(tick.place, arm=arm, repetition=repetition)
            return replace(tick, place=place, text="no" if wrong and place.group == GROUP else tick.text)

        for tick in folder.ticks(Stage.QUALITY):
            for repetition in (1, 2):
                folder.keep_tick(sampled(tick, repetition))
        result = judged(folder)
        assert result.greedy.speculative == 1
        assert result.sampled is not None
        assert (result.sampled.temperature, result.sampled.autoregressive, result.sampled.speculative) == (0.8, 1, 0.5)
        assert result.complaints == ()

    def test_quality_result_refuses_record_of_unknown_prompt_by_name(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match="quality: prompt: got 'json-person'"):
            judged(recorded(tmp_path), CANARIES[1:])

    def test_run_folder_without_quality_answers_has_no_quality_result(self, tmp_path: Path) -> None:
        assert quality_result(RunFolder.create(tmp_path / "run")) is None


def under_schemas(tmp_path: Path, **how: int) -> RunFolder:
    return synthetic_run(tmp_path / "run", stages=[Stage.QUALITY], failing=0, failing_drafted=0, **how)  # type: ignore[arg-type]


class TestUnderSchemas:
    def test_quality_result_names_prompt_whose_answer_violates_json_schema(self, tmp_path: Path) -> None:
        result = judged(under_schemas(tmp_path, invalid=1))
        assert result.schemas is not None
        assert result.schemas.valid_share == 35 / 36
        said = "1 of 36 answers under a schema are not valid: tool-set_light (k4): no JSON: '{"
        assert result.complaints[0].startswith(said)

    def test_quality_result_counts_sampled_answer_cut_by_length_limit_as_schema_invalid(self, tmp_path: Path) -> None:
        folder = under_schemas(tmp_path)
        first = folder.ticks(Stage.QUALITY)[0]
        place = replace(first.place, arm="ar-t0.8")
        folder.keep_tick(replace(first, place=place, finish_reason=FinishReason.LENGTH))
        (said,) = judged(folder).complaints
        assert said.endswith(": json-person (ar-t0.8): not complete after 24 tokens")

    def test_quality_result_complains_when_drafts_lower_success_under_schemas(self, tmp_path: Path) -> None:
        (said,) = judged(under_schemas(tmp_path, wrong_under_schemas=1)).complaints
        assert said == "94.4% pass under a schema with drafts, and 100.0% without; at most 0.5% less is allowed"

    def test_quality_result_complains_of_unanswered_schema_prompt(self, tmp_path: Path) -> None:
        folder = under_schemas(tmp_path)
        lines = (folder.path / "quality.jsonl").read_text().splitlines()
        (folder.path / "quality.jsonl").write_text("\n".join(lines[1:]) + "\n")
        (said,) = judged(folder).complaints
        assert said == "1 of 18 prompts were not answered under a schema both with and without drafts"
        assert not quality_complete(folder)

    def test_quality_run_recorded_without_schema_prompts_is_complete(self, tmp_path: Path) -> None:
        folder = under_schemas(tmp_path, schemas=False)
        plan = folder.plan(Stage.QUALITY)
        assert plan is not None
        assert "schemas" not in plan
        assert quality_complete(folder)
        assert judged(folder).schemas is None
        assert judged(folder).complaints == ()
        folder.freeze_plan(Stage.QUALITY, QualityOptions.resume(plan).frozen())  # can be continued


class TestOptions:
    @pytest.mark.parametrize(
        ("wrong", "named"),
        [
            ({"block_length": 0}, "block_length: got 0; allowed: greater than or equal to 1"),
            ({"temperature": float("nan")}, "temperature: got nan"),
            ({"repeats": 0}, "repeats: got 0"),
            ({"seed": -1}, "seed: got -1"),
        ],
    )
    def test_quality_options_out_of_bounds_are_refused_with_option_name(
        self, wrong: dict[str, float], named: str
    ) -> None:
        with pytest.raises(OptionError, match=named):
            QualityOptions.resume(None, **wrong)

    def test_quality_options_exceeding_daemon_limits_are_refused_with_reason(self) -> None:
        with pytest.raises(OptionError, match="block_length: got 5; allowed: at most 4,"):
            QualityOptions(block_length=5).settle(MODEL)
        with pytest.raises(OptionError, match="drafter: got .*prompt_lookup"):
            QualityOptions(drafter=PROMPT_LOOKUP).settle(MODEL)
        with pytest.raises(OptionError, match="no draft here"):
            QualityOptions().settle(pb.GetModelResponse(speculation_reason="no draft here"))

    def test_quality_options_resume_from_stored_plan_unless_overridden(self) -> None:
        chosen = QualityOptions(temperature=0.8, repeats=2).settle(MODEL)
        assert chosen.block_length == 4
        assert QualityOptions.resume(chosen.plan()) == chosen
        assert QualityOptions.resume(chosen.plan(), repeats=5) == chosen.model_copy(update={"repeats": 5})
        with pytest.raises(OptionError, match="quality.json: repeats"):
            QualityOptions.from_plan({"repeats": "many"})

    def test_quality_plan_lacking_drafter_or_block_length_is_refused_by_key(self, tmp_path: Path) -> None:
        folder = recorded(tmp_path)
        for lacking in ("drafter", "block_length"):
            plan = QualityOptions(block_length=4, drafter=DRAFT_MODEL).frozen()
            del plan[lacking]
            folder.write("quality.json", json.dumps(plan))
            with pytest.raises(OptionError, match=f"quality.json: {lacking}: not set"):
                quality_complete(folder)


def silent(advance: Advance) -> None: ...


def test_quality_stage_asks_every_prompt_with_and_without_drafts_and_resumes_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = tuple(replace(one, max_tokens=12) for one in quality_prompts())
    monkeypatch.setattr(quality, "quality_prompts", lambda schemas: short)
    with serving(tmp_path, lambda: scripted_models(0.7)) as served:
        folder = RunFolder.create(tmp_path / "run")
        options = QualityOptions(block_length=3, temperature=6, repeats=2)
        assert not quality_complete(folder)

        def go() -> list[Advance]:
            said = list[Advance]()
            number = folder.begin_session(manifest())
            run_quality(Session(served.client, folder, number), options, served.client.model(), said.append)
            return said

        said = go()
        assert quality_complete(folder)
        assert (said[-1].done, said[-1].total) == (252, 252)
        # This model has no grammars: that is asked once.
        *ticks, refused = sorted(folder.ticks(Stage.QUALITY), key=lambda tick: tick.place.group)
        assert (refused.place.group, ticks[-1].place.group) == (SCHEMAS, GROUP)
        assert {tick.error for tick in ticks} == {""}
        assert all(tick.text for tick in ticks)
        asked = {(tick.place.arm, tick.place.repetition, tick.place.prompt) for tick in ticks}
        assert len(asked) == len(ticks) == 24 * 2 * (1 + 2)
        assert {arm for arm, *_ in asked} == {"ar", "k3", "ar-t6", "k3-t6"}
        result = judged(folder)
        assert result.greedy.identical == 24
        assert result.greedy.autoregressive == result.greedy.speculative
        assert result.schemas is not None
        assert result.schemas.refused == "this model's tokenizer does not support grammars"
        assert (result.requests, result.errors) == (len(ticks), 0)
        assert not any("schema" in complaint for complaint in result.complaints)
        # What was cut off is asked again, and nothing else.
        lines = (folder.path / "quality.jsonl").read_bytes().splitlines(keepends=True)
        (folder.path / "quality.jsonl").write_bytes(b"".join(lines[:-5]) + lines[-5][:40])
        assert not quality_complete(folder)
        go()
        assert quality_complete(folder)
        again = [tick for tick in folder.ticks(Stage.QUALITY) if tick.place.group == GROUP]
        assert {tick.digest for tick in again} == {tick.digest for tick in ticks}
        assert len(again) == len(ticks)
        # Sampled answers differ by seed.
        texts = {(tick.place.prompt, tick.place.repetition): tick.digest for tick in ticks if tick.place.arm == "ar-t6"}
        assert texts["json-person", 1] != texts["json-person", 2]
