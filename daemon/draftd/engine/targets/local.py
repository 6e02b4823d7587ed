"""The target on this machine: its model, and all sequences' caches, ids and random generators.

A plain step is dispatched when it is submitted and read when its result is asked for, as in mlx-lm: the next forward
may start before this one's tokens are read, and continues from them unread.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import mlx.core as mx

from draftd.engine.cache.alone_mode import is_exact, tokens_alone
from draftd.engine.cache.base import places_after
from draftd.engine.cache.layouts import make_caches
from draftd.engine.cache.prefill import Prefill
from draftd.engine.cache.prefix_store import PrefixCache
from draftd.engine.cache.slices import slices_of
from draftd.engine.drafters.base import Draft
from draftd.engine.features import Features
from draftd.engine.sampling.grammar import GrammarMasks, GrammarState
from draftd.engine.sampling.logprobs import PromptLogprobs
from draftd.engine.sampling.processors import Processor, needs_processor
from draftd.engine.sampling.transforms import Sampling
from draftd.engine.step import EntryResult, PlanEntry, StepPlan, StepResult
from draftd.engine.targets.base import SequenceOptions
from draftd.engine.targets.choice import NOT_FINITE, StepChoice, TargetSequence
from draftd.engine.targets.replay import ReplayingCaches, RestingRow
from draftd.models.grammar import Grammars

_TIDY_STEPS = 256  # MLX keeps freed buffers for reuse; they are dropped from time to time, as mlx-lm does

_Read = Callable[[], list[EntryResult]]  # waits for part of a step


class LocalTarget:
    """The `Target` of a local model. The running sequences are the rows of the caches, in the order in which they began
    to run, initially or after a rest."""

    def __init__(
        self,
        model: Any,
        vocabulary: int,
        prefix: PrefixCache | None = None,
        dice: Callable[[], random.Random] = random.Random,
        grammars: Grammars | None = None,
    ) -> None:
        """`prefix` keeps the prefixes of finished texts. `dice`: makes a generator for each new sequence. `grammars`:
        None if no sequence has one."""
        self.model, self._vocabulary, self._dice, self._grammars = model, vocabulary, dice, grammars
        self._masks = None if grammars is None else GrammarMasks(vocabulary, grammars.vocabulary)
        self._prefix_cache = prefix or PrefixCache()
        self._begin()

    def _begin(self) -> None:
        caches = make_caches(self.model)
        self._batch = ReplayingCaches(caches)  # of the running sequences
        # Prefilling texts, and the prefix cache.
        self.texts = Prefill(caches, self._prefix_cache.store(caches), slices_of(self.model))
        self._sequences: dict[int, TargetSequence] = {}
        self._running: list[int] = []
        self._resting: dict[int, RestingRow] = {}
        self._sampling: Sampling | None = None  # of the running sequences; None after they changed
        self._submitted: deque[tuple[StepPlan, list[_Read], int]] = deque()  # with the computed width
        self._unread: mx.array | None = None  # rows × 1: the latest plain step's choices, until they are read
        self._plain = 0  # unread plain steps

    def open(self, sequence: int, options: SequenceOptions) -> int | None:
        grammar = None
        if options.grammar and self._grammars is not None:
            grammar = GrammarState(self._grammars.matcher(options.grammar), self._grammars.end_ids)
        prompt = None if options.prompt_logprobs is None else PromptLogprobs(options.prompt_logprobs, self._vocabulary)
        own_bounds = {"prompt": options.prompt, "most": options.reusable}
        cached = self.texts.open(sequence, options.length, options.prefix, computed=prompt is not None, **own_bounds)
        ids = list(options.prefix[: cached or 0])
        state = self._sequences[sequence] = TargetSequence(options, ids, self._dice(), grammar=grammar, prompt=prompt)
        if needs_processor(options.sampling, options.min_tokens):
            state.processor = Processor(
                options.sampling, options.min_tokens, options.ends, ids, options.prompt, self._vocabulary
            )
        return cached

    def cached_prefix(self, tokens: Sequence[int]) -> int | None:
        return self.texts.known_length(tokens) if self.texts.store.open else None

    @property
    def slice_width(self) -> int:
        return self.texts.slices.width

    def fork(self, sequence: int, length: int) -> None:
        self.texts.fork(sequence, length)

    def submit(self, plan: StepPlan) -> None:
        taking = [entry for entry in plan.entries if entry.tokens]
        with_logprobs = [entry.sequence for entry in taking if self._sequences[entry.sequence].prompt is not None]
        alone = [entry.sequence for entry in taking] if is_exact(self.model) else with_logprobs
        parts = [self._take_in(entries) for entries in _forwards(taking, alone)]
        width = max([len(entry.tokens) for entry in plan.entries])
        running = [entry for entry in plan.entries if not entry.tokens]
        if running:
            draft = plan.draft
            parts.append(self._advance(running) if draft is None else self._verify(running, draft, plan.sampling))
            width = max(width, self._batch.width)
        self._submitted.append((plan, parts, width))

    def results(self) -> Iterator[StepResult]:
        while self._submitted:
            plan, parts, width = self._submitted.popleft()
            entries = [entry for read in parts for entry in read()]
            if plan.step % _TIDY_STEPS == 0:
                mx.clear_cache()
            yield StepResult(plan.step, entries, width)

    def keep(self, sequence: int, length: int, *, last: bool = False) -> None:
        state = self._sequences.get(sequence)
        if state is None:
            return
        if sequence in self.texts:
            self.texts.keep(sequence, state.ids[:length])
        elif last or self._batch.caches.segmented:
            caches, row = self._batch.caches, 0
            if sequence in self._resting:
                caches = self._resting[sequence].caches
            else:
                row = self._running.index(sequence)
            # The cache may exceed the text by tokens accepted beyond its end, or by one that was not sent.
            length = self.texts.usable(min(caches.lengths[row], len(state.ids), length), state.options.prompt)
            self.texts.store.keep(state.ids, caches, row, length)

    def close(self, sequences: Sequence[int]) -> None:
        leaving = sorted(self._running.index(sequence) for sequence in sequences if sequence in self._running)
        for sequence in sequences:
            self._sequences.pop(sequence, None)
            self.texts.drop(sequence)
            if (rested := self._resting.pop(sequence, None)) is not None:
                rested.caches.clear()
        if not leaving:
            return
        places = places_after(len(self._running), leaving)
        self._batch.select(places)
        self._running = [self._running[i] for i in places]
        self._sampling = None
        if self._unread is not None:
            self._unread = self._unread[mx.array(places)] if places else None
        if not places:
            self._plain = 0
            remaining = (
                submitted
                for submitted in self._submitted
                if any(e.sequence in self._sequences for e in submitted[0].entries)
            )
            self._submitted = deque(remaining)

    def reset(self) -> None:
        self._clear()
        self._begin()

    def _clear(self) -> None:
        for rested in self._resting.values():
            rested.caches.clear()
        self._resting.clear()
        self.texts.clear()
        self._batch.caches.clear()
        self._prefix_cache.give_up(self.texts.store)

    @property
    def nbytes(self) -> int:
        rested = sum(text.caches.nbytes for text in self._resting.values())
        return self._batch.caches.nbytes + self.texts.nbytes + rested

    def unload(self) -> None:
        """Drops the model and all caches. No sequence may be open; nothing can be computed before `load`."""
        self._clear()
        self.model = None

    def load(self, model: Any) -> None:
        """Takes the same model, loaded again."""
        self.model = model
        self._begin()

    @property
    def lengths(self) -> list[int]:
        """Tokens in the caches of each running sequence, in the order in which they began to run."""
        return self._batch.lengths

    def pretend(self, lengths: Sequence[int]) -> bool:
        """Sets the running sequences' cache lengths without filling them, for calibration. Returns False if the layout
        cannot."""
        return self._batch.pretend(lengths)

    # prefill

    def _take_in(self, entries: list[PlanEntry]) -> _Read:
        states = [self._sequences[entry.sequence] for entry in entries]
        for entry, state in zip(entries, states, strict=True):
            assert self.texts.length(entry.sequence) == entry.position, entry
            state.ids.extend(entry.tokens)
        keys = [entry.sequence for entry in entries]
        if len(entries) > 1:
            logits = self.texts.take_in_together({entry.sequence: entry.tokens for entry in entries})
        else:
            logits = self.texts.take_in(keys[0], entries[0].tokens, states[0].prompt)
        features = [self._prompt_features(entry) for entry in entries]
        if not entries[0].wanted:
            return lambda: self._taken_in(keys, features)
        for state in states:
            state.follow()  # an answer that had already begun
        sampling = Sampling([state.options.sampling for state in states])
        choice = StepChoice(states, sampling, self._starts(entries), self._masks, logits, features)
        tokens = choice.tokens()
        return lambda: self._taken_in(keys, features, tokens, choice)

    def _prompt_features(self, entry: PlanEntry) -> Features | None:
        states = self.texts.take_states(entry.sequence)
        return None if states is None else Features(entry.position, len(entry.tokens), states)

    def _taken_in(
        self,
        keys: list[int],
        features: Sequence[Features | None],
        tokens: mx.array | None = None,
        choice: StepChoice | None = None,
    ) -> list[EntryResult]:
        open_keys = [key for key in keys if key in self._sequences]
        if not open_keys:
            return []
        if tokens is None or choice is None:
            self.texts.settle(open_keys[0], *(part.states for part in features if part is not None))
            self.texts.keep_piece(open_keys[0], self._sequences[open_keys[0]].ids)
            return [EntryResult(open_keys[0], [], None, features=features[0])]
        self.texts.settle(open_keys[0], tokens, *(part.states for part in features if part is not None))
        done, prompt = self._grown(keys, tokens, choice), self._sequences[open_keys[0]].prompt
        if prompt is not None:  # it had its own forward
            done = [
                done[0]._replace(prompt=prompt.logprobs, error=done[0].error or ("" if prompt.finite else NOT_FINITE))
            ]
            self._sequences[open_keys[0]].prompt = None
        return done

    def _grown(self, keys: Sequence[int], tokens: mx.array, choice: StepChoice) -> list[EntryResult]:
        """Adds one token to each text that is still open."""
        done = []
        for row, (key, (token,), logprobs) in enumerate(
            zip(keys, tokens.tolist(), choice.read_logprobs(), strict=True)
        ):
            state = self._sequences.get(key)
            if state is not None:
                state.ids.append(legal := choice.legal(row, token))
                done.append(EntryResult(key, [], legal, 0, logprobs, choice.error(row), features=choice.features[row]))
        return done

    def _join(self, sequences: list[int]) -> None:
        assert not self._plain, "sequences join between forwards"
        self._running = [*self._running, *self.texts.join(sequences)]
        self._batch.append(len(sequences))
        self._sampling = None

    def _rest(self, sequences: Sequence[int]) -> None:
        """Moves these sequences out of the running ones."""
        assert not self._plain, "sequences rest between forwards"
        for sequence in sequences:
            row = self._running.index(sequence)
            self._resting[sequence] = self._batch.split(row)
            del self._running[row]

    def _resume(self, sequences: Sequence[int]) -> None:
        assert not self._plain, "sequences resume between forwards"
        for sequence in sequences:
            self._batch.join(self._resting.pop(sequence))
            self._running.append(sequence)

    # decoding

    def _advance(self, entries: list[PlanEntry]) -> _Read:
        """Starts a plain step: one token for each entry."""
        self._rows(entries)
        states = [self._sequences[sequence] for sequence in self._running]
        tokens = self._unread
        if tokens is None:
            tokens = mx.array([[state.ids[-1]] for state in states], dtype=mx.uint32)
        logits, starts = self._forward(tokens, [1] * len(states)), self._starts(entries)
        sampling, features = self._own_sampling(states), self._batch.features
        choice = StepChoice(states, sampling, starts, self._masks, logits, features, unread=self._unread)
        chosen = choice.tokens()
        self._unread, self._plain = chosen, self._plain + 1
        order = self._running
        return lambda: self._finish_advance(order, chosen, choice)

    def _finish_advance(self, order: list[int], chosen: mx.array, choice: StepChoice) -> list[EntryResult]:
        mx.eval(chosen)
        self._plain -= 1
        if not self._plain:
            self._unread = None
        # No operation on `chosen` here: it would queue behind the running forward.
        done = self._grown(order, chosen, choice)
        if self._plain and choice.changed:
            self._begin_again()
        return done

    def _begin_again(self) -> None:
        """Repeats the forward that was started ahead, because a token that it continued from was forbidden by a grammar
        and has been replaced."""
        plan, _, _ = self._submitted.popleft()
        self._roll_back(self._running, [length - 1 for length in self.lengths])
        self._unread, self._plain = None, self._plain - 1
        read = self._advance(list(plan.entries))
        self._submitted.appendleft((plan, [read], self._batch.width))

    def _verify(self, entries: list[PlanEntry], draft: Draft, sampling: Sampling | None) -> _Read:
        """Runs one forward over each entry's last token and its draft."""
        assert self._unread is None, "a draft continues the text that was read"
        drafts, q = draft.tokens, draft.q
        rows = self._rows(entries)
        states = [self._sequences[sequence] for sequence in self._running]
        if rows is not None:
            drafts, sampling, q = drafts[mx.array(rows)], None, None if q is None else q[mx.array(rows)]
        sampling = sampling or self._own_sampling(states)
        depths, before = [entry.drafted for entry in entries], self.lengths
        last = mx.array([[state.ids[-1]] for state in states], dtype=mx.uint32)
        logits = self._forward(mx.concatenate([last, drafts], axis=1), [depth + 1 for depth in depths])
        starts, features = self._starts(entries), self._batch.features
        choice = StepChoice(states, sampling, starts, self._masks, logits, features, drafts=drafts, depths=depths)
        order, accepted = self._running, choice.acceptance(drafts, depths, q)
        return lambda: self._finish_verify(order, before, accepted(), choice)

    def _finish_verify(
        self, order: list[int], before: list[int], accepted: list[tuple[list[int], int]], choice: StepChoice
    ) -> list[EntryResult]:
        assert self._running is order, "nothing leaves before a draft's result is read"
        states = [self._sequences[sequence] for sequence in order]
        for state, (tokens, following) in zip(states, accepted, strict=True):
            state.ids += [*tokens, following]
        self._roll_back(order, [length + 1 + len(tokens) for length, (tokens, _) in zip(before, accepted, strict=True)])
        results = []
        for row, (sequence, (tokens, following), again, logprobs, features) in enumerate(
            zip(order, accepted, self._batch.replays, choice.read_logprobs(), choice.features, strict=True)
        ):
            width, error = len(tokens) + 1, choice.error(row, len(tokens))
            own = features and features._replace(positions=width)
            done = EntryResult(sequence, tokens, following, len(again), logprobs[:width], error, features=own)
            results.append(done)
        return results

    def _forward(self, tokens: mx.array, widths: list[int]) -> mx.array:
        if not is_exact(self.model):
            return self._batch.forward(tokens, widths)
        with tokens_alone(self.model):
            return self._batch.forward(tokens, widths)

    def _roll_back(self, sequences: Sequence[int], lengths: list[int]) -> None:
        self._batch.roll_back(lengths, [self._sequences[sequence].ids for sequence in sequences])

    def _rows(self, entries: list[PlanEntry]) -> list[int] | None:
        """Sorts the entries into row order. Returns each row's former place, or None if the order was right."""
        order = [entry.sequence for entry in entries]
        rows = None
        if order != self._running:
            self._has_run(order)
            if order != self._running:
                rows = [order.index(sequence) for sequence in self._running]
                entries[:] = [entries[i] for i in rows]
        assert [entry.position for entry in entries] == self.lengths, entries
        return rows

    def _has_run(self, sequences: Sequence[int]) -> None:
        """Makes exactly these sequences the running ones."""
        leaving = set(self._running).difference(sequences)
        resumed = [sequence for sequence in sequences if sequence in self._resting]
        joining = [sequence for sequence in sequences if sequence in self.texts]
        if leaving or resumed:
            self._running, self._sampling = list(self._running), None
            self._rest([sequence for sequence in self._running if sequence in leaving])
            self._resume(resumed)
        if joining:
            self._join(joining)

    def _starts(self, entries: Sequence[PlanEntry]) -> list[int]:
        """Returns, by entry, the tokens of the answer before the first chosen one."""
        options = [self._sequences[entry.sequence].options for entry in entries]
        return [
            entry.position + (len(entry.tokens) or 1) - option.prompt
            for entry, option in zip(entries, options, strict=True)
        ]

    def _own_sampling(self, states: Sequence[TargetSequence]) -> Sampling:
        if self._sampling is None:
            self._sampling = Sampling([state.options.sampling for state in states])
        return self._sampling


def _forwards(entries: Sequence[PlanEntry], alone: Collection[int]) -> list[list[PlanEntry]]:
    """Groups prefill entries by forward: whole prompts share one, except for sequences in `alone`; a piece of a prompt
    has its own."""
    whole = [entry for entry in entries if entry.wanted and not entry.position and entry.sequence not in alone]
    return [*([entry] for entry in entries if entry not in whole), *([whole] if whole else [])]
