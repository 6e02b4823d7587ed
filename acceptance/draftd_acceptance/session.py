"""One session of a run: a command sends requests to a daemon, times each answer on arrival, and holds the fallback
ladder.

A run that was interrupted has several sessions.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TypeVar

import grpc

from draftd.client.client import Ask, CallError, DraftdClient
from draftd.client.gathering import Answer
from draftd.client.prompts import Prompt
from draftd.client.timing import Capture, capture
from draftd.core import DecodeMode, DepthMode, FallbackLevel, FinishReason, ModePreference, SamplingParams
from draftd.errors import DraftdError, FieldError
from draftd.protocol import DECODED, DEPTH_MODES, REASONS, plain
from draftd_acceptance.folder import RunFolder
from draftd_acceptance.options import Options
from draftd_acceptance.ticks import Arm, GrantedPlan, Key, MachineSample, RunPlace, ServerTiming, Stage, Tick, sample

ANSWER_SECONDS = {Stage.SWEEP: 600.0, Stage.SOAK: 300.0, Stage.QUALITY: 300.0}  # limit for one answer
MOST_ERRORS = 20  # in a row
STOP_SECONDS = 10.0  # how long requests under way may still take when a run is stopped
_START_SECONDS = 60.0  # until the last of the threads runs
_HOLD_SECONDS, _RENEW_SECONDS = 120.0, 40.0
_JOIN_SECONDS = 15.0  # a renewal under way ends by then
_NO_LADDER = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.FAILED_PRECONDITION)
_SAMPLE_SECONDS = 5.0  # limit for one reading of the machine
_T = TypeVar("_T")


class NotMeasurable(FieldError):
    """The daemon prevents the measurement. The message names the obstacle."""


class MeasurementStopped(DraftdError):
    """The stage ends because requests keep failing."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; what was measured is kept, and the run can be resumed")


@dataclass(frozen=True, slots=True)
class Advance:
    """The progress of a stage. `remaining` is seconds, estimated from measurements so far; None before the first."""

    stage: Stage
    done: float
    total: float
    remaining: float | None
    doing: str  # one line


Progress = Callable[[Advance], None]


@dataclass(frozen=True, slots=True)
class SessionStep:
    """Prompts that are sent together: `arm.concurrency` of them."""

    arm: Arm
    prompts: tuple[Prompt, ...]
    repetition: int  # from 1

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple((self.arm.id, prompt.group, prompt.name, self.repetition) for prompt in self.prompts)


@dataclass(frozen=True, slots=True)
class Session:
    """`began` is time.perf_counter() at the session's start; `in_hand` lists the arms that are being measured."""

    client: DraftdClient
    folder: RunFolder
    number: int
    began: float = field(default_factory=time.perf_counter)
    in_hand: list[str] = field(default_factory=list)

    @property
    def max_batch(self) -> int | None:
        """The number of requests that the daemon decodes together, by its manifest; None if unknown."""
        manifest = self.folder.manifests().get(self.number)
        said = manifest.settings.get("engine.max_batch", "") if manifest is not None else ""
        return int(said) if said.isdecimal() else None

    def measure(
        self,
        step: SessionStep,
        options: Options,
        *,
        chat: bool,
        warm_up: bool = False,
        keep_text: bool = False,
        json_schema: str = "",
    ) -> list[Tick]:
        """Sends all prompts of the step at once and returns their ticks, without keeping them. A tick has an error if
        the daemon did not decode as the arm requests. `chat`: the model has a template. `json_schema`: the answers'
        schema."""
        arm, repetition = step.arm, step.repetition
        asks = [ask_for(prompt, arm, chat=chat, seed=options.seed, repetition=repetition) for prompt in step.prompts]
        if options.stage is not Stage.SOAK:  # or a later arm would find an earlier one's prefix
            asks = [replace(ask, skip_prefix_cache=True) for ask in asks]
        if json_schema:
            # Thinking could use up the answer's tokens. A template without this argument ignores it.
            unthinking = {"enable_thinking": False}
            asks = [replace(ask, json_schema=json_schema, template_arguments=unthinking) for ask in asks]
        ticks = []
        self.in_hand.append(arm.id)
        try:
            captures = all_at_once(self.client, asks, timeout=ANSWER_SECONDS[options.stage])
        finally:
            self.in_hand.remove(arm.id)
        for prompt, taken in zip(step.prompts, captures, strict=True):
            where = (options.stage, self.number, arm.id, repetition, prompt.name, prompt.group, prompt.workload)
            tick = tick_of(taken, RunPlace(*where, warm_up=warm_up), self.began, keep_text=keep_text)
            ticks.append(replace(tick, error=tick.error or departure(tick, arm)))
        return ticks


