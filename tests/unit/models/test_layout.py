"""How matrices are stored for products on a CPU."""

from __future__ import annotations

import pytest

from draftd.models import layout
from draftd.models.layout import by_columns, columns_win

ROWS = {1: 10.0, 2: 12.0, 5: 20.0}


@pytest.mark.parametrize(
    ("columns", "wins"),
    [
        ({1: 8.0, 2: 11.0, 5: 20.0}, True),
        ({1: 10.0, 2: 12.0, 5: 20.0}, False),  # as fast: rows, as MLX has them
        ({1: 9.9, 2: 11.9, 5: 19.9}, False),  # within what a timing errs by
        ({1: 5.0, 2: 13.0, 5: 19.0}, False),  # two tokens would take longer
        ({1: 16.8, 2: 14.0, 5: 19.4}, False),  # a large vocabulary on the machine where this was found
    ],
)
def test_column_major_weights_are_chosen_only_if_faster_overall_and_never_clearly_slower(
    columns: dict[int, float], wins: bool
) -> None:
    assert columns_win(ROWS, columns) is wins


def test_matrix_larger_than_cpu_caches_stays_row_major_without_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_time", lambda rows, columns: pytest.fail("it was timed"))
    assert by_columns(49_152, 576) is False


def test_matrix_layout_is_timed_once_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[tuple[int, int]] = []
    monkeypatch.setattr(layout, "_time", lambda *shape: timed.append(shape) or (ROWS, ROWS))
    by_columns.cache_clear()
    try:
        assert [by_columns(*shape) for shape in ((96, 32), (96, 32), (32, 96))] == [False] * 3
        assert timed == [(96, 32), (32, 96)]
    finally:
        by_columns.cache_clear()
