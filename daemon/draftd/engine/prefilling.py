"""Waiting and prefilling sequences: whose prompt is prefilled next, and how much of it.

Running sequences wait for each slice of a prompt. A prompt that `slice_seconds` are enough for is prefilled whole:
every slice is a forward of its own, and a batch that is full sooner gains more than the wait costs. Of a longer one a
slice may take a share of a step's time, so that what sequences wait for their next tokens does not double. Up to
`MOST_PREFILLING` prompts are prefilled at a time, and each slice goes to the one with the least left, so that a short
prompt need not wait for a long one. One that was passed over `_PATIENCE` times comes first: each has at least one slice
in every `_PATIENCE + MOST_PREFILLING`, whatever else arrives. A sequence for which there is no memory waits
(admission.py). Where two prompts begin alike, the second waits until the first has the common part, and reads that from
the prefix store (prompt.py).

Short prompts of about the same length share a forward. Where nothing runs, as many are prefilled as one long slice
could take in: they run together, and what comes next finds nothing running again. Where all that run end soon, all
prompts wait for that. While the engine drains, slices are as short as if steps ran that end with the drain."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice, pairwise

from draftd.core import DrafterName, FinishReason, Origin
from draftd.engine.delivery import Delivery
from draftd.engine.drafting import Drafting
from draftd.engine.members import PeersTime
from draftd.engine.observer import PromptProgress
from draftd.engine.prompt import Prompt
from draftd.engine.sequence import DecodeSequence
from draftd.engine.slices import LEAST, Slices
from draftd.engine.step import DecodeStep, Entry, SequenceStep
from draftd.engine.targets.base import SequenceOptions, Steps, Target

_log = logging.getLogger(__name__)

MOST_PREFILLING = 4  # prompts at a time; the last place is for one that is shorter than what is left of the others
_PATIENCE = 4  # slices in a row that others may have
_OVERTAKEN = 16  # times that a sequence for which there is no memory is, by others
_LOOKED_AT = 8  # of those that wait for memory, in a step
_LONG = 256  # tokens: to copy so many into the running sequences' caches takes about as long as a slice

_PADDED = 32  # tokens: what is computed for nothing, where a forward is saved by it, as these take as long
_CHUNKS = 4  # of prompts that begin where nothing runs: of like length, more of them share a forward
_PEERS_STEP = 0.15  # seconds: a long prompt of a peer has slices as if such steps ran beside it
_ENDING = 4  # tokens that the running sequences have left at most, where slices wait for their end


class Prefilling:
    """Owns the sequences until they join the running ones. Engine thread only."""

    def __init__(
        self,
        target: Target,
        steps: Steps,
        drafting: Drafting,
        delivery: Delivery,
        *,
        chunk: int,
        slice_seconds: float,
        clock: Callable[[], float],
        timer: Callable[[], float],
        cancelled: Callable[[], Mapping[str, FinishReason]],
        drafted_for: Callable[[DecodeSequence, bool], bool],
        fits: Callable[[DecodeSequence, Sequence[DecodeSequence]], bool],
        peers: PeersTime,
    ) -> None:
        """`slice_seconds`: the longest that running sequences wait for a slice. `timer`: what slices are timed by.
        `drafted_for`: whether a sequence that is ready to join, by itself or with others, is worth prefilling in its
        drafter's caches first.
        `fits`: whether there is memory for a sequence beside those that are being prefilled. `peers`: says when
        prompts of peers wait, and is told what they took."""
        self._target, self._steps, self._drafting, self._delivery = target, steps, drafting, delivery
        self._drafted_for, self._fits, self._peers = drafted_for, fits, peers
        self._clock, self._timer, self._cancelled = clock, timer, cancelled
        self.drain_until = math.inf  # by the clock: no slice is to last beyond it
        self._chunk, self._slice_seconds = chunk, slice_seconds
        self._first: dict[DrafterName | None, Slices] = {}  # of prompts' first slices: what the next prompt begins with
        self._at_once = Slices(chunk, slice_seconds)  # of prompts that were prefilled in one forward
        self._waiting: deque[DecodeSequence] = deque()
        self._prompts: list[Prompt] = []  # in the order in which they came
        self._ready: list[DecodeSequence] = []  # to join after the step
        self._overtaken = 0  # times that the first of those that wait was, for want of memory
        self.joined_long = False  # a long one has joined since the last step
        self.held_back = 0  # sequences that might begin if there were memory for them
        self.prefilled_tokens = 0  # by the target, since it started

    @property
    def waiting(self) -> list[DecodeSequence]:
        """Those of which nothing has been prefilled."""
        return list(self._waiting)

    @property
    def prefilling(self) -> list[DecodeSequence]:
        """Those whose prompts are being prefilled."""
        return [prompt.sequence for prompt in self._prompts]

    @property
    def sequences(self) -> list[DecodeSequence]:
        return [*self.prefilling, *self._waiting]

    @property
    def progress(self) -> tuple[PromptProgress, ...]:
        """Of clients' prompts. An answer that is prefilled again with its prompt has none."""
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
        """Whether any of them may have a slice now."""
        return bool(self._in_turn)

    @property
    def _in_turn(self) -> list[Prompt]:
        return [prompt for prompt in self._prompts if not self._peers.holds(prompt.sequence)]

    def short(self, room: int) -> int:
        """Sequences without a token, of those that there is `room` for, that one forward can prefill whole."""
        return sum(tokens <= self._chunk for tokens in self._left(room))

    def add(self, sequence: DecodeSequence) -> None:
        """Behind those of the same priority, before those of a higher number."""
        after, priority = len(self._waiting), sequence.request.priority
        while after and self._waiting[after - 1].request.priority > priority:
            after -= 1
        self._waiting.insert(after, sequence)
        for prompt in self._prompts:
            prompt.compare(sequence)

    def step(self, room: int, running: Sequence[DecodeSequence], step_seconds: float) -> None:
        """A slice, of sequences that wait where there is `room` for that many more, and others that fit beside it. What
        steps of the `running` sequences take of late bounds it, where there are any. Those that end soon are not held
        up: what waits is prefilled faster once they are gone."""
        self._enter(room, self._chunk * (1 if running else _CHUNKS))
        if not self.in_turn or (running and all(map(_ends_soon, running))):
            return
        if self.joined_long and running:  # that was a slice's worth of work
            self.joined_long = False
            return
        self._slice(step_seconds if running else None)

    def _slice(self, step_seconds: float | None) -> None:
        began = self._timer()
        if self.drain_until < math.inf:
            step_seconds = min(self._seconds_left, math.inf if step_seconds is None else step_seconds)
        first = self._next()
        slices = self._slices_of(first, None)
        if first.sequence.of_peer:
            if step_seconds is None and first.left > self._chunk // _CHUNKS:
                step_seconds = _PEERS_STEP  # a client that comes meanwhile is to wait no longer than if it ran
        elif step_seconds is not None and self._fits_whole(first):
            step_seconds = math.inf
        size = slices.tokens(step_seconds)
        if step_seconds == math.inf:
            size = max(size, self._at_once.tokens(step_seconds))
        chosen = self._sharing(first, size)
        while chosen:
            rest = size - sum(prompt.left for prompt in chosen)
            self._turn(chosen, size, step_seconds)
            if step_seconds is None:
                chosen, size = self._whole(rest), rest
            elif fitting := self._fitting(step_seconds, self._timer() - began):
                chosen, size = [fitting], max(size, fitting.left)
            else:
                break

    def joined(self) -> list[DecodeSequence]:
        """The sequences that are ready, which now run; none that has ended since."""
        ready, self._ready = [sequence for sequence in self._ready if sequence.finish is None], []
        if ready:
            self._prompts = [prompt for prompt in self._prompts if prompt.sequence not in ready]
            self.joined_long = self.joined_long or any(len(sequence.tokens) >= _LONG for sequence in ready)
        return ready

    def retake(self, sequence: DecodeSequence) -> bool:
        """Prefills a sequence that ran, alone and at once; whether it runs again. One that fails here ends."""
        prompt = Prompt(sequence)
        try:
            while sequence.finish is None and not self._prefill([prompt], self._chunk):
                pass
        except Exception as error:
            sequence.end(FinishReason.ERROR, f"decoding failed: {error}")
        if sequence.finish is not None:
            self._close(sequence)
            return False
        return True

    def restart(self) -> None:
        """The caches are gone: all prompts are prefilled again."""
        self._waiting.extendleft(reversed(self.prefilling))
        self._prompts, self._ready = [], []

    def reap(self) -> list[DecodeSequence]:
        """Lets ended sequences go; returns them."""
        ended = [sequence for sequence in self.sequences if sequence.finish is not None]
        for sequence in ended:
            self._close(sequence)
        if ended:
            self._prompts = [prompt for prompt in self._prompts if prompt.sequence.finish is None]
            self._waiting = deque(sequence for sequence in self._waiting if sequence.finish is None)
        return ended

    def _close(self, sequence: DecodeSequence) -> None:
        self._keep(sequence)
        self._target.close([sequence.id])

    def _keep(self, sequence: DecodeSequence) -> None:
        """What was prefilled of it may serve a request that begins alike."""
        if sequence.shares:
            self._target.keep(sequence.id, len(sequence.tokens))

    # which is next

    def _left(self, room: int) -> list[int]:
        """Tokens to prefill, of the sequences without a token that there is `room` for."""
        prompts, waiting = self._in_turn, (one for one in self._waiting if not self._peers.holds(one))
        new = islice(waiting, max(0, room - len(prompts)))
        return [one.left for one in prompts if not one.done] + [len(one.tokens) for one in new]

    def _enter(self, room: int, tokens: int) -> None:
        """Lets waiting sequences begin: in their order, but for the last place, and for those there is no memory for.
        The first of these is overtaken a bounded number of times; then all wait for it. There are more places for short
        prompts, of up to `tokens` together."""
        prompts = self._in_turn
        awaiting = {sequence for prompt in prompts for sequence in prompt.waiting}
        held_back, tokens = 0, tokens - sum(prompt.left for prompt in prompts)
        for sequence in list(self._waiting):
            if len(prompts) >= room or held_back >= _LOOKED_AT:
                break
            if sequence.reads_prefix or sequence in awaiting or self._peers.holds(sequence):
                continue
            tokens -= len(sequence.tokens)
            short = len(sequence.tokens) <= self._chunk // _CHUNKS
            if len(prompts) >= MOST_PREFILLING and (tokens < 0 or not short):
                break
            if tokens < 0 and len(prompts) == MOST_PREFILLING - 1:
                least = min(prompt.left for prompt in prompts)
                if len(sequence.tokens) >= least:
                    continue
            if held_back and self._overtaken >= _OVERTAKEN:
                break
            first = sequence is self._waiting[0]
            if not self._fits(sequence, self.prefilling):
                held_back += 1
                continue
            self._overtaken = 0 if first else self._overtaken + bool(held_back)
            self._waiting.remove(sequence)
            prompts.append(prompt := self._begin(sequence))
            awaiting.update(prompt.waiting)
        if bool(held_back) != bool(self.held_back):
            _log.info("requests wait for memory" if held_back else "no request waits for memory any more")
        self.held_back = held_back

    def _begin(self, sequence: DecodeSequence) -> Prompt:
        if not sequence.emitted:  # else it was begun by another target
            sequence.stats.scheduled = self._clock()
        kind = sequence.drafter
        if kind is not None and kind not in self._drafting.offered:
            sequence.degrade(f"the {kind.replace('_', ' ')} is not loaded")
            sequence.take_proposals()
        prompt = Prompt(sequence, self._target.known(sequence.tokens[:-1]) if sequence.shares else None)
        for other in self._waiting:
            prompt.compare(other)
        self._prompts.append(prompt)
        return prompt

    def _next(self) -> Prompt:
        """The one that was passed over too often, the longest ago first; else the one with the least left, or for which
        the one with the least left waits. FIFO among equals."""
        prompts = [prompt for prompt in self._in_turn if not self._drafter_waits(prompt)]
        most = max(prompts, key=lambda prompt: prompt.passed)
        if most.passed >= _PATIENCE:
            return most
        return min(prompts, key=lambda prompt: prompt.least_left)

    def _drafter_waits(self, prompt: Prompt) -> bool:
        """Whether its drafter waits until it has prefilled another prompt, for which this one waited before."""
        if not prompt.done:
            return False
        sequence = prompt.sequence
        before = [other for other in self._in_turn if other.done and sequence in other.shared]
        return any(other.sequence.drafter == sequence.drafter for other in before if other.sequence not in self._ready)

    def _sharing(self, first: Prompt, tokens: int) -> list[Prompt]:
        """With this one, others that have one forward with it: whole prompts, none of them shorter, of which nothing
        was prefilled and for which none waits, of no more than `tokens` together."""
        if first.position is not None or first.alone or first.waiting or first.left > tokens:
            return [first]
        others = [one for one in self._in_turn if one.position is None and not one.alone and not one.waiting]
        others = [one for one in others if one is not first and one.left >= first.left and one.sequence.finish is None]
        chosen = [first, *sorted(others, key=lambda prompt: prompt.left)]
        for n, (one, other) in enumerate(pairwise(chosen), 1):
            tokens -= one.left
            if other.left > tokens or n * (other.left - one.left) > _PADDED:
                chosen = chosen[:n]
                break
        if len(chosen) > 1:
            for prompt in chosen:
                prompt.position = self._open(prompt.sequence)
        return [first] if first.position else [prompt for prompt in chosen if not prompt.position]

    def _whole(self, tokens: int) -> list[Prompt]:
        """Those with the least left that can be prefilled whole within so many tokens, and share a forward."""
        others = [one for one in self._in_turn if not one.done and one.sequence.finish is None]
        least = min(others, key=lambda prompt: prompt.left, default=None)
        return [] if least is None or least.left > tokens else self._sharing(least, tokens)

    def _fitting(self, step_seconds: float, spent: float) -> Prompt | None:
        """The one with the least left, where that fits whole into what `spent` has left of a slice's time."""
        others = [one for one in self._in_turn if one.sequence not in self._ready and one.sequence.finish is None]
        others = [one for one in others if not self._drafter_waits(one)]
        least = min(others, key=lambda prompt: prompt.left, default=None)
        if least is None:
            return None
        slices = self._slices_of(least, None if least.left else least.sequence.drafter)
        left = least.left or len(least.sequence.tokens)  # a drafter needs all of it
        return least if slices.fit(left, slices.limit(step_seconds) - spent) else None

    # slices

    def _turn(self, chosen: list[Prompt], size: int, step_seconds: float | None) -> None:
        """A slice of up to `size` tokens for the target, or once that has all of it one for the drafter. Several share
        the slice."""
        for prompt in self._prompts:
            prompt.passed = 0 if prompt in chosen else prompt.passed + 1
        worked = not chosen[0].done
        if worked:
            slices, texts = self._slices_of(chosen[0], None), sum(len(one.sequence.tokens) for one in chosen)
            left, began = sum(one.left for one in chosen), self._timer()
            try:
                self._prefill(chosen, size)
            except Exception as error:
                self._failed(chosen, error)
            else:
                taken, seconds = left - sum(one.left for one in chosen), self._timer() - began
                if taken >= min(LEAST, self._chunk) and (taken == texts or step_seconds is not None):
                    (self._at_once if taken == texts else slices).took(taken, seconds)
        for prompt in chosen:
            sequence = prompt.sequence
            if sequence.finish is not None or not prompt.done:
                continue
            if sequence.drafter is not None and self._drafted_for(sequence, len(chosen) == 1 and not self._ready):
                if worked and (step_seconds is not None or self._drafter_waits(prompt)):  # the drafter's is another
                    continue
                if not self._drafter_ready(prompt, sequence.drafter, step_seconds):
                    continue
            self._ready.append(sequence)

    def _failed(self, chosen: list[Prompt], error: Exception) -> None:
        """One of several is tried again by itself: whose fault it was is not known."""
        if len(chosen) == 1:
            chosen[0].sequence.end(FinishReason.ERROR, f"prefill failed: {error}")
            return
        self._target.close([prompt.sequence.id for prompt in chosen])
        for prompt in chosen:
            prompt.position, prompt.done, prompt.alone = None, False, True

    def _drafter_ready(self, prompt: Prompt, kind: DrafterName, step_seconds: float | None) -> bool:
        """One slice for the drafter; True where there is none left, or where it fails."""
        slices, began = self._slices_of(prompt, kind), self._timer()
        size = slices.tokens(step_seconds)
        try:
            done = self._drafting.drafters[kind].prefill(prompt.sequence, size)
        except Exception as error:
            self._drafting.failed(prompt.sequence, str(error))
            return True
        seconds = self._timer() - began
        self._peers.prefilled(prompt.sequence, seconds)
        if not done and step_seconds is not None:
            slices.took(size, seconds)
        return done

    def _fits_whole(self, prompt: Prompt) -> bool:
        """Whether running sequences may wait until all of it is prefilled. Short slices say too little of how fast
        that would be, but may be all that is known."""
        measured, seconds = (self._at_once, self._rates(None)), min(self._slice_seconds, self._seconds_left)
        return any(slices.fit(prompt.unknown, seconds) for slices in measured)

    @property
    def _seconds_left(self) -> float:
        """Until the drain's end."""
        return max(0.0, self.drain_until - self._clock())

    def _rates(self, kind: DrafterName | None) -> Slices:
        """Of prompts' first slices."""
        return self._first.setdefault(kind, Slices(self._chunk, self._slice_seconds))

    def _slices_of(self, prompt: Prompt, kind: DrafterName | None) -> Slices:
        """A prompt's own: the more of it is taken in, the more a token of the rest takes."""
        if kind not in prompt.slices:
            prompt.slices[kind] = Slices(self._chunk, self._slice_seconds, self._rates(kind))
        return prompt.slices[kind]

    def _prefill(self, chosen: list[Prompt], size: int) -> bool:
        """Up to `size` tokens of one, or all of several, by the target; True once their texts are prefilled, and the
        tokens that follow are sent."""
        started, entries = self._timer(), list[Entry]()
        for prompt in chosen:
            if prompt.position is None:
                prompt.position = self._open(prompt.sequence)
            start, text = prompt.position, prompt.sequence.tokens
            end = min(start + size, len(text)) if len(chosen) == 1 else len(text)
            for length in prompt.forks(end):
                self._target.fork(prompt.sequence.id, length)
            prompt.position = end
            prompt.done = end == len(text)
            entries.append(Entry(prompt.sequence.id, start, tuple(text[start:end]), wanted=prompt.done))
        results = {one.sequence: one for one in self._steps.result(self._steps.submit(entries)).entries}
        seconds, taken = self._timer() - started, sum(len(entry.tokens) for entry in entries)
        self.prefilled_tokens += taken
        for prompt, entry in zip(chosen, entries, strict=True):
            self._peers.prefilled(prompt.sequence, seconds * len(entry.tokens) / taken)
        if not chosen[0].done:
            return False
        for prompt in chosen:
            sequence, result = prompt.sequence, results[prompt.sequence.id]
            assert result.following is not None
            reason = FinishReason.ERROR if result.error else self._cancelled().get(sequence.request.id)
            if reason is not None:
                sequence.end(reason, result.error)
            if sequence.finish is not None:
                continue
            now = self._clock()
            sequence.stats.prefilled = sequence.stats.prefilled or now
            if sequence.wants_prompt:
                self._delivery.prompt(sequence, result.prompt)
            if not sequence.max_tokens:
                sequence.end(FinishReason.LENGTH)
            if sequence.finish is not None:
                continue
            first = SequenceStep(0, [], result.following, 0, logprobs=result.logprobs)
            self._delivery.tokens(sequence, first, DecodeStep([first], 0.0, seconds, []), now)
        for prompt in chosen:  # the others are closed, which keeps theirs
            if prompt.sequence.finish is None:
                self._keep(prompt.sequence)
        return True

    def _open(self, sequence: DecodeSequence) -> int:
        """Tells the target of it; how many tokens that has already."""
        text, request = sequence.tokens, sequence.request
        options = SequenceOptions(
            prompt=len(request.prompt) - request.answered,
            length=len(text),
            sampling=sequence.sampling,
            prefix=tuple(text) if sequence.shares else (),
            ends=tuple(sorted(self._delivery.ends(request))),
            min_tokens=request.min_tokens,
            logprobs=request.logprobs,
            prompt_logprobs=request.prompt_logprobs if sequence.wants_prompt else None,
            grammar=request.grammar,
        )
        found = self._target.open(sequence.id, options)
        if found is not None and not sequence.emitted:
            sequence.stats.looked_up, sequence.stats.cached_tokens = True, found
        if not sequence.emitted:
            sequence.proposals.report_opened(found or 0)
        return found or 0


def _ends_soon(sequence: DecodeSequence) -> bool:
    """Whether it will within a few steps. Of a peer's it is not known when the next one comes."""
    return sequence.remaining <= _ENDING and not sequence.of_peer
