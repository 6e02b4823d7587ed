"""A probe runner under test: its current level, its prompts, and its reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from draftd.canaries.checkers import NoToolCall
from draftd.canaries.prompts import Canary, CanaryMessage, FrozenPrompt, FrozenPrompts
from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, LadderLevel, WorkloadClass
from draftd.fallback.ladder import Ladder, ladder_levels
from draftd.fallback.probe_runner import ProbeLimits, ProbeRunner
from draftd.fallback.probes import CanaryReport, ProbeReport
from draftd.settings import FallbackSettings
from tests.fake_engine import Answering, Told

LADDER = ladder_levels(4, (2,), DRAFT_MODEL, (PROMPT_LOOKUP,))
FULL, SHORT, LIGHT, PLAIN = LADDER
SOON = 20.0  # generous: nothing here takes long


def prompts(count: int) -> FrozenPrompts:
    probe_prompts = tuple(one_prompt(f"p{n}", f"question {n}") for n in range(count))
    return FrozenPrompts(probe_prompts, tuple(checked(one, "yes") for one in probe_prompts))


def one_prompt(name: str, question: str) -> FrozenPrompt:
    messages = (CanaryMessage(role="user", content=question),)
    return FrozenPrompt(id=name, workload=WorkloadClass.CHAT, messages=messages, max_tokens=8)


def checked(prompt: FrozenPrompt, *mentions: str) -> Canary:
    """Returns a canary whose answer is right if it mentions one of these."""
    return Canary(**dict(prompt), check=NoToolCall(frozenset({"none"}), mentions))


def at(level: LadderLevel = FULL, ladder: Sequence[LadderLevel] = LADDER) -> Ladder[LadderLevel]:
    """Returns a ladder with this level in force; a level outside `ladder` becomes the whole ladder."""
    served = Ladder(ladder if level in ladder else (level,))
    served.position = served.levels.index(level)
    return served


@contextmanager
def probe_runner(engine: Answering, **more: Any) -> Iterator[tuple[ProbeRunner, Told]]:
    told = Told()
    given = {"ladder": at(), "prompts": prompts(3), "limits": ProbeLimits(answer=5.0), **more}
    runner = ProbeRunner(engine, engine.borrow, FallbackSettings(), told, **given)
    try:
        yield runner, told
    finally:
        assert runner.close(SOON)


def probed(engine: Answering, level: LadderLevel = FULL, **more: Any) -> ProbeReport:
    with probe_runner(engine, **more) as (runner, told):
        report = runner.probe(level).result(SOON)
    assert told.probes == [(level.kind, report.verdict, report.acceptance, report.speedup)]
    assert not engine.borrowed
    return report


def canaries_run(engine: Answering, **more: Any) -> CanaryReport:
    with probe_runner(engine, **more) as (runner, told):
        report = runner.canaries().result(SOON)
    assert [(verdict, divergences) for _, verdict, divergences in told.runs] == [(report.verdict, report.divergences)]
    assert not engine.borrowed
    return report
