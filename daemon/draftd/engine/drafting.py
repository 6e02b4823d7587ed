"""Runs the drafters that know the sequences' texts, and merges their proposals for a step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from draftd.core import GRAMMAR, PEER, DrafterName
from draftd.engine.drafters.base import Draft, Drafter, DraftSequence, Text, TextDrafter, merge
from draftd.engine.drafters.forced_tokens import ForcedTokens
from draftd.engine.features import Features
from draftd.engine.observer import EngineObserver
from draftd.engine.sampling.transforms import Sampling
from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import SequenceDraft
from draftd.engine.targets.base import Target

_log = logging.getLogger(__name__)

_COMPUTED_AGAIN = 256  # tokens of a cached prefix that the target may compute again, so that a draft head can draft
_FORGOTTEN = 64  # tokens that a drafter may lag behind a sequence that its peer drafts for


class PeerDrafter(TextDrafter):
    """Returns the tokens that another daemon proposed for a sequence. Planning the step has stored them in the
    sequence's `proposed`. Not registered, so no request can choose this drafter."""

    def continuation(self, sequence: DraftSequence, depth: int) -> list[int]:
        return [] if isinstance(sequence, Text) else list(sequence.proposed[:depth])


class LatestSampling:
    """The sampling parameters of a step's sequences, as arrays. Cached while the steps have the same sequences."""

    def __init__(self) -> None:
        self._sequences: list[int] = []
        self._sampling = Sampling([])

    def of(self, sequences: Sequence[DecodeSequence]) -> Sampling:
        """Returns the parameters, rows in the order of `sequences`."""
        numbers = [sequence.id for sequence in sequences]
        if numbers != self._sequences:
            self._sequences, self._sampling = numbers, Sampling([sequence.sampling for sequence in sequences])
        return self._sampling


