"""The daemon's surroundings: a collector; and Alertmanager with Grafana, which send and list alerts and take
annotations. Each can be dead, slow or wrong."""

from __future__ import annotations

import http.client
import json
import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import grpc

from draftd.client.client import CallError
from draftd.core import FallbackLevel
from draftd.telemetry.attributes import ERROR_TYPE, RESPONSE_ID
from draftd.telemetry.catalog_sdk import SPANS_EXPORTED, SPANS_PROCESSED
from draftd.v1 import control_pb2
from tests import http_server
from tests.faults.daemon import HANG_SECONDS, Daemon
from tests.faults.model import Demand, Invariant, Model
from tests.otlp import OtlpReceiver
from tests.webhook import bearer, notification, signed

_TRIES = 8  # of what is refused for good: a clock that was set meanwhile explains one
_PAUSE_SECONDS = 0.2
_ANSWER_SECONDS = 8.0  # longer than the daemon lets a sender wait
_NAME = "DraftdAcceptanceBelowFloor"


class Collector(OtlpReceiver):
    """Keeps the latest metrics of each daemon, and the ids of requests that have spans. `lies`: it acknowledges what it
    drops. `since`: start of the previous daemon; no reported duration may be longer."""

    def __init__(self, model: Model) -> None:
        super().__init__(metric_interval=250)
        self.lies = False
        self.awake = threading.Event()  # else it takes connections and requests, and answers none
        self.awake.set()
        self._model = model
        self._starts = (time.monotonic(),) * 3  # of the daemons that may still be heard
        self._requests: set[str] = set()

    def take(self, kind: str, request: Any, headers: dict[str, str]) -> grpc.StatusCode | None:
        self.awake.wait(HANG_SECONDS)
        refused = super().take(kind, request, headers)
        if refused is None:
            self._judge(kind, request)
            with self.store.lock:
                kept = getattr(self.store, kind)
                kept[:] = [] if kind != "metrics" else kept[:-1] if self.lies else kept[-1:]
                self.store.headers.clear()
        return refused

    def begins(self) -> None:
        """Forgets what earlier daemons sent: a new daemon starts."""
        self._starts = (*self._starts[1:], time.monotonic())
        with self.store.lock:
            self.store.metrics.clear()
            self._requests.clear()

    def _judge(self, kind: str, request: Any) -> None:
        """Checks durations, and records the requests that spans belong to."""
        most = time.monotonic() - self._starts[0]  # one that ended two starts ago may be heard late
        for group in request.resource_spans if kind == "traces" else ():
            for span in (span for scoped in group.scope_spans for span in scoped.spans):
                length = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
                self._model.lasted(length, most, f"span {span.name}")
                with self.store.lock:
                    found = (one.value.string_value for one in span.attributes if one.key == RESPONSE_ID.name)
                    self._requests.update(found)
        for group in request.resource_metrics if kind == "metrics" else ():
            for metric in (metric for scoped in group.scope_metrics for metric in scoped.metrics):
                for point in metric.histogram.data_points if metric.unit == "s" else ():
                    self._model.lasted(point.min, most, metric.name)
                    self._model.lasted(point.max, most, metric.name)

    def lacks(self, requests: set[str]) -> str:
        """Returns how many of the requests have no span, if more than the daemon says it lost; else an empty text."""
        with self.store.lock:
            missing = requests - self._requests
        lost = sum(
            point.value
            for metric in (SPANS_PROCESSED, SPANS_EXPORTED)
            for point in self.points(metric.name)
            if ERROR_TYPE.name in point.attributes
        )
        return (
            f"{len(missing)} requests have no span, {lost:g} spans were lost: {missing}" if len(missing) > lost else ""
        )

    def agrees(self, status: control_pb2.GetStatusResponse) -> str:
        """Returns the first metrics that differ from the engine's counts, or an empty text."""
        counts, requests = status.counts, self.by("draftd.requests", "draftd.outcome")
        refused = requests.pop("refused", 0)
        shown = {
            "draftd.spec_decode.drafts": counts.drafts,
            "draftd.spec_decode.draft_tokens": counts.drafted_tokens,
            "draftd.spec_decode.accepted_tokens": counts.accepted_tokens,
            "draftd.spec_decode.rollbacks": counts.rollbacks,
            "draftd.spec_decode.target_forwards": counts.target_forwards,
        }
        for name, counted in shown.items():
            if (told := self.total(name)) != counted:
                return f"{name}: {told:g} in metrics, {counted} in the engine"
        tokens = self.total("draftd.tokens", {"gen_ai.token.type": "output"})
        if tokens != status.output_tokens:
            return f"output tokens: {tokens:g} in metrics, {status.output_tokens} in the engine"
        if requests != dict(status.finished_requests) or refused != status.refused_requests:
            told = dict(status.finished_requests)
            return f"requests: {requests} and {refused:g} refused in metrics, {told} and {status.refused_requests}"
        return ""


