"""All parts of the fault suite: the daemon, its surroundings, and the model of what must hold. Faults act on this."""

from __future__ import annotations

import contextlib
import math
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import grpc
import psutil

from draftd.client.client import CallError, DraftdClient
from draftd.core import FallbackLevel
from draftd.v1 import control_pb2, control_pb2_grpc
from tests.faults.clients import Clients, Health, Prompt, asking, learnt
from tests.faults.credentials import Access
from tests.faults.daemon import HANG_SECONDS, Daemon, Gone
from tests.faults.model import Invariant, Model, false_lines
from tests.faults.surroundings import Alertmanager, Collector, level_of

T = TypeVar("T")

# How much more than once the daemon was warm: what its libraries' pools grow to, and what is in flight.
_MORE_DESCRIPTORS, _MORE_THREADS, _MORE_BYTES = 24, 24, 160 * 2**20
_RETURN_SECONDS = HANG_SECONDS / 2  # for the last client's end to be counted, and for what was held to return
_LEASE_SECONDS = 1000.0  # less than an alert holds; no jump of the clock is between the two
_GONE = ("UNAVAILABLE", "CANCELLED")  # what requests end with where the daemon goes


class World:
    """All parts together. Only the main thread uses it, except for `reachable`."""

    def __init__(self, folder: Path, seed: int, *, clients: int = 3, broken: str = "") -> None:
        self.model = Model()
        self.collector = Collector(self.model)
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
        self.uncounted = 0  # the latest life whose exporters raised: the SDK does not count what it lost by that
        self.unlisted = False  # events that were recorded meanwhile
        self._ahead = 0.0  # of the daemon's clock: what it makes of it while it runs
        self._held_for = math.inf  # seconds, of the latest hold
        self._baseline: tuple[int, int, int] | None = None

    def open(self) -> None:
        """Starts the daemon and learns its undisturbed answers."""
        self.start()
        self.prompts = learnt(self.daemon.access)
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
        ahead = self.daemon.clock.ahead
        if ahead - self._ahead > _LEASE_SECONDS:
            self.model.levels.leases_over(time.monotonic())
        self._ahead = ahead
        self.collector.begins()
        self.daemon.start()
        self.starts += 1
        self.reachable = time.monotonic()
        self.level()  # at once: alerts that are listed anew would lower it

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        """Allows the daemon to go away and come back while the block runs: requests may end because of it."""
        self.model.ends(self.daemon.life)
        with self.model.excused(_GONE):
            yield
            if not self.daemon.alive:
                self.start()
            self.loaded()

    def kill(self, *, forgets: bool = False) -> FallbackLevel:
        """Kills the daemon, within an outage. With `forgets` its state is damaged before it starts again. Returns the
        highest level with which the next life may begin."""
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
        """Stops the daemon with SIGTERM, within an outage: it must end in order."""
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
        """Waits, within an outage, for the end of a daemon that cannot survive: it must end by itself and say so."""
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
        """Waits until health is no longer good. Resumes a suspended daemon first, because it could not end."""
        self.daemon.signal(signal.SIGCONT)
        seconds = self.health.told(False, since)
        if seconds is None:
            self._waited(Invariant.HEALTH, "SERVING after it was not")
        else:
            self.model.lag("health", seconds)

    def loaded(self) -> None:
        """Waits until the daemon announces that it serves; health must then be good."""
        deadline = time.monotonic() + HANG_SECONDS
        while not self.daemon.loaded:
            if not self.daemon.alive or time.monotonic() > deadline:
                self.model.breaks(Invariant.ALIVE, f"it does not come up, {self.daemon.fate}: {self.daemon.lines[-5:]}")
                return
            time.sleep(0.01)
        self.serving(time.monotonic())

    def _waited(self, invariant: Invariant, text: str) -> None:
        """Records a wait in vain, unless it was given up because of another violation."""
        if not self.model.broken:
            self.model.breaks(invariant, f"{text}, after {HANG_SECONDS:g} s")

    def serving(self, since: float) -> None:
        """Waits until health is good again, after something that prevented it is over."""
        seconds = self.health.told(True, since)
        if seconds is None:
            self._waited(Invariant.HEALTH, "not SERVING, though it should be")
        else:
            self.model.lag("health", seconds)

    # between two faults

    def recovered(self) -> None:
        """Checks, after all faults, that the daemon is alive, healthy and serving, and obeys the alerts."""
        model, began = self.model, time.monotonic()
        if not self.daemon.alive:
            model.breaks(Invariant.ALIVE, f"it ended by itself, {self.daemon.fate}: {self.daemon.lines[-5:]}")
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
        self._log_is_true()

    def _log_is_true(self) -> None:
        """Checks that the last log line on each state is true now. A line may still be on its way."""
        deadline, wrong = time.monotonic() + HANG_SECONDS, "no state"
        while wrong and time.monotonic() < deadline and not self.model.broken:
            state = self.level()
            if state is not None:
                found = {"level": level_of(state).label, "unsaved": "yes" if state.unsaved else "", "collector": ""}
                wrong = false_lines(self.daemon.lines, found)
            time.sleep(0.02 if wrong else 0.0)
        if not self.model.broken:
            self.model.expects(not wrong, Invariant.LOG, wrong)

    def events(self) -> bool:
        """Compares the listed events with the earlier ones. Returns False without an answer."""
        with contextlib.suppress(CallError), self.client() as client:
            written = not self.unwritable and not self.unlisted
            lost = self.model.events.listed(client.transitions(1000), written=written)
            self.model.expects(not lost, Invariant.EVENTS, f"lost: {lost}")
            self.unlisted = False
            return True
        return False

    def level(self) -> control_pb2.FallbackState | None:
        """Compares the level in force with what was asked for. Returns None without an answer."""
        began = time.monotonic()
        with contextlib.suppress(CallError), self.client() as client:
            state = client.level()
            if not state.unsaved:
                self.model.levels.saved(began)
            self.model.level_seen(level_of(state), began, time.monotonic(), f"life {self.daemon.life}")
            return state
        return None

    def sleeps(self, seconds: float) -> None:
        """Simulates a sleep of the machine while the daemon is stopped."""
        levels = self.model.levels
        self.daemon.clock.sleep(seconds)
        self._ahead += seconds
        if seconds > _LEASE_SECONDS:
            levels.leases_over(time.monotonic())
        if seconds > self._held_for:
            levels.release(time.monotonic())

    def hold_over(self) -> None:
        """Records that the hold ended while the machine slept: it must not be in force any more."""
        if not self.daemon.clock.steps:
            self.release()
            return
        deadline = time.monotonic() + HANG_SECONDS
        while time.monotonic() < deadline and not self.model.broken:
            state = self.level()
            if state is not None and not state.HasField("hold"):
                self.model.levels.released(time.monotonic())
                return
            time.sleep(0.05)
        self._waited(Invariant.LEVEL, "a hold whose time was over while the machine slept is in force")

    def hold(self, level: FallbackLevel, seconds: float = math.inf) -> None:
        """Holds a level as an operator does, once. Without an answer it is unknown whether it is in force."""
        demand, self._held_for = self.model.levels.hold(level, time.monotonic()), seconds
        with contextlib.suppress(CallError), self.client() as client:
            state = client.hold_level(level, None if math.isinf(seconds) else seconds)
            self.model.levels.acknowledged(demand, time.monotonic(), saved=not state.unsaved)

    def release(self) -> None:
        """Releases the hold, until that is acknowledged."""
        self.model.levels.release(time.monotonic())
        self.insist("a hold is not released", lambda client: client.release_level())
        self.model.levels.released(time.monotonic())

    def insist(self, what: str, call: Callable[[DraftdClient], T]) -> T | None:
        """Calls until there is an answer; `what` is recorded as a violation if that takes too long."""
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

    # credentials

    def reload(self, *, well: bool = True) -> None:
        """Sends SIGHUP and waits for the daemon's message about it: with `well`, it has loaded its files."""
        lines = self.daemon.lines
        before, deadline, said = len(lines), time.monotonic() + HANG_SECONDS, ""
        self.daemon.signal(signal.SIGHUP)
        while not said and time.monotonic() < deadline and not self.model.broken:
            time.sleep(0.01)
            said = next((line for line in lines[before:] if "SIGHUP: " in line), "")
        if not said:
            self._waited(Invariant.CREDENTIALS, f"SIGHUP, and no word of it: {lines[-5:]}")
        else:
            told = f"credentials that are {'right' if well else 'wrong'}, and it says: {said}"
            self.model.expects(("SIGHUP: reloaded" in said) == well, Invariant.CREDENTIALS, told)

    def has_certificate(self) -> None:
        """Checks that new connections see the current certificate and no other."""
        credentials = self.daemon.credentials
        right, other = (replace(self.daemon.access, ca=ca) for ca in (credentials.trusted, credentials.other))
        self._answers(right, "who trusts the authority of the present certificate")
        answered = self._code(other)
        told = f"who trusts only another authority is answered {answered}"
        self.model.expects(answered != "OK", Invariant.CREDENTIALS, told)

    def takes(self, token: str, *, valid: bool = True) -> None:
        access = replace(self.daemon.access, token=token)
        if valid:
            self._answers(access, "who has a valid token")
        else:
            taken = self._code(access) == "OK"
            self.model.expects(not taken, Invariant.CREDENTIALS, "a token that is not valid any more is taken")

    def _answers(self, access: Access, who: str) -> None:
        deadline, code = time.monotonic() + HANG_SECONDS, ""
        while code != "OK" and time.monotonic() < deadline and not self.model.broken:
            code = self._code(access)
            refused = code == "UNAUTHENTICATED"
            self.model.expects(not refused, Invariant.CREDENTIALS, f"{who} is answered {code}")
        if code != "OK":
            self._waited(Invariant.CREDENTIALS, f"{who} is answered {code}")

    def _code(self, access: Access) -> str:
        """Returns the status of a call on a connection of its own."""
        with access.channel() as channel:
            stub = control_pb2_grpc.ControlServiceStub(channel)  # type: ignore[no-untyped-call]
            try:
                stub.GetLevel(control_pb2.GetLevelRequest(), timeout=5, metadata=access.metadata)
            except grpc.RpcError as error:
                return str(error.code().name)  # type: ignore[attr-defined]
            return "OK"

    @contextlib.contextmanager
    def uncut(self, dice: random.Random) -> Iterator[None]:
        """Checks that a request which runs when the block begins still runs when it has ended."""
        with asking(self.daemon.access) as begin:
            call, life, runs = begin(dice.choice(self.prompts), 60), self.daemon.life, False
            with contextlib.suppress(grpc.RpcError):
                runs = next(call) is not None
            yield
            try:
                for _ in call if runs else ():
                    pass
            except grpc.RpcError as error:
                code = error.code().name  # type: ignore[attr-defined]
                cut = code in ("UNAVAILABLE", "CANCELLED", "UNAUTHENTICATED") and self.daemon.life == life
                self.model.expects(not cut, Invariant.CREDENTIALS, f"a request that ran was cut: {error}")

    def client(self) -> DraftdClient:
        return self.daemon.access.client()

    # when nothing is in hand

    def reconcile(self) -> None:
        """Pauses the clients, and compares the engine's counts, its metrics and its resources."""
        with self.clients.paused() as quiet:
            self.model.expects(quiet, Invariant.REQUESTS, f"a request hangs for {HANG_SECONDS:g} s")
            status, wrong, lacking = self._idle()
            if status is None:
                self.model.breaks(Invariant.REQUESTS, "requests are in hand that no client waits for")
                return
            self.model.expects(not wrong, Invariant.COUNTERS, wrong)
            self.model.expects(not lacking, Invariant.TELEMETRY, lacking)
            try:
                entries, tokens, ends = self.daemon.ask("ledger")
            except Gone as error:
                self.model.breaks(Invariant.ALIVE, str(error))
                return
            self.model.reconcile(self.daemon.life, entries, status)
            self.model.totals(tokens, ends, status)
            wrong = self._resources()
            self.model.expects(not wrong, Invariant.RESOURCES, wrong)

    def _idle(self) -> tuple[control_pb2.GetStatusResponse | None, str, str]:
        """Waits until no request runs. Returns the status (None if one always runs), differing metrics, and missing
        spans."""
        deadline, wrong, lacking = time.monotonic() + _RETURN_SECONDS, "no status", ""
        last: control_pb2.GetStatusResponse | None = None
        requests = self.model.whole(self.daemon.life)
        while (wrong or lacking) and time.monotonic() < deadline:
            time.sleep(0.05)
            with contextlib.suppress(CallError), self.client() as client:
                status = client.status()
                if not status.active_requests and not status.queued_requests:
                    last, wrong = status, self.collector.agrees(status)
                    lacking = "" if self.uncounted == self.daemon.life else self.collector.lacks(requests)
        return last, wrong, lacking

    def _resources(self) -> str:
        """Returns which resources did not return to their values when the daemon was first warm, or an empty text."""
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
