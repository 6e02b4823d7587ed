"""Two ranks on a CPU ring: a small part of `python -m tests.ranks`."""

from __future__ import annotations

import pytest

from tests.ranks import groups

pytestmark = [pytest.mark.slow, pytest.mark.timeout(290)]


def test_text_and_counts_over_two_ranks_equal_those_of_one_rank() -> None:
    names = ["llama", "qwen3_next"]  # each layer on both ranks, some of them with windows; some layers on each, states
    found = groups.run(names, 2, seconds=240, options=["--tokens", "8", "--random", "3"])
    assert [(one["name"], one["parallel"]) for one in found] == [("llama", "tensor"), ("qwen3_next", "pipeline")]
    for one in found:
        assert not one["failed"]
        assert not one["different"]
        assert not one["counters"]
        assert one["accepted"] > 0
        assert one["cached"] > 0
        assert one["record_bytes"] < 64 * one["records"]