def level_of(state: control_pb2.FallbackState) -> FallbackLevel:
    """Returns the level in force."""
    return FallbackLevel[state.ladder[state.position].level.upper()]


@dataclass
class Alert:
    """An alert that fires, or has ended. `level` is the one that it asks for; a `hard` one is obeyed at once."""

    fingerprint: str
    level: FallbackLevel
    hard: bool
    starts_at: float
    firing: bool = True

    def payload(self, status: Any) -> dict[str, Any]:
        began = datetime.fromtimestamp(self.starts_at, UTC).isoformat(timespec="milliseconds")
        labels = {"alertname": _NAME, "fallback_level": self.level.label, "severity": "warning"}
        if self.hard:
            labels["severity"] = "critical"
        return {
            "status": status,
            "startsAt": began,
            "endsAt": "0001-01-01T00:00:00Z",
            "labels": labels,
            "annotations": {},
            "fingerprint": self.fingerprint,
        }


class Alertmanager:
    """Sends notifications in order until they are accepted, lists firing alerts, and takes annotations as Grafana does.

    `answers` is how it does the last two: "well", "slowly", "with errors", "with nonsense".
    """

    def __init__(self, daemon: Daemon, model: Model, reachable: Callable[[], float]) -> None:
        """Creates it. `reachable` returns since when the daemon can be reached."""
        self.answers = "well"
        self._daemon, self._model, self._reachable = daemon, model, reachable
        self._firing: dict[str, tuple[Alert, Demand]] = {}
        self._waiting: queue.SimpleQueue[tuple[Alert, Demand] | None] = queue.SimpleQueue()
        self._left = 0  # asked for and not delivered; the main thread adds, the sender takes away
        self._changed = threading.Condition()
        self._sender = threading.Thread(target=self._send, name="sender", daemon=True)
        self._server: AbstractContextManager[str] = http_server.serving(self._answer)
        self._sent = 0

    def start(self) -> str:
        """Starts to listen and returns its address."""
        self._sender.start()
        return self._server.__enter__()

    def close(self) -> None:
        self._waiting.put(None)
        self._sender.join(HANG_SECONDS)
        self._server.__exit__(None, None, None)

    def fire(self, fingerprint: str, level: FallbackLevel, hard: bool) -> None:
        alert = Alert(fingerprint, level, hard, time.time())
        demand = self._model.levels.alert(level, time.monotonic())
        self._put(alert, demand)

    def resolve(self, fingerprint: str) -> None:
        if (found := self._firing.get(fingerprint)) is not None:
            alert, demand = found
            self._model.levels.ending(demand, time.monotonic())
            self._put(Alert(alert.fingerprint, alert.level, alert.hard, alert.starts_at, firing=False), demand)

    def delivered(self, seconds: float = HANG_SECONDS) -> bool:
        """Waits until all notifications have been accepted. Returns False if they are not in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._left, seconds)

    def _put(self, alert: Alert, demand: Demand) -> None:
        with self._changed:
            if alert.firing:
                self._firing[alert.fingerprint] = alert, demand
            else:
                del self._firing[alert.fingerprint]
            self._left += 1
        self._waiting.put((alert, demand))

    # the sender's thread

    def _send(self) -> None:
        while (found := self._waiting.get()) is not None:
            try:
                self._deliver(*found)
            except Exception as error:
                self._model.breaks(Invariant.ALERTS, f"the sender failed: {error!r}")
            with self._changed:
                self._left -= 1
                self._changed.notify_all()

    def _deliver(self, alert: Alert, demand: Demand) -> None:
        """Sends the notification until it is accepted, then waits until it is obeyed."""
        name = f"alert {alert.fingerprint} ({alert.level.label}, {'hard' if alert.hard else 'soft'})"
        asked, refusals = time.monotonic(), 0
        while not self._model.broken:
            if time.monotonic() - max(asked, self._reachable()) > HANG_SECONDS:
                self._model.breaks(Invariant.ALERTS, f"{name} was not taken within {HANG_SECONDS:g} s")
                return
            status, answer = self._post(alert)
            if status == 200:
                break
            refusals += 400 <= status < 500 and status != 429
            if refusals > _TRIES:
                self._model.breaks(Invariant.ALERTS, f"{name} was refused: {status} {answer}")
                return
            time.sleep(_PAUSE_SECONDS)
        else:
            return
        now, saved = time.monotonic(), "unsaved" not in answer
        levels = self._model.levels
        if not alert.firing:
            levels.over(demand, now)
            return
        if alert.hard:
            levels.acknowledged(demand, now, saved=saved)
        if not self._obeyed(alert, demand, asked):
            self._model.breaks(Invariant.ALERTS, f"{name} was taken and not obeyed within {HANG_SECONDS:g} s")

    def _obeyed(self, alert: Alert, demand: Demand, asked: float) -> bool:
        """Waits until the alert is seen to be obeyed: only then is a soft one sure. Returns False if that takes too
        long."""
        levels = self._model.levels
        while not self._model.broken:
            since, began = max(asked, self._reachable()), time.monotonic()
            try:
                with self._daemon.access.client() as client:
                    state = client.level()
            except CallError:
                state = None
            now = time.monotonic()
            if state is not None:
                if not state.unsaved:
                    levels.saved(began)
                if levels.held(now):
                    return True
                if level_of(state) <= alert.level:
                    self._model.lag("alert", now - since)
                    if not alert.hard:
                        levels.acknowledged(demand, now, saved=not state.unsaved)
                    return True
            if now - since > HANG_SECONDS:
                return False
            time.sleep(0.02)
        return True

    def _post(self, alert: Alert) -> tuple[int, dict[str, Any]]:
        """Returns status and answer, 0 without one. Every second notification is signed as Grafana does, on the
        daemon's own clock."""
        self._sent += 1
        body = notification(alert.payload("firing" if alert.firing else "resolved"))
        headers = bearer() if self._sent % 2 else signed(body, at=time.time() + self._daemon.clock.ahead)
        connection = http.client.HTTPConnection("127.0.0.1", self._daemon.webhook_port, timeout=_ANSWER_SECONDS)
        try:
            connection.request("POST", "/v1/alerts", body, {"Content-Type": "application/json", **headers})
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"{}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            return 0, {"error": repr(error)}
        finally:
            connection.close()

    # what it answers

    def _answer(self, request: http_server.Request) -> http_server.Answer:
        if self.answers == "slowly":
            time.sleep(1.0)
        if self.answers == "with errors":
            return 500, {"message": "a test wants it so"}
        if self.answers == "with nonsense":
            return 200, b'[{"labels": {"alertname": 3'
        if request.method == "POST":
            return 200, {"id": 1, "message": "Annotation added"}
        with self._changed:
            firing = [alert for alert, _ in self._firing.values()]
        return 200, [alert.payload({"state": "active"}) for alert in firing]
