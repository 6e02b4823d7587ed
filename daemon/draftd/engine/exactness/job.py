"""Measures the served model's exactness once, a piece at a time, while the engine is idle."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from typing import Any

from draftd.exactness import Exactness

_log = logging.getLogger(__name__)

IDLE_SECONDS = 10.0
"""Seconds without work after which the model is measured, because that takes some seconds of all cores."""


class ExactnessJob:
    """Engine thread only; any thread may read `result`."""

    def __init__(
        self,
        model: Callable[[], Any],
        begin: Callable[[Any], Generator[str, None, Exactness]] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`model`: returns the target's current model. `begin`: starts a measurement of it; None measures nothing."""
        self._model, self._begin, self._clock = model, begin, clock
        self._pieces: Generator[str, None, Exactness] | None = None
        self._busy_at = clock()
        self.result: Exactness | None = None

    def due(self, *, idle: bool) -> bool:
        """Returns whether to measure a piece now: nothing else has been done for IDLE_SECONDS."""
        now = self._clock()
        if not idle:
            self._busy_at = now
        return idle and self._begin is not None and now - self._busy_at >= IDLE_SECONDS

    @property
    def under_way(self) -> bool:
        """Whether a measurement has begun."""
        return self._pieces is not None

    def step(self) -> None:
        """Measures a piece. If that fails, the model is not measured: it is served all the same."""
        assert self._begin is not None
        try:
            self._pieces = self._pieces or self._begin(self._model())
            next(self._pieces)
        except StopIteration as end:
            self.result, self._pieces, self._begin = end.value, None, None
            _log.info("exactness: %s", end.value.in_words())
        except Exception as error:
            self.stop()
            self._begin = None
            _log.warning("the model's exactness could not be measured", exc_info=error)

    def stop(self) -> None:
        """Lets go of the model; a measurement that was under way begins again when it is due."""
        if self._pieces is not None:
            self._pieces.close()
            self._pieces = None
