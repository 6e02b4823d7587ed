"""Soaks a daemon: so many clients, each of which asks again as soon as it is answered, for so long."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from draftd.acceptance.folder import RunFolder
from draftd.acceptance.options import SoakOptions, SweepOptions
from draftd.acceptance.session import STOP_SECONDS, Advance, Progress, Session, ask_for, capture
from draftd.acceptance.soak.result import soaked_seconds
from draftd.acceptance.sweep.plan import chosen_prompts
from draftd.acceptance.ticks import Stage, Tick
from draftd.errors import DraftdError

if TYPE_CHECKING:
    from draftd.client.prompts import Prompt
    from draftd.v1 import inference_pb2 as pb

_ANSWER_SECONDS = 300.0
_PATIENCE_SECONDS = 60.0  # without one answer among all clients: then something is wrong that going on does not mend
_LOOK_SECONDS = 0.5
_LONGEST_PAUSE = 5.0  # of a client whose requests fail


class SoakStopped(DraftdError):
    """Nothing was answered any more. What was measured is kept."""

    status = "FAILED_PRECONDITION"


def soak_prompts(model: pb.GetModelResponse) -> tuple[Prompt, ...]:
    """Of every group that the package has, those that this model's context holds."""
    return chosen_prompts(SweepOptions(), model)


def soak_complete(folder: RunFolder) -> bool:
    """Whether it was soaked for as long as was asked. False where it was not begun."""
    plan = folder.plan(Stage.SOAK)
    return plan is not None and soaked_seconds(folder) >= SoakOptions.from_plan(plan).duration


def run_soak(
    session: Session,
    options: SoakOptions,
    model: pb.GetModelResponse,
    progress: Progress,
    *,
    patience_seconds: float = _PATIENCE_SECONDS,
) -> None:
    """For as long as is missing; what was soaked before an interruption counts.

    Raises RunError where the run began with another plan, OptionError, SoakStopped, NothingToMeasure.
    """
    options = options.settled(model, session.max_batch)
    prompts = soak_prompts(model)
    session.folder.freeze_plan(Stage.SOAK, options.plan())
    before = soaked_seconds(session.folder)
    if before >= options.duration:
        return
    soak = _Soak(session, options, prompts, model.chat_template, patience_seconds)
    with session.sampler(Stage.SOAK, options.sample_seconds) as sampler:
        sampler.mark(options.arm.id)
        soak.run(before, progress)


class _Soak:
    """One session's share."""

    def __init__(
        self, session: Session, options: SoakOptions, prompts: Sequence[Prompt], chat: bool, patience: float
    ) -> None:
        self._session, self._options, self._chat, self._patience = session, options, chat, patience
        self._lock = threading.Lock()
        self._asked = _endless(prompts, options, session.number)
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._began = self._answered = time.perf_counter()
        self._ends = self._began
        self._requests = self._errors = 0

    def run(self, before: float, progress: Progress) -> None:
        """`before` seconds were soaked in earlier sessions."""
        wanted, number = self._options.duration, self._options.streams or 1
        # The first request is asked, and the clock of a soak begins, a moment after this one.
        self._ends = self._began + wanted - before + 0.1
        streams = [threading.Thread(target=self._stream, name=f"draftd-soak-{at}", daemon=True) for at in range(number)]
        for stream in streams:
            stream.start()
        try:
            while alive := [stream for stream in streams if stream.is_alive()]:
                done = min(wanted, before + time.perf_counter() - self._began)
                said = f"{self._requests} requests, {self._errors} failed"
                progress(Advance(Stage.SOAK, done, wanted, wanted - done, said))
                alive[0].join(_LOOK_SECONDS)
        finally:
            self._stop.set()
            ends = time.monotonic() + STOP_SECONDS
            for stream in streams:
                stream.join(max(0.0, ends - time.monotonic()))
        if self._failure is not None:
            raise self._failure

    def _stream(self) -> None:
        pause = 0.0
        try:
            while not self._stop.is_set() and time.perf_counter() < self._ends:
                tick = self._ask()
                pause = min(_LONGEST_PAUSE, max(0.1, 2 * pause)) if tick.error else 0.0
                self._count(tick)
                self._stop.wait(pause)
        except BaseException as error:
            with self._lock:
                self._failure = self._failure or error
            self._stop.set()

    def _ask(self) -> Tick:
        with self._lock:
            passed, prompt = next(self._asked)
        session, arm = self._session, self._options.arm
        ask = ask_for(prompt, arm, chat=self._chat, seed=self._options.seed, repetition=passed)
        taken = capture(session.client, ask, timeout=_ANSWER_SECONDS)
        tick = session.tick(taken, arm, session.place(Stage.SOAK, arm, prompt, passed))
        session.folder.keep_tick(tick)
        return tick

    def _count(self, tick: Tick) -> None:
        with self._lock:
            self._requests += 1
            self._errors += bool(tick.error)
            now = time.perf_counter()
            if not tick.error:
                self._answered = now
            silent = now - self._answered
        if tick.error and silent > self._patience:
            raise SoakStopped(
                f"nothing was answered for {silent:.0f} s, the last request failed with: {tick.error}; what was "
                "measured is kept, and the run can be resumed"
            )


def _endless(prompts: Sequence[Prompt], options: SoakOptions, session: int) -> Iterator[tuple[int, Prompt]]:
    """All prompts in a random order each time, with the number of the time, from 1; answers of mixed lengths."""
    drawn = random.Random(f"{options.seed}/{session}")
    passed = 0
    while True:
        passed += 1
        for prompt in drawn.sample(list(prompts), len(prompts)):
            yield passed, replace(prompt, max_tokens=drawn.choice(options.lengths))
