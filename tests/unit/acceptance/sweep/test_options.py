"""What may be asked of a sweep, and what a run remembers of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftd.acceptance.options import GROUPS, OptionError, SweepOptions
from draftd.client.prompts import Prompt, from_file, from_texts
from draftd.core import BUILT_IN_DRAFTERS, WorkloadClass

some_options = st.builds(
    SweepOptions,
    block_lengths=st.lists(st.integers(0, 64), unique=True).map(tuple),
    block_length=st.integers(1, 64),
    drafters=st.none() | st.lists(st.sampled_from(list(BUILT_IN_DRAFTERS)), unique=True).map(tuple),
    temperatures=st.lists(st.integers(0, 1000).map(lambda n: n / 100), unique=True).map(tuple),
    concurrency=st.lists(st.integers(1, 256), unique=True).map(tuple),
    groups=st.lists(st.sampled_from(GROUPS), unique=True, min_size=1).map(tuple),
    prompts=st.lists(
        st.builds(
            Prompt,
            st.text(),
            st.lists(st.tuples(st.text(), st.text()), min_size=1).map(tuple),
            st.sampled_from(list(WorkloadClass)),
            st.none() | st.integers(1, 99),
            st.text(),
        ),
        max_size=3,
    ).map(tuple),
    max_tokens=st.none() | st.integers(2, 4096),
    cool_down=st.floats(0, 3600),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # times are the machine's
@given(some_options)
def test_a_run_remembers_all_of_it(options: SweepOptions) -> None:
    plan = json.loads(json.dumps(options.plan())) | {"arms": ["ar"], "requests": 7}
    assert SweepOptions.from_plan(plan) == options
    assert SweepOptions.resumed(plan) == options


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("block_lengths", (0, 65), "block_lengths: got 65; allowed: less than or equal to 64"),
        ("block_lengths", (-1,), "block_lengths: got -1"),
        ("block_lengths", (2, 2), "block_lengths: got (2, 2); allowed: each no more than once"),
        ("block_lengths", (True,), "block_lengths: got True"),
        ("block_length", 0, "block_length: got 0; allowed: greater than or equal to 1"),
        ("temperatures", (float("nan"),), "temperatures: got nan; allowed: a finite number"),
        ("temperatures", (-0.1,), "temperatures: got -0.1"),
        ("temperatures", (0.12345678,), "six digits at most"),
        ("concurrency", (0,), "concurrency: got 0"),
        ("groups", ("poems",), "groups: got 'poems'; allowed: short_control, medium_reasoning, long_context, code"),
        ("groups", (), "groups: got ()"),
        ("each", 0, "each: got 0"),
        ("repetitions", 0, "repetitions: got 0"),
        ("max_tokens", 1, "max_tokens: got 1; allowed: greater than or equal to 2"),
        ("cool_down", -1.0, "cool_down: got -1.0"),
        ("cool_down", float("inf"), "cool_down: got inf"),
        ("heat_seconds", 1e9, "heat_seconds: got 1000000000.0"),
        ("seed", -1, "seed: got -1"),
    ],
)
def test_what_is_out_of_bounds_is_named(field: str, value: Any, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        SweepOptions.resumed(None, **{field: value})
    assert message in str(caught.value)


def test_what_is_not_given_is_as_the_run_began() -> None:
    plan = SweepOptions(repetitions=7, cool_down=0.5).plan()
    assert SweepOptions.resumed(plan, repetitions=None, seed=4) == SweepOptions(repetitions=7, cool_down=0.5, seed=4)
    assert SweepOptions.resumed(None, temperatures=()) == SweepOptions(temperatures=())


def test_a_plan_that_was_written_by_hand_is_checked() -> None:
    plan = SweepOptions().plan()
    with pytest.raises(OptionError, match="the plan of the sweep: repetitions"):
        SweepOptions.from_plan(plan | {"repetitions": "many"})
    with pytest.raises(OptionError, match="repetitions: got 0"):
        SweepOptions.from_plan(plan | {"repetitions": 0})


def test_prompts_of_ones_own_are_of_the_group_that_their_line_names_or_of_their_file(tmp_path: Path) -> None:
    file = tmp_path / "support.jsonl"
    line = {"messages": [{"role": "user", "content": "Hello"}]}
    file.write_text(json.dumps(line) + "\n" + json.dumps(line | {"group": "greetings"}) + "\n")
    assert [prompt.group for prompt in from_file(file)] == ["support", "greetings"]
    assert from_texts(["Hello"])[0].group == ""
