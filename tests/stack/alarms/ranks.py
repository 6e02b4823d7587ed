"""Alerts about two ranks on this machine: a follower that is stopped, one that is killed, and one that never serves."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from draftd.client.child import serve_command, serving
from draftd.client.client import CallError, DraftdClient
from draftd.core import WorkloadClass
from tests.stack.alarms.watch import Watch
from tests.stack.traffic import prompts
from tests.wait_until import repeating, until


def followers() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "follow" in child.cmdline():
                found.append(child)
    return found


def kill() -> None:
    for one in followers():
        with contextlib.suppress(psutil.Error):
            one.kill()


@contextlib.contextmanager
def client_of(address: str) -> Iterator[None]:
    stop = threading.Event()

    def repeat() -> None:
        messages = prompts("code")
        with DraftdClient(address) as client:
            for number in itertools.count():
                if stop.wait(0.2):
                    return
                with contextlib.suppress(CallError):
                    asked = messages[number % len(messages)]
                    list(client.generate(messages=asked, workload=WorkloadClass.CODE, max_tokens=16, timeout=30))

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)


def several_ranks(watch: Watch, folder: Path) -> None:
    environ = {
        **os.environ,
        **watch.environ("ranks"),
        "DRAFTD_FLAG__FILE": str(folder / "flags.json"),
        "DRAFTD_FALLBACK__STATE_DIR": str(folder / "state"),
        "DRAFTD_DISTRIBUTED__TIMEOUT_SECONDS": "60",
    }
    command = serve_command("--host", "127.0.0.1", "--port", "0", "--ranks", "2")
    with serving(command, environ, timeout=120) as daemon, DraftdClient(daemon.address) as client:
        behind(watch, client, daemon.address)
        with client_of(daemon.address):
            watch.take("the follower is killed", ["DraftdGroupLost"], kill, lambda: None, client)
            over = lambda: client.serving() and "DraftdGroupNotServing" not in watch.firing  # noqa: E731
            until(over, 60, "the group is back")
            killing = contextlib.ExitStack()
            watch.take("each follower is killed as it begins", ["DraftdGroupNotServing"],
                       lambda: killing.enter_context(repeating(kill, 0.1)), killing.close, client)  # fmt: skip


def behind(watch: Watch, client: DraftdClient, address: str) -> None:
    """Stops a follower: the records of one forward are all that rank 0 sends before it waits."""
    stopped, asking = followers(), contextlib.ExitStack()

    def stop() -> None:
        for one in stopped:
            one.suspend()
        asking.enter_context(client_of(address))

    def resume() -> None:
        for one in stopped:
            one.resume()
        asking.close()

    watch.take("the follower is stopped, the limit is 2 records", ["DraftdRankBehind"], stop, resume, client)
