"""How much of a prompt is taken in between two rounds: as much as takes no longer than the running rows may wait."""

from __future__ import annotations

_LEAST = 16  # tokens: a forward of fewer costs about as much
_SHARE = 0.7  # of a round: with a slice before every round, what a row waits for its next tokens does not double
_FASTER, _SLOWER = 2.0, 0.5  # most that one measurement changes the rate by
_WEIGHT = 0.5  # of the newest measurement: attention makes later slices of a prompt dearer than earlier ones


class Slices:
    """Of one prompt, for one model. The rate is of slices, not of whole chunks: a forward has a cost of its own, which
    weighs more the fewer tokens there are."""

    def __init__(self, chunk: int, seconds: float) -> None:
        """Never more than `chunk` tokens; `seconds` is the longest that a slice may take while rows run."""
        self._chunk, self._seconds = chunk, seconds
        self._rate: float | None = None  # tokens a second
        self.taken = 0  # slices that were learnt from

    def begun(self) -> Slices:
        """Of another prompt, which begins with what is known here."""
        another = Slices(self._chunk, self._seconds)
        another._rate = self._rate
        return another

    def tokens(self, round_seconds: float | None) -> int:
        """The next slice, where the running rows' rounds take so long of late; None where no row runs."""
        if round_seconds is None:
            return self._chunk
        if self._rate is None:
            return min(_LEAST, self._chunk)
        return max(min(_LEAST, self._chunk), min(int(self._rate * self.limit(round_seconds)), self._chunk))

    def fit(self, tokens: int, seconds: float) -> bool:
        """Whether so many can be taken in at once in that time; fewer than `_LEAST` take as long as these."""
        return self._rate is not None and tokens <= self._chunk and max(tokens, _LEAST) <= self._rate * seconds

    def limit(self, round_seconds: float) -> float:
        """Seconds that a slice may take."""
        return min(self._seconds, _SHARE * round_seconds)

    def took(self, tokens: int, seconds: float) -> None:
        """Learns what a slice between two rounds took."""
        if seconds <= 0:
            return
        self.taken += 1
        measured = tokens / seconds
        if self._rate is None:
            self._rate = measured
            return
        measured = max(self._rate * _SLOWER, min(measured, self._rate * _FASTER))
        self._rate += _WEIGHT * (measured - self._rate)
