"""Prompt lookup finds what followed; drafts of several drafters become one."""

from __future__ import annotations

import mlx.core as mx
from hypothesis import given
from hypothesis import strategies as st

from draftd.engine.drafters.base import Draft, _NgramIndex, merge


def naive(tokens: list[int], depth: int, sizes: tuple[int, ...]) -> list[int]:
    """The latest earlier place where the last n-gram stands, longest n first."""
    for size in sizes:
        if len(tokens) < size:
            continue
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[-size:]:
                return tokens[end : end + depth]
    return []


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 6), st.data())
def test_lookup_finds_the_latest_match_of_the_longest_n_gram(tokens, depth, data):
    index = _NgramIndex((3, 2))
    at = 1
    while True:
        assert index.continuation(tokens[:at], depth) == naive(tokens[:at], depth, (3, 2))
        if at == len(tokens):
            break
        at = min(len(tokens), at + data.draw(st.integers(1, 9)))


def test_merging_keeps_every_row_its_own():
    one = Draft(mx.array([[1, 2, 3]], dtype=mx.uint32), [3], None, [3])
    two = Draft(mx.array([[4], [0]], dtype=mx.uint32), [1, 0], None, [0, 0])
    merged = merge([([2], one), ([0, 3], two)], 4, 10, settled=True)
    assert merged is not None
    assert merged.depths == [1, 0, 3, 0]
    assert merged.forwards == [0, 0, 3, 0]
    assert merged.tokens.tolist()[0][:1] == [4]
    assert merged.tokens.tolist()[2] == [1, 2, 3]


def test_nothing_proposed_is_no_draft():
    empty = Draft(mx.zeros((1, 0), dtype=mx.uint32), [0], None, [0])
    assert merge([([0], empty)], 1, 10, settled=True) is None
    assert merge([], 3, 10, settled=True) is None
