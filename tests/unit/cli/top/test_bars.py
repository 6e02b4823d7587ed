"""Bars and curves of block characters."""

from __future__ import annotations

import pytest

from draftd.cli.top.bars import bar, spark


@pytest.mark.parametrize(
    ("share", "drawn"),
    [(0.0, "    "), (0.001, "▏   "), (0.5, "██  "), (0.53, "██▏ "), (1.0, "████"), (1.5, "████"), (-1.0, "    ")],
)
def test_a_bar_is_always_as_wide_as_it_may_be(share: float, drawn: str) -> None:
    assert bar(share, 4) == drawn


def test_a_curve_is_filled_by_its_top_and_unknown_columns_are_empty() -> None:
    assert spark([0.0, 1.0, 8.0, None, 16.0], 2, 16.0) == ["    █", "▁▁█ █"]


def test_a_curve_of_nothing_but_zeros_is_a_line() -> None:
    assert spark([0.0, 0.0], 2, 0.0) == ["  ", "▁▁"]
