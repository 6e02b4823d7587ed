"""Gives each request its plan: evaluates the flag in the request's context and asks policy."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Protocol

from draftd.control.journal import Journal, Recorder, Subject
from draftd.core import DecodePlan, DrafterKind, FallbackLevel, ModelInfo, WorkloadClass
from draftd.policy.flag import FlagResolution
from draftd.policy.plan import Ceiling, Wish, decide

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlanAsk:
    """What a plan depends on, of one request."""

    wish: Wish
    workload: WorkloadClass = WorkloadClass.UNSPECIFIED
    caller: str = ""
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class FlagContext:
    """What targeting rules can match on. `caller` is the targeting key."""

    model: str = ""
    workload: WorkloadClass = WorkloadClass.UNSPECIFIED
    caller: str = ""


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
    """The ladder's level, and why it is that one: empty until something has changed it."""

    level: FallbackLevel = FallbackLevel.FULL
    cause: str = ""


class Planner:
    """`max_draft_tokens` and `drafter` are the daemon's own. The ladder's level is FULL until something lowers it."""

    def __init__(
        self,
        flag: FlagSource,
        *,
        max_draft_tokens: int,
        drafter: DrafterKind | None = None,
        journal: Recorder | None = None,
    ) -> None:
        self._flag = flag
        self._max_draft_tokens = max_draft_tokens
        self._drafter = drafter
        self._journal: Recorder = journal if journal is not None else Journal()
        self._standing = Standing()
        self._setting = threading.Lock()

    @property
    def max_draft_tokens(self) -> int:
        """The daemon's own, whatever the level."""
        return self._max_draft_tokens

    @property
    def level(self) -> FallbackLevel:
        return self._standing.level

    @property
    def standing(self) -> Standing:
        return self._standing

    @property
    def ceiling(self) -> Ceiling:
        """What the next plan may reach."""
        return Ceiling(self._max_draft_tokens, self._drafter, self.level)

    def set_level(self, level: FallbackLevel, cause: str) -> bool:
        """Acts on the next plan; any thread. False where that is the level already: the first cause stands."""
        with self._setting:
            before = self._standing.level
            if level is before:
                return False
            self._standing = Standing(level, cause)
            self._journal.record(Subject.LEVEL, before.label, level.label, cause)
        log.info("level %s, was %s: %s", level.label, before.label, cause)
        return True

    def plan(self, ask: PlanAsk, model: ModelInfo) -> DecodePlan:
        """Raises SpeculationUnavailable where speculation was demanded and cannot be had."""
        resolution = self._flag.evaluate(FlagContext(model.model, ask.workload, ask.caller))
        return decide(ask.wish, resolution, self.ceiling, model, ask.prompt_tokens)
