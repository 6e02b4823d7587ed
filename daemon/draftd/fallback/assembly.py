"""Assembles a daemon's fallback: its ladders, their inputs, and their reports."""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from draftd.engine.handle import EngineHandle
from draftd.engine.remote.verifier_link import VerifierLink
from draftd.fallback.annotations import Annotator
from draftd.fallback.controller import Controller
from draftd.fallback.ladder import Ladder, LadderSettings, configured_ladder
from draftd.fallback.loaded_drafters import LoadedDrafters
from draftd.fallback.probe_runner import ProbeRunner
from draftd.fallback.remote_guard import REMOTE_LADDER, RemoteGuard, streaming_pace
from draftd.fallback.seams import FallbackTelemetry
from draftd.fallback.signal_feed import RequestFeed
from draftd.fallback.store import StateStore
from draftd.hardware.state import HardwareView
from draftd.journal import Journal, Subject
from draftd.settings import Settings, WebhookSettings
from draftd.strategies import RemoteLevel

if TYPE_CHECKING:
    from draftd.fallback.alerts.poller import Poller
    from draftd.fallback.alerts.webhook import WebhookListener

_CLOSE_SECONDS = 5.0  # for all parts together; each takes a fraction of a second unless something hangs
_ANNOTATIONS_SECONDS = 2.0  # of these, for annotations that wait


class Fallback:
    """The controller with its inputs and reports. `ladder`: its present level limits plans. `remote_level()` returns
    the highest level of use of the remote daemon; SPECULATIVE, which is no limit, without a remote."""

    def __init__(
        self,
        settings: Settings,
        engine: EngineHandle,
        link: VerifierLink | None,
        *,
        requests: RequestFeed,
        hardware: HardwareView,
        journal: Journal,
        store: StateStore,
        telemetry: FallbackTelemetry,
        instance: str,
    ) -> None:
        """`requests`: the engine reports to it. `instance`: returns this daemon's name in alerts, empty if alerts have
        none. Nothing runs before `start`. Raises ConfigError for settings that cannot be met."""
        limits = LadderSettings.of(settings.fallback)
        self.ladder = Ladder(configured_ladder(settings), journal, limits)
        remote = None if link is None else _remote_guard(settings, engine, link, journal, limits)
        self.remote_level = lambda: RemoteLevel.SPECULATIVE if remote is None else remote.level
        drafters = LoadedDrafters(engine)
        self._runner = ProbeRunner(engine, drafters.borrow, settings.fallback, telemetry, ladder=self.ladder)
        self.controller = Controller(
            self.ladder,
            engine,
            runner=self._runner,
            drafters=drafters,
            requests=requests,
            hardware=hardware,
            settings=settings.fallback,
            lease_seconds=settings.webhook.lease_seconds,
            journal=journal,
            store=store,
            remote=remote,
        )
        self._webhook = settings.webhook
        self._listener, self._poller = self._alerts(settings.webhook, telemetry, instance)
        self._annotator: Annotator | None = None
        if (marks := settings.annotations).grafana_url:  # annotations are for people, so they have the host's name
            self._annotator = Annotator(marks, journal, telemetry, lambda: instance or socket.gethostname())

    def _alerts(
        self, settings: WebhookSettings, telemetry: FallbackTelemetry, instance: str
    ) -> tuple[WebhookListener | None, Poller | None]:
        """Makes the webhook and the poller; importing aiohttp for these is slow."""
        listener = poller = None
        if settings.listens:
            from draftd.fallback.alerts.webhook import WebhookListener

            notices, unsaved = self.controller.notices, lambda: self.controller.state().unsaved
            listener = WebhookListener(settings, notices, telemetry, lambda: instance, unsaved=unsaved)
        if settings.poll_url:
            from draftd.fallback.alerts.poller import Poller

            poller = Poller(settings, self.controller.apply_poll, telemetry, lambda: instance)
        return listener, poller

    def reloading(self, settings: Settings) -> Callable[[], Awaitable[None]]:
        """Reads the credentials of alerts and annotations again; see `Daemon.reloading`."""
        context = None
        if self._listener is not None:
            from draftd.fallback.alerts.connections import tls

            context = tls(settings.webhook)

        async def reload() -> None:
            if self._listener is not None:
                self._listener.reload(settings.webhook, context)
            if self._poller is not None:
                self._poller.reload(settings.webhook)
            if self._annotator is not None:
                self._annotator.reload(settings.annotations)

        return reload

    def start(self, announce: Callable[[str], None]) -> None:
        """Starts everything. Raises ConfigError if the webhook cannot listen; then nothing runs."""
        state = self.controller.state()
        if state.position or state.hold is not None:
            hold = f", held {state.hold.evidence}" if state.hold is not None else ""
            why = f": {state.signal.text}" if state.signal is not None and state.hold is None else ""
            announce(f"level {state.ladder[state.position].label}, as before the restart{hold}{why}")
        if self._listener is not None:
            port = self._listener.start()
            announce(f"alerts are taken on port {port} of {self._webhook.host}")
        if self._annotator is not None:
            self._annotator.start()
        self.controller.start()
        if self._poller is not None:
            self._poller.start()

    def close(self) -> bool:
        """Stops inputs, then the controller, then reports. Returns whether everything has ended."""
        deadline = time.monotonic() + _CLOSE_SECONDS
        parts = (self._listener, self._poller, self._runner, self.controller)
        ended = [part.close(max(0.0, deadline - time.monotonic())) for part in parts if part is not None]
        if self._annotator is not None:  # last; a hanging Grafana does not count as a failure
            self._annotator.close(min(_ANNOTATIONS_SECONDS, max(0.0, deadline - time.monotonic())))
        return all(ended)


def _remote_guard(
    settings: Settings, engine: EngineHandle, link: VerifierLink, journal: Journal, limits: LadderSettings
) -> RemoteGuard:
    ladder = Ladder(REMOTE_LADDER, journal, limits, subject=Subject.REMOTE)
    return RemoteGuard(ladder, lambda: link.state, lambda: streaming_pace(engine.status()), settings.fallback)