class DraftDispatch:
    """Engine thread only."""

    def __init__(
        self,
        make: Callable[[], Mapping[DrafterName, Drafter]],
        vocabulary: int,
        observer: EngineObserver,
        replaced: Callable[[DrafterName], None] = lambda kind: None,
    ) -> None:
        """`make` returns new drafters by name. `replaced` is called with a name after another drafter was put under
        that name."""
        self._make, self._vocabulary, self._observer, self._replaced = make, vocabulary, observer, replaced
        self.drafters: dict[DrafterName, Drafter] = {**make(), PEER: PeerDrafter()}
        self.barred: frozenset[DrafterName] = frozenset()  # loaded, but new sequences do not get them any more

    @property
    def offered(self) -> frozenset[DrafterName]:
        """The drafters that new sequences may use."""
        return frozenset(self.drafters) - self.barred

    @property
    def nbytes(self) -> int:
        """Bytes of the drafters' key-value caches."""
        return sum(drafter.nbytes for drafter in self.drafters.values())

    def put(self, kind: DrafterName, drafter: Drafter) -> None:
        """Puts a drafter under a name, from the next step on, and closes the former one. The new drafter must have
        prefilled the running sequences that use the name with a fixed depth."""
        self.remove(kind)
        self.drafters[kind] = drafter
        self._replaced(kind)

    def remove(self, kind: DrafterName) -> None:
        """Forgets a drafter that no sequence uses."""
        drafter = self.drafters.pop(kind, None)
        if drafter is not None:
            drafter.close()

    def leave(self, sequence: DecodeSequence) -> None:
        """Makes every drafter forget this sequence."""
        for drafter in self.drafters.values():
            drafter.leave(sequence)

    def feed(self, sequence: DecodeSequence, features: Features | None) -> None:
        """Gives the hidden states of a step to the drafters that draft from them. A drafter that fails with them
        forgets the sequence."""
        if features is None or sequence.ended:
            return
        for drafter in self.heads_of(sequence):
            try:
                drafter.feed(sequence, features)
            except Exception as error:
                _log.warning("a drafter failed with a text's hidden states: %s", error)
                drafter.leave(sequence)

    def heads_of(self, sequence: DecodeSequence) -> list[Drafter]:
        """Returns the drafters that the sequence may use and that draft from the target's hidden states."""
        drafters = (self.drafters.get(kind) for kind in sequence.drafters)
        return [drafter for drafter in drafters if drafter is not None and drafter.fed]

    def begin(self, sequence: DecodeSequence, cached: int) -> None:
        """Tells the drafters that draft from hidden states that the target has begun a sequence, with `cached` tokens
        from its prefix cache."""
        for drafter in self.heads_of(sequence):
            try:
                drafter.begin(sequence, cached)
            except Exception as error:
                _log.warning("a drafter failed with the beginning of a text: %s", error)
                drafter.leave(sequence)

    def reusable_prefix(self, sequence: DecodeSequence, target: Target) -> int | None:
        """Returns how many tokens the sequence is to take from the target's prefix cache: as many as its drafters need
        no hidden states of. None: all, also if that would cost too many tokens."""
        drafters, tokens = self.heads_of(sequence) if sequence.shares else [], sequence.tokens
        cached = target.cached_prefix(tokens[:-1]) if drafters else None
        if cached is None:
            return None
        bound = min(drafter.known_prefix(tokens[:cached]) for drafter in drafters)
        reusable = cached if bound == cached else target.cached_prefix(tokens[:bound]) or 0
        return reusable if cached - reusable <= _COMPUTED_AGAIN else None

    def forget(self, sequences: Sequence[DecodeSequence]) -> None:
        """Drops sequences from their local drafter if their peers propose tokens and the drafter lags over 64 tokens
        behind: catching up would be a long prefill."""
        for sequence in sequences:
            drafter = self.drafters.get(sequence.plan.drafter or PEER) if sequence.proposed else None
            if drafter is not None and (drafter.behind(sequence) or 0) > _FORGOTTEN:
                drafter.leave(sequence)

    def handle_failure(self, sequence: DecodeSequence, message: str) -> None:
        """Degrades a sequence whose drafter failed: it goes on autoregressively, or with its peer's proposals."""
        failed = sequence.latest_drafter
        sequence.degrade(f"the drafter failed: {message}")
        self.leave(sequence)
        sequence.take_proposals()
        self._observer.on_drafter_error(sequence.request, failed, message)

    def reset(self) -> None:
        """Replaces all drafters by new ones without sequences, as no cache can be trusted."""
        for drafter in self.drafters.values():
            drafter.close()
        self.drafters = {**self._make(), PEER: PeerDrafter()}

    def propose(
        self, sequences: Sequence[DecodeSequence], wanted: Sequence[SequenceDraft], sampling: Sampling
    ) -> tuple[Draft | None, list[tuple[DecodeSequence, str]]]:
        """Asks each drafter for its sequences. Returns the merged draft (None if nothing was proposed), and the
        sequences whose drafter failed, each with the error's message, for `handle_failure`. `wanted`, `sampling`: an
        entry or row for each of `sequences`."""
        groups: dict[DrafterName, list[int]] = {}
        for i, (sequence, (depth, kind, _)) in enumerate(zip(sequences, wanted, strict=True)):
            if depth > 0 and kind is not None:
                sequence.latest_drafter = kind
                groups.setdefault(kind, []).append(i)
        parts: list[tuple[list[int], Draft]] = []
        errors: list[tuple[DecodeSequence, str]] = []
        for kind, members in groups.items():
            drafting = [sequences[i] for i in members]
            own = sampling if len(drafting) == len(sequences) else sampling.select(members)
            try:
                depths = [wanted[i].depth for i in members]
                parts.append((members, self.drafters[kind].propose(drafting, depths, own)))
            except Exception as error:
                errors += [(sequence, str(error)) for sequence in drafting]
        return self._cut(sequences, merge(parts, len(sequences), self._vocabulary, sampling.deterministic)), errors

    def _cut(self, sequences: Sequence[DecodeSequence], draft: Draft | None) -> Draft | None:
        """Cuts proposals before the first token that a sequence's grammar forbids: the target would reject it. A
        sampled forbidden token stays, because its correction is drawn from the residual of p and q."""
        grammar = self.drafters.get(GRAMMAR)
        bound = [i for i, sequence in enumerate(sequences) if sequence.request.grammar]
        if draft is None or not bound or not isinstance(grammar, ForcedTokens):
            return draft
        depths, tokens = list(draft.depths), draft.tokens.tolist()
        for i in bound:
            drawn = draft.q is not None and not sequences[i].sampling.deterministic
            depths[i] = min(grammar.legal(sequences[i], tokens[i][: depths[i]]) + drawn, depths[i])
        deepest = max(depths)
        if not deepest:
            return None
        q = None if draft.q is None else draft.q[:, :deepest]
        return replace(draft, tokens=draft.tokens[:, :deepest], depths=depths, q=q)