@contextlib.contextmanager
def sampling(
    session: Session, stage: Stage, keep: Callable[[MachineSample], None], period_seconds: float = 1.0
) -> Iterator[None]:
    """Samples the machine every `period_seconds` on its own thread until the block ends.

    A call that fails leaves a gap: the requests show whether the daemon still answers. `keep` is called on the
    sampler's thread.
    """

    def run(stop: threading.Event) -> None:
        while True:
            arm = next(iter(session.in_hand), "")
            with contextlib.suppress(CallError):
                status = session.client.status(timeout=_SAMPLE_SECONDS)
                keep(sample(status, stage, session.number, arm, time.perf_counter() - session.began))
            if stop.wait(period_seconds):
                return

    with _background("draftd-sampler", run, _SAMPLE_SECONDS + 1):
        yield


@contextlib.contextmanager
def _background(name: str, run: Callable[[threading.Event], None], join_seconds: float) -> Iterator[None]:
    """Calls `run` on its own thread; the event is set at the block's end."""
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(stop,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(join_seconds)


class ErrorLimit:
    """Ends a stage after MOST_ERRORS failed requests in a row, of one arm or of all."""

    def __init__(self) -> None:
        self._in_a_row: Counter[str] = Counter()  # of all, and of each arm

    def count(self, arm: Arm, ticks: Sequence[Tick]) -> None:
        """Counts the ticks of one arm that were sent together. Raises MeasurementStopped."""
        failed = [tick.error for tick in ticks if tick.error]
        for whose in ("", f" of {arm.id}"):
            self._in_a_row[whose] = self._in_a_row[whose] + len(failed) if failed else 0
            if self._in_a_row[whose] >= MOST_ERRORS:
                raise MeasurementStopped(f"{MOST_ERRORS} requests{whose} failed in a row, the last with: {failed[-1]}")


def tick_of(taken: Capture, place: RunPlace, session_began: float, *, keep_text: bool = False) -> Tick:
    """Returns the tick of an answer. `session_began` is time.perf_counter() at the session's start."""
    answer = taken.answer
    started, finished = answer.started, answer.finished
    error = "" if taken.complete else "the stream ended before its answer did"
    if taken.failure is not None:
        error = str(taken.failure)
    return Tick(
        place=place,
        elapsed=taken.began - session_began,
        asked_at=taken.asked_at,
        ended=taken.ended,
        chunks=taken.chunks,
        error=error,
        prompt_tokens=started.prompt_tokens,
        output_tokens=len(answer.tokens),
        finish_reason=REASONS.get(finished.reason),
        granted=_granted_plan(answer) if started.HasField("plan") else None,
        degraded=finished.degraded,
        served=_server_timing(answer) if taken.complete else None,
        counts=answer.counts,
        digest=hashlib.sha256(array("I", answer.tokens).tobytes()).hexdigest()[:16],
        text=answer.text if keep_text else None,
    )


def _granted_plan(answer: Answer) -> GrantedPlan:
    plan = answer.started.plan
    depth = DEPTH_MODES.get(plan.depth_mode) or DepthMode.FIXED
    drafted = plan.max_draft_tokens, plan.drafter or None
    return GrantedPlan(DECODED[plan.mode], *drafted, plan.level, plan.variant, plan.reason, depth)


def _server_timing(answer: Answer) -> ServerTiming:
    timings = plain(answer.finished.timings)
    return ServerTiming(**{one.name: timings[one.name] for one in fields(ServerTiming)})


def ask_for(prompt: Prompt, arm: Arm, *, chat: bool, seed: int, repetition: int) -> Ask:
    """Returns the request for a prompt. `chat`: the model has a template; without one it gets the last message as it
    is."""
    sampling = SamplingParams()
    if arm.temperature:
        sampling = SamplingParams(arm.temperature, seed=token_seed(seed, repetition, prompt.name))
    return Ask(
        messages=prompt.messages if chat else None,
        prompt=None if chat else prompt.messages[-1][1],
        max_tokens=prompt.max_tokens,
        sampling=sampling,
        mode=ModePreference.SPECULATIVE if arm.speculative else ModePreference.AUTOREGRESSIVE,
        max_draft_tokens=arm.block_length if arm.speculative else None,
        drafter=None if arm.automatic else arm.drafter,  # as users ask: a named drafter is never replaced
        depth_mode=arm.depth_mode if arm.speculative else None,
        workload=prompt.workload,
    )


def token_seed(seed: int, repetition: int, prompt: str) -> int:
    """Returns the seed of a sampled answer: the same for every arm, so that all have the same luck."""
    return zlib.crc32(f"{seed} {repetition} {prompt}".encode())


def all_at_once(client: DraftdClient, asks: Sequence[Ask], *, timeout: float) -> list[Capture]:
    """Sends each request on its own thread. Raises a thread's error."""
    if len(asks) == 1:
        return [capture(client, asks[0], timeout=timeout)]
    together = threading.Barrier(len(asks))

    def run(ask: Ask) -> Capture:
        together.wait(_START_SECONDS)
        return capture(client, ask, timeout=timeout)

    with on_threads("draftd-sweep", [partial(run, ask) for ask in asks]) as answers:
        return [answer.result() for answer in answers]  # each has its own deadline


@contextlib.contextmanager
def on_threads(name: str, tasks: Sequence[Callable[[], _T]]) -> Iterator[list[Future[_T]]]:
    """Runs each task on its own daemon thread; at the block's end waits at most STOP_SECONDS for them."""
    results: list[Future[_T]] = [Future() for _ in tasks]

    def run(number: int) -> None:
        try:
            results[number].set_result(tasks[number]())
        except BaseException as error:
            results[number].set_exception(error)

    threads = [threading.Thread(target=run, args=(at,), name=f"{name}-{at}", daemon=True) for at in range(len(tasks))]
    for thread in threads:
        thread.start()
    try:
        yield results
    finally:
        ends = time.monotonic() + STOP_SECONDS
        for thread in threads:
            thread.join(max(0.0, ends - time.monotonic()))


def departure(tick: Tick, arm: Arm) -> str:
    """Returns how the daemon deviated from `arm`, so that the tick does not count for it; empty if it did not."""
    granted = tick.granted
    if tick.error or granted is None:
        return ""
    mode = DecodeMode.SPECULATIVE if arm.speculative else DecodeMode.AUTOREGRESSIVE
    if granted.mode is not mode:
        return f"asked for {mode}, the daemon decoded {granted.mode}: {granted.reason}"
    if granted.max_draft_tokens != arm.block_length:
        why = f"level {granted.level} ({granted.reason})"
        return f"asked for {arm.block_length}, the daemon allowed {granted.max_draft_tokens}: {why}"
    if arm.speculative and granted.depth_mode is not arm.depth_mode:
        return f"asked for {arm.depth_mode} depth, the daemon chose {granted.depth_mode}: {granted.reason}"
    if granted.drafter != arm.drafter and not arm.automatic:
        return f"asked for {arm.drafter}, the daemon took {granted.drafter}: level {granted.level} ({granted.reason})"
    if arm.speculative and tick.degraded:
        return f"went on autoregressively: {tick.degraded}"
    if tick.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
        return f"ended before its text did: {tick.finish_reason}"
    return ""


@contextlib.contextmanager
def hold_ladder(client: DraftdClient) -> Iterator[None]:
    """Holds a running daemon's fallback ladder at the top: the pair is measured, not the ladder.

    An operator's hold at the top stays as it is. Our hold expires soon after a killed harness. Raises NotMeasurable if
    the flag is off, or if an operator holds the ladder lower.
    """
    variant = client.status().flag_variant
    if variant == "off":
        raise NotMeasurable("flag", variant, "on, while speculation is measured: run `draftd flag set on`")
    try:
        before = client.level()
    except CallError as error:
        if error.code not in _NO_LADDER:
            raise
        yield
        return
    if before.HasField("hold"):
        level = before.ladder[before.hold.position].level
        if level != FallbackLevel.FULL.label:
            raise NotMeasurable("level", f"held at {level}", "the level full, or no hold: run `draftd level release`")
        yield
        return
    until = client.hold_level(FallbackLevel.FULL, _HOLD_SECONDS).hold.until

    def renew(stop: threading.Event) -> None:
        """Renews our hold until another one replaces it."""
        nonlocal until
        while not stop.wait(_RENEW_SECONDS):
            with contextlib.suppress(CallError):  # if the daemon is away, the next renewal may reach it
                if client.level().hold.until != until:
                    return
                until = client.hold_level(FallbackLevel.FULL, _HOLD_SECONDS).hold.until

    try:
        with _background("draftd-hold", renew, _JOIN_SECONDS):
            yield
    finally:
        with contextlib.suppress(CallError):  # it expires by itself
            if client.level().hold.until == until:
                client.release_level()
