"""One go at a run: from when a command takes it up until it is done, stopped or killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from draftd.acceptance.capture import Capture, capture
from draftd.acceptance.folder import RunFolder
from draftd.acceptance.samples import Sampler
from draftd.acceptance.ticks import Place, Stage, Tick
from draftd.client.asking import Ask

if TYPE_CHECKING:
    from draftd.client.client import DraftdClient

ANSWER_SECONDS = 600.0  # longest that one answer may take


@dataclass(frozen=True, slots=True)
class Advance:
    """How far a stage is. `remaining` is seconds, by what was measured so far; None while nothing was."""

    stage: Stage
    done: float
    total: float
    remaining: float | None
    doing: str  # one line


Progress = Callable[[Advance], None]


@dataclass(frozen=True, slots=True)
class Session:
    """`began` is time.perf_counter() when it did."""

    client: DraftdClient
    folder: RunFolder
    number: int
    began: float = field(default_factory=time.perf_counter)

    @property
    def max_batch(self) -> int | None:
        """How many requests this daemon decodes together, by its manifest."""
        manifest = self.folder.manifests().get(self.number)
        said = manifest.settings.get("engine.max_batch", "") if manifest is not None else ""
        return int(said) if said.isdecimal() else None

    def sampler(self, stage: Stage, period_seconds: float = 1.0) -> Sampler:
        return Sampler(self.client, stage, self.number, self.began, self.folder.keep_sample, period_seconds)

    def ask(self, ask: Ask, place: Place, *, keep_text: bool = False, timeout: float = ANSWER_SECONDS) -> Tick:
        """Asks, and keeps what came of it. Any thread."""
        return self.keep(capture(self.client, ask, timeout=timeout), place, keep_text=keep_text)

    def keep(self, taken: Capture, place: Place, *, keep_text: bool = False) -> Tick:
        tick = taken.tick(place, self.began, keep_text=keep_text)
        self.folder.keep_tick(tick)
        return tick
