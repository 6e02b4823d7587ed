"""Alerts about one daemon and its clients: drafts, machine, requests, disk, certificates, alerts, telemetry."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import grpc

from draftd.client.child import clean_environ
from draftd.client.client import CallError, DraftdClient
from draftd.core import FallbackLevel, WorkloadClass
from tests import forked_daemon
from tests.certificates import Authority
from tests.damaged_draft import Draft
from tests.stack.alarms.child import Steered, steered
from tests.stack.alarms.watch import WINDOW_SECONDS, Watch, back_to_the_top
from tests.stack.traffic import prompts
from tests.webhook import bearer, notification

_CLIENTS = 2
_EXPIRES_SECONDS = 45.0
_DAY = 86_400.0


@dataclass
class Asking:
    """The requests that each client sends repeatedly."""

    max_tokens: int = 24
    timeout: float = 30.0
    pause: float = 0.05
    at_once: int = 1


@contextlib.contextmanager
def clients(address: str, asking: Asking) -> Iterator[None]:
    stop = threading.Event()

    def ask(client: DraftdClient, workload: WorkloadClass, number: int) -> None:
        messages = prompts(workload.value)
        with contextlib.suppress(CallError):
            asked = {"max_tokens": asking.max_tokens, "timeout": asking.timeout}
            list(client.generate(messages=messages[number % len(messages)], workload=workload, **asked))

    def repeat(workload: WorkloadClass) -> None:
        with DraftdClient(address) as client:
            for number in itertools.count():
                crowd = [
                    threading.Thread(target=ask, args=(client, workload, number), daemon=True)
                    for _ in range(asking.at_once)
                ]
                for one in crowd:
                    one.start()
                for one in crowd:
                    one.join()
                if stop.wait(asking.pause):
                    return

    kinds = (WorkloadClass.CODE, WorkloadClass.CHAT)[:_CLIENTS]
    threads = [threading.Thread(target=repeat, args=(kind,), daemon=True) for kind in kinds]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


@contextlib.contextmanager
def serving(watch: Watch, folder: Path, draft: Draft | None = None) -> Iterator[tuple[Steered, DraftdClient]]:
    """Runs the daemon; `draft` is read from disk instead of the embedded one."""
    nano = files("draftd.models.nano")
    environ = {
        **clean_environ(str(folder / "flags.json")),
        **watch.environ("one"),
        "DRAFTD_MODEL__PATH": str(nano / "target"),
        "DRAFTD_MODEL__DRAFT_PATH": str(nano / "draft") if draft is None else str(draft.heavy),
        **({} if draft is None else {"DRAFTD_MODEL__LIGHT_DRAFT_PATH": str(draft.light)}),
        "DRAFTD_FALLBACK__LIGHTER": "prompt_lookup" if draft is None else "light_draft_model",
        "DRAFTD_ENGINE__DEPTH_MODE": "fixed",  # automatic depth would park a bad draft
        "DRAFTD_ENGINE__QUEUE_CAPACITY": "4",
        "DRAFTD_FALLBACK__BLOCKS": "2",
        "DRAFTD_FALLBACK__STATE_DIR": str(folder / "state"),
        "DRAFTD_HARDWARE__PERIOD_SECONDS": "0.5",
    }
    with steered(environ) as daemon, DraftdClient(daemon.address) as client:
        yield daemon, client


def no_daemon(watch: Watch, folder: Path) -> None:
    """Kills a daemon, stops the next one, and lets a last one export again. No other may be missing."""
    environ = {**clean_environ(str(folder / "flags.json")), **watch.environ("one"), "XDG_STATE_HOME": str(folder)}
    with contextlib.ExitStack() as life:
        running: list[forked_daemon.Daemon] = []

        def start() -> None:
            running.append(
                life.enter_context(forked_daemon.daemon(forked_daemon.command, "serve", "--port", "0", environ=environ))
            )
            time.sleep(WINDOW_SECONDS)  # for its exports

        start()
        kill, stop = (lambda: running[-1].child.kill()), (lambda: running[-1].child.terminate())
        watch.take("the daemon is killed; one is started", ["DraftdAbsent"], kill, start, None)
        watch.take("the daemon is told to stop; one is started", ["DraftdStopped"], stop, start, None)


def drafts(watch: Watch, folder: Path) -> None:
    draft = Draft.copied(folder)
    with serving(watch, folder, draft) as (daemon, client), clients(daemon.address, Asking()):
        time.sleep(6 * WINDOW_SECONDS)  # a baseline, which ends three windows ago
        _drafts(watch, daemon, client, draft)


def _drafts(watch: Watch, daemon: Steered, client: DraftdClient, draft: Draft) -> None:
    def replace(damage: bool) -> None:
        draft.damage() if damage else draft.mend()
        client.reload_draft()

    names = ("DraftdAcceptanceBelowFloor", "DraftdAcceptanceDrift", "DraftdSlowerThanBreakEven")
    watch.take("damaged draft read in", names, lambda: replace(True), lambda: replace(False), client)
    for place, name in (("drafter", "DraftdDrafterErrors"), ("forward", "DraftdVerifierErrors")):
        back_to_the_top(client)
        cause = f"{'drafting' if place == 'drafter' else 'the forward pass'} raises, 3 times"
        act = lambda place=place: daemon.tell("arm", place, 3)  # noqa: E731
        watch.take(cause, [name], act, lambda: None, client)
    back_to_the_top(client)


def machine(watch: Watch, folder: Path) -> None:
    with serving(watch, folder) as (daemon, client):
        for seam, name, cause in (
            ("heat", "DraftdThermalHeavy", "thermal level 2, put in where it is read"),
            ("swap", "DraftdSwapRising", "100 MB/s of swap-ins, put in where they are read"),
            ("pressure", "DraftdMemoryPressureCritical", "critical pressure, put in where it is read"),
        ):
            on, off = (lambda seam=seam, to=to: daemon.tell(seam, to) for to in (True, False))
            watch.take(cause, [name], on, off, client)
            back_to_the_top(client)


def requests(watch: Watch, folder: Path) -> None:
    asking = Asking()
    with serving(watch, folder) as (daemon, client), clients(daemon.address, asking):
        time.sleep(6 * WINDOW_SECONDS)  # a baseline of the time to the first token
        _requests(watch, daemon, client, asking)


def _requests(watch: Watch, daemon: Steered, client: DraftdClient, asking: Asking) -> None:
    def slow(seconds: float, tokens: int) -> None:
        asking.max_tokens = tokens
        daemon.tell("lag", seconds)

    def hurry(timeout: float) -> None:
        asking.timeout = timeout
        daemon.tell("lag", 0.0 if timeout > 1 else 0.1)

    def crowd(clients: int) -> None:
        asking.at_once = clients

    watch.take(
        "each forward takes 0.7 s longer", ["DraftdTimeToFirstTokenRegression"],
        lambda: slow(0.7, 2), lambda: slow(0.0, 24), client,
    )  # fmt: skip
    watch.take(
        "clients wait 0.3 s for 24 tokens", ["DraftdDeadlinesExceeded"],
        lambda: hurry(0.3), lambda: hurry(30.0), client,
    )  # fmt: skip
    watch.take(
        "24 requests at once, 4 may wait", ["DraftdRequestsRefused"], lambda: crowd(24), lambda: crowd(1), client
    )
    watch.take(
        "every forward pass raises", ["DraftdRequestErrors"],
        lambda: daemon.tell("arm", "forward", 10**9), lambda: daemon.tell("arm", "forward", 0), client,
    )  # fmt: skip
    back_to_the_top(client)


def around(watch: Watch, folder: Path) -> None:
    """Breaks the daemon's surroundings: the disk, senders of alerts, receivers of telemetry; and fails the canaries."""
    with serving(watch, folder) as (daemon, client):
        _around(watch, daemon, client)
        _canaries(watch, daemon, client)


