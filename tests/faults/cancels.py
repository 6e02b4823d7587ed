"""Cancels thousands of streams as soon as they begin, beside thousands of idle connections. A second client must not
notice, and nothing may leak."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from draftd.hardware.descriptors import raise_limit
from tests.faults.clients import Manner, Prompt, ask, learnt
from tests.faults.crowds import idle, storm
from tests.faults.daemon import HANG_SECONDS, Daemon
from tests.faults.model import percentile

_STORMS = 4  # at a time, each on a connection of its own
_WARM = 400  # streams cancelled before anything is compared
_WITHIN = 0.02  # seconds
_MORE_DESCRIPTORS, _MORE_BYTES = 24, 64 * 2**20


def main(folder: Path, cancels: int, connections: int, seed: int) -> int:
    """Prints the result. Returns 0 if nothing leaked and the second client was served in time."""
    raise_limit()  # this process holds the other ends
    daemon = Daemon(folder, {"OTEL_SDK_DISABLED": "true"})
    try:
        daemon.start()
        prompts = learnt(daemon.access)
        _cancelled(daemon, prompts, _WARM, seed)
        _settled(daemon)
        before = _held(daemon)
        began = time.monotonic()
        with idle(daemon.access.port, connections), Second(daemon, prompts, seed) as second:
            during = _until(daemon, lambda descriptors: descriptors >= before[0] + connections)
            ended = _cancelled(daemon, prompts, cancels, seed + 1)
        seconds = time.monotonic() - began
        _settled(daemon)
        after = _until(daemon, lambda descriptors: descriptors <= before[0] + _MORE_DESCRIPTORS)
    finally:
        daemon.close()
    print(f"{ended.total()} streams cancelled in {seconds:.0f} s beside {connections} idle connections: {dict(ended)}")
    print(f"second client: {dict(second.ended)}; {second.wrong} wrong texts; {second.latency}")
    print(f"descriptors, bytes: {before} before, {during} with the idle connections, {after} afterwards")
    faults = {
        "idle connections were refused": during[0] < before[0] + connections,
        "a request of the second client did not end well": set(second.ended) != {"OK"},
        "a text was another one": second.wrong > 0,
        "descriptors did not return": after[0] > before[0] + _MORE_DESCRIPTORS,
        "memory did not return": after[1] > before[1] + _MORE_BYTES,
    }
    for what, so in faults.items():
        if so:
            print(f"BROKEN: {what}")
    return 1 if any(faults.values()) else 0


class Second:
    """A client that sends one request after the other while the block runs."""

    def __init__(self, daemon: Daemon, prompts: list[Prompt], seed: int) -> None:
        self._daemon, self._prompts, self._dice = daemon, prompts, random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._seconds: list[float] = []
        self.ended, self.wrong = Counter[str](), 0

    def __enter__(self) -> Second:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(2 * HANG_SECONDS)

    @property
    def latency(self) -> str:
        return ", ".join(f"p{share * 100:g} {percentile(self._seconds, share):.2f} s" for share in (0.5, 0.99))

    def _run(self) -> None:
        with self._daemon.access.client() as client:
            while not self._stop.is_set():
                made = ask(client, 1, self._dice.choice(self._prompts), Manner())
                self.ended[made.code] += 1
                self.wrong += made.text != made.reference.text
                self._seconds.append(made.ended - made.began)


def _cancelled(daemon: Daemon, prompts: list[Prompt], number: int, seed: int) -> Counter[str]:
    ended = Counter[str]()
    with ThreadPoolExecutor(_STORMS) as threads:
        dice = [random.Random(f"{seed} {i}") for i in range(_STORMS)]
        shares = [number // _STORMS + (i < number % _STORMS) for i in range(_STORMS)]
        for one in threads.map(lambda i: storm(daemon.access, prompts, shares[i], _WITHIN, dice[i]), range(_STORMS)):
            ended += one
    return ended


def _settled(daemon: Daemon) -> None:
    """Waits until no request is running."""
    deadline = time.monotonic() + HANG_SECONDS
    with daemon.access.client() as client:
        while (status := client.status()).active_requests or status.queued_requests:
            assert time.monotonic() < deadline, f"in hand for {HANG_SECONDS:g} s: {status}"
            time.sleep(0.05)


def _held(daemon: Daemon) -> tuple[int, int]:
    """Returns the daemon's open descriptors and its memory in bytes."""
    process = daemon.process
    return process.num_fds(), process.memory_info().rss


def _until(daemon: Daemon, well: Callable[[int], bool]) -> tuple[int, int]:
    """Returns what the daemon holds once the number of descriptors satisfies `well`, or after a while if it does
    not."""
    deadline = time.monotonic() + HANG_SECONDS
    while not well((found := _held(daemon))[0]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
