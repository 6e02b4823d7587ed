"""Drafts from the text itself and from the caller's earlier answers, and from no other caller's."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from draftd.core import PROMPT_LOOKUP, SamplingParams
from draftd.engine.depth.acceptance_rates import Acceptance
from draftd.engine.drafters import prompt_lookup, suffix_index
from draftd.engine.drafters.base import Text
from draftd.engine.drafters.prompt_lookup import PromptLookup
from draftd.engine.drafters.suffix_index import SIZES, SuffixIndex, continuation
from draftd.engine.sequence import DecodeSequence
from tests.rig import Collected, Rig, pair, request, speculative, tiny_llama

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def naive(tokens: list[int], depth: int) -> list[int]:
    """Returns what most often followed the longest earlier occurrence of the text's end, of equals the latest."""
    for size in reversed(SIZES):
        places = [end for end in range(len(tokens) - 1, size - 1, -1) if tokens[end - size : end] == tokens[-size:]]
        if len(tokens) <= size or not places:
            continue
        drafted: list[int] = []
        places = places[: suffix_index._MOST_PLACES]
        while len(drafted) < depth:
            following = [([*tokens, *drafted])[place + len(drafted)] for place in places]
            token, _ = Counter(following).most_common(1)[0]  # the first of equals
            places = [place for place, other in zip(places, following, strict=True) if other == token]
            drafted.append(token)
        return drafted
    return []


def ended(prompt: list[int], answer: list[int], identity: str) -> Text:
    return Text([*prompt, *answer], answered=len(answer), identity=identity, ended=True)


@examples(deadline=None)
@given(TEXTS, st.integers(1, 6), st.data())
def test_continuation_is_what_most_often_followed_the_longest_earlier_end(tokens, depth, data):
    index, at = SuffixIndex(), 1
    while True:
        text = tokens[:at]
        index.grow(text, len(text) - 1)
        draft = continuation(text, [(text, index)], depth)
        assert (draft.tokens if draft else []) == naive(text, depth)
        if draft:
            source, place = draft.source
            assert source[place] == draft.tokens[0]
            assert draft.size in SIZES
        if at == len(tokens):
            break
        at = min(len(tokens), at + data.draw(st.integers(1, 9)))


def test_prompt_lookup_goes_on_after_a_changed_token_of_the_text_it_copies():
    """The answer copies the prompt and changes a token. The token after it is everywhere, so its place decides."""
    prompt = [50, 1, 51, 2, 52, 9, 53, 3, 54, 4, 55, 9, 56, 0, 57, 9, 58, 0]
    lookup, text = PromptLookup(), Text([*prompt, 50, 1])
    assert lookup.continuation(text, 3) == [51, 2, 52]
    text.tokens += [51, 2, 99, 9]
    assert lookup.continuation(text, 2) == [53, 3]


def test_prompt_lookup_prefers_the_frequent_continuation_to_the_latest():
    text = Text([1, 2, 3, 4, 8, 1, 2, 3, 5, 9, 1, 2, 6, 7, 0, 1, 2])
    assert PromptLookup().continuation(text, 2) == [3, 5]


def test_prompt_lookup_drafts_on_beyond_the_end_of_a_text_that_repeats_itself():
    assert PromptLookup().continuation(Text([5, 6, 7, 5, 6, 7, 5, 6]), 7) == [7, 5, 6, 7, 5, 6, 7]


def test_prompt_lookup_forgets_guessed_tokens_that_were_rolled_back():
    lookup, text = PromptLookup(), Text([1, 2, 3, 9, 9, 1, 2], guesses=2)
    assert lookup.continuation(text, 2) == [3, 9]
    text.tokens, text.guesses = [1, 2, 3, 9, 9, 5, 1, 2, 6, 1, 2], 0
    assert lookup.continuation(text, 1) == [6]


def test_prompt_lookup_indexes_long_text_over_several_steps():
    """All of 30,000 tokens at once would hold the other sequences up for 100 ms."""
    text, lookup, drafts = Text([*range(2600)]), PromptLookup(), []
    for i in range(3):
        text.tokens += [9000 + i, 2500 + i, 2501 + i]  # indexed: 0 to 1,023, to 2,047, to the end
        drafts.append(lookup.continuation(text, 2))
    assert drafts == [[], [], [2504, 2505]]


def test_answers_of_one_caller_draft_for_that_caller_alone():
    lookup = PromptLookup()
    lookup.leave(ended([1, 2], [10, 11, 12, 13], "ann"))
    drafts = {name: lookup.continuation(Text([7, 10, 11], identity=name), 3) for name in ("ann", "bob", "")}
    assert drafts == {"ann": [12, 13], "bob": [], "": []}


