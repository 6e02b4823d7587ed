"""The prompts that travel with the package: well written, of the length that their tier says, and not too long."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftd.acceptance.options import GROUPS, LONG, MEDIUM, SHORT, SweepOptions
from draftd.acceptance.sweep.plan import (
    CHARACTERS_A_TOKEN,
    _lines,
    checksums,
    chosen_prompts,
    distinct,
    group,
    plan_sweep,
    tokens_of,
)
from draftd.client.prompts import Prompt, from_texts
from draftd.engine.pair import load_tokenizer
from tests.conftest import NanoPair
from tests.unit.acceptance.sweep.conftest import model

BIG = 32_768


def words(prompt: Prompt) -> int:
    return len(prompt.messages[-1][1].split())


def passages(prompt: Prompt) -> list[str]:
    """Titles, in the order in which they stand."""
    return re.findall(r"^\[\d+\] (.*)$", prompt.messages[-1][1], re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "count", "least", "most", "tokens"), [(SHORT, 8, 5, 30, (48, 64)), (MEDIUM, 6, 80, 200, (96,))]
)
def test_a_tier_is_as_long_as_it_says(name: str, count: int, least: int, most: int, tokens: tuple[int, ...]) -> None:
    prompts = group(name, BIG, each=1)
    assert len(prompts) == count
    for prompt in prompts:
        assert least <= words(prompt) <= most, prompt.name
        assert prompt.max_tokens in tokens
        assert [role for role, _ in prompt.messages] == ["user"]
        assert prompt.group == name


def test_passages_are_prose_of_an_invented_place() -> None:
    found = _lines("passages")
    assert len(found) == 16
    assert len({passage["id"] for passage in found} | {passage["title"] for passage in found}) == 32
    for passage in found:
        assert 60 <= len(passage["text"].split()) <= 110, passage["id"]
        assert passage["text"].endswith(".")
        assert "  " not in passage["text"]


def test_no_word_for_word_repetition_makes_prompt_lookup_look_good() -> None:
    """Six words in a row stand in one text only."""
    texts = [p["text"] for p in _lines("passages")]
    texts += [p.messages[-1][1] for name in (SHORT, MEDIUM) for p in group(name, BIG, 1)]
    runs = Counter(
        run
        for text in texts
        for run in {" ".join(text.lower().split()[at : at + 6]) for at in range(len(text.split()) - 5)}
    )
    assert [run for run, count in runs.items() if count > 1] == []


@pytest.mark.parametrize("context_length", [1024, 2048, 4096, 8192, BIG])
def test_as_many_passages_as_half_the_context_lets_in_and_those_that_the_question_needs(context_length: int) -> None:
    lines = {line["id"]: line for line in _lines(LONG)}
    titles = {passage["id"]: passage["title"] for passage in _lines("passages")}
    prompts = group(LONG, context_length, each=1)
    assert [prompt.name for prompt in prompts] == list(lines)
    for prompt in prompts:
        shown, needed = passages(prompt), {titles[one] for one in lines[prompt.name]["passages"]}
        assert needed <= set(shown)
        assert shown == [title for title in titles.values() if title in shown]  # the needed ones are not put first
        assert tokens_of(prompt) <= context_length / 2
        assert prompt.messages[-1][1].endswith("Question: " + lines[prompt.name]["question"])
        left = [p for p in _lines("passages") if p["title"] not in shown]
        for passage in left:  # none of them would fit as well
            longer = tokens_of(prompt) + (len(passage["title"]) + len(passage["text"]) + 8) / CHARACTERS_A_TOKEN
            assert longer > context_length / 2
    if context_length >= 8192:
        assert all(len(passages(prompt)) == 16 for prompt in prompts)
    assert group(LONG, context_length, each=1) == prompts


@given(st.integers(256, 20_000))
def test_a_longer_context_never_shows_fewer_passages(context_length: int) -> None:
    for less, more in zip(group(LONG, context_length, 1), group(LONG, context_length + 500, 1), strict=True):
        assert len(passages(less)) <= len(passages(more))


def test_every_prompt_fits_the_embedded_pair_with_its_answer(nano_pair: NanoPair) -> None:
    tokenizer = load_tokenizer(nano_pair.target)
    prompts = chosen_prompts(SweepOptions(each=8), model(context_length=1024))
    assert Counter(prompt.group for prompt in prompts) == {
        SHORT: 8, MEDIUM: 6, LONG: 6, "code": 8, "tool_call": 8, "chat": 8, "prose": 8
    }  # fmt: skip
    for prompt in prompts:
        ids = tokenizer.render_chat([{"role": role, "content": content} for role, content in prompt.messages])
        assert prompt.max_tokens is not None
        assert len(ids) + prompt.max_tokens <= 1024, prompt.name
    longest = max(words(prompt) for prompt in prompts if prompt.group != LONG)
    assert all(words(prompt) > longest for prompt in prompts if prompt.group == LONG)


def test_names_are_made_distinct_and_groups_are_never_empty() -> None:
    prompts = distinct(from_texts(["Hello", "Hello", "Hello #2", "Hello"]))
    assert [prompt.name for prompt in prompts] == ["Hello", "Hello #2", "Hello #2 #2", "Hello #3"]
    assert {prompt.group for prompt in prompts} == {"unspecified"}


def test_each_group_has_a_checksum_of_what_is_asked() -> None:
    before = checksums(chosen_prompts(SweepOptions(), model()))
    assert set(before) == set(GROUPS)
    after = checksums(chosen_prompts(SweepOptions(), model(context_length=1024)))
    assert {name for name in GROUPS if before[name] != after[name]} == {LONG}


def test_a_prompt_that_does_not_fit_is_left_out_and_said() -> None:
    plan = plan_sweep(SweepOptions(groups=(SHORT, LONG)), model(context_length=300))
    assert {prompt.group for prompt in plan.prompts} == {SHORT}
    assert len(plan.left_out_prompts) == 6
    assert all("the model's context is 300" in reason for reason in plan.left_out_prompts.values())
    assert plan.frozen(1)["left_out_prompts"][0].keys() == {"prompt", "reason"}
