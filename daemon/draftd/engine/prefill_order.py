"""Decides which waiting sequence begins, whose slice of a prompt is next, and how long it is.

Values in, decisions out: no target, no clock. prefilling.py carries the decisions out.

Running sequences wait for each slice of a prompt. A prompt that `slice_seconds` are enough for is prefilled whole:
every slice is a forward of its own, and a batch that is full sooner gains more than the wait costs. A longer prompt has
slices of a share of a step's time, so that gaps between tokens do not double. Up to `MOST_PREFILLING` prompts are
prefilled at a time. Each slice goes to the one with the least left, so that a short prompt need not wait for a long
one. A prompt that was passed over `PATIENCE` times comes first: each has at least one slice in every `PATIENCE +
MOST_PREFILLING`, whatever else arrives. A sequence for which there is no memory waits (admission.py). Where two prompts
begin alike, the second waits until the first has the common part, and reads that from the prefix cache, unless it
computes that as fast itself.

Short prompts of about the same length share a forward. Where nothing runs, as many are prefilled as one long slice
could take: they run together, and the next prompts find nothing running again. Where all running sequences end soon,
all prompts wait for that. While the engine drains, slices are as short as if steps ran that end with the drain."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple
from weakref import WeakKeyDictionary

from draftd.core import DrafterName
from draftd.engine.cache.trie import alike
from draftd.engine.sequence import DecodeSequence

MOST_PREFILLING = 4  # prompts at a time; the last place is for one that is shorter than what is left of the others
PATIENCE = 4  # slices in a row that other prompts may have
MOST_OVERTAKEN = 16  # times that a sequence for which there is no memory is overtaken
MOST_HELD_BACK = 8  # sequences without memory that a step looks at

LEAST_SLICE = 16  # tokens: a forward of fewer costs about as much
_SHARE = 0.7  # of a step: with a slice before every step, gaps between tokens do not double
_FASTER, _SLOWER = 2.0, 0.5  # the factors by which one measurement changes a rate at most
_WEIGHT = 0.5  # of the newest measurement: attention makes later slices of a prompt dearer than earlier ones

_PADDED = 32  # tokens: computing so many for nothing takes as long as the forward that is saved
_CHUNKS = 4  # of prompts that begin where nothing runs: more of them are of like length, and share a forward
_PEERS_STEP = 0.15  # seconds: a long prompt of a peer has slices as if such steps ran beside it
_ENDING = 4  # tokens that sequences which end soon have left at most

_WHOLE = 64  # tokens: a shorter prompt is computed as fast as it is kept and found
_PART = 256  # tokens, where more of the prompt follows: prompts that share fewer may share a forward instead


@dataclass(slots=True, eq=False, weakref_slot=True)
class PendingPrompt:
    """A sequence whose prompt is being prefilled, and the sequences that wait for it because their prompts begin with
    the same tokens."""

    sequence: DecodeSequence
    cached: int | None = None  # tokens that the prefix cache had when it began; None if others read nothing of it
    position: int | None = None  # tokens that the target has; None before it knows the sequence
    done: bool = False  # it has all of them, and has chosen the token that follows
    alone: bool = False  # a forward that it shared failed
    passed: int = 0  # slices that others had since it had one
    shared: dict[DecodeSequence, int] = field(default_factory=dict)  # tokens that waiting ones begin with as it does

    @property
    def left(self) -> int:
        """Tokens that the target has not prefilled."""
        return 0 if self.done else len(self.sequence.tokens) - (self.position or 0)

    @property
    def uncached(self) -> int:
        """Tokens that the prefix cache did not have when it began."""
        return len(self.sequence.tokens) - (self.cached or 0)

    @property
    def least_left(self) -> int:
        """Tokens left until the shortest prompt is complete, among this one and those that wait for it. Slices go by
        this number, so that a longer prompt never delays a shorter one that waits for it."""
        shortest = min((len(sequence.tokens) for sequence in self.waiting), default=len(self.sequence.tokens))
        return min(self.left, shortest - (self.position or 0))

    @property
    def waiting(self) -> list[DecodeSequence]:
        """The sequences that wait for a shared beginning which this prompt has not prefilled yet."""
        if self.done or not self.shared:
            return []
        reached = self._reached
        return [sequence for sequence, n in self.shared.items() if n > reached and not sequence.ended]

    def forks(self, end: int) -> set[int]:
        """Returns the lengths, after the position and up to `end`, of beginnings that other sequences wait for."""
        return {length for sequence in self.waiting if (length := self.shared[sequence]) <= end}

    def compare(self, sequence: DecodeSequence) -> None:
        """Lets a sequence that has not begun wait for this one, if both texts begin with the same tokens."""
        first, text = self.sequence.tokens, sequence.tokens
        if self.cached is None or self.done or not sequence.shares or sequence.wants_prompt:
            return
        reached = self._reached
        if first[reached : reached + _WHOLE] != text[reached : reached + _WHOLE]:
            return
        most = len(text) - 1  # the last token is computed in any case
        shared = min(alike(first, text), most)
        if shared - reached >= (_WHOLE if shared == most else _PART):
            self.shared[sequence] = shared

    @property
    def _reached(self) -> int:
        return max(self.cached or 0, self.position or 0)  # a prompt that is scored begins without what is cached


class BeginOrder:
    """Decides which waiting sequences begin in a step. The caller offers them in the order of the queue, and they begin
    in this order, with two exceptions.

    The last place is kept for a prompt shorter than what is left of the others. A sequence without memory waits, and
    later ones overtake it, but only 16 times in a row. Short prompts have more places."""

    def __init__(self, left: Sequence[int], room: int, chunk: int, *, running: bool, overtaken: int) -> None:
        """`left`: tokens to prefill of each prompt that has begun. `room`: the most prompts that may be prefilled at
        once. `running`: whether sequences decode. `overtaken`: how often the first sequence of the queue was overtaken
        for lack of memory."""
        self._left, self._room, self._chunk = list(left), room, chunk
        self._spare = chunk * (1 if running else _CHUNKS) - sum(left)  # tokens that short prompts may have together
        self._closed = False
        self.overtaken = overtaken
        self.held_back = 0  # sequences that there was no memory for

    @property
    def closed(self) -> bool:
        """Whether none of the sequences that follow in the queue may begin."""
        return self._closed or len(self._left) >= self._room or self.held_back >= MOST_HELD_BACK

    def allows(self, tokens: int) -> bool:
        """Returns whether the next prompt of the queue, which has `tokens`, may begin if there is memory for it."""
        self._spare -= tokens
        if len(self._left) >= MOST_PREFILLING and (self._spare < 0 or tokens > self._chunk // _CHUNKS):
            self._closed = True
        elif self._spare < 0 and len(self._left) == MOST_PREFILLING - 1 and tokens >= min(self._left):
            return False
        elif self.held_back and self.overtaken >= MOST_OVERTAKEN:
            self._closed = True
        return not self._closed

    def begin(self, tokens: int, *, first: bool) -> None:
        """Counts a sequence that begins. `first`: no other was before it in the queue."""
        self.overtaken = 0 if first else self.overtaken + bool(self.held_back)
        self._left.append(tokens)


def end_soon(running: Collection[DecodeSequence]) -> bool:
    """Returns whether all running sequences end within a few steps. A peer's does not: its next step may be far off."""
    return bool(running) and all(sequence.remaining <= _ENDING and not sequence.of_peer for sequence in running)


