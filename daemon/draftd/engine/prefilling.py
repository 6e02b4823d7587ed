"""Waiting and prefilling sequences, until they join the running ones: forwards, caches, drafters, delivery.

prefill_order.py decides which sequence begins, whose slice is next and how long it is."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from draftd.core import MODEL_DRAFTERS, DrafterName, FinishReason, Origin
from draftd.engine.delivery import Delivery
from draftd.engine.drafting import DraftDispatch
from draftd.engine.fair_share import FairShare
from draftd.engine.limits import Limits
from draftd.engine.observer import PromptProgress
from draftd.engine.prefill_order import (
    BeginOrder,
    PendingPrompt,
    PromptSlice,
    SlicePlanner,
    count_passed,
    drafter_waits,
    end_soon,
    slice_end,
)
from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import DecodeStep, EntryResult, PlanEntry, SequenceStep
from draftd.engine.targets.base import PlanNumbers, SequenceOptions

_log = logging.getLogger(__name__)

_LONG = 256  # tokens: to copy so many into the running sequences' caches takes about as long as a slice


class Clocks(NamedTuple):
    """`now`: for times of requests; `timer`: for the seconds of steps and slices."""

    now: Callable[[], float]
    timer: Callable[[], float]


class _WaitingLine:
    """The sequences of which nothing has been prefilled. `overtaken`: how often the first sequence was overtaken
    because there was no memory for it. `held_back`: how many sequences wait only for memory."""

    def __init__(self) -> None:
        self.sequences: deque[DecodeSequence] = deque()
        self.overtaken = self.held_back = 0

    def add(self, sequence: DecodeSequence) -> None:
        """Inserts a sequence behind those of the same priority, before those of a higher number."""
        after, priority = len(self.sequences), sequence.request.priority
        while after and self.sequences[after - 1].request.priority > priority:
            after -= 1
        self.sequences.insert(after, sequence)

    def note(self, order: BeginOrder) -> None:
        """Copies both counts from `order`. Logs when sequences begin, or no longer need, to wait for memory."""
        self.overtaken = order.overtaken
        if bool(order.held_back) != bool(self.held_back):
            _log.info("requests wait for memory" if order.held_back else "no request waits for memory any more")
        self.held_back = order.held_back


class Prefilling:
    """Owns the sequences until they join the running ones. Engine thread only."""

    def __init__(
        self,
        steps: PlanNumbers,
        drafting: DraftDispatch,
        delivery: Delivery,
        *,
        limits: Limits,
        clock: Callable[[], float],
        timer: Callable[[], float],
        cancelled: Callable[[], Mapping[str, FinishReason]],
        drafted_for: Callable[[DecodeSequence, bool], bool],
        fits: Callable[[DecodeSequence, Sequence[DecodeSequence]], bool],
        shares: FairShare,
    ) -> None:
        """`timer`: times slices. `drafted_for`: whether a sequence that is ready to join, by itself or with others, is
        worth prefilling in its drafter's caches first. `fits`: whether there is memory for a sequence beside those that
        are being prefilled. `shares`: says when prompts of peers wait, and is charged for prompts."""
        self._steps, self._drafting, self._delivery = steps, drafting, delivery
        self._drafted_for, self._fits, self._shares = drafted_for, fits, shares
        self._clocks, self._cancelled = Clocks(clock, timer), cancelled
        self.drain_until = math.inf  # by the clock: no slice is to last beyond it
        self._planner = SlicePlanner(limits.prefill_chunk, limits.prefill_slice_seconds)
        self._line = _WaitingLine()
        self._prompts: list[PendingPrompt] = []  # in the order in which they came
        self._ready: list[DecodeSequence] = []  # to join after the step
        self.joined_long = False  # whether a long one has joined since the last step
        self.prefilled_tokens = 0  # by the target, since it started

    @property
    def waiting(self) -> list[DecodeSequence]:
        """The sequences of which nothing has been prefilled."""
        return list(self._line.sequences)

    @property
    def held_back(self) -> int:
        """The number of sequences that only wait for memory."""
        return self._line.held_back

    @property
    def prefilling(self) -> list[DecodeSequence]:
        """The sequences whose prompts are being prefilled."""
        return [prompt.sequence for prompt in self._prompts]

    @property
    def sequences(self) -> list[DecodeSequence]:
        return [*self.prefilling, *self._line.sequences]

    @property
    def progress(self) -> tuple[PromptProgress, ...]:
        """The progress of clients' prompts. Sequences that have emitted tokens, and are prefilled again, are left
        out."""
        return tuple(
            PromptProgress(
                request=sequence.request.id,
                prompt_tokens=len(sequence.tokens),
                cached_tokens=sequence.stats.cached_tokens,
                processed_tokens=prompt.position,
                began=sequence.stats.scheduled or 0.0,
            )
            for prompt in self._prompts
            if (sequence := prompt.sequence).request.origin is Origin.CLIENT
            if prompt.position is not None and not sequence.emitted
        )

    @property
    def in_turn(self) -> bool:
        """Whether any prompt may have a slice now."""
        return bool(self._in_turn)

    @property
    def _in_turn(self) -> list[PendingPrompt]:
        return [prompt for prompt in self._prompts if not self._shares.holds(prompt.sequence)]

    def count_short(self, room: int) -> int:
        """Returns how many of the first `room` sequences without a token one forward can prefill whole."""
        prompts = self._in_turn
        waiting = (sequence for sequence in self._line.sequences if not self._shares.holds(sequence))
        left = [prompt.left for prompt in prompts if not prompt.done]
        left += [len(sequence.tokens) for sequence in islice(waiting, max(0, room - len(prompts)))]
        return sum(tokens <= self._planner.chunk for tokens in left)

    def add(self, sequence: DecodeSequence) -> None:
        self._line.add(sequence)
        for prompt in self._prompts:
            prompt.compare(sequence)

    def step(self, room: int, running: Sequence[DecodeSequence], step_seconds: float) -> None:
        """Begins waiting sequences until `room` prompts are being prefilled, and prefills slices.

        `step_seconds`: the recent time of a step of the `running` sequences, which bounds the slices. If all running
        sequences end soon, no slice runs: prompts are prefilled faster once they are gone."""
        self._begin_waiting(room, running=bool(running))
        if not self._candidates or end_soon(running):
            return
        if self.joined_long and running:  # that was a slice's worth of work
            self.joined_long = False
            return
        self._run_slices(step_seconds if running else None)

    def take_ready(self) -> list[DecodeSequence]:
        """Removes and returns the sequences that are ready to run, without those that have ended."""
        ready, self._ready = [sequence for sequence in self._ready if not sequence.ended], []
        if ready:
            self._prompts = [prompt for prompt in self._prompts if prompt.sequence not in ready]
            self.joined_long = self.joined_long or any(len(sequence.tokens) >= _LONG for sequence in ready)
        return ready

    def retake(self, sequence: DecodeSequence) -> bool:
        """Prefills a sequence that ran, alone and at once. Returns whether it runs again; it ends if it fails here."""
        prompt = PendingPrompt(sequence)
        try:
            while not sequence.ended and not self._prefill([prompt], self._planner.chunk):
                pass
        except Exception as error:
            sequence.end(FinishReason.ERROR, f"decoding failed: {error}")
        if sequence.ended:
            self._close(sequence)
            return False
        return True

    def restart(self) -> None:
        """Prefills all prompts again, as the caches are lost."""
        self._line.sequences.extendleft(reversed(self.prefilling))
        self._prompts, self._ready = [], []

    def reap(self) -> None:
        """Removes ended sequences."""
        ended = [sequence for sequence in self.sequences if sequence.ended]
        for sequence in ended:
            self._close(sequence)
        if ended:
            self._prompts = [prompt for prompt in self._prompts if prompt.sequence not in ended]
            self._line.sequences = deque(sequence for sequence in self._line.sequences if sequence not in ended)

    def _close(self, sequence: DecodeSequence) -> None:
        self._keep(sequence)
        self._steps.target.close([sequence.id])

    def _keep(self, sequence: DecodeSequence) -> None:
        """Keeps the prefilled text for requests that begin alike."""
        if sequence.shares:
            self._steps.target.keep(sequence.id, len(sequence.tokens))

    def _begin_waiting(self, room: int, *, running: bool) -> None:
        prompts = self._in_turn
        left = [prompt.left for prompt in prompts]
        order = BeginOrder(left, room, self._planner.chunk, running=running, overtaken=self._line.overtaken)
        awaiting = {sequence for prompt in prompts for sequence in prompt.waiting}
        for sequence in list(self._line.sequences):
            if order.closed:
                break
            if sequence.reads_prefix or sequence in awaiting or self._shares.holds(sequence):
                continue
            if not order.allows(tokens := len(sequence.tokens)):
                continue
            if not self._fits(sequence, self.prefilling):
                order.held_back += 1
                continue
            order.begin(tokens, first=sequence is self._line.sequences[0])
            self._line.sequences.remove(sequence)
            awaiting.update(self._begin(sequence).waiting)
        self._line.note(order)

    def _begin(self, sequence: DecodeSequence) -> PendingPrompt:
        if not sequence.emitted:  # else another target began it
            sequence.stats.scheduled = self._clocks.now()
        drafter, offered = sequence.drafter, self._drafting.offered
        if drafter is not None and drafter not in offered:
            others = sequence.drafters & offered.intersection(MODEL_DRAFTERS)
            reason = f"the {drafter.replace('_', ' ')} is not loaded"
            sequence.lower(sequence.own_most, offered if others else (), reason)
        cached = self._steps.target.cached_prefix(sequence.tokens[:-1]) if sequence.shares else None
        prompt = PendingPrompt(sequence, cached)
        for other in self._line.sequences:
            prompt.compare(other)
        self._prompts.append(prompt)
        return prompt

    def _run_slices(self, step_seconds: float | None) -> None:
        began, seconds_left = self._clocks.timer(), max(0.0, self.drain_until - self._clocks.now())
        planned: PromptSlice | None = self._planner.first(self._candidates, step_seconds, seconds_left)
        while planned is not None:
            current = self._open_shared(planned)
            rest = current.tokens - current.left
            self._run_slice(current)
            seconds = self._clocks.timer() - began
            planned = self._planner.following(self._candidates, current.step_seconds, rest, seconds=seconds)

    @property
    def _candidates(self) -> list[PendingPrompt]:
        return [prompt for prompt in self._in_turn if prompt.sequence not in self._ready]

    def _open_shared(self, planned: PromptSlice) -> PromptSlice:
        """Opens the sequences that may share a forward. Returns the slice without sequences that have a cached prefix;
        if the first one has a cached prefix, the slice is for it alone."""
        first, *others = planned.prompts
        if not others:
            return planned
        for prompt in planned.prompts:
            prompt.position = self._open(prompt.sequence)
        prompts = [first] if first.position else [prompt for prompt in planned.prompts if not prompt.position]
        return planned._replace(prompts=prompts)

    def _run_slice(self, current: PromptSlice) -> None:
        """Runs a slice for the target, or for the drafter once the target has the whole prompt."""
        count_passed(self._prompts, current.prompts)
        computed = not current.prompts[0].done
        if computed:
            self._run_target(current)
        for prompt in current.prompts:
            if prompt.done and not prompt.sequence.ended and self._joins(prompt, current, computed):
                self._ready.append(prompt.sequence)

    def _run_target(self, current: PromptSlice) -> None:
        begins = not any(prompt.position for prompt in current.prompts)
        before, began = self.prefilled_tokens, self._clocks.timer()
        try:
            self._prefill(current.prompts, current.tokens)
        except Exception as error:
            self._fail(current.prompts, error)
        else:
            tokens, whole = self.prefilled_tokens - before, begins and current.prompts[0].done
            self._planner.learn(current, tokens, self._clocks.timer() - began, whole=whole)

    def _fail(self, prompts: Sequence[PendingPrompt], error: Exception) -> None:
        """Ends the sequence. If several shared the forward, each is tried again by itself: any may be at fault."""
        if len(prompts) == 1:
            prompts[0].sequence.end(FinishReason.ERROR, f"prefill failed: {error}")
            return
        self._steps.target.close([prompt.sequence.id for prompt in prompts])
        for prompt in prompts:
            prompt.position, prompt.done, prompt.alone = None, False, True

    def _joins(self, prompt: PendingPrompt, current: PromptSlice, computed: bool) -> bool:
        """Returns whether a prefilled sequence joins the running ones; its drafter may have to prefill the prompt
        first. If the target `computed` a slice in this step while sequences run, the drafter's slice comes in a later
        step."""
        sequence = prompt.sequence
        wanted = sequence.drafter and self._drafted_for(sequence, len(current.prompts) == 1 and not self._ready)
        if not wanted or not (drafter := sequence.first_drafter):
            return True
        if computed and (current.step_seconds is not None or drafter_waits(prompt, self._candidates)):
            return False
        return self._prefill_drafter(prompt, drafter, current.step_seconds)

    def _prefill_drafter(self, prompt: PendingPrompt, drafter: DrafterName, step_seconds: float | None) -> bool:
        """Runs one slice for the drafter. Returns True if it has the whole prompt, or if it fails."""
        rate, began = self._planner.rate(prompt, drafter), self._clocks.timer()
        tokens = rate.tokens(step_seconds)
        try:
            done = self._drafting.drafters[drafter].prefill(prompt.sequence, tokens)
        except Exception as error:
            self._drafting.handle_failure(prompt.sequence, str(error))
            return True
        seconds = self._clocks.timer() - began
        self._shares.charge_prefill(prompt.sequence, seconds)
        if not done and step_seconds is not None:
            rate.learn(tokens, seconds)
        return done

    def _prefill(self, prompts: Sequence[PendingPrompt], tokens: int) -> bool:
        """Lets the target prefill up to `tokens` tokens of one prompt, or several whole prompts. Returns True once the
        prompts are complete; the first token of each answer is then sent."""
        began, entries = self._clocks.timer(), [self._plan_entry(prompt, tokens) for prompt in prompts]
        results = {result.sequence: result for result in self._steps.result(self._steps.submit(entries)).entries}
        seconds, computed = self._clocks.timer() - began, sum(len(entry.tokens) for entry in entries)
        self.prefilled_tokens += computed
        for prompt, entry in zip(prompts, entries, strict=True):
            self._shares.charge_prefill(prompt.sequence, seconds * len(entry.tokens) / computed)
            self._drafting.feed(prompt.sequence, results[prompt.sequence.id].features)
        if not prompts[0].done:
            return False
        for prompt in prompts:
            self._send_first(prompt.sequence, results[prompt.sequence.id], seconds)
        for prompt in prompts:  # the others are closed, which keeps theirs
            if not prompt.sequence.ended:
                self._keep(prompt.sequence)
        return True

    def _plan_entry(self, prompt: PendingPrompt, tokens: int) -> PlanEntry:
        """Returns the entry of the prompt's next tokens, and forks the target's caches where others wait for that."""
        start = self._open(prompt.sequence) if prompt.position is None else prompt.position
        text = prompt.sequence.tokens
        end = slice_end(start, tokens, len(text), self._steps.target.slice_width)
        for length in prompt.forks(end):
            self._steps.target.fork(prompt.sequence.id, length)
        prompt.position, prompt.done = end, end == len(text)
        return PlanEntry(prompt.sequence.id, start, tuple(text[start:end]), wanted=prompt.done)

    def _send_first(self, sequence: DecodeSequence, result: EntryResult, seconds: float) -> None:
        """Sends the token that follows the prompt, unless the sequence has ended."""
        assert result.following is not None
        reason = FinishReason.ERROR if result.error else self._cancelled().get(sequence.request.id)
        if reason is not None:
            sequence.end(reason, result.error)
        if sequence.ended:
            return
        now = self._clocks.now()
        sequence.stats.prefilled = sequence.stats.prefilled or now
        if sequence.wants_prompt:
            self._delivery.send_prompt(sequence, result.prompt)
        if not sequence.max_tokens:
            sequence.end(FinishReason.LENGTH)
            return
        first = SequenceStep(0, [], result.following, 0, logprobs=result.logprobs)
        self._delivery.send_tokens(sequence, first, DecodeStep([first], 0.0, seconds, []), now)

    def _open(self, sequence: DecodeSequence) -> int:
        """Opens the sequence on the target; returns the length of its cached prefix."""
        text, request, target = sequence.tokens, sequence.request, self._steps.target
        options = SequenceOptions(
            prompt=len(request.prompt) - request.answered,
            length=len(text),
            sampling=sequence.sampling,
            prefix=tuple(text) if sequence.shares else (),
            reusable=self._drafting.reusable_prefix(sequence, target),
            ends=tuple(sorted(self._delivery.end_tokens(request))),
            min_tokens=request.min_tokens,
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs if sequence.wants_prompt else None,
            grammar=request.grammar,
        )
        cached = target.open(sequence.id, options)
        self._drafting.begin(sequence, cached or 0)
        if not sequence.emitted:
            if cached is not None:
                sequence.stats.looked_up, sequence.stats.cached_tokens = True, cached
            sequence.proposals.report_opened(cached or 0)
        return cached or 0
