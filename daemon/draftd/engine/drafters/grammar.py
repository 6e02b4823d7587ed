"""Forced tokens: what a request's grammar leaves no choice about, such as the keys of a JSON object. No weights."""

from __future__ import annotations

from draftd.engine.drafters.base import DraftSequence, Text, TextDrafter
from draftd.engine.sampling.grammar import GrammarState
from draftd.models.grammar import Grammars


class ForcedTokens(TextDrafter):
    """Follows each sequence that has a grammar from when it first proposes for it."""

    def __init__(self, grammars: Grammars | None, vocabulary: int) -> None:
        """`vocabulary`: the target's; the tokenizer may have more."""
        self._grammars, self._vocabulary = grammars, vocabulary
        self._states: dict[int, GrammarState] = {}  # by a sequence's id()

    def continuation(self, sequence: DraftSequence, depth: int) -> list[int]:
        if isinstance(sequence, Text) or not sequence.request.grammar or self._grammars is None:
            return []
        state = self._states.get(id(sequence))
        if state is None:
            made = self._grammars.matcher(sequence.request.grammar)
            state = self._states[id(sequence)] = GrammarState(made, self._grammars.end_ids)
        final = len(sequence.tokens) - sequence.guesses
        try:
            state.follow(sequence.tokens[:final] if sequence.guesses else sequence.tokens, len(sequence.request.prompt))
        except ValueError:  # a grammar that takes too much to follow: nothing is known of what comes
            return []
        if sequence.guesses:
            state = state.copy()
            if not all(map(state.take, sequence.tokens[final:])):
                return []
        forced = state.forced(depth)
        return forced[: next((i for i, token in enumerate(forced) if token >= self._vocabulary), depth)]

    def leave(self, sequence: DraftSequence) -> None:
        self._states.pop(id(sequence), None)

    def close(self) -> None:
        self._states.clear()
