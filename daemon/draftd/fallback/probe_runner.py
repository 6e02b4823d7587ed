"""Tries things out: probes a rung with frozen prompts, and runs the quality canaries both ways.

Both are ordinary requests, one at a time, marked as the daemon's own. A probe says whether a rung would do: how many
drafted tokens stand, how fast that is, and whether the text stays the target's own. The canaries say whether what is
served is as good as it would be autoregressively: they run at the rung that the ladder stands on, for that is what
callers get; where it drafts nothing, at the lowest one that drafts, for that is where it would climb to.

The autoregressive answers come first and are kept, so that weights are held only while they are needed, and what was
interrupted goes on where it was. A job gives way: where callers' requests wait, it ends between two prompts."""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from draftd.canaries.prompts import Canary, FrozenPrompt, FrozenPrompts
from draftd.core import (
    PROMPT_LOOKUP,
    DecodeMode,
    DecodePlan,
    DecodeRequest,
    DepthMode,
    DraftCounts,
    DrafterName,
    Emission,
    FallbackLevel,
    FinishReason,
    Origin,
    Outcome,
)
from draftd.engine.observer import EngineStatus
from draftd.errors import DraftdError, NotNow
from draftd.fallback import signals as identity
from draftd.fallback import signals as quality
from draftd.fallback.drift import Baseline, Sample
from draftd.fallback.fields import Fields
from draftd.fallback.ladder import Rung
from draftd.fallback.probes import ProbeSettings, judge
from draftd.fallback.reports import CanaryOutcome, CanaryReport, Divergence, ProbeReport, Verdict
from draftd.fallback.seams import ChatTokenizer, ControlTelemetry, EngineControl
from draftd.fallback.signals import Kind
from draftd.fallback.weights import absent
from draftd.settings import FallbackSettings


def render(prompt: FrozenPrompt, tokenizer: ChatTokenizer) -> tuple[int, ...]:
    """Token ids, ready for the answer: by the model's chat template; as plain text where it has none, or where its
    template takes neither a system message nor what it says before the user's own."""
    system = "\n\n".join(said for role, said in prompt.messages if role == "system")
    rest = [(role, said) for role, said in prompt.messages if role != "system"]
    if tokenizer.has_chat_template:
        folded = [(rest[0][0], f"{system}\n\n{rest[0][1]}"), *rest[1:]] if system else rest
        for messages in (prompt.messages, tuple(folded)):
            try:
                return tuple(tokenizer.render_chat([{"role": role, "content": said} for role, said in messages]))
            except Exception:  # templates raise on what they do not take, each in its own way
                continue
    return tuple(tokenizer.encode("".join(f"{said}\n\n" for said in (system, *(said for _, said in rest)) if said)))


_GRACE_SECONDS = 5.0  # beyond a deadline: the engine notices one between two rounds


_GAP_SECONDS = 10.0  # for the logit gap of one divergence


