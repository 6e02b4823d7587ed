"""Prompts for the benchmarks of one model, with the embedded target's tokenizer."""

from __future__ import annotations

from importlib.resources import files

import pytest

from benchmarks.single.prompts import Prompts
from draftd.core import WorkloadClass


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    return Prompts(str(files("draftd.models.nano") / "target"))


def test_benchmark_prompts_of_workload_class_are_varied_and_never_repeated(prompts: Prompts) -> None:
    chosen = [one for place in range(7) for one in prompts.of_class(WorkloadClass.EDIT, place, 3)]
    assert {one.workload for one in chosen} == {"edit"}
    assert len({one.id for one in chosen}) == 21
    assert len({one.id for one in prompts.of_class(WorkloadClass.EDIT, 6, 20)}) == 20
    assert len({one.id.rsplit("-", 1)[0] for one in chosen[:3]}) == 3


def test_benchmark_prompts_of_given_length_differ_in_first_token(prompts: Prompts) -> None:
    chosen = [prompts.of_length(length, number) for number, length in enumerate((50, 50, 500, 2000))]
    assert [len(one.tokens) for one in chosen] == [50, 50, 500, 2000]
    assert len({one.tokens[0] for one in chosen}) == 4
    assert chosen[0] == prompts.of_length(50, 0)


def test_benchmark_prompt_variant_differs_from_original_only_by_added_first_token(prompts: Prompts) -> None:
    (prompt,) = prompts.of_class(WorkloadClass.CHAT, 0, 1)
    variants = [prompts.unlike_any(prompt, number) for number in range(20)]
    assert all(one.tokens[1:] == prompt.tokens for one in variants)
    assert len({one.tokens[0] for one in variants}) == 20