def slice_end(start: int, tokens: int, length: int, width: int) -> int:
    """Returns the end of a slice of about `tokens` tokens: the last multiple of `width` in it, or the next one if it
    has none; or `length`."""
    end = start + tokens
    return min(max(end - end % width, start - start % width + width), length) if end < length else length


def drafter_waits(prompt: PendingPrompt, prompts: Sequence[PendingPrompt]) -> bool:
    """Returns whether a prompt's drafter must wait. It waits if one of `prompts` begins with the same tokens, and the
    same drafter has not prefilled that prompt yet: the prompts then share the prefix."""
    sequence = prompt.sequence
    before = (other.sequence for other in prompts if other.done and sequence in other.shared)
    return prompt.done and any(other.first_drafter == sequence.first_drafter for other in before)


def next_prompt(prompts: Sequence[PendingPrompt]) -> PendingPrompt:
    """Returns the prompt that was passed over too often, the longest ago first; else the prompt with the least left,
    counting those that wait for it (`least_left`). FIFO among equals."""
    candidates = [prompt for prompt in prompts if not drafter_waits(prompt, prompts)]
    most_passed = max(candidates, key=lambda prompt: prompt.passed)
    if most_passed.passed >= PATIENCE:
        return most_passed
    return min(candidates, key=lambda prompt: prompt.least_left)


