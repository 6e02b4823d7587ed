"""The sequences of the target on this machine: waiting → prefilling → running.

One step is slices of prompts, for a share of a step's time (prefilling.py), and one decode step of all running
sequences. With nothing drafted that is autoregressive decoding; the next plain step may be under way while this one's
tokens are read.

A sequence that a peer drafts for rests while its peer has sent no step: it keeps its caches, and takes no part. If the
peer has granted tokens and proposes nothing, this daemon may draft for it as for any other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

from draftd.core import DrafterName, FinishReason
from draftd.engine.admission import Admission
from draftd.engine.cache.base import places_after
from draftd.engine.delivery import Delivery
from draftd.engine.depth.controller import DepthControl, automatic
from draftd.engine.depth.costs import DEEPEST, StepCosts
from draftd.engine.drafters.base import Drafter
from draftd.engine.drafting import DraftDispatch, LatestSampling
from draftd.engine.fair_share import FairShare, charge
from draftd.engine.limits import Limits
from draftd.engine.observer import EngineObserver
from draftd.engine.prefilling import Prefilling
from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import DecodeStep, DraftPlan, SequenceStep, StepMode, StepPlan, continuing_entries
from draftd.engine.targets.base import PlanNumbers, Target
from draftd.engine.targets.choice import masks_first
from draftd.engine.turn import BatchWait, Turn, Wave, awake, plan_turn, rests, runs_ahead

_KEPT_PIECE = 128  # tokens
_HELD_SECONDS = 0.02  # between two checks whether a peer that has used its share still waits
_RECENT = 0.25  # weight of the latest step in the recent step time


class LocalDecoder:
    """A `Decoder` over a `Target`."""

    def __init__(
        self,
        *,
        target: Target,
        drafters: Callable[[], Mapping[DrafterName, Drafter]],
        eos: frozenset[int],
        vocabulary: int,
        context_length: int,
        observer: EngineObserver,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        cancelled: Callable[[], Mapping[str, FinishReason]] = dict,
        depth: DepthControl | None = None,
        timer: Callable[[], float] = time.perf_counter,
        admission: Admission | None = None,
    ) -> None:
        """`cancelled` is called after each forward: a step's tokens are not sent to requests that ended during it.
        `depth`: earlier knowledge of costs and acceptance. `timer`: times steps and slices. `admission`: None admits as
        many as the batch takes."""
        self.target, self._steps, self.context_length = target, PlanNumbers(target), context_length
        self.drafting = DraftDispatch(
            drafters, vocabulary, observer, lambda kind: self.depth.drafter_replaced(kind, self._running)
        )
        self._sampling = LatestSampling()
        self.delivery = Delivery(eos, observer, lambda: len(self.sequences) / limits.max_batch)
        self._observer, self._clock, self._cancelled, self._timer = observer, clock, cancelled, timer
        self._shares = FairShare(limits.part_of_peer, clock)
        self.prefilling = self._make_prefilling(limits)
        self._admission = admission
        self._max_batch, self._chunk = limits.max_batch, limits.prefill_chunk
        self.depth = depth or DepthControl(StepCosts(), DEEPEST - 1)
        self._running: list[DecodeSequence] = []  # in the target's order
        self._peers = 0  # running sequences that a peer drafts for
        self._ahead: StepPlan | None = None  # a plain step that is under way and not read yet
        self._caught_up = False  # whether the last step was a drafter's slice
        self._step_seconds = 0.0  # recent mean, without prefill
        self._step_ended: float | None = None  # the last step's end, where the next follows at once
        self._of_peers = 0  # peers' sequences, running and waiting
        self._wave, self._in_wave = Wave(), False
        self._opened = 0  # sequences that were numbered
        self._gathering = BatchWait(limits.gather_seconds, clock)
        self._pause = 0.0
        self._failed: list[DecodeSequence] = []  # with all caches; they have left the target
        self.paused = False  # while the weights are unloaded

    def _make_prefilling(self, limits: Limits) -> Prefilling:
        return Prefilling(
            self._steps,
            self.drafting,
            self.delivery,
            limits=limits,
            clock=self._clock,
            timer=self._timer,
            cancelled=self._cancelled,
            drafted_for=lambda sequence, alone: self.depth.worth_prefilling(
                sequence, alone, self._running, self.drafting.drafters
            ),
            fits=self._fits,
            shares=self._shares,
        )

    @property
    def idle(self) -> bool:
        return not (self._running or self.prefilling.sequences or self._failed)

    @property
    def pause(self) -> float:
        """Seconds for which there is nothing to do, unless something comes."""
        return math.inf if self.idle else self._pause

    @property
    def resting(self) -> int:
        """The number of running sequences that wait for a step of their peers."""
        return sum(map(rests, self._running)) if self._peers else 0

    @property
    def active(self) -> int:
        return len(self._running) + len(self.prefilling.prefilling)

    @property
    def sequences(self) -> list[DecodeSequence]:
        """All sequences, running or not."""
        return [*self._running, *self.prefilling.sequences, *self._failed]

    @property
    def prompts(self) -> bool:
        """Whether a prompt is being prefilled, or waits and there is a place for it."""
        return bool(self.prefilling.prefilling or (self.prefilling.waiting and self.active < self._max_batch))

    @property
    def may_draft(self) -> bool:
        """Whether a running sequence may draft."""
        return any(one.depth > 0 and one.drafter is not None for one in self._running)

    @property
    def not_begun(self) -> list[DecodeSequence]:
        """The sequences of which nothing has been prefilled."""
        return self.prefilling.waiting

    @property
    def kv_cache_bytes(self) -> int:
        return self.target.nbytes + self.drafting.nbytes

    def add(self, sequence: DecodeSequence) -> None:
        self._opened, self._pause = self._opened + 1, 0.0
        sequence.id = self._opened
        self._of_peers += sequence.of_peer
        self.prefilling.add(sequence)

    def collect(self, now: float) -> None:
        """Does nothing: `advance` waits for results."""

    def advance(self, now: float, *, busy: bool) -> bool:
        """Prefills slices of prompts, then does one decode step. Always returns False, because nothing here is computed
        for another daemon's target (`Decoder.advance`). `busy` is not used."""
        if self.idle or self.paused:
            return False
        turn = self._plan_turn()
        if turn.catches_up:
            self._catch_up()
        else:
            self._prefill(turn.room, turn.hurried)
        prefilling, pause = self.prefilling.in_turn, 0.0
        if self._peers and not prefilling and self._ahead is None:
            pause = self._gathering.wait(self._running, turn.members, self.depth.costs)
        if turn.decodes and not pause:
            began, copied = self._timer(), self.prefilling.joined_long
            masked = masks_first([sequence.request for sequence in turn.members])
            ahead = runs_ahead(turn, prefilling=prefilling, masked=masked)
            self._decode(turn.members, may_run_ahead=ahead)
            if not copied:
                self._step_seconds += _RECENT * (self._timer() - began - self._step_seconds)
        if not (turn.members or self._in_wave or turn.catches_up or prefilling):
            due = [sequence for sequence in self._running if not rests(sequence)]  # held back by the fair share
            pause = _HELD_SECONDS if any(one.of_peer for one in (*due, *self.prefilling.sequences)) else math.inf
        self._pause = pause
        joined = self.prefilling.take_ready()
        if joined:
            self._run([*self._running, *joined])
            self.mark_interruption()
        return False

    # between steps: what may draft

    def review_drafting(self) -> None:
        """Does nothing: each step decides again what to draft."""

    def drafting_with(self, kind: DrafterName) -> list[DecodeSequence]:
        """The running sequences that draft with it. A peer's sequence, or one with automatic depth, is left out unless
        the drafter already has its text."""
        drafter = self.drafting.drafters.get(kind)
        sequences = [one for one in self._running if one.drafter is not None and one.plan.drafter == kind]
        if drafter is None:
            return sequences
        return [one for one in sequences if not (one.of_peer or automatic(one)) or drafter.behind(one) is not None]

    def uses(self, kind: DrafterName) -> bool:
        """Whether a sequence that runs or is being prefilled drafts with it."""
        inside = (*self.prefilling.prefilling, *self._running)
        return any(one.drafter is not None and one.plan.drafter == kind for one in inside)

    def mark_interruption(self) -> None:
        """Keeps other work between two steps out of the next step's measured time."""
        self._step_ended = None

    def _plan_turn(self) -> Turn:
        in_turn = self._running
        if self._of_peers:
            in_turn = self._share_out()
        begun, behind = self._ahead, bool(self.depth.catching_up)
        # A draft catches up by turns with prefill: both would be two slices.
        may_catch_up = behind and not (self._caught_up and self.prefilling.sequences)
        self._in_wave = not self._peers and self._wave.goes_on(
            self._timer(), len(self._running), self.prefilling.count_short(self._max_batch - len(self._running))
        )
        turn = plan_turn(
            self._running,
            in_turn,
            begun if self._peers else None,
            most=self._max_batch,
            now=self._clock(),
            wave=self._in_wave,
            may_catch_up=may_catch_up,
        )
        self._caught_up = turn.catches_up
        for sequence in turn.members:
            if sequence.of_peer and begun is None:
                granted = sequence.proposals.granted
                sequence.propose(sequence.proposals.guess(sequence.tokens, sequence.remaining - 1), granted)
        if self._peers:
            self.drafting.forget(turn.members)
        return turn

    def _share_out(self) -> list[DecodeSequence]:
        """Returns the running sequences without those of peers that the fair share holds back."""
        inside = self.prefilling.sequences
        self._shares.begin([*awake(self._running, self._clock()), *inside])
        clients_waiting = sum(not sequence.of_peer for sequence in inside)
        seconds = self.depth.batch_seconds(self._max_batch)
        return self._shares.choose(self._running, clients_waiting, seconds, self._max_batch)

    def _prefill(self, room: int, running: Sequence[DecodeSequence]) -> None:
        self.prefilling.step(room, running, self._step_seconds)
        if self.prefilling.in_turn:
            self.mark_interruption()

    def _fits(self, sequence: DecodeSequence, prefilling: Sequence[DecodeSequence]) -> bool:
        return self._admission is None or self._admission.fits(sequence, prefilling, self._running, self.kv_cache_bytes)

    # one decode step

    def _decode(self, running: list[DecodeSequence], may_run_ahead: bool) -> None:
        before = self._step_ended
        started = self._ahead is not None
        try:
            plan = self.depth.plan(running, self.drafting.drafters, started=started, may_run_ahead=may_run_ahead)
            done = self._execute_plan(running, plan)
        except Exception as error:
            self._rebuild(error, running)
            return
        self._step_ended = self._timer()
        seconds = None if before is None else self._step_ended - before
        break_even = self.depth.learn(running, plan, done, seconds)
        if self._of_peers:
            self._shares.charge_step(running, done)
        for sequence, message in done.drafter_errors:
            self.drafting.handle_failure(sequence, message)
        if endings := self._cancelled():
            for sequence in self.sequences:
                if (reason := endings.get(sequence.request.id)) is not None:
                    sequence.end(reason)
        now = self._clock()
        for sequence, result in zip(running, done.sequences, strict=True):
            if not sequence.ended:
                self.delivery.send_tokens(sequence, result, done, now, break_even)
        self._keep_piece()

    def _execute_plan(self, running: list[DecodeSequence], plan: DraftPlan) -> DecodeStep:
        """Drafts as planned and runs the target's forward: at least one token for each of these sequences."""
        started, errors = self._timer(), list[tuple[DecodeSequence, str]]()
        draft = sampling = None
        if plan.mode is StepMode.SPECULATIVE:
            sampling = self._sampling.of(running)
            draft, errors = self.drafting.propose(running, plan.sequences, sampling)
        drafted_at = self._timer()
        if draft is None:
            submitted = self._ahead or self._steps.submit(continuing_entries(running))
            self._ahead = None
            if plan.mode is StepMode.PLAIN_AHEAD:
                self._ahead = self._steps.submit(continuing_entries(running, after=1))
            depths = forwards = [0] * len(running)
            lag = 0
        else:
            depths, forwards, lag = draft.depths, draft.forwards, draft.lag
            submitted = self._steps.submit(continuing_entries(running, depths), draft, sampling)
        result = self._steps.result(submitted)
        seconds = self._timer() - drafted_at
        if self._peers:
            charge(running, depths, seconds, forwards, drafted_at - started)
        results = {entry.sequence: entry for entry in result.entries}
        if (order := list(results)) != [one.id for one in running]:  # else each step would reorder its drafts
            places = {sequence: place for place, sequence in enumerate(order)}
            self._running = sorted(self._running, key=lambda one: places.get(one.id, len(places)))
        decoded = []
        for sequence, wanted, depth, steps in zip(running, plan.sequences, depths, forwards, strict=True):
            _, accepted, following, sequence.replays, logprobs, error, _, features = results[sequence.id]
            assert following is not None
            self.drafting.feed(sequence, features)
            if error:
                sequence.end(FinishReason.ERROR, error)
            decoded.append(SequenceStep(depth, accepted, following, steps, wanted.state, logprobs))
        replayed = max(0, result.width - 1 - max(depths))
        return DecodeStep(decoded, drafted_at - started, seconds, errors, lag, replayed)

    def _keep_piece(self) -> None:
        """Keeps a piece of one running sequence's text, so that little is left to copy at its end."""
        for sequence in self._running:
            if len(sequence.tokens) - sequence.kept > _KEPT_PIECE and sequence.shares:
                sequence.kept = len(sequence.tokens)
                self.target.keep(sequence.id, sequence.kept)
                return

    def _catch_up(self) -> None:
        """Prefills a slice of running sequences' texts in their drafter."""
        sequences, began = self.depth.catching_up, self._timer()
        try:
            self.depth.catch_up(self.drafting.drafters, self._chunk)
        except Exception as error:
            for sequence in sequences:
                self.drafting.handle_failure(sequence, str(error))
        share = (self._timer() - began) / len(sequences)
        for sequence in sequences:
            self._shares.charge_prefill(sequence, share)
        self.mark_interruption()

    # leaving

    def _run(self, sequences: list[DecodeSequence]) -> None:
        """Replaces the running sequences."""
        self._running, self._peers = sequences, sum(one.of_peer for one in sequences)

    def leave(self, ended: Sequence[DecodeSequence]) -> None:
        ended_rows = [i for i, sequence in enumerate(self._running) if sequence.ended]
        if ended_rows:
            for i in ended_rows:
                if self._running[i].shares:
                    self.target.keep(self._running[i].id, len(self._running[i].tokens), last=True)
            self.target.close([self._running[i].id for i in ended_rows])
            self._run([self._running[i] for i in places_after(len(self._running), ended_rows)])
            remaining = {sequence.id for sequence in self._running}
            if self._ahead is not None and remaining.isdisjoint(entry.sequence for entry in self._ahead.entries):
                self._ahead = None
            self.mark_interruption()
        self.prefilling.reap()
        self._failed = []
        for sequence in ended:
            self.drafting.leave(sequence)
            if sequence.shares and self._admission is not None and not self._admission.keeps(len(sequence.tokens)):
                sequence.stats.unfit_tokens = len(sequence.tokens)
            self._of_peers -= sequence.of_peer

    # failure

    def _rebuild(self, error: Exception, together: Sequence[DecodeSequence]) -> None:
        """Prefills every sequence again after a failed step, as no cache can be trusted. Those in the step go on
        autoregressively. A sequence ends in an error if its prefill fails, or if it failed before without a token
        since."""
        running, self._ahead, failed = self._running, None, {one.id for one in together}
        self._run([])
        self.mark_interruption()
        self.target.reset()
        self.drafting.reset()
        self.prefilling.restart()
        again = []
        for sequence in running:
            if sequence.id in failed:
                sequence.degrade(f"a decode step failed: {error}")
                self._observer.on_verifier_error(sequence.request, str(error))
                if sequence.rebuilt_at == sequence.emitted:
                    sequence.end(FinishReason.ERROR, f"decoding failed: {error}")
                sequence.rebuilt_at = sequence.emitted
            sequence.replays = 0
            if self.prefilling.retake(sequence):
                again.append(sequence)
            else:
                self._failed.append(sequence)
        self._run(again)
