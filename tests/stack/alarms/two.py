"""Alerts about an edge and a verifier, with a network between them that is cut, slow, or swallows what is sent."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from draftd.client.client import CallError, DraftdClient
from draftd.core import WorkloadClass
from draftd.strategies import Strategy
from tests.remote.daemons import Two, draft_edge, two_daemons, until_remote
from tests.stack.alarms.watch import WINDOW_SECONDS, Watch, back_to_the_top
from tests.stack.traffic import prompts
from tests.wait_until import repeating

_NEAR, _FAR, _HALF_WAY = 0.01, 1.2, 0.4  # round trips in seconds


@contextlib.contextmanager
def clients(address: str, count: int, *strategies: Strategy | None) -> Iterator[None]:
    """Runs so many clients, each with one request after the other."""
    stop = threading.Event()

    def repeat(first: int) -> None:
        messages = prompts("code")
        with DraftdClient(address) as client:
            for number in itertools.count(first):
                if stop.wait(0.05):
                    return
                with contextlib.suppress(CallError):
                    list(
                        client.generate(
                            messages=messages[number % len(messages)],
                            workload=WorkloadClass.CODE,
                            max_tokens=32,
                            strategy=strategies[number % len(strategies)] if strategies else None,
                            timeout=20,
                        )
                    )

    threads = [threading.Thread(target=repeat, args=(first,), daemon=True) for first in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def two_daemons_apart(watch: Watch, folder: Path) -> None:
    edge = {
        **draft_edge(probe_seconds=0.5, connect_seconds=0.5, step_seconds=2),
        **watch.environ("edge"),
        "DRAFTD_FALLBACK__LONGEST_WAIT_SECONDS": "4",
        "DRAFTD_REMOTE__DEFAULT_STRATEGY": "speculative",
        "DRAFTD_FALLBACK__WINDOW_SECONDS": str(WINDOW_SECONDS),
        "DRAFTD_FALLBACK__LEAST_REQUESTS": "1",
        "DRAFTD_ENGINE__DEPTH_MODE": "fixed",
    }
    verifier = {
        **watch.environ("verifier"),
        "DRAFTD_VERIFY__SEQUENCES_PER_PEER": "4",
        "DRAFTD_VERIFY__TARGET_SHARE_PER_PEER": "0.05",  # while its own clients want it too
    }
    with two_daemons(edge=edge, verifier=verifier, folder=folder) as two:
        two.network(_NEAR)
        until_remote(two, 60)
        with clients(two.edge.address, 2, Strategy.SPECULATIVE, Strategy.REMOTE):
            network(watch, two)
            verifying(watch, two)
        watch.take("the network is cut", ["DraftdRemoteDown"], two.proxy.cut, two.proxy.restore, two.client)


def network(watch: Watch, two: Two) -> None:
    flaps = contextlib.ExitStack()

    def flap() -> None:
        two.proxy.swallow()
        time.sleep(2.5)  # longer than a step may take
        two.proxy.restore()
        time.sleep(1.0)

    def near() -> None:
        flaps.close()
        two.proxy.restore()
        two.network(_NEAR)

    for cause, name, act in (
        ("a round trip of 1.2 s", "DraftdRemoteSlow", lambda: two.network(_FAR)),
        ("a round trip of 0.4 s, at a fixed depth", "DraftdRemoteBelowStreaming", lambda: two.network(_HALF_WAY)),
        ("all that is sent is lost, again and again", "DraftdRemoteErrors",
         lambda: flaps.enter_context(repeating(flap, 0.1))),
    ):  # fmt: skip
        watch.take(cause, [name], act, near, two.client)
        back_to_the_top(two.client)


def verifying(watch: Watch, two: Two) -> None:
    more = contextlib.ExitStack()
    for cause, name, address, count in (
        ("the verifier's own clients; edges have 5 % of its target", "DraftdPeersWait", two.verifier.address, 4),
        ("8 requests at once, 4 sequences an edge", "DraftdPeersRefused", two.edge.address, 8),
    ):
        crowd = clients(address, count, *((Strategy.SPECULATIVE,) if address == two.edge.address else ()))
        act = lambda crowd=crowd: more.enter_context(crowd)  # noqa: E731
        watch.take(cause, [name], act, more.close, two.client)
