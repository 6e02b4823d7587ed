"""Puts the fallback together: what judges, what is told by alerts, what is kept over a restart, and who is told."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from draftd.control.alerts.listener import Listener
from draftd.control.alerts.poller import Poller
from draftd.control.annotations import Annotator
from draftd.control.controller import Controller
from draftd.control.examiner import Examiner
from draftd.control.history import History
from draftd.control.intake import Intake
from draftd.control.journal import Journal
from draftd.control.planner import Planner
from draftd.control.residency import Residency
from draftd.control.store import FileStore, NoStore, StateFolder, StateStore, sweep
from draftd.core import DrafterKind
from draftd.engine.worker import EngineWorker
from draftd.errors import ConfigError
from draftd.hardware.state import HardwareView
from draftd.settings import ModelSettings, Settings, state_dir
from draftd.telemetry.setup import FallbackReadings, Telemetry

_STATE, _HISTORY = "ladder.json", "transitions.jsonl"
_CLOSE_SECONDS = 5.0  # for all of it together; each part takes a fraction of a second where nothing hangs
_MARKS_SECONDS = 2.0  # of them, for what was not marked in Grafana yet

log = logging.getLogger(__name__)


def pair_of(model: ModelSettings) -> str:
    """Names what is learnt of. A part that is not set has no place in it: what was learnt by a daemon that did not know
    it yet stays."""
    named = [f"{model.path} {model.draft_path}"]
    if model.light_draft_path is not None:
        named.append(f"light_draft={model.light_draft_path}")
    if model.drafter not in (None, DrafterKind.DRAFT_MODEL):
        named.append(f"drafter={model.drafter}")
    return " ".join(named)


class Kept:
    """What outlives a run: the ladder's state and the transitions, or neither."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        """Raises ConfigError for a folder that is named and cannot be used. The user's own folder is done without."""
        self._folder: StateFolder | None = None
        self.store: StateStore = NoStore()
        self.journal = Journal()
        path = settings.fallback.state_dir
        if path is None and not settings.server.port:
            return
        try:
            self._folder = StateFolder.open(path or state_dir(environ) / str(settings.server.port))
        except ConfigError as error:
            if path is not None:
                raise
            log.warning("the level is not kept over a restart: %s", error.message)
            return
        folder = self._folder.path
        sweep(folder, _STATE)
        self.store = FileStore(folder / _STATE)
        history = History(folder / _HISTORY)
        self.journal = Journal(restored=history.restore())
        self.journal.listen(history.append)

    @property
    def folder(self) -> Path | None:
        """Where it lies; None where nothing is kept."""
        return None if self._folder is None else self._folder.path

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()


class Fallback:
    """The controller, and all that it hears and tells."""

    def __init__(
        self,
        settings: Settings,
        worker: EngineWorker,
        planner: Planner,
        intake: Intake,
        kept: Kept,
        telemetry: Telemetry,
        hardware: HardwareView,
    ) -> None:
        """Raises ConfigError for settings that cannot be met. Nothing runs before `start`."""
        recorder = telemetry.control_recorder()
        residency = Residency(worker)
        self._examiner = Examiner(worker, residency.borrow, settings.fallback, recorder, stands=planner)
        self.controller = Controller(
            planner,
            worker,
            examiner=self._examiner,
            residency=residency,
            intake=intake,
            hardware=hardware,
            settings=settings.fallback,
            lease_seconds=settings.webhook.lease_seconds,
            journal=kept.journal,
            telemetry=recorder,
            store=kept.store,
            pair=pair_of(settings.model),
        )
        self._webhook = webhook = settings.webhook

        def known_as() -> str:
            return telemetry.instance

        def marked_as() -> str:  # alerts know no host, but people do
            return telemetry.instance or socket.gethostname()

        controller = self.controller
        self._listener = Listener(webhook, controller.notices, recorder, known_as) if webhook.listens else None
        self._poller = Poller(webhook, controller.polled, recorder, known_as) if webhook.poll_url else None
        marks = settings.annotations
        self._annotator = Annotator(marks, kept.journal, recorder, marked_as) if marks.grafana_url else None

    def start(self, announce: Callable[[str], None]) -> None:
        """Raises ConfigError where the webhook cannot listen; then nothing runs."""
        if self._listener is not None:
            port = self._listener.start()
            announce(f"alerts are taken on port {port} of {self._webhook.host}")
        if self._annotator is not None:
            self._annotator.start()
        self._examiner.start()
        self.controller.start()
        if self._poller is not None:
            self._poller.start()

    def close(self) -> bool:
        """Hears no more, moves no more, has told what it did. True when nothing of it is left."""
        deadline = time.monotonic() + _CLOSE_SECONDS
        parts = (self._listener, self._poller, self._examiner, self.controller)
        ended = [part.close(max(0.0, deadline - time.monotonic())) for part in parts if part is not None]
        if self._annotator is not None:  # the last to hear; a Grafana that hangs is no fault of this daemon's
            self._annotator.close(min(_MARKS_SECONDS, max(0.0, deadline - time.monotonic())))
        return all(ended)

    def readings(self) -> FallbackReadings:
        """For the gauges."""
        found = self.controller.readings()
        return FallbackReadings(
            found.level,
            found.rung,
            found.held,
            found.demands,
            found.drift,
            found.leases,
            found.probe_acceptance,
            found.probe_speedup,
            found.canary_scores,
        )