class Unanswered(Exception):
    """A prompt was not answered: the message says why. Nothing is known of the draft by it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said to a prompt, and what that took."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    counts: DraftCounts


class Asker:
    """One thread asks; any thread may abort it."""

    def __init__(self, engine: EngineControl, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`seconds`: how long one answer may take, its time in the queue included."""
        self._engine, self._seconds, self._clock = engine, seconds, clock
        self._numbers = itertools.count(1)
        self._references: dict[FrozenPrompt, Answer] = {}
        self._of = ""  # the target whose references these are
        self._lock = threading.Lock()
        self._aborted = False
        self._asked: tuple[str, _Sink] | None = None

    def abort(self) -> None:
        """What is being asked ends as Unanswered, and so does all that is asked from now on."""
        with self._lock:
            self._aborted, asked = True, self._asked
        if asked is not None:
            self._engine.cancel(asked[0])
            asked[1].ended.set()  # an engine that hangs must not keep the asker

    def reference(self, prompt: FrozenPrompt, origin: Origin) -> Answer:
        """The autoregressive answer: asked once, and kept for as long as the target stays. Raises Unanswered."""
        target = self._target()
        if target != self._of:
            self._references.clear()  # as many as there are frozen prompts, then
            self._of = target
        kept = self._references.get(prompt)
        if kept is None:
            plan = DecodePlan(
                DecodeMode.AUTOREGRESSIVE,
                0,
                None,
                FallbackLevel.AUTOREGRESSIVE,
                origin.value,
                f"{origin.value}: what is compared with",
            )
            kept = self._references[prompt] = self._ask(prompt, plan, origin)
        return kept

    def drafted(self, prompt: FrozenPrompt, rung: Rung, origin: Origin) -> Answer:
        """The answer as it is decoded at a rung that drafts. Raises Unanswered, also where it was not drafted."""
        plan = DecodePlan(
            DecodeMode.SPECULATIVE,
            rung.max_draft_tokens,
            rung.drafter,
            rung.level,
            origin.value,
            f"{origin.value} of {rung.label}",
            DepthMode.FIXED,  # it asks what the rung is worth: a depth that avoids its drafts would hide that
        )
        return self._ask(prompt, plan, origin)

    def divergence(self, reference: Answer, drafted: Answer) -> Divergence | None:
        """Where the second leaves the first; None where they are one."""
        if reference.tokens == drafted.tokens:
            return None
        pairs = zip(reference.tokens, drafted.tokens, strict=False)
        at = next((i for i, (right, other) in enumerate(pairs) if right != other), None)
        if at is None:  # one ended where the other went on: no two tokens to compare
            return Divergence(min(len(reference.tokens), len(drafted.tokens)), None)
        before = reference.prompt + reference.tokens[:at]
        return Divergence(at, self._gap(before, reference.tokens[at], drafted.tokens[at]))

    def _gap(self, before: tuple[int, ...], right: int, other: int) -> float | None:
        found: Future[float] | None = None
        try:
            found = self._engine.logit_gap(before, right, other)
            return found.result(_GAP_SECONDS)
        except Exception:  # whatever it is, the divergence stands without a gap
            if found is not None:
                found.cancel()
            return None

    def _target(self) -> str:
        try:
            info = self._engine.info
        except DraftdError as error:
            raise Unanswered(error.message) from None
        return f"{info.model} {info.weight_bytes}"

    def _rendered(self, prompt: FrozenPrompt) -> tuple[int, ...]:
        try:
            return render(prompt, self._engine.tokenizer)
        except Exception as error:
            raise Unanswered(f"{prompt.id} cannot be tokenised: {error}") from None

    def _ask(self, prompt: FrozenPrompt, plan: DecodePlan, origin: Origin) -> Answer:
        tokens, now, sink = self._rendered(prompt), self._clock(), _Sink()
        request = DecodeRequest(
            id=f"draftd-{origin.value}-{next(self._numbers)}",
            prompt=tokens,
            max_tokens=prompt.max_tokens,
            plan=plan,
            arrival=now,
            deadline=now + self._seconds,
            workload=prompt.workload,
            origin=origin,
        )
        with self._lock:
            if self._aborted:
                raise Unanswered("the daemon is stopping")
            self._asked = request.id, sink
        try:
            self._engine.submit(request, sink)
            if not sink.ended.wait(self._seconds + _GRACE_SECONDS):
                self._engine.cancel(request.id)
                raise Unanswered(f"{prompt.id} had no answer within {self._seconds:g} s")
        except DraftdError as error:
            raise Unanswered(f"{prompt.id} was refused: {error.message}") from None
        finally:
            with self._lock:
                self._asked = None
        return self._answer(prompt, tokens, plan, sink)

    def _answer(self, prompt: FrozenPrompt, tokens: tuple[int, ...], plan: DecodePlan, sink: _Sink) -> Answer:
        outcome = sink.outcome
        if outcome is None or outcome.reason is FinishReason.CANCELLED:
            raise Unanswered("the daemon is stopping" if self._aborted else f"{prompt.id} was cancelled")
        if outcome.reason is FinishReason.DEADLINE:
            raise Unanswered(f"{prompt.id} had no answer within {self._seconds:g} s")
        if outcome.reason is FinishReason.ERROR:
            raise Unanswered(f"{prompt.id} failed: {outcome.error}")
        if outcome.degraded and plan.mode is DecodeMode.SPECULATIVE:
            raise Unanswered(f"{prompt.id} went on autoregressively: {outcome.degraded}")
        if outcome.lowered:
            raise Unanswered(f"{prompt.id} was lowered: {outcome.lowered}")
        return Answer(tokens, tuple(sink.tokens), outcome.stats.counts)


