"""Drafts for sequences of another daemon's target: for which, how much, and by which drafter. Texts drafted in the same
turn share the draft model's forwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from draftd.core import (
    DRAFT_HEAD,
    DRAFT_MODEL,
    GRAMMAR,
    LIGHT_DRAFT_MODEL,
    PROMPT_LOOKUP,
    TARGET,
    DepthMode,
    DrafterName,
)
from draftd.engine.drafters.base import Drafter
from draftd.engine.drafting import DraftDispatch, LatestSampling
from draftd.engine.limits import RemoteLimits
from draftd.engine.remote.mode_control import RemoteControl
from draftd.engine.remote.remote_sequence import RemoteSequence
from draftd.engine.sequence import DecodeSequence
from draftd.engine.step import DraftState, SequenceDraft
from draftd.strategies import RemoteMode

_WEIGHTLESS = (PROMPT_LOOKUP, GRAMMAR)
_MODELS = (DRAFT_MODEL, LIGHT_DRAFT_MODEL, TARGET)
_TRIAL, _TRIAL_EVERY = 4, 32  # tokens drafted without sending when drafts do not pay; how often, in tokens
_SLICE = 64  # tokens that a drafter takes in at a time while local sequences run

_Proposal = tuple[RemoteSequence, DrafterName, list[int]]  # a text, its drafter, and the tokens to send


class RemoteDrafting:
    """The drafting side of remote decoding. Engine thread only."""

    def __init__(
        self,
        drafting: DraftDispatch,
        limits: RemoteLimits,
        chunk: int,
        own: Callable[[], Drafter | None],
        clock: Callable[[], float] = time.monotonic,
        headroom: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`chunk`: tokens that a drafter takes in at a time. `own` returns a drafter that uses the local target, None
        while the target is not loaded. `headroom`: as in `Limits`; at 0 bytes or less no more texts are taken in."""
        self._drafting, self._limits, self._chunk, self._own = drafting, limits, chunk, own
        self._clock, self._headroom, self.control = clock, headroom, RemoteControl(limits)
        self._sampling = LatestSampling()

    @property
    def likeliest(self) -> DrafterName:
        """Returns the drafter that would draft for a text now."""
        return next((kind for kind in _MODELS if kind in self._drafting.drafters), PROMPT_LOOKUP)

    def may_use_target(self, sequence: DecodeSequence) -> bool:
        """Whether the local target may draft for the sequence if that pays: there is no draft model, and the depth is
        automatic."""
        plan = sequence.plan
        unable = (*_WEIGHTLESS, DRAFT_HEAD)
        free = plan.depth_mode is DepthMode.AUTOMATIC and plan.drafter in unable and sequence.speculates
        return free and not {DRAFT_MODEL, LIGHT_DRAFT_MODEL} & self._drafting.drafters.keys()

    def knowing(self, sequence: DecodeSequence) -> list[DrafterName]:
        """Returns the drafters of the sequence's plan that have taken its text in."""
        drafters = self._drafting.drafters
        kinds = self._kinds(sequence) if sequence.speculates else ()
        return [kind for kind in kinds if drafters[kind].behind(sequence) is not None]

    def hold_target(self, texts: Collection[RemoteSequence]) -> None:
        """Keeps the local target as a drafter while one of the texts may use it."""
        drafters = self._drafting.drafters
        if TARGET in drafters:
            if not texts:
                self._drafting.remove(TARGET)
        elif any(TARGET in text.sequence.drafters for text in texts) and (target := self._own()) is not None:
            drafters[TARGET] = target

    def leave(self, sequence: DecodeSequence) -> None:
        self._drafting.leave(sequence)

    # taking texts in

    def behind(self, texts: Collection[RemoteSequence]) -> tuple[RemoteSequence, DrafterName] | None:
        """Returns a text and a drafter that has not prefilled it yet; None if there is none, or no memory."""
        for text in texts:
            sequence = text.sequence
            for kind in self._kinds(sequence) if sequence.speculates else ():
                if self._drafting.drafters[kind].behind(sequence) is None:
                    free = self._headroom()
                    return (text, kind) if free is None or free > 0 else None
        return None

    def take_in(self, text: RemoteSequence, kind: DrafterName, busy: bool) -> bool:
        """Lets the drafter prefill a slice of a text, a short one while local sequences are `busy`. Returns whether
        that was the last slice."""
        try:
            with text.guess.aside():
                chunk = min(self._chunk, _SLICE) if busy else self._chunk
                return self._drafting.drafters[kind].prefill(text.sequence, chunk)
        except Exception as error:
            self._drafting.handle_failure(text.sequence, str(error))
            return True

    # drafting

    def due(self, text: RemoteSequence) -> SequenceDraft | None:
        """Returns the draft that is due for the text now, or None."""
        sequence = text.sequence
        if sequence.ended or not sequence.speculates or text.empty_at == len(sequence.tokens):
            return None
        most = text.depth + (sequence.guesses > 0)  # the guess includes the token that the verifier adds
        if text.mode is RemoteMode.STREAM:
            if text.trial is not None or sequence.guesses or not sequence.emitted or sequence.emitted < text.try_at:
                return None
            most = min(_TRIAL, self._limits.max_draft_tokens, sequence.most)
        elif text.in_flight >= text.ahead:
            return None
        most = min(most, sequence.remaining - 1 - sequence.guesses)
        best: tuple[float, SequenceDraft] | None = None
        for kind in self.knowing(sequence) if most > 0 else ():
            depth = self._drafting.drafters[kind].reach(sequence, most)
            promised = self.control.acceptance.expected_tokens(sequence, kind, depth)[-1]
            if depth and (best is None or promised > best[0]):
                best = promised, SequenceDraft(depth, kind, DraftState.DRAFTING)
        return None if best is None else best[1]

    def draft(self, texts: Collection[RemoteSequence], vocabulary: int) -> tuple[list[_Proposal], bool]:
        """Drafts for all due texts. Returns the proposals, and whether any drafter ran. If a text streams because
        drafts do not pay, its draft is not sent but kept as a trial, to measure acceptance. Proposals end before the
        first token outside the verifier's `vocabulary`."""
        due = [(text, wanted) for text in texts if (wanted := self.due(text)) is not None]
        if not due:
            return [], False
        began, proposals = self._clock(), list[_Proposal]()
        sequences = [text.sequence for text, _ in due]
        draft, errors = self._drafting.propose(sequences, [wanted for _, wanted in due], self._sampling.of(sequences))
        rows = [[]] * len(due) if draft is None else draft.tokens.tolist()
        depths, forwards = ([0] * len(due),) * 2 if draft is None else (draft.depths, draft.forwards)
        seconds = self._clock() - began
        for sequence, message in errors:
            self._drafting.handle_failure(sequence, message)
        for (text, wanted), row, depth, count in zip(due, rows, depths, forwards, strict=True):
            tokens = row[: next((i for i, token in enumerate(row[:depth]) if token >= vocabulary), depth)]
            text.draft_forwards += count
            text.draft_seconds += seconds
            if not tokens or wanted.drafter is None:
                text.empty_at = len(text.sequence.tokens)
            elif text.mode is RemoteMode.STREAM:
                text.keep_trial(wanted.drafter, tokens)
                text.try_at = text.sequence.emitted + _TRIAL_EVERY
            else:
                proposals.append((text, wanted.drafter, tokens))
        kinds = {wanted.drafter for _, wanted in due}
        if len(kinds) == 1 and (kind := kinds.pop()) is not None:
            self.control.costs.learn_draft(kind, max(wanted.depth for _, wanted in due), seconds)
        return proposals, True

    def _kinds(self, sequence: DecodeSequence) -> list[DrafterName]:
        """Returns the available drafters of the sequence's plan, except a head: it has no hidden states here."""
        drafters = self._drafting.drafters
        return sorted(kind for kind in sequence.drafters & drafters.keys() if not drafters[kind].fed)
