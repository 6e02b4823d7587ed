"""Now and then a few rounds are decoded plainly although drafts are to be had: what one costs is known no other way.

The machine gets slower and faster while it serves. A price of autoregressive decoding from before would say of a
throttled machine that drafting does not pay, and of one that was busy at the start that it always does.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftd.engine.batch import Row

PERIOD_SECONDS = 5.0  # of drafting, without a plain round: with 3 rounds of 10 ms each, some 0.3 % of the speed
_URGENT = 10  # times as often, where it is not clear whether drafting pays
_ROUNDS = 3  # the first dispatches the second, the second the third: the second's time is that of pipelined decoding


class Exploration:
    """Counts the time spent drafting. Engine thread only."""

    def __init__(self, period_seconds: float = PERIOD_SECONDS) -> None:
        self._period = period_seconds
        self._drafting = 0.0
        self._left = 0

    def plain(self, rows: Sequence[Row], pending: bool, urgent: bool = False) -> bool:
        """Whether the next round is to draft nothing. `pending`: its forward is under way already; `urgent`: much hangs
        on a price that is not known well."""
        if pending:
            return self._left > 0
        if self._drafting < (self._period / _URGENT if urgent else self._period) or not all(map(_indifferent, rows)):
            self._left = 0
            return False
        self._left, self._drafting = _ROUNDS, 0.0
        return True

    @property
    def ahead(self) -> bool:
        """Whether a plain round may dispatch another one."""
        return self._left > 1

    def told(self, seconds: float, drafting: bool, pipelined: bool) -> bool:
        """A round is over. `drafting`: a row of it has a drafter; `pipelined`: another was under way when it ended.
        Whether it cost what plain decoding costs."""
        if not drafting:
            self._drafting, self._left = 0.0, 0
            return True
        if not self._left:
            self._drafting += seconds
            return False
        self._left -= 1
        measured = pipelined and self._left == 1
        if not pipelined:
            self._left = 0
        return measured


def _indifferent(row: Row) -> bool:
    """Whether it has a few tokens to go."""
    return row.remaining > _ROUNDS + 1