class _Sink:
    """Keeps what the engine thread says."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.outcome: Outcome | None = None
        self.ended = threading.Event()

    def on_tokens(self, emission: Emission) -> None:
        self.tokens += emission.tokens

    def on_finish(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.ended.set()


_LOOK_AGAIN_SECONDS = 0.05  # a request that has only just arrived waits for nobody


class Queue(Protocol):
    def status(self) -> EngineStatus: ...


class Bounds:
    """Of one job; asked between two prompts, when the job itself has nothing in the queue."""

    def __init__(
        self,
        engine: Queue,
        stopping: threading.Event,
        *,
        seconds: float,
        patience: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`seconds`: all that the job may take. `patience`: of them, how many it may spend on waiting for a queue to
        become empty before it gives way."""
        self._engine, self._stopping, self._clock = engine, stopping, clock
        self._seconds, self._patience, self._until = seconds, patience, clock() + seconds

    def reached(self) -> str:
        """Why the job must end now; empty where it may go on. Waits where there is patience left."""
        while True:
            if self._stopping.is_set():
                return "the daemon is stopping"
            if self._clock() >= self._until:
                return f"it took longer than {self._seconds:g} s"
            if not self._engine.status().queued:
                return ""
            looked = self._clock()
            self._stopping.wait(_LOOK_AGAIN_SECONDS)
            waiting = self._engine.status().queued
            if waiting and self._patience <= 0:
                return f"it gave way to {waiting} waiting request{'s' if waiting > 1 else ''}"
            self._patience -= self._clock() - looked


Borrow = Callable[[DrafterName | None], AbstractContextManager[object]]


"""Holds a drafter's weights within the block. Entering it may take a while, and raises where they cannot be had."""


@contextmanager
def lent(borrow: Borrow, drafter: DrafterName | None) -> Iterator[None]:
    """`borrow`, but raises Unanswered where the weights cannot be had."""
    with ExitStack() as stack:
        try:
            stack.enter_context(borrow(drafter))
        except Exception as error:
            why = str(error) or type(error).__name__
            raise Unanswered(f"the weights of {drafter} cannot be had: {why}") from error
        yield


@dataclass(frozen=True, slots=True)
class Tried:
    """What one prompt showed."""

    id: str
    counts: DraftCounts
    divergence: Divergence | None

    @property
    def sample(self) -> Sample:
        return Sample(self.counts.accepted, self.counts.rollbacks)


@dataclass(frozen=True, slots=True)
class Tries:
    """What all of them showed, and why there are no more of them: empty where all were tried."""

    made: tuple[Tried, ...]
    ended: str = ""


def tries(rung: Rung, prompts: Sequence[FrozenPrompt], asker: Asker, bounds: Bounds, borrow: Borrow) -> Tries:
    """The autoregressive answers come first: weights are held only for the others. Raises Unanswered."""
    for prompt in prompts:
        if ended := bounds.reached():
            return Tries((), ended)
        asker.reference(prompt, Origin.PROBE)
    made: list[Tried] = []
    with lent(borrow, rung.drafter):
        for prompt in prompts:
            if ended := bounds.reached():
                return Tries(tuple(made), ended)
            answer = asker.drafted(prompt, rung, Origin.PROBE)
            divergence = asker.divergence(asker.reference(prompt, Origin.PROBE), answer)
            made.append(Tried(prompt.id, answer.counts, divergence))
    return Tries(tuple(made))


def judged(
    rung: Rung, found: Tries, baseline: Baseline | None, tolerated: float | None, settings: ProbeSettings
) -> ProbeReport:
    """The report, but for its seconds. What ended early is judged by what there is, where that is enough."""
    assert rung.drafter is not None, rung
    if not found.made:
        return ProbeReport(rung, Verdict.FAILED, found.ended or "there is nothing to try")
    drafts = sum(one.counts.drafts for one in found.made)
    judgement = judge(
        [one.sample for one in found.made],
        drafts=drafts,
        break_even_tokens=drafts * _break_even(found.made),
        drafter=rung.drafter,
        baseline=baseline,
        settings=settings,
    )
    verdict, reason = judgement.verdict, judgement.reason
    wrong = [one for one in found.made if one.divergence is not None and identity.broken(one.divergence, tolerated)]
    if wrong and wrong[0].divergence is not None:
        verdict, reason = Verdict.BAD, f"{wrong[0].id} {identity.described(wrong[0].divergence)}; {reason}"
    elif found.ended:
        reason = f"{reason}; {found.ended}"
    return ProbeReport(rung, verdict, reason, judgement.acceptance, judgement.speedup)


