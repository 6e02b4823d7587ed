"""What probes showed while all was well is there again after a restart."""

from __future__ import annotations

import json
import logging

import pytest

from draftd.canaries.prompts import FrozenPrompt
from draftd.core import DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP, WorkloadClass
from draftd.fallback.drift import Baseline
from draftd.fallback.probe_runner import Lessons
from draftd.fallback.reports import Verdict
from tests.answering import Answering, counted
from tests.unit.control.examined import FULL, SOON, examining, prompts
from tests.unit.control.steered import LADDER, LIGHT, TOP, MemoryStore, Steered

DRAFT, LOOKUP = DRAFT_MODEL, PROMPT_LOOKUP
PROMPTS = (FrozenPrompt("p", WorkloadClass.CHAT, (("user", "a question"),), 8),)
OTHERS = (FrozenPrompt("p", WorkloadClass.CHAT, (("user", "another"),), 8),)


def learnt() -> dict[str, object]:
    lessons = Lessons(PROMPTS)
    lessons.learn(DRAFT, Baseline(0.9, 0.01), lessons.age)
    lessons.learn(LOOKUP, Baseline(0.3, 0.2), lessons.age)
    return json.loads(json.dumps(lessons.document()))  # type: ignore[no-any-return]


def test_what_was_learnt_is_recalled_for_the_same_prompts_alone() -> None:
    same, others = Lessons(PROMPTS), Lessons(OTHERS)
    for one in (same, others):
        one.recall(learnt())
    assert (same.of(DRAFT), same.of(LOOKUP)) == (Baseline(0.9, 0.01), Baseline(0.3, 0.2))
    assert same.of(LIGHT_DRAFT_MODEL) is None
    assert (others.of(DRAFT), others.of(LOOKUP)) == (None, None)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"prompts": None}, r"lessons\.prompts: got None"),
        ({"at_best": {"draft_model": {"mean": 7, "spread": 0}}}, r"lessons\.at_best\.draft_model\.mean: got 7"),
        ({"at_best": {"oracle": {"mean": 1, "spread": 0}}}, r"lessons\.at_best: got 'oracle'; allowed: draft_model"),
    ],
)
def test_what_cannot_be_read_is_named_and_recalls_nothing(changed: dict[str, object], named: str) -> None:
    lessons = Lessons(PROMPTS)
    with pytest.raises(ValueError, match=named):
        lessons.recall({**learnt(), **changed})
    assert lessons.of(DRAFT) is None


def test_a_probe_after_a_restart_is_compared_with_what_was_learnt_before_it() -> None:
    with examining(Answering(counts=counted(accepted=90, rollbacks=10))) as (examiner, _):
        assert examiner.learn(FULL).result(SOON).verdict is Verdict.GOOD
        kept = examiner.lessons.document()
    weaker = counted(accepted=60, rollbacks=40)
    for prompted, verdict in ((3, Verdict.BAD), (4, Verdict.GOOD)):  # with four they are other prompts
        with examining(Answering(counts=weaker), prompts=prompts(prompted)) as (examiner, _):
            examiner.lessons.recall(kept)
            assert examiner.probe(FULL).result(SOON).verdict is verdict


def test_lessons_are_saved_and_restored_with_the_rest_and_not_for_other_models() -> None:
    store = MemoryStore()
    first = Steered(store)
    first.examiner.known = {LADDER[LIGHT]}
    first.at(1)
    assert Steered(store).examiner.known == {LADDER[LIGHT]}
    assert Steered(store, pair="others").examiner.known == set(LADDER)  # as it was made


def test_a_lesson_that_cannot_be_read_leaves_the_rest_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    first = Steered(store)
    first.traffic(1200, 0.8)
    assert store.document is not None
    store.document = {**store.document, "lessons": {}}
    with caplog.at_level(logging.WARNING):
        again = Steered(store)
    assert "learnt anew" in caplog.text
    assert (again.rung, store.aside) == (TOP, 0)
    assert again.controller.readings().drift == {"code": 0.0}
    store.document = {name: value for name, value in store.document.items() if name != "lessons"}  # an older one
    assert Steered(store).examiner.known == set(LADDER)
