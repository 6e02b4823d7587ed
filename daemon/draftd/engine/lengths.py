"""How long answers are: what taking a text in for a draft may still bring depends on it.

What a request allows says little: most answers end by themselves, and long before that.
"""

from __future__ import annotations

from draftd.core import FinishReason, Origin, WorkloadClass
from draftd.engine.batch import Row

_GUESS, _WEIGHT = 128.0, 4.0  # tokens, and for how many answers the guess stands
_MEMORY = 64.0  # answers


class AnswerLengths:
    """Mean lengths by kind of text. Engine thread only."""

    def __init__(self) -> None:
        self._sums: dict[WorkloadClass, tuple[float, float]] = {}  # answers, and their tokens

    def ended(self, row: Row) -> None:
        """One is over. It tells only where nobody broke it off."""
        if row.request.origin is not Origin.CLIENT or row.finish not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        answers, tokens = self._seen(row)
        keep = 1 - 1 / _MEMORY
        self._sums[row.request.workload] = (answers * keep + 1, tokens * keep + row.emitted)

    def left(self, row: Row) -> float:
        """Tokens that it is expected to write yet: as many as its kind has in the mean, however many it has, since
        lengths scatter as widely as that; never more than it may."""
        answers, tokens = self._seen(row)
        return min(float(row.remaining), tokens / answers)

    def _seen(self, row: Row) -> tuple[float, float]:
        return self._sums.get(row.request.workload, (_WEIGHT, _WEIGHT * _GUESS))
