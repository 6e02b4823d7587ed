"""One thing to try out, and the future of what comes of it: always a report, whatever goes wrong."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Generic, TypeVar

from draftd.control.asking import Unanswered
from draftd.errors import DraftdError
from draftd.policy.reports import CanaryReport, ProbeReport

log = logging.getLogger(__name__)

Report = TypeVar("Report", ProbeReport, CanaryReport)


class Job(Generic[Report]):
    """`work` tries something out, `failed` is the report where that went wrong, `tell` hears of each."""

    def __init__(
        self, work: Callable[[], Report], failed: Callable[[str], Report], tell: Callable[[Report], None]
    ) -> None:
        self.future: Future[Report] = Future()
        self.future.set_running_or_notify_cancel()  # nobody can take it back: who asks no more may forget it
        self._work: Callable[[], Report] = work
        self._failed: Callable[[str], Report] = failed
        self._tell: Callable[[Report], None] = tell
        self._lock = threading.Lock()
        self._report: Report | None = None

    def do(self, clock: Callable[[], float]) -> None:
        """Never raises: whatever goes wrong is in the report."""
        began = clock()
        try:
            report = self._work()
        except Unanswered as error:
            report = self._failed(str(error))
        except DraftdError as error:
            report = self._failed(error.message)
        except Exception as error:
            log.warning("a probe or a run of the canaries failed", exc_info=error)
            report = self._failed(f"{type(error).__name__}: {error}")
        self._report = replace(report, seconds=clock() - began)
        self._tell(self._report)

    def hand_over(self) -> None:
        assert self._report is not None
        self._end(self._report)

    def give_up(self, why: str) -> None:
        self._end(self._failed(why))

    def _end(self, report: Report) -> None:
        with self._lock:
            if not self.future.done():
                self.future.set_result(report)
