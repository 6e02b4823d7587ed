"""All there is in a run: the daemon, those around it, and what must hold. Faults act on this."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil

from draftd.client.client import CallError, DraftdClient
from draftd.core import FallbackLevel
from draftd.v1 import control_pb2
from tests.faults.clients import Clients, Health, Prompt, learnt
from tests.faults.daemon import HANG_SECONDS, Daemon, Gone
from tests.faults.model import Invariant, Model
from tests.faults.surroundings import Alertmanager, Collector, level_of

T = TypeVar("T")

# How much more than once the daemon was warm: what its libraries' pools grow to, and what is in flight.
_MORE_DESCRIPTORS, _MORE_THREADS, _MORE_BYTES = 24, 24, 160 * 2**20
_RETURN_SECONDS = HANG_SECONDS / 2  # for the last client's end to be counted, and for what was held to return
_LEASE_SECONDS = 1000.0  # less than an alert holds; no jump of the clock is between the two
_GONE = ("UNAVAILABLE", "CANCELLED")  # what requests end with where the daemon goes


class World:
    """Made and used on the main thread, but for `reachable`."""

    def __init__(self, folder: Path, seed: int, *, clients: int = 3, broken: str = "") -> None:
        self.model = Model()
        self.collector = Collector()
        self.collector.start()
        self.daemon = Daemon(folder, self.collector.environ(), broken)
        self.reachable = time.monotonic()
        self.alerts = Alertmanager(self.daemon, self.model, lambda: self.reachable)
        address = self.alerts.start()
        self.daemon.point({"DRAFTD_WEBHOOK__POLL_URL": address, "DRAFTD_ANNOTATIONS__GRAFANA_URL": address})
        self.clients = Clients(self.daemon, self.model, seed, clients)
        self.health = Health(self.daemon, self.model)
        self.prompts: list[Prompt] = []
        self.starts = self.kills = 0
        self.unwritable = 0  # faults that keep events from being written
        self.unlisted = False  # events that were recorded meanwhile
        self._ahead = 0.0  # of the daemon's clock as it was when it started
        self._baseline: tuple[int, int, int] | None = None

    def open(self) -> None:
        """Starts the daemon, and learns from it, undisturbed, what its answers are."""
        self.start()
        self.prompts = learnt(self.daemon.address)
        self.health.start()
        self.clients.start(self.prompts)
        self.recovered()

    def close(self) -> None:
        for part in (self.clients, self.health, self.alerts):
            with contextlib.suppress(RuntimeError):  # it was not started
                part.close()
        self.daemon.close()
        self.collector.kill()

    # the daemon's lives

    def start(self) -> None:
        ahead = float(self.daemon.conditions.get("clock", 0.0))
        if ahead - self._ahead > _LEASE_SECONDS:
            self.model.levels.leases_over(time.monotonic())
        self._ahead = ahead
        self.daemon.start()
        self.starts += 1
        self.reachable = time.monotonic()
        self.level()  # at once: alerts that are listed anew would lower it

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """The daemon goes within, and comes back: requests may end with it."""
        self.model.ends(self.daemon.life)
        with self.model.excused(_GONE):
            yield
            if not self.daemon.alive:
                self.start()
            self.loaded()

    def kill(self, *, forgets: bool = False) -> FallbackLevel:
        """Within an outage. `forgets`: its state is damaged before it starts again. The highest level that the next
        life may begin with."""
        killed, levels = time.monotonic(), self.model.levels
        self.daemon.kill()
        self.kills += 1
        self._gone(killed)  # what it answered last has arrived by then
        levels.restarted(time.monotonic(), forgets=False)
        now = time.monotonic()
        most = levels.highest(now, now)
        if forgets:
            levels.restarted(now, forgets=True)
        return most

    def stop(self) -> None:
        """With SIGTERM, within an outage: it must go in order."""
        began = time.monotonic()
        self.daemon.signal(signal.SIGTERM)
        self._gone(began)
        lines = self.daemon.lines
        try:
            code = self.daemon.ended()
        except Gone as error:
            self.model.breaks(Invariant.ALIVE, f"told to stop, {error}: {lines[-5:]}")
        else:
            self.model.expects(code == 0, Invariant.ALIVE, f"told to stop, it ended with {code}: {lines[-5:]}")
        self.model.levels.restarted(time.monotonic(), forgets=False)

    def dies(self) -> None:
        """Within an outage, after something that it cannot survive: it must end by itself, and say so."""
        began = time.monotonic()
        self._gone(began)
        lines = self.daemon.lines
        try:
            code = self.daemon.ended()
        except Gone as error:
            self.model.breaks(Invariant.ALIVE, f"without an engine {error}: {lines[-5:]}")
        else:
            self.model.expects(code == 1, Invariant.ALIVE, f"without an engine it ended with {code}: {lines[-5:]}")
        self.model.levels.restarted(time.monotonic(), forgets=False)

    def _gone(self, since: float) -> None:
        """Health must not be told to be good any more; nor may it be suspended: it could not end."""
        self.daemon.signal(signal.SIGCONT)
        seconds = self.health.told(False, since)
        if seconds is None:
            self._waited(Invariant.HEALTH, "SERVING after it was not")
        else:
            self.model.lag("health", seconds)

    def loaded(self) -> None:
        """Waits until it has said that it serves; health must say so then."""
        deadline = time.monotonic() + HANG_SECONDS
        while not self.daemon.loaded:
            if not self.daemon.alive or time.monotonic() > deadline:
                self.model.breaks(Invariant.ALIVE, f"it does not come up: {self.daemon.lines[-5:]}")
                return
            time.sleep(0.01)
        self.serving(time.monotonic())

    def _waited(self, invariant: Invariant, text: str) -> None:
        """In vain; unless it was given up because something else is broken."""
        if not self.model.broken:
            self.model.breaks(invariant, f"{text}, after {HANG_SECONDS:g} s")

    def serving(self, since: float) -> None:
        """Health must say so, after something that kept it from answering was over."""
        seconds = self.health.told(True, since)
        if seconds is None:
            self._waited(Invariant.HEALTH, "not SERVING, though it should be")
        else:
            self.model.lag("health", seconds)

    # between two faults

    def recovered(self) -> None:
        """All faults are over: it is alive, says that it serves, and serves; what alerts asked for is obeyed."""
        model, began = self.model, time.monotonic()
        if not self.daemon.alive:
            model.breaks(Invariant.ALIVE, f"it ended by itself: {self.daemon.lines[-5:]}")
        if model.broken:
            return
        if self.health.told(True, began) is None:
            self._waited(Invariant.HEALTH, "not SERVING, though all faults are over")
        if not self.clients.served(2 * HANG_SECONDS):
            self._waited(Invariant.REQUESTS, "no request is answered, though all faults are over")
        model.lag("recovery", time.monotonic() - began)
        if not self.alerts.delivered(2 * HANG_SECONDS):
            self._waited(Invariant.ALERTS, "not all alerts were taken, though all faults are over")
        self.level()
        self.events()

    def events(self) -> bool:
        """What is listed, compared with what was. False where there was no answer."""
        with contextlib.suppress(CallError), self.client() as client:
            written = not self.unwritable and not self.unlisted
            lost = self.model.events.listed(client.transitions(1000), written=written)
            self.model.expects(not lost, Invariant.EVENTS, f"lost: {lost}")
            self.unlisted = False
            return True
        return False

    def level(self) -> control_pb2.FallbackState | None:
        """What is in force, compared with what was asked for. None where there was no answer."""
        began = time.monotonic()
        with contextlib.suppress(CallError), self.client() as client:
            state = client.level()
            if not state.unsaved:
                self.model.levels.saved(began)
            self.model.level_seen(level_of(state), began, time.monotonic(), f"life {self.daemon.life}")
            return state
        return None

    def hold(self, level: FallbackLevel) -> None:
        """As an operator does it, once: whether it is in force is not known where there is no answer."""
        demand = self.model.levels.hold(level, time.monotonic())
        with contextlib.suppress(CallError), self.client() as client:
            state = client.hold_level(level)
            self.model.levels.acknowledged(demand, time.monotonic(), saved=not state.unsaved)

    def release(self) -> None:
        """Until it is acknowledged."""
        self.model.levels.release(time.monotonic())
        self.insist("a hold is not released", lambda client: client.release_level())
        self.model.levels.released(time.monotonic())

    def insist(self, what: str, call: Callable[[DraftdClient], T]) -> T | None:
        """Calls until it is answered; `what` breaks an invariant where that takes too long."""
        deadline, error = time.monotonic() + HANG_SECONDS, ""
        while time.monotonic() < deadline:
            try:
                with self.client() as client:
                    return call(client)
            except CallError as refused:
                error = str(refused)
                time.sleep(0.1)
        self.model.breaks(Invariant.LEVEL, f"{what}: {error}")
        return None

    def client(self) -> DraftdClient:
        return DraftdClient(self.daemon.address)

    # when nothing is in hand

    def reconcile(self) -> None:
        """Clients wait; then the engine's counts, its metrics and its resources are looked at."""
        with self.clients.paused() as quiet:
            self.model.expects(quiet, Invariant.REQUESTS, f"a request hangs for {HANG_SECONDS:g} s")
            status, wrong = self._idle()
            if status is None:
                self.model.breaks(Invariant.REQUESTS, "requests are in hand that no client waits for")
                return
            self.model.expects(not wrong, Invariant.COUNTERS, wrong)
            try:
                entries, tokens, ends = self.daemon.ask("ledger")
            except Gone as error:
                self.model.breaks(Invariant.ALIVE, str(error))
                return
            self.model.reconcile(self.daemon.life, entries, status)
            self.model.totals(tokens, ends, status)
            wrong = self._resources()
            self.model.expects(not wrong, Invariant.RESOURCES, wrong)

    def _idle(self) -> tuple[control_pb2.GetStatusResponse | None, str]:
        """The status once nothing is in hand, None where something always is; and what the metrics then show else."""
        deadline, wrong = time.monotonic() + _RETURN_SECONDS, "no status"
        last: control_pb2.GetStatusResponse | None = None
        while wrong and time.monotonic() < deadline:
            time.sleep(0.05)
            with contextlib.suppress(CallError), self.client() as client:
                status = client.status()
                if not status.active_requests and not status.queued_requests:
                    last, wrong = status, self.collector.agrees(status)
        return last, wrong

    def _resources(self) -> str:
        """Empty where they have returned to what they were when the daemon was first warm."""
        deadline = time.monotonic() + _RETURN_SECONDS
        while True:
            try:
                process = self.daemon.process
                found = process.num_fds(), process.num_threads(), process.memory_info().rss
            except psutil.Error as error:
                return repr(error)
            self._baseline = first = self._baseline or found
            allowed = (_MORE_DESCRIPTORS, _MORE_THREADS, _MORE_BYTES)
            if all(now <= was + more for now, was, more in zip(found, first, allowed, strict=True)):
                return ""
            if time.monotonic() > deadline:
                return f"descriptors, threads, bytes: {found}, when it was warm {first}"
            time.sleep(0.2)
