"""What the parts of the fallback are told of the settings."""

from __future__ import annotations

import itertools

from draftd.cli.state import pair_of
from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP
from draftd.settings import ModelSettings


def test_whatever_changes_what_is_drafted_is_another_pair() -> None:
    settings = [
        ModelSettings(),
        ModelSettings(path="a"),
        ModelSettings(path="a", draft_path="b"),
        ModelSettings(path="a", draft_path="c"),
        ModelSettings(path="a", draft_path="b", light_draft_path="c"),
        ModelSettings(path="a", draft_path="b", drafter=PROMPT_LOOKUP),
        ModelSettings(path="a", draft_path="b", light_draft_path="c", drafter=LIGHT_DRAFT_MODEL),
    ]
    pairs = [pair_of(one) for one in settings]
    assert all(one != other for one, other in itertools.combinations(pairs, 2))


def test_what_is_the_default_or_not_set_makes_it_no_other() -> None:
    draft = DRAFT_MODEL
    assert pair_of(ModelSettings(path="a", draft_path="b", drafter=draft)) == "a b"  # as a first release saved it
    assert pair_of(ModelSettings()) == "None None"