def _break_even(made: Sequence[Tried]) -> float:
    """Accepted tokens that pay for a draft: the median over prompts, for a stall in one of them is no price."""
    prices = [one.counts.break_even_tokens / one.counts.drafts for one in made if one.counts.drafts]
    return statistics.median(prices) if prices else 0.0


def learnt(found: Tries) -> Baseline | None:
    """What the same prompts are to be compared with later. None where they showed nothing."""
    samples = [one.sample for one in found.made if one.sample.reached]
    if found.ended or len(samples) < 2:
        return None
    reached = sum(sample.reached for sample in samples)
    mean = sum(sample.accepted for sample in samples) / reached
    between = sum((sample.acceptance - mean) ** 2 for sample in samples) / (len(samples) - 1)
    counting = sum(sample.acceptance * (1 - sample.acceptance) / sample.reached for sample in samples) / len(samples)
    return Baseline(mean, math.sqrt(max(0.0, between - counting)))


class Lessons:
    """Any thread. What was learnt of other prompts is of no use for these."""

    def __init__(self, prompts: Sequence[FrozenPrompt]) -> None:
        self._prompts = hashlib.sha256(repr(tuple(prompts)).encode()).hexdigest()[:16]
        self._lock = threading.Lock()
        self._at_best: dict[DrafterName, Baseline] = {}
        self._age = 0  # how often it was forgotten

    @property
    def age(self) -> int:
        """To be asked before a lesson begins, and given with it."""
        with self._lock:
            return self._age

    def of(self, drafter: DrafterName) -> Baseline | None:
        with self._lock:
            return self._at_best.get(drafter)

    def learn(self, drafter: DrafterName, showed: Baseline, age: int) -> None:
        """A lesson that was under way while all was forgotten is of an old draft still, and teaches nothing."""
        with self._lock:
            if age == self._age:
                self._at_best[drafter] = showed

    def forget(self) -> None:
        """Drafts with weights are others on purpose. Prompt lookup has none."""
        with self._lock:
            self._age += 1
            self._at_best = {kind: one for kind, one in self._at_best.items() if kind == PROMPT_LOOKUP}

    def document(self) -> dict[str, object]:
        """What json.dumps takes, and `recall` reads."""
        with self._lock:
            learnt = {kind: {"mean": one.mean, "spread": one.spread} for kind, one in self._at_best.items()}
        return {"prompts": self._prompts, "at_best": learnt}

    def recall(self, document: Mapping[str, object]) -> None:
        """What an earlier run learnt. Raises ValueError, which names the field, its value and what is allowed; then
        nothing is recalled."""
        fields = Fields(document, "lessons")
        if fields.text("prompts") != self._prompts:
            return
        found = {
            name: Baseline(one.number("mean", 0, 1), one.number("spread", 0, 1))
            for name, one in fields.items("at_best")
        }
        with self._lock:
            self._at_best = found


def run_canaries(
    rung: Rung,
    canaries: Sequence[Canary],
    asker: Asker,
    bounds: Bounds,
    borrow: Borrow,
    text: Callable[[Sequence[int]], str],
) -> tuple[tuple[CanaryOutcome, ...], str]:
    """What each showed, and why there are no more of them. Raises Unanswered."""
    for canary in canaries:
        if ended := bounds.reached():
            return (), ended
        asker.reference(canary.prompt, Origin.CANARY)
    made: list[CanaryOutcome] = []
    with lent(borrow, rung.drafter):
        for canary in canaries:
            if ended := bounds.reached():
                return tuple(made), ended
            reference = asker.reference(canary.prompt, Origin.CANARY)
            drafted = asker.drafted(canary.prompt, rung, Origin.CANARY)
            plain, fast = (canary.check.complaint(text(answer.tokens)) for answer in (reference, drafted))
            complaints = {"autoregressive": plain, "speculative": fast}
            told = fast if plain == fast else "; ".join(f"{way}: {said}" for way, said in complaints.items() if said)
            divergence = asker.divergence(reference, drafted)
            made.append(CanaryOutcome(canary.prompt.id, not plain, not fast, divergence, told))
    return tuple(made), ""