def count_passed(prompts: Sequence[PendingPrompt], chosen: Sequence[PendingPrompt]) -> None:
    """Updates each prompt's `passed` after a slice: 0 for the `chosen` prompts, one more for the others."""
    for prompt in prompts:
        prompt.passed = 0 if prompt in chosen else prompt.passed + 1


def share_forward(first: PendingPrompt, prompts: Sequence[PendingPrompt], tokens: int) -> list[PendingPrompt]:
    """Returns the first prompt, and the other `prompts` that share its forward.

    Prompts can share if nothing of them was prefilled yet and no other prompt waits for their prefixes. The others are
    not shorter than the first, and all together have at most `tokens`."""
    if not _may_share(first):
        return [first]
    others = [prompt for prompt in prompts if prompt is not first and _may_share(prompt) and prompt.left >= first.left]
    chosen = [first, *sorted(others, key=lambda prompt: prompt.left)]
    for size, (prompt, longer) in enumerate(pairwise(chosen), 1):
        tokens -= prompt.left
        if longer.left > tokens or size * (longer.left - prompt.left) > _PADDED:
            return chosen[:size]
    return chosen


def _may_share(prompt: PendingPrompt) -> bool:
    return prompt.position is None and not prompt.alone and not prompt.waiting and not prompt.sequence.ended


class PromptSlice(NamedTuple):
    """A slice to prefill: up to `tokens` tokens of one prompt, or all of several that share a forward."""

    prompts: Sequence[PendingPrompt]
    tokens: int
    step_seconds: float | None  # the time of a step that it may have a share of; None where no sequence waits for it

    @property
    def left(self) -> int:
        """Tokens of these prompts that the target has not prefilled."""
        return sum(prompt.left for prompt in self.prompts)


class SliceRate:
    """Learns how long slices of one prompt may be, for one model. The rate, in tokens per second, is that of slices,
    not of whole chunks: a forward has a fixed cost, which weighs more on few tokens."""

    def __init__(self, chunk: int, seconds: float, first: SliceRate | None = None) -> None:
        """`chunk`: most tokens of a slice. `seconds`: the longest that a slice may take while sequences run. `first`:
        the rate of all prompts' first slices; this rate starts from its value, and this prompt's first slice updates
        both."""
        self._chunk, self._seconds, self._first = chunk, seconds, first
        self._rate: float | None = None if first is None else first._rate  # tokens a second

    def tokens(self, step_seconds: float | None) -> int:
        """Returns the length of the next slice beside steps of `step_seconds`; None where no sequence runs."""
        if step_seconds is None:
            return self._chunk
        least = min(LEAST_SLICE, self._chunk)
        if self._rate is None:
            return least
        return max(least, min(int(self._rate * self.limit(step_seconds)), self._chunk))

    def fits(self, tokens: int, seconds: float) -> bool:
        """Returns whether a slice of `tokens` would take at most `seconds`; False while the rate is unknown."""
        return self._rate is not None and tokens <= self._chunk and max(tokens, LEAST_SLICE) <= self._rate * seconds

    def limit(self, step_seconds: float) -> float:
        """Returns the seconds that a slice may take beside steps of `step_seconds`."""
        return min(self._seconds, _SHARE * step_seconds)

    def learn(self, tokens: int, seconds: float) -> None:
        """Learns from a slice of `tokens` that took `seconds`."""
        if seconds <= 0:
            return
        if self._first is not None:
            self._first.learn(tokens, seconds)
            self._first = None
        measured = tokens / seconds
        if self._rate is None:
            self._rate = measured
            return
        measured = max(self._rate * _SLOWER, min(measured, self._rate * _FASTER))
        self._rate += _WEIGHT * (measured - self._rate)


