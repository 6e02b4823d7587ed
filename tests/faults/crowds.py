"""Crowds of clients that overload the daemon or leave at any time, and floods of the webhook. They are judged by their
effect on others. The first half knows only the daemon's address; the second half makes faults of it."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial

import grpc

from draftd.client.client import CallError
from tests.faults.clients import TOKENS, Prompt, asking
from tests.faults.credentials import Access
from tests.faults.daemon import HANG_SECONDS
from tests.faults.world import World


def storm(access: Access, prompts: Sequence[Prompt], number: int, within: float, dice: random.Random) -> Counter[str]:
    """Cancels streams within so many seconds of their start, one after the other. Returns their number by status."""
    ended = Counter[str]()
    with asking(access) as begin:
        for _ in range(number):
            call = begin(dice.choice(prompts), TOKENS)
            time.sleep(dice.uniform(0.0, within))
            call.cancel()
            ended[call.code().name] += 1
    return ended


def burst(access: Access, prompts: Sequence[Prompt], number: int, seconds: float) -> Counter[str]:
    """Sends more requests at once than the daemon accepts, and cancels those that still run after so many seconds.
    Returns their number by status."""
    with asking(access) as begin:
        calls = [begin(prompts[i % len(prompts)], TOKENS) for i in range(number)]
        time.sleep(seconds)
        for call in calls:
            call.cancel()
        return Counter(call.code().name for call in calls)


@contextmanager
def idle(port: int, number: int) -> Iterator[list[socket.socket]]:
    """Opens so many connections that send nothing, or fewer if no more are possible."""
    held = list[socket.socket]()
    try:
        with suppress(OSError):
            for _ in range(number):
                held.append(socket.create_connection(("127.0.0.1", port), timeout=5))
        yield held
    finally:
        for one in held:
            one.close()


class Cable:
    """A connection to the daemon that can be cut: then neither side hears from the other until it is closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._cut = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._begin(self._accept)

    def cut(self) -> None:
        self._cut.set()

    def close(self) -> None:
        self._cut.set()
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(HANG_SECONDS)

    def _begin(self, run: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=run, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port), timeout=HANG_SECONDS)
                far.settimeout(None)
                self._sockets += [near, far]
                self._begin(self._pass_on, near, far)
                self._begin(self._pass_on, far, near)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self._cut.is_set():
                    continue  # it is lost
                sink.sendall(data)


def vanish(access: Access, prompts: Sequence[Prompt], number: int, seconds: float) -> None:
    """Runs clients whose machine vanishes in the middle of an answer; after a while their connections close."""
    cable = Cable(access.port)
    try:
        with asking(replace(access, address=cable.address)) as begin:
            calls = [begin(prompts[i % len(prompts)], 400) for i in range(number)]
            time.sleep(seconds / 2)
            cable.cut()
            time.sleep(seconds / 2)
            cable.close()
            for call in calls:
                call.cancel()
    finally:
        cable.close()


# As faults.


@contextmanager
def beside(run: Callable[[], object]) -> Iterator[None]:
    """Runs a function on a thread of its own. Errors of gRPC or a socket because the daemon ends are ignored."""

    def quietly() -> None:
        with suppress(grpc.RpcError, OSError, ValueError):
            run()

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    yield
    thread.join(2 * HANG_SECONDS)


def cancelled_streams(world: World, dice: random.Random) -> Iterator[None]:
    with beside(partial(storm, world.daemon.access, world.prompts, 25, 0.02, dice)):
        yield


def too_many_requests(world: World, dice: random.Random) -> Iterator[None]:
    with beside(partial(burst, world.daemon.access, world.prompts, 60, 0.5)):
        yield


def clients_vanish(world: World, dice: random.Random) -> Iterator[None]:
    with beside(partial(vanish, world.daemon.access, world.prompts, 4, 1.0)):
        yield


def too_many_watchers(world: World, dice: random.Random) -> Iterator[None]:
    """Opens more watching streams than are allowed; all of them leave at once."""

    def watch() -> None:
        with ExitStack() as held, ThreadPoolExecutor(40) as threads:
            client = held.enter_context(world.daemon.access.client())

            def one(_: int) -> None:
                with suppress(CallError):
                    list(client.watch(timeout=0.5))

            list(threads.map(one, range(40)))

    with beside(watch):
        yield


_FLOOD = (
    b"POST /v1/alerts HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nno alerts",
    b"POST /v1/alerts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer guess\r\nContent-Length: 2\r\n\r\n{}",
    b"nonsense\r\n\r\n",
)
_BEGUN = b"POST /v1/alerts HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"


def flooded(world: World, dice: random.Random) -> Iterator[None]:
    """Floods the webhook from unknown senders, as fast as four threads can, for as long as the fault lasts."""
    stop, port = threading.Event(), world.daemon.webhook_port

    def send() -> None:
        while not stop.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as one:
                one.sendall(_FLOOD[int(time.monotonic() * 1000) % len(_FLOOD)])
                one.recv(1000)
            stop.wait(0.005)

    with ExitStack() as threads:
        for _ in range(4):
            threads.enter_context(beside(send))
        yield
        stop.set()


def slow_senders(world: World, dice: random.Random) -> Iterator[None]:
    """Opens more connections than the webhook accepts, each with half a notification."""
    with idle(world.daemon.webhook_port, 80) as held:
        for one in held:
            with suppress(OSError):
                one.sendall(_BEGUN)
        yield
