"""An examiner under test: where the ladder stands, what it is to ask, and its reports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from draftd.canaries.checkers import NoToolCall
from draftd.canaries.prompts import Canary, FrozenPrompt, FrozenPrompts
from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, WorkloadClass
from draftd.fallback.ladder import Rung, rungs
from draftd.fallback.probe_runner import Examiner, ExaminerLimits
from draftd.fallback.reports import CanaryReport, ProbeReport
from draftd.settings import FallbackSettings
from tests.answering import Answering, Told

LADDER = rungs(4, (2,), DRAFT_MODEL, (PROMPT_LOOKUP,))
FULL, SHORT, LIGHT, PLAIN = LADDER
SOON = 20.0  # generous: nothing here takes long


def prompts(count: int) -> FrozenPrompts:
    made = [FrozenPrompt(f"p{n}", WorkloadClass.CHAT, (("user", f"question {n}"),), 8) for n in range(count)]
    return FrozenPrompts(tuple(made), tuple(Canary(one, NoToolCall(frozenset(), ("yes",))) for one in made))


class Standing:
    """A ladder that stands where the test puts it."""

    def __init__(self, rung: Rung = FULL) -> None:
        self.ladder, self.rung = LADDER, rung


@contextmanager
def examining(engine: Answering, **more: Any) -> Iterator[tuple[Examiner, Told]]:
    told = Told()
    given = {"stands": Standing(), "prompts": prompts(3), "limits": ExaminerLimits(answer=5.0), **more}
    examiner = Examiner(engine, engine.borrow, FallbackSettings(), told, **given)
    examiner.start()
    try:
        yield examiner, told
    finally:
        assert examiner.close(SOON)


def probed(engine: Answering, rung: Rung = FULL, **more: Any) -> ProbeReport:
    with examining(engine, **more) as (examiner, told):
        report = examiner.probe(rung).result(SOON)
    assert told.probes == [(rung.level, report.verdict, report.acceptance, report.speedup)]
    assert not engine.borrowed
    return report


def sung(engine: Answering, **more: Any) -> CanaryReport:
    with examining(engine, **more) as (examiner, told):
        report = examiner.canaries().result(SOON)
    assert [(verdict, divergences) for _, verdict, divergences in told.runs] == [(report.verdict, report.divergences)]
    assert not engine.borrowed
    return report
