"""A verdict as CI systems read it, and as plain values."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from xml.etree import ElementTree as Xml

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.acceptance.gate.judge import Decision, Judgement, Outcome, Verdict
from draftd.acceptance.gate.metrics import Reading
from draftd.acceptance.gate.output import document, to_json, to_junit
from draftd.acceptance.gate.spec import Comparison, Criterion

AT = datetime(2026, 11, 21, 20, 0, tzinfo=UTC)


def judgement(outcome: Outcome, name: str = "", reason: str = "", value: float | None = 0.5) -> Judgement:
    criterion = Criterion(
        name=name or f"the one that {outcome}", metric="acceptance", comparison=Comparison.AT_LEAST, threshold=0.55
    )
    return Judgement(criterion, "k4", Reading(value, 0.4, 0.6, 84), outcome, reason)


def verdict(*outcomes: Outcome) -> Verdict:
    good = all(one.good for one in outcomes)
    return Verdict(
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


def test_each_outcome_is_what_a_ci_system_makes_of_it() -> None:
    found = suite(to_junit(verdict(*Outcome), AT))
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


def test_the_suite_says_what_was_judged_and_when() -> None:
    found = suite(to_junit(verdict(Outcome.PASSED), AT))
    properties = {one.get("name"): one.get("value") for one in found.iter("property")}
    assert found.get("timestamp") == "2026-11-21T20:00:00"
    assert (properties["run"], properties["baseline"], properties["candidate"]) == ("tonight", "last week", "k4")
    assert properties["verdict"] == "promoted: 1 of 1 criteria of 'ours v1.2' hold for k4"
    assert found.findtext("system-out") == "The knee is at 4."
    # A dot in a spec's name would make a package of what stands before it.
    assert {case.get("classname") for case in found.iter("testcase")} == {"draftd.gate.ours v1 2"}


def test_a_run_that_is_not_judged_is_one_error() -> None:
    refused = Verdict(Decision.NOT_JUDGED, "ours", "tonight", reasons=("models.draft is a", "blas is b"))
    found = suite(to_junit(refused, AT))
    (case,) = found.iter("testcase")
    error = case.find("error")
    assert [found.get(count) for count in ("tests", "failures", "errors", "skipped")] == ["1", "0", "1", "0"]
    assert error is not None
    assert error.get("type") == "not_judged"
    assert error.text == "models.draft is a\nblas is b"


@settings(deadline=None)
@given(name=st.text(min_size=1), reason=st.text())
def test_whatever_the_names_are_it_is_xml(name: str, reason: str) -> None:
    told = Verdict(
        Decision.NOT_PROMOTED,
        name,
        name,
        judgements=tuple(judgement(outcome, name, reason) for outcome in Outcome),
        notes=(reason,),
    )
    found = suite(to_junit(told, AT))
    assert len(list(found.iter("testcase"))) == len(Outcome)
    suite(to_junit(Verdict(Decision.NOT_JUDGED, name, name, reasons=(reason,)), AT))


def test_a_criterion_is_called_what_the_spec_calls_it() -> None:
    name = "TTFT <= 1.08 × AR & \"short\" 'prompts'"
    found = suite(to_junit(Verdict(Decision.PROMOTED, "x", "y", judgements=(judgement(Outcome.PASSED, name),)), AT))
    assert [case.get("name") for case in found.iter("testcase")] == [name]


def test_the_document_holds_every_figure() -> None:
    found = document(verdict(Outcome.PASSED, Outcome.TOO_FEW_SAMPLES))
    assert (found["decision"], found["exit_code"], found["candidate"]) == ("not_promoted", 1, "k4")
    first = found["criteria"][0]
    assert (first["value"], first["low"], first["high"], first["samples"]) == (0.5, 0.4, 0.6, 84)
    assert (first["metric"], first["comparison"], first["threshold"]) == ("acceptance", ">=", 0.55)
    assert [one["outcome"] for one in found["criteria"]] == ["passed", "too_few_samples"]


@pytest.mark.parametrize("value", [math.inf, -math.inf, None])
def test_what_json_has_no_number_for_is_none(value: float | None) -> None:
    told = Verdict(Decision.PROMOTED, "x", "y", judgements=(judgement(Outcome.PASSED, value=value),))
    assert json.loads(to_json(told))["criteria"][0]["value"] is None


def test_exit_codes() -> None:
    assert {one: one.exit_code for one in Decision} == {"promoted": 0, "not_promoted": 1, "not_judged": 2}


def test_the_sentence_names_what_stands_in_the_way() -> None:
    assert verdict(Outcome.PASSED, Outcome.EXCUSED).sentence == "promoted: 2 of 2 criteria of 'ours v1.2' hold for k4"
    said = verdict(Outcome.PASSED, Outcome.FAILED, Outcome.NOT_MEASURED).sentence
    assert said.startswith("not promoted: 1 of 3 criteria")
    assert said.endswith("not the one that failed, the one that not_measured")
    two = Verdict(Decision.NOT_JUDGED, "ours", "tonight", reasons=("a", "b"))
    assert two.sentence == "not judged: a (and 1 more)"