def judged_canaries(
    outcomes: Sequence[CanaryOutcome], ended: str, tolerated: float | None, tolerance: float
) -> CanaryReport:
    """The report, but for its seconds. A run that ended early may be bad by what it saw; it cannot be good."""
    verdict, reason = quality.judge(outcomes, tolerance)
    if broken := identity.complaint(outcomes, tolerated):
        verdict, reason = Verdict.BAD, f"{broken}; {reason}"
    elif ended and verdict is not Verdict.BAD:
        verdict, reason = Verdict.FAILED, f"{ended}; {reason}" if outcomes else ended
    return CanaryReport(verdict, reason, tuple(outcomes))


log = logging.getLogger(__name__)


Report = TypeVar("Report", ProbeReport, CanaryReport)


class Job(Generic[Report]):
    """`work` tries something out, `failed` is the report where that went wrong, `tell` hears of each."""

    def __init__(
        self, work: Callable[[], Report], failed: Callable[[str], Report], tell: Callable[[Report], None]
    ) -> None:
        self.future: Future[Report] = Future()
        self.future.set_running_or_notify_cancel()  # nobody can take it back: who asks no more may forget it
        self._work: Callable[[], Report] = work
        self._failed: Callable[[str], Report] = failed
        self._tell: Callable[[Report], None] = tell
        self._lock = threading.Lock()
        self._report: Report | None = None

    def do(self, clock: Callable[[], float]) -> None:
        """Never raises: whatever goes wrong is in the report."""
        began = clock()
        try:
            report = self._work()
        except Unanswered as error:
            report = self._failed(str(error))
        except DraftdError as error:
            report = self._failed(error.message)
        except Exception as error:
            log.warning("a probe or a run of the canaries failed", exc_info=error)
            report = self._failed(f"{type(error).__name__}: {error}")
        self._report = replace(report, seconds=clock() - began)
        self._tell(self._report)

    def hand_over(self) -> None:
        assert self._report is not None
        self._end(self._report)

    def give_up(self, why: str) -> None:
        self._end(self._failed(why))

    def _end(self, report: Report) -> None:
        with self._lock:
            if not self.future.done():
                self.future.set_result(report)


_STOPPING = "the daemon is stopping"


@dataclass(frozen=True, slots=True)
class ExaminerLimits:
    """Seconds: for one answer; for all of a probe, and of a run of the canaries; and how long a run of the canaries
    waits for callers' requests to be taken in before it gives way. A probe does not wait."""

    answer: float = 30.0
    probe: float = 180.0
    canaries: float = 600.0
    patience: float = 30.0


class Stands(Protocol):
    """Where the ladder stands: the planner."""

    @property
    def ladder(self) -> Sequence[Rung]: ...

    @property
    def rung(self) -> Rung: ...


