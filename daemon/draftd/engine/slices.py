"""How many tokens of a prompt are prefilled in one go: as many as running sequences can wait for."""

from __future__ import annotations

LEAST = 16  # tokens: a forward of fewer costs about as much
_SHARE = 0.7  # of a step: with a slice before every step, what a sequence waits for its next tokens does not double
_FASTER, _SLOWER = 2.0, 0.5  # most that one measurement changes the rate by
_WEIGHT = 0.5  # of the newest measurement: attention makes later slices of a prompt dearer than earlier ones


class Slices:
    """How long slices of one prompt may be, for one model. The rate is of slices, not of whole chunks: a forward has a
    cost of its own, which weighs more the fewer tokens there are."""

    def __init__(self, chunk: int, seconds: float, first: Slices | None = None) -> None:
        """Never more than `chunk` tokens; `seconds` is the longest that a slice may take while sequences run. `first`:
        what is known of prompts' first slices, with which a prompt begins, and which its own first one adds to."""
        self._chunk, self._seconds, self._first = chunk, seconds, first
        self._rate: float | None = None if first is None else first._rate  # tokens a second

    def tokens(self, step_seconds: float | None) -> int:
        """The next slice, where the running sequences' steps take so long of late; None where none runs."""
        if step_seconds is None:
            return self._chunk
        if self._rate is None:
            return min(LEAST, self._chunk)
        return max(min(LEAST, self._chunk), min(int(self._rate * self.limit(step_seconds)), self._chunk))

    def fit(self, tokens: int, seconds: float) -> bool:
        """Whether so many can be prefilled at once in that time; fewer than `LEAST` take as long as these."""
        return self._rate is not None and tokens <= self._chunk and max(tokens, LEAST) <= self._rate * seconds

    def limit(self, step_seconds: float) -> float:
        """Seconds that a slice may take."""
        return min(self._seconds, _SHARE * step_seconds)

    def took(self, tokens: int, seconds: float) -> None:
        """Learns what a slice between two steps took."""
        if seconds <= 0:
            return
        if self._first is not None:
            self._first.took(tokens, seconds)
            self._first = None
        measured = tokens / seconds
        if self._rate is None:
            self._rate = measured
            return
        measured = max(self._rate * _SLOWER, min(measured, self._rate * _FASTER))
        self._rate += _WEIGHT * (measured - self._rate)
