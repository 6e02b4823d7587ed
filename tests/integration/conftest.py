"""What the tests of a running daemon share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.in_process_daemon import Served, models, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A daemon with a scripted pair, for all tests of a module."""
    with serving(tmp_path_factory.mktemp("served"), models) as served:
        yield served
