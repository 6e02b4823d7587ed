"""A spec is read to the last key, or refused with the place, the value and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, WorkloadClass
from draftd_acceptance.gate.metrics import METRICS
from draftd_acceptance.gate.spec import Operator, SpecError, load_spec, parse, shipped_text

GOOD = """\
name = "ours"

[candidate]
block_length = 3
drafter = "prompt_lookup"

[[criterion]]
name = "speed"
metric = "decode_tokens_per_second"
comparison = ">="
threshold = 1.2
against = "autoregressive"
min_samples = 10
judge = "bound"
unreadable = "excuse"
group = "code"
workload = "code"
block_length = 2
temperature = 0.8
concurrency = 4

[[criterion]]
name = "first token"
metric = "time_to_first_token"
comparison = "<="
threshold = 1
"""


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


def refused(text: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        parse(text, "ours.toml")
    return caught.value


def test_gate_spec_parses_every_key_and_fills_defaults() -> None:
    spec = parse(GOOD, "ours.toml")
    first, second = spec.criterion
    assert (spec.name, spec.candidate.block_length, spec.candidate.drafter) == ("ours", 3, PROMPT_LOOKUP)
    assert (first.comparison, first.threshold, first.against) == (Operator.AT_LEAST, 1.2, "autoregressive")
    assert (first.min_samples, first.judge, first.unreadable) == (10, "bound", "excuse")
    assert (first.group, first.workload, first.block_length) == ("code", WorkloadClass.CODE, 2)
    assert (first.temperature, first.concurrency) == (0.8, 4)
    assert (second.against, second.min_samples, second.judge, second.unreadable) == (None, 1, "estimate", "fail")
    assert (second.block_length, second.temperature, second.concurrency) == (None, 0.0, 1)


def test_gate_spec_without_candidate_defaults_to_knee_block_length_of_draft_model() -> None:
    candidate = parse(changed('[candidate]\nblock_length = 3\ndrafter = "prompt_lookup"\n', ""), "ours.toml").candidate
    assert (candidate.block_length, candidate.drafter) == ("knee", DRAFT_MODEL)


FIRST, SECOND = "criterion 1 (speed): ", "criterion 2 (first token): "


@pytest.mark.parametrize(
    ("old", "new", "field", "allowed"),
    [
        ("min_samples = 10", "min_sample = 10", f"line 13: {FIRST}min_sample", "did you mean min_samples?"),
        ("[candidate]\n", "[candidate]\nblock = 4\n", "line 4: candidate.block", "block_length, drafter"),
        ('name = "ours"', 'nam = "ours"', "line 1: nam", "did you mean name?"),
        ('name = "ours"\n', 'name = "ours"\n[criteria]\n', "line 2: criteria", "did you mean criterion?"),
        ('"time_to_first_token"', '"time_to_first"', f"line 24: {SECOND}metric", "did you mean time_to_first_token?"),
        ("threshold = 1\n", "", f"line 22: {SECOND}threshold", "this field is required"),
        ("threshold = 1\n", "threshold = true\n", f"line 26: {SECOND}threshold", "number"),
        ("threshold = 1\n", "threshold = nan\n", f"line 26: {SECOND}threshold", "finite"),
        ("threshold = 1\n", 'threshold = "1"\n', f"line 26: {SECOND}threshold", "number"),
        ('comparison = "<="', 'comparison = "=<"', f"line 25: {SECOND}comparison", "'>='"),
        ("min_samples = 10", "min_samples = 0", f"line 13: {FIRST}min_samples", "equal to 1"),
        ("min_samples = 10", "min_samples = 2.0", f"line 13: {FIRST}min_samples", "integer"),
        ("concurrency = 4", "concurrency = 0", f"line 20: {FIRST}concurrency", "equal to 1"),
        ("temperature = 0.8", "temperature = -1", f"line 19: {FIRST}temperature", "equal to 0"),
        ("block_length = 2", "block_length = 65", f"line 18: {FIRST}block_length", "equal to 64"),
        ('against = "autoregressive"', 'against = "ar"', f"line 12: {FIRST}against", "'baseline'"),
        ('judge = "bound"', 'judge = "best"', f"line 14: {FIRST}judge", "'estimate' or 'bound'"),
        ('unreadable = "excuse"', 'unreadable = "ignore"', f"line 15: {FIRST}unreadable", "'excuse'"),
        ('workload = "code"', 'workload = "poetry"', f"line 17: {FIRST}workload", "'prose'"),
        ("block_length = 3", "block_length = 0", "line 4: candidate.block_length", "a whole number from 1 to 64"),
        ("block_length = 3", "block_length = true", "line 4: candidate.block_length", '"knee" or a whole number'),
        ("block_length = 3", 'block_length = "best"', "line 4: candidate.block_length", '"knee" or a whole number'),
        ('drafter = "prompt_lookup"', 'drafter = "Oracle 1"', "line 5: candidate.drafter", "match pattern"),
        ('name = "first token"', 'name = "speed"', "line 23: criterion 2 (speed): name", "no other has"),
        ('name = "first token"', 'name = ""', "line 23: criterion 2: name", "at least 1 character"),
        (GOOD, 'name = "empty"\ncriterion = []\n', "line 2: criterion", "at least 1 item"),
        (GOOD, 'name = "none"\n', "ours.toml: criterion", "this field is required"),
        (GOOD, 'name = "odd"\ncriterion = [4]\n', "ours.toml: criterion 1", "valid dictionary"),
        (GOOD, 'name = "broken\n', "ours.toml", "line 1"),
    ],
)
def test_gate_spec_error_names_line_key_and_allowed_values(old: str, new: str, field: str, allowed: str) -> None:
    error = refused(changed(old, new))
    assert error.field.startswith("ours.toml")
    assert field in error.field
    assert allowed in error.allowed


@pytest.mark.parametrize(
    ("lines", "field", "allowed"),
    [
        ('metric = "soak.errors"\ngroup = "code"', "group", "is measured by the soak"),
        ('metric = "soak.errors"\nblock_length = 4', "block_length", "is measured by the soak"),
        ('metric = "soak.errors"\nagainst = "autoregressive"', "against", "is measured by the soak"),
        ('metric = "soak.errors"\njudge = "bound"', "judge", "has no interval"),
        ('metric = "soak.days_to_exhaustion"\nagainst = "baseline"', "against", "is not a ratio"),
        ('metric = "quality.difference"\ntemperature = 0.8', "temperature", "is measured by the quality"),
        ('metric = "acceptance"\nagainst = "autoregressive"', "against", "is of drafts"),
        ('metric = "total_tokens_per_second"\nagainst = "baseline"', "against", "is not a ratio"),
    ],
)
def test_gate_spec_refuses_criterion_option_its_metric_does_not_support(lines: str, field: str, allowed: str) -> None:
    error = refused(f'name = "ours"\n[[criterion]]\nname = "x"\ncomparison = "<="\nthreshold = 0\n{lines}\n')
    assert f"line 7: criterion 1 (x): {field}" in error.field
    assert allowed in error.allowed


def test_gate_spec_error_names_unreadable_file_and_cause(tmp_path: Path) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b'name = "caf\xe9"')
    for path, why in ((tmp_path / "none.toml", "No such file"), (tmp_path, "directory"), (latin, "UTF-8")):
        with pytest.raises(SpecError) as caught:
            load_spec(path)
        assert str(path) in caught.value.message
        assert why in caught.value.message


def test_shipped_gate_spec_requires_listed_metrics_and_thresholds() -> None:
    spec = load_spec()
    wanted = {
        (one.metric, one.against, str(one.comparison), one.threshold, one.group, one.block_length)
        for one in spec.criterion
    }
    assert spec.candidate.block_length == "knee"
    assert wanted == {
        ("decode_tokens_per_second", "autoregressive", ">=", 1.16, None, None),
        ("inter_token_p95", "autoregressive", "<=", 1.0, None, None),
        ("time_to_first_token", "autoregressive", "<=", 1.08, "short_control", None),
        ("acceptance", None, ">=", 0.55, None, 4),
        ("soak.seconds", None, ">=", 600.0, None, None),
        ("soak.errors", None, "==", 0.0, None, None),
        ("soak.headroom", None, ">", 0.0, None, None),
        ("soak.days_to_exhaustion", None, ">=", 7.0, None, None),
        ("soak.critical_seconds", None, "<=", 60.0, None, None),
        ("soak.swap_in", None, "<=", 200e6, None, None),
        ("soak.throttles", None, "==", 0.0, None, None),
        ("soak.acceptance_held", None, ">=", 0.40, None, None),
        ("quality.gap", None, "<=", 0.005, None, None),
        ("quality.success_autoregressive", None, ">", 0.0, None, None),
        ("quality.schema_valid", None, "==", 1.0, None, None),
        ("quality.schema_gap", None, "<=", 0.005, None, None),
        ("quality.checkers_sound", None, "==", 1.0, None, None),
    }
    excused = {one.metric for one in spec.criterion if one.unreadable == "excuse"}
    assert excused == {"quality.schema_valid", "quality.schema_gap"}


def test_copy_of_shipped_gate_spec_loads_equal_to_shipped_spec(tmp_path: Path) -> None:
    copy = tmp_path / "copy.toml"
    copy.write_text(shipped_text(), encoding="utf-8")
    assert load_spec(copy) == load_spec()


def test_gate_spec_accepts_criterion_on_every_metric() -> None:
    for name in METRICS:
        parse(f'name = "x"\n[[criterion]]\nname = "x"\nmetric = "{name}"\ncomparison = "<"\nthreshold = 1\n', "x.toml")


@settings(deadline=None)
@given(value=st.floats(-1e6, 1e6), threshold=st.floats(-1e6, 1e6))
def test_gate_comparison_operators_are_consistent_and_tolerate_only_rounding_error(
    value: float, threshold: float
) -> None:
    holds = {one: one.holds(value, threshold) for one in Operator}
    assert holds[Operator.AT_LEAST] == (holds[Operator.ABOVE] or holds[Operator.EQUAL])
    assert holds[Operator.AT_MOST] == (holds[Operator.BELOW] or holds[Operator.EQUAL])
    assert holds[Operator.ABOVE] + holds[Operator.BELOW] + holds[Operator.EQUAL] == 1
    assert holds[Operator.ABOVE] <= (value > threshold)
    assert holds[Operator.BELOW] <= (value < threshold)
    if value == threshold:
        assert holds[Operator.EQUAL]
    if abs(value - threshold) > 1e-8 * max(1.0, abs(threshold)):
        assert not holds[Operator.EQUAL]


def test_gate_comparison_at_most_ignores_floating_point_rounding_error() -> None:
    assert 0.995 - 0.99 > 0.005
    assert Operator.AT_MOST.holds(0.995 - 0.99, 0.005)
    assert not Operator.AT_MOST.holds(0.0051, 0.005)
