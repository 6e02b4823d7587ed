"""The README's table of settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftd.cli.reference import renew, table
from draftd.config import describe_settings

README = Path(__file__).parents[3] / "README.md"


def test_the_readme_lists_every_setting_as_it_is() -> None:
    text = README.read_text(encoding="utf-8")
    assert renew(text) == text, "run make docs"
    for doc in describe_settings():
        assert f"`{doc.name}`" in table()


def test_a_readme_without_markers_is_an_error() -> None:
    with pytest.raises(ValueError, match="settings"):
        renew("# draftd\n")