def _around(watch: Watch, daemon: Steered, client: DraftdClient) -> None:
    url = f"http://127.0.0.1:{watch.webhooks['one']}/v1/alerts"

    def full_disk() -> None:
        daemon.tell("disk", errno.ENOSPC)
        client.hold_level(FallbackLevel.FULL)  # which is to be saved

    def mended() -> None:
        daemon.tell("disk", 0)
        client.release_level()

    def guess() -> None:
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(urllib.request.Request(url, notification(), bearer("a guess")), timeout=10)

    def refuse() -> None:
        watch.traces.refuse = grpc.StatusCode.INVALID_ARGUMENT
        list(client.generate("def f(x):", max_tokens=4, timeout=30))

    def take() -> None:
        watch.traces.refuse = None

    watch.take("the state folder's disk is full", ["DraftdStateNotSaved"], full_disk, mended, client)
    watch.take("a notification with another token", ["DraftdAlertsRefused"], guess, lambda: None, client)
    watch.take("the store of traces refuses them", ["DraftdTelemetryDropped"], refuse, take, client)


def _canaries(watch: Watch, daemon: Steered, client: DraftdClient) -> None:
    def run(wrong: bool) -> None:
        daemon.tell("wrong", wrong)
        client.canaries()

    watch.take(
        "drafted tokens are accepted unseen; the canaries are run", ["DraftdCanariesFail"],
        lambda: run(True), lambda: run(False), client,
    )  # fmt: skip
    back_to_the_top(client)


def certificates(watch: Watch, folder: Path) -> None:
    authority, life = Authority(folder, "authority"), contextlib.ExitStack()
    certificate = authority.issue("server")
    environ = {
        **clean_environ(str(folder / "flags.json")),
        **watch.environ("one"),
        "DRAFTD_FALLBACK__STATE_DIR": str(folder / "state"),
        "DRAFTD_SERVER__TLS_CERT": str(certificate.cert),
        "DRAFTD_SERVER__TLS_KEY": str(certificate.key),
        "DRAFTD_SERVER__TOKEN": "a-token-of-sixteen-characters",
    }
    daemons = list[forked_daemon.Daemon]()

    def start() -> None:
        authority.issue("server", end=_EXPIRES_SECONDS / _DAY)
        daemons.append(life.enter_context(forked_daemon.serving(_without_terminal, environ=environ)))

    def renew() -> None:
        authority.issue("server", end=365)
        daemons[0].child.send_signal(signal.SIGHUP)

    with life:
        cause = f"a certificate that expires in {_EXPIRES_SECONDS:g} s"
        watch.take(cause, ["DraftdCertificateExpires"], start, lambda: None, None)
        watch.take("the same, later; it is renewed", ["DraftdCertificateExpired"], lambda: None, renew, None)


def _without_terminal() -> None:
    """Starts a session of its own, so that SIGHUP does not mean a closed terminal to the daemon."""
    os.setsid()
    forked_daemon.command("serve", "--port", "0")
