"""The drafter of forced tokens: those for which a request's grammar leaves no choice, such as the keys of a JSON
object. No weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from draftd.engine.drafters.base import DraftSequence, Text, TextDrafter
from draftd.engine.sampling.grammar import GrammarState
from draftd.models.grammar import Grammars


class ForcedTokens(TextDrafter):
    """Follows each sequence that has a grammar, from its first proposal on."""

    def __init__(self, grammars: Grammars | None, vocabulary: int) -> None:
        """`vocabulary`: the target's; the tokenizer may have more tokens."""
        self._grammars, self._vocabulary = grammars, vocabulary
        self._states: dict[int, GrammarState] = {}  # by a sequence's id()

    def continuation(self, sequence: DraftSequence, depth: int) -> list[int]:
        state = self._state(sequence)
        forced = [] if state is None else state.forced_tokens(depth)
        return forced[: next((i for i, token in enumerate(forced) if token >= self._vocabulary), depth)]

    def legal(self, sequence: DraftSequence, tokens: Sequence[int]) -> int:
        """Returns how many of the proposed tokens, from the first on, the sequence's grammar allows."""
        state = self._state(sequence)
        return len(tokens) if state is None else len(list(takewhile(state.copy().take, tokens)))

    def _state(self, sequence: DraftSequence) -> GrammarState | None:
        """Returns the grammar's state at the end of the text; None without a grammar, or if guesses violate it."""
        if isinstance(sequence, Text) or not sequence.request.grammar or self._grammars is None:
            return None
        state = self._states.get(id(sequence))
        if state is None:
            matcher = self._grammars.matcher(sequence.request.grammar)
            state = self._states[id(sequence)] = GrammarState(matcher, self._grammars.end_ids)
        final = len(sequence.tokens) - sequence.guesses
        try:
            begins = len(sequence.request.prompt) - sequence.request.answered
            state.follow(sequence.tokens[:final] if sequence.guesses else sequence.tokens, begins)
        except ValueError:  # following the grammar costs too much: nothing is known
            return None
        if sequence.guesses:
            state = state.copy()
            if not all(map(state.take, sequence.tokens[final:])):
                return None
        return state

    def leave(self, sequence: DraftSequence) -> None:
        self._states.pop(id(sequence), None)

    def close(self) -> None:
        self._states.clear()
