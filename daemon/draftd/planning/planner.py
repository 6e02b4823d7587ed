"""Gives each request its plan: evaluates the flag in the request's context and asks policy."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from draftd.core import (
    DRAFT_MODEL,
    LIGHT_DRAFT_MODEL,
    PROMPT_LOOKUP,
    DecodePlan,
    DepthMode,
    FallbackLevel,
    ModelInfo,
    WorkloadClass,
)
from draftd.fallback.journal import Journal, Recorder, Subject
from draftd.fallback.ladder import Rung, rungs
from draftd.planning.flag_format import FlagResolution
from draftd.planning.plan import Ceiling, FlagContext, Wish, decide
from draftd.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlanAsk:
    """What a plan depends on, of one request."""

    wish: Wish
    workload: WorkloadClass = WorkloadClass.UNSPECIFIED
    caller: str = ""
    prompt_tokens: int = 0


class FlagSource(Protocol):
    """Answers what the flag says. Never blocks on a network, never raises."""

    def evaluate(self, context: FlagContext) -> FlagResolution: ...


class FixedFlag:
    """A flag that always says the same: the seam's fake."""

    def __init__(self, value: bool = True) -> None:
        self.value = value

    def evaluate(self, context: FlagContext) -> FlagResolution:
        return FlagResolution("on" if self.value else "off", self.value, "STATIC")


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the ladder stands, `rung` counted from the top, and why: empty until something has changed it."""

    rung: int = 0
    cause: str = ""


class Planner:
    """`ladder` is all that this daemon may be stepped down through, from the top; it stands there at first.
    `depth_mode` is for requests that name none."""

    def __init__(
        self,
        flag: FlagSource,
        ladder: Sequence[Rung],
        *,
        depth_mode: DepthMode = DepthMode.AUTOMATIC,
        journal: Recorder | None = None,
    ) -> None:
        self._flag, self._depth_mode = flag, depth_mode
        self._ladder = tuple(ladder)
        self._journal: Recorder = journal if journal is not None else Journal()
        self._standing = Standing()
        self._setting = threading.Lock()

    @property
    def ladder(self) -> tuple[Rung, ...]:
        return self._ladder

    @property
    def max_draft_tokens(self) -> int:
        """The daemon's own, whatever the level."""
        return self._ladder[0].max_draft_tokens

    @property
    def depth_mode(self) -> DepthMode:
        """Of plans whose request names none."""
        return self._depth_mode

    @property
    def rung(self) -> Rung:
        return self._ladder[self._standing.rung]

    @property
    def level(self) -> FallbackLevel:
        return self.rung.level

    @property
    def standing(self) -> Standing:
        return self._standing

    @property
    def ceiling(self) -> Ceiling:
        """What the next plan may reach."""
        return Ceiling(self.rung, self._depth_mode)

    def move(self, rung: int, cause: str, evidence: str = "") -> bool:
        """Acts on the next plan; any thread. False where it stands there already: the first cause stands."""
        with self._setting:
            before, after = self.rung, self._ladder[rung]
            if rung == self._standing.rung:
                return False
            self._standing = Standing(rung, cause)
            self._journal.record(Subject.LEVEL, before.label, after.label, cause, evidence)
        log.info("level %s, was %s: %s", after.label, before.label, f"{cause} ({evidence})" if evidence else cause)
        return True

    def restore(self, rung: int, cause: str) -> None:
        """Stands where an earlier run stood: no transition, for nothing has changed."""
        with self._setting:
            self._standing = Standing(rung, cause)

    def plan(self, ask: PlanAsk, model: ModelInfo) -> DecodePlan:
        """Raises SpeculationUnavailable where speculation was demanded and cannot be had."""
        resolution = self._flag.evaluate(FlagContext(model.model, ask.workload, ask.caller))
        return decide(ask.wish, resolution, self.ceiling, model, ask.prompt_tokens)


def ladder_of(settings: Settings) -> tuple[Rung, ...]:
    """The rungs that the settings allow, from the top."""
    there = {PROMPT_LOOKUP: settings.model.prompt_lookup}
    there[LIGHT_DRAFT_MODEL] = settings.model.light_draft_path is not None
    return rungs(
        settings.engine.max_draft_tokens,
        settings.fallback.blocks,
        settings.model.drafter or DRAFT_MODEL,
        [kind for kind in settings.fallback.lighter if there.get(kind, True)],
    )