class SlicePlanner:
    """Plans slices of prompts, and learns how long they take. In all methods, a drafter of None means the target."""

    def __init__(self, chunk: int, slice_seconds: float) -> None:
        self.chunk, self._slice_seconds = chunk, slice_seconds
        self._whole = SliceRate(chunk, slice_seconds)  # of prompts that were prefilled in one forward
        self._first: dict[DrafterName | None, SliceRate] = {}  # of prompts' first slices
        self._own = WeakKeyDictionary[PendingPrompt, dict[DrafterName | None, SliceRate]]()

    def first(
        self, prompts: Sequence[PendingPrompt], step_seconds: float | None, seconds_left: float = math.inf
    ) -> PromptSlice:
        """Returns the first slice of a step. `step_seconds`: the time of a decode step; None if no sequence runs.
        `seconds_left`: until the end of the drain."""
        if seconds_left < math.inf:
            step_seconds = min(seconds_left, math.inf if step_seconds is None else step_seconds)
        prompt = next_prompt(prompts)
        rate = self.rate(prompt, None)
        if prompt.sequence.of_peer:
            if step_seconds is None and prompt.left > self.chunk // _CHUNKS:
                step_seconds = _PEERS_STEP  # a client that comes meanwhile is to wait no longer than if it ran
        elif step_seconds is not None and self._fits_whole(prompt, seconds_left):
            step_seconds = math.inf
        tokens = rate.tokens(step_seconds)
        if step_seconds == math.inf:
            tokens = max(tokens, self._whole.tokens(step_seconds))
        return PromptSlice(share_forward(prompt, prompts, tokens), tokens, step_seconds)

    def following(
        self, prompts: Sequence[PendingPrompt], step_seconds: float | None, rest: int, seconds: float
    ) -> PromptSlice | None:
        """Returns another slice for the same step, or None. `rest`: tokens that the last slice left over. `seconds`:
        the time since the first slice began.

        With `step_seconds` None no running sequence waits: the slice is the shortest prompt and those that share its
        forward, if they fit whole into `rest`. Else it is the shortest prompt, if the rest of a slice's time suffices
        for all of it."""
        unfinished = [prompt for prompt in prompts if not prompt.sequence.ended]
        if step_seconds is None:
            candidates = [prompt for prompt in unfinished if not prompt.done]
            shortest = min(candidates, key=lambda prompt: prompt.left, default=None)
            if shortest is None or shortest.left > rest:
                return None
            return PromptSlice(share_forward(shortest, prompts, rest), rest, None)
        candidates = [prompt for prompt in unfinished if not drafter_waits(prompt, prompts)]
        shortest = min(candidates, key=lambda prompt: prompt.left, default=None)
        if shortest is None:
            return None
        rate = self.rate(shortest, None if shortest.left else shortest.sequence.first_drafter)
        left = shortest.left or len(shortest.sequence.tokens)  # a drafter needs all of it
        if not rate.fits(left, rate.limit(step_seconds) - seconds):
            return None
        return PromptSlice([shortest], shortest.left, step_seconds)

    def learn(self, done: PromptSlice, tokens: int, seconds: float, *, whole: bool) -> None:
        """Learns from a slice: the target took `seconds` for `tokens`. `whole`: the slice had all tokens of its prompts
        that were not cached."""
        if tokens >= min(LEAST_SLICE, self.chunk) and (whole or done.step_seconds is not None):
            (self._whole if whole else self.rate(done.prompts[0], None)).learn(tokens, seconds)

    def rate(self, prompt: PendingPrompt, drafter: DrafterName | None) -> SliceRate:
        """Returns a prompt's rate for the drafter, made at the first call. Each prompt has its own rate, because tokens
        take longer the more of the prompt is prefilled."""
        rates = self._own.setdefault(prompt, {})
        if drafter not in rates:
            rates[drafter] = SliceRate(self.chunk, self._slice_seconds, self._first_rate(drafter))
        return rates[drafter]

    def _fits_whole(self, prompt: PendingPrompt, seconds_left: float) -> bool:
        """Returns whether running sequences may wait until the whole prompt is prefilled. The speed is that of earlier
        whole prompts, or of first slices, which is a worse guess but may be all that is known."""
        seconds = min(self._slice_seconds, seconds_left)
        return any(rate.fits(prompt.uncached, seconds) for rate in (self._whole, self._first_rate(None)))

    def _first_rate(self, drafter: DrafterName | None) -> SliceRate:
        return self._first.setdefault(drafter, SliceRate(self.chunk, self._slice_seconds))
