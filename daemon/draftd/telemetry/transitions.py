"""The log event of a transition: what the daemon allows has changed, and why."""

from __future__ import annotations

import time
from typing import Protocol

from opentelemetry._logs import Logger, SeverityNumber
from opentelemetry.context import Context

from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry.guard import Guard


class Changed(Protocol):
    """A transition, as the journal has it."""

    @property
    def subject(self) -> str: ...
    @property
    def previous(self) -> str: ...
    @property
    def current(self) -> str: ...
    @property
    def cause(self) -> str: ...
    @property
    def evidence(self) -> str: ...


class TransitionLog:
    """Emits one event for each transition. Any thread; never raises, never blocks."""

    def __init__(self, logger: Logger, guard: Guard) -> None:
        self._logger = logger
        self._guard = guard

    def __call__(self, change: Changed) -> None:
        try:
            self._logger.emit(
                timestamp=time.time_ns(),
                context=Context(),
                severity_number=SeverityNumber.INFO,
                event_name=catalog.TRANSITION.name,
                body=f"{change.subject}: {change.previous} -> {change.current} ({change.cause})",
                attributes={
                    a.TRANSITION_SUBJECT.name: str(change.subject),
                    a.TRANSITION_FROM.name: change.previous,
                    a.TRANSITION_TO.name: change.current,
                    a.TRANSITION_CAUSE.name: change.cause,
                    a.TRANSITION_EVIDENCE.name: change.evidence,
                },
            )
        except Exception as error:
            self._guard.caught("transition", error)
