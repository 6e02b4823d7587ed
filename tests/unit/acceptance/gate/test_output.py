"""A verdict as text and as JUnit XML."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from xml.etree import ElementTree as Xml

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd_acceptance.gate import output as shown
from draftd_acceptance.gate.judge import CriterionOutcome, Decision, GateDecision, Judgement
from draftd_acceptance.gate.metrics import MetricReading
from draftd_acceptance.gate.output import document, to_junit
from draftd_acceptance.gate.spec import Criterion, Operator


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
def test_gate_output_scales_figures_to_readable_unit_prefix(value: float, unit: str, text: str) -> None:
    assert shown.figure(value, unit) == text


def judged(reading: MetricReading, **fields: object) -> Judgement:
    criterion = Criterion.model_validate(
        {"name": "x", "metric": "time_to_first_token", "comparison": Operator.AT_MOST, "threshold": 1.08} | fields
    )
    return Judgement(criterion, "k4", reading, CriterionOutcome.PASSED)


def test_gate_output_writes_interval_unit_once_when_ends_share_unit() -> None:
    assert shown.measured_text(judged(MetricReading(0.05, 0.04, 0.06))) == "50 ms (40 … 60)"
    assert shown.measured_text(judged(MetricReading(0.9, 0.8, 1.2))) == "900 ms (800 ms … 1.2 s)"
    assert shown.measured_text(judged(MetricReading(0.05))) == "50 ms"
    assert shown.measured_text(judged(MetricReading(None))) == "–"


def test_gate_output_criterion_text_names_reference_and_bound() -> None:
    plain = judged(MetricReading(1.0)).criterion
    assert shown.wanted_text(plain) == "≤ 1.08 s"
    both = judged(MetricReading(1.0), against="autoregressive", judge="bound", group="code").criterion
    assert shown.wanted_text(both) == "≤ 1.080 × autoregressive, by its bound"


def test_gate_output_explains_judgement_in_one_line() -> None:
    told = judged(MetricReading(1.2, 1.1, 1.3, 24), against="baseline", group="code")
    assert shown.explanation(told) == (
        "time_to_first_token 1.200 × (1.100 … 1.300), wanted ≤ 1.080 × baseline; k4, code; 24 requests"
    )


AT = datetime(2026, 11, 21, 20, 0, tzinfo=UTC)


def judgement(outcome: CriterionOutcome, name: str = "", reason: str = "", value: float | None = 0.5) -> Judgement:
    criterion = Criterion(
        name=name or f"the one that {outcome}", metric="acceptance", comparison=Operator.AT_LEAST, threshold=0.55
    )
    return Judgement(criterion, "k4", MetricReading(value, 0.4, 0.6, 84), outcome, reason)


def verdict(*outcomes: CriterionOutcome) -> GateDecision:
    good = all(one.good for one in outcomes)
    return GateDecision(
        Decision.PROMOTED if good else Decision.NOT_PROMOTED,
        "ours v1.2",
        "tonight",
        "last week",
        "k4",
        tuple(map(judgement, outcomes)),
        notes=("The knee is at 4.",),
    )


def suite(text: str) -> Xml.Element:
    root = Xml.fromstring(text)
    assert root.tag == "testsuites"
    (only,) = root
    assert only.tag == "testsuite"
    for count in ("tests", "failures", "errors", "skipped"):
        assert root.get(count) == only.get(count)
    return only


def test_gate_junit_maps_criterion_outcomes_to_pass_failure_and_skipped() -> None:
    found = suite(to_junit(verdict(*CriterionOutcome), AT))
    cases = {case.get("name"): case for case in found.iter("testcase")}
    assert [found.get(count) for count in ("tests", "failures", "errors", "skipped")] == ["5", "3", "0", "1"]
    assert cases["the one that passed"].find("failure") is None
    assert cases["the one that passed"].find("skipped") is None
    assert cases["the one that excused"].find("skipped") is not None
    for kind in ("failed", "too_few_samples", "not_measured"):
        failure = cases[f"the one that {kind}"].find("failure")
        assert failure is not None
        assert failure.get("type") == kind
        assert "acceptance 0.500 (0.400 … 0.600), wanted ≥ 0.550" in (failure.get("message") or "")
        assert "84 requests" in (failure.text or "")


def test_gate_junit_suite_records_run_candidate_verdict_and_timestamp() -> None:
    found = suite(to_junit(verdict(CriterionOutcome.PASSED), AT))
    properties = {one.get("name"): one.get("value") for one in found.iter("property")}
    assert found.get("timestamp") == "2026-11-21T20:00:00"
    assert (properties["run"], properties["baseline"], properties["candidate"]) == ("tonight", "last week", "k4")
    assert properties["verdict"] == "promoted: k4 meets 1 of 1 criteria of 'ours v1.2'"
    assert found.findtext("system-out") == "The knee is at 4."
    # A dot in a spec's name would make a package of what stands before it.
    assert {case.get("classname") for case in found.iter("testcase")} == {"draftd.gate.ours v1 2"}


def test_gate_junit_reports_run_not_judged_as_single_error() -> None:
    refused = GateDecision(Decision.NOT_JUDGED, "ours", "tonight", reasons=("models.draft is a", "blas is b"))
    found = suite(to_junit(refused, AT))
    (case,) = found.iter("testcase")
    error = case.find("error")
    assert [found.get(count) for count in ("tests", "failures", "errors", "skipped")] == ["1", "0", "1", "0"]
    assert error is not None
    assert error.get("type") == "not_judged"
    assert error.text == "models.draft is a\nblas is b"


@settings(deadline=None)
@given(name=st.text(min_size=1), reason=st.text())
def test_gate_junit_is_well_formed_xml_for_arbitrary_names_and_reasons(name: str, reason: str) -> None:
    told = GateDecision(
        Decision.NOT_PROMOTED,
        name,
        name,
        judgements=tuple(judgement(outcome, name, reason) for outcome in CriterionOutcome),
        notes=(reason,),
    )
    found = suite(to_junit(told, AT))
    assert len(list(found.iter("testcase"))) == len(CriterionOutcome)
    suite(to_junit(GateDecision(Decision.NOT_JUDGED, name, name, reasons=(reason,)), AT))


def test_gate_junit_preserves_special_characters_of_criterion_name() -> None:
    name = "TTFT <= 1.08 × AR & \"short\" 'prompts'"
    found = suite(
        to_junit(GateDecision(Decision.PROMOTED, "x", "y", judgements=(judgement(CriterionOutcome.PASSED, name),)), AT)
    )
    assert [case.get("name") for case in found.iter("testcase")] == [name]


def test_gate_json_document_holds_decision_criteria_and_interval_figures() -> None:
    found = document(verdict(CriterionOutcome.PASSED, CriterionOutcome.TOO_FEW_SAMPLES))
    assert (found["decision"], found["exit_code"], found["candidate"]) == ("not_promoted", 1, "k4")
    first = found["criteria"][0]
    assert (first["value"], first["low"], first["high"], first["samples"]) == (0.5, 0.4, 0.6, 84)
    assert (first["metric"], first["comparison"], first["threshold"]) == ("acceptance", ">=", 0.55)
    assert [one["outcome"] for one in found["criteria"]] == ["passed", "too_few_samples"]


@pytest.mark.parametrize("value", [math.inf, -math.inf, None])
def test_gate_json_document_writes_non_finite_value_as_null(value: float | None) -> None:
    told = GateDecision(Decision.PROMOTED, "x", "y", judgements=(judgement(CriterionOutcome.PASSED, value=value),))
    assert document(told)["criteria"][0]["value"] is None


def test_gate_exit_code_is_0_when_promoted_1_when_not_promoted_2_when_not_judged() -> None:
    assert {one: one.exit_code for one in Decision} == {"promoted": 0, "not_promoted": 1, "not_judged": 2}


def test_gate_verdict_sentence_names_failed_and_unproven_criteria() -> None:
    assert (
        verdict(CriterionOutcome.PASSED, CriterionOutcome.EXCUSED).sentence
        == "promoted: k4 meets 2 of 2 criteria of 'ours v1.2'"
    )
    said = verdict(CriterionOutcome.PASSED, CriterionOutcome.FAILED, CriterionOutcome.NOT_MEASURED).sentence
    assert said.startswith("not promoted: k4 meets 1 of 3 criteria")
    assert said.endswith("; it fails “the one that failed”; it does not prove “the one that not_measured”")
    two = GateDecision(Decision.NOT_JUDGED, "ours", "tonight", reasons=("a", "b"))
    assert two.sentence == "not judged: a (and 1 more reason)"