class Examiner:
    """One job at a time, on a thread of its own. Any thread may ask; a future always ends, and always in a report."""

    def __init__(
        self,
        engine: EngineControl,
        borrow: Borrow,
        settings: FallbackSettings,
        telemetry: ControlTelemetry,
        *,
        stands: Stands,
        prompts: FrozenPrompts | None = None,
        limits: ExaminerLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`borrow` holds a drafter's weights. `prompts`: the package's own, where none are given; raises
        FrozenPromptError where those are broken."""
        self._engine, self._borrow, self._settings, self._telemetry = engine, borrow, settings, telemetry
        self._stands, self._clock = stands, clock
        self._prompts = FrozenPrompts.shipped() if prompts is None else prompts
        self._limits = limits or ExaminerLimits()
        self._asker = Asker(engine, self._limits.answer, clock)
        self.lessons = Lessons(self._prompts.probe)
        self._thread = threading.Thread(target=self._work, name="draftd-examiner", daemon=True)
        self._stopping = threading.Event()
        self._changed = threading.Condition()  # guards the job
        self._job: Job[ProbeReport] | Job[CanaryReport] | None = None  # waiting or under way

    def start(self) -> None:
        self._thread.start()

    def close(self, seconds: float) -> bool:
        """Ends what is under way, as failed. False where the thread did not end in time."""
        self._stopping.set()
        self._asker.abort()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(seconds)
        alive = self._thread.is_alive()
        with self._changed:
            job, self._job = self._job, self._job if alive else None
        if job is not None:
            job.give_up(_STOPPING)
        return not alive

    @property
    def busy(self) -> bool:
        return self._job is not None

    def probe(self, rung: Rung, baselines: Mapping[Kind, Baseline] | None = None) -> Future[ProbeReport]:
        """Tries `rung` out. `baselines`, of callers' texts, are told beside the figures and judge nothing: other texts
        are drafted otherwise. Raises NotNow while a job is under way, and where the rung drafts nothing, or its
        drafter cannot be had."""
        known = [one.mean for (drafter, _), one in (baselines or {}).items() if drafter == rung.drafter]
        beside = f"; callers' texts had {sum(known) / len(known):.2f} while all was well" if known else ""
        return self._put(self._probing(rung, lambda: self._probe(rung, beside)))

    def learn(self, rung: Rung) -> Future[ProbeReport]:
        """A probe while all is well: where it is good, what it showed is what later ones of the same drafter are
        compared with. Raises NotNow as `probe` does."""
        return self._put(self._probing(rung, lambda: self._probe(rung, learn=True)))

    def knows(self, rung: Rung) -> bool:
        """Whether something was learnt of this rung's drafter."""
        return rung.drafter is not None and self.lessons.of(rung.drafter) is not None

    def canaries(self) -> Future[CanaryReport]:
        """Raises NotNow while a job is under way, and where nothing can be drafted."""
        rung = self._stands.rung
        if rung.drafter is None:
            drafting = [one for one in reversed(self._stands.ladder) if one.drafter is not None]
            had = (one for one in drafting if one.drafter is not None and not absent(one.drafter, self._engine))
            rung = next(had, drafting[0] if drafting else rung)
        self._check(rung)

        def tell(report: CanaryReport) -> None:
            self._telemetry.canaries(rung.level, report.verdict, report.divergences, report.seconds)

        return self._put(Job(lambda: self._run(rung), lambda why: CanaryReport(Verdict.FAILED, why), tell))

    def _probing(self, rung: Rung, work: Callable[[], ProbeReport]) -> Job[ProbeReport]:
        self._check(rung)

        def tell(report: ProbeReport) -> None:
            self._telemetry.probe(rung.level, report.verdict, report.acceptance, report.speedup, report.seconds)

        return Job(work, lambda why: ProbeReport(rung, Verdict.FAILED, why), tell)

    def _put(self, job: Job[Report]) -> Future[Report]:
        with self._changed:
            if self._stopping.is_set():
                raise NotNow(_STOPPING)
            if self._job is not None:
                raise NotNow("a probe or a run of the canaries is under way")
            self._job = job
            self._changed.notify_all()
        return job.future

    # the examiner's thread

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._job is not None or self._stopping.is_set())
                job = self._job
            if self._stopping.is_set() or job is None:
                return  # close gives up what waits
            job.do(self._clock)
            with self._changed:
                self._job = None
            job.hand_over()

    def _probe(self, rung: Rung, beside: str = "", learn: bool = False) -> ProbeReport:
        age = self.lessons.age
        bounds = Bounds(self._engine, self._stopping, seconds=self._limits.probe, clock=self._clock)
        found = tries(rung, self._prompts.probe, self._asker, bounds, self._borrow)
        assert rung.drafter is not None
        baseline = self.lessons.of(rung.drafter)
        settings = ProbeSettings(floor=self._settings.acceptance_floor)
        report = judged(rung, found, baseline, self._tolerated, settings)
        if learn and report.verdict is Verdict.GOOD and (made := learnt(found)) is not None:
            self.lessons.learn(rung.drafter, made, age)
        return replace(report, reason=report.reason + beside)

    def _run(self, rung: Rung) -> CanaryReport:
        limits = self._limits
        bounds = Bounds(
            self._engine, self._stopping, seconds=limits.canaries, patience=limits.patience, clock=self._clock
        )
        text = self._engine.tokenizer.decode
        outcomes, ended = run_canaries(rung, self._prompts.canaries, self._asker, bounds, self._borrow, text)
        return judged_canaries(outcomes, ended, self._tolerated, self._settings.canary_tolerance)

    @property
    def _tolerated(self) -> float | None:
        return identity.tolerated(self._engine.info.backend)

    def _check(self, rung: Rung) -> None:
        if rung.drafter is None:
            raise NotNow(f"nothing is drafted at {rung.label}: there is nothing to try")
        if why := absent(rung.drafter, self._engine):
            raise NotNow(f"nothing is drafted at {rung.label}: {why}")