@pytest.mark.parametrize(
    "text", [ended([1, 2], [10, 11, 12], ""), Text([1, 2, 10, 11, 12], answered=3, identity="ann")]
)
def test_unknown_callers_and_unfinished_texts_leave_no_answer(text):
    lookup = PromptLookup()
    lookup.leave(text)
    assert lookup.continuation(Text([10, 11], identity=text.identity), 1) == []


def test_request_without_an_answer_leaves_nothing_to_draft_from():
    lookup = PromptLookup()
    lookup.leave(ended([10, 11, 12], [], "ann"))
    assert lookup.continuation(Text([10, 11], identity="ann"), 1) == []


def test_prompt_tokens_are_not_drafted_from_except_the_last_before_the_answer():
    lookup, prompt = PromptLookup(), list(range(100, 140))
    lookup.leave(ended(prompt, [7, 8], "ann"))
    assert lookup.continuation(Text(prompt[:4], identity="ann"), 1) == []
    assert lookup.continuation(Text([1, *prompt[-2:]], identity="ann"), 3) == [7, 8]


def test_earlier_answers_are_bounded_in_tokens_and_callers():
    lookup = PromptLookup()
    for answer in range(30):
        first = 2000 * answer
        lookup.leave(ended([], list(range(first, first + 2000)), "ann"))
        lookup.continuation(Text([0, 1], identity="ann"), 1)
    (earlier,) = lookup._earlier.values()
    assert sum(len(tokens) for tokens, _ in earlier.sources) <= 2 * prompt_lookup._MOST_TOKENS
    for _ in range(20):
        assert lookup.continuation(Text([0, 1], identity="ann"), 1) == [], "the first answer is dropped"
    assert lookup.continuation(Text([58000, 58001], identity="ann"), 1) == [58002]
    for caller in range(40):
        lookup.leave(ended([], [1, 2, 3], f"caller {caller}"))
    assert len(lookup._earlier) <= prompt_lookup._MOST_CALLERS


def traced(lookup: PromptLookup, text: Text, depth: int) -> tuple[list[int], int]:
    """Returns the draft, and how many lines of the drafter ran for it."""
    lines, files = 0, {prompt_lookup.__file__, suffix_index.__file__}

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace if frame.f_code.co_filename in files else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        draft = lookup.continuation(text, depth)
    finally:
        sys.settrace(before)
    lookup.leave(text)
    return draft, lines


@examples(deadline=None, max_examples=50)
@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=6))
def test_neither_drafts_nor_their_work_depend_on_another_callers_text(exchanges):
    """Work is counted in lines, as times would depend on the machine."""
    alone, beside, unknown = PromptLookup(), PromptLookup(), PromptLookup()
    for own, answer, others in exchanges:
        beside.leave(ended(others, [*own, *answer], "bob"))
        beside.leave(ended(others, [*own, *answer], ""))
        for identity, first in (("ann", alone), ("", unknown)):
            assert traced(beside, Text(list(own), identity=identity), 4) == traced(
                first, Text(list(own), identity=identity), 4
            )
        for lookup in (alone, beside):
            lookup.leave(ended(own, answer, "ann"))
        traced(beside, Text(list(others), identity="bob"), 4)  # indexes the other caller's answers


def test_second_answer_to_a_caller_is_drafted_from_the_first():
    rig = Rig(pair(tiny_llama(1, scale=2.0), None))

    def accepted(identity: str) -> int:
        sampling = SamplingParams(temperature=1.0, seed=4)  # a greedy text of random weights would repeat itself
        plan = speculative(4, PROMPT_LOOKUP)
        own = request([3, 1, 4, 1, 5, 9, 2, 6], plan, max_tokens=40, sampling=sampling, identity=identity)
        (sink,) = rig.run([own])
        return sink.done.stats.counts.accepted

    first, again, other, unknown = (accepted(identity) for identity in ("ann", "ann", "bob", ""))
    assert again > first
    assert again >= 24
    assert other == unknown == first


def test_depth_control_expects_more_of_a_draft_after_a_long_match():
    """One in five drafts after a single token is right, all after eight tokens; the sequence itself is like others."""
    acceptance, plan = Acceptance(), speculative(4, PROMPT_LOOKUP)
    sequence = DecodeSequence.of(request([1, 2], plan), Collected(), 100)
    for step in range(200):
        for sequence.match, accepted in ((1, step % 5 == 0), (8, 4)):
            acceptance.learn(sequence, PROMPT_LOOKUP, 4, accepted)
            acceptance.refresh()
    other = DecodeSequence.of(request([1, 2], plan), Collected(), 100)
    expected = {}
    for other.match in (1, 8):
        expected[other.match] = acceptance.expected_tokens(other, PROMPT_LOOKUP, 1)[1] - 1
    assert expected[1] == pytest.approx(0.2, abs=0.1)
    assert expected[8] > 0.85
    assert sequence.evidence[PROMPT_LOOKUP].odds == pytest.approx(1, abs=0.5)
