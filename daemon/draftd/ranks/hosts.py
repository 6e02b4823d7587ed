"""What a machine says of itself before a group of ranks begins there, and how fast its links are: for `draftd doctor`.

The doctor runs `draftd doctor --answer` on each other machine, over SSH, and asks it in JSON, a line a question and a
line an answer, until its standard input ends. Rank 0's machine is its own.
"""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import socket
import statistics
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Protocol, Self

from draftd.errors import DraftdError, in_words
from draftd.ranks.followers import last_words
from draftd.ranks.proof import OwnProof

PINGS, BLOCK = 100, 1 << 18
_CONNECT_SECONDS, _LISTEN_SECONDS, _HASH_SECONDS = 3.0, 10.0, 900.0
_PING = b"p" * 64
_TRIPS, _STREAM = b"T", b"S"  # what a connection is for


class HostError(DraftdError):
    """A machine that does not answer, or could not do what it was asked. In one line, without its name."""

    def __init__(self, message: str, *, gone: bool = False) -> None:
        super().__init__(message)
        self.gone = gone  # it does not answer any more


# The machine that is asked.


def answer(
    asked: IO[str], told: Callable[[str], None], own: Callable[[], OwnProof], machine: Callable[[], Mapping[str, Any]]
) -> None:
    """Until `asked` ends. `own`: of the model that is to be served there; `machine`: what else is told of it. An answer
    is an object; what goes wrong is its `error`."""
    with OwnHost(own, machine) as here:
        for line in asked:
            try:
                found = here.to(json.loads(line))
            except HostError as error:
                found = {"error": error.message}
            except (ValueError, KeyError, TypeError) as error:
                found = {"error": f"a question that this draftd does not know: {error}"}
            told(json.dumps(found))


class Host(Protocol):
    """A machine that can be asked. One thread; answers come in the order of the questions."""

    def ask(self, question: str, **fields: Any) -> None:
        """Its answer is to be taken by `told`."""

    def told(self, seconds: float) -> dict[str, Any]:
        """The next answer. Raises HostError, also where it was an error."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *raised: object) -> None: ...


class OwnHost:
    """This machine, asked without a process."""

    def __init__(self, own: Callable[[], OwnProof], machine: Callable[[], Mapping[str, Any]]) -> None:
        self._make, self._machine = own, machine
        self._own: OwnProof | None = None
        self._asked = deque[Mapping[str, Any]]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._own is not None:
            self._own.close()

    def ask(self, question: str, **fields: Any) -> None:
        self._asked.append({"ask": question, **fields})

    def told(self, seconds: float) -> dict[str, Any]:
        found = self.to(self._asked.popleft())
        if "error" in found:
            raise HostError(str(found["error"]))
        return dict(found)

    def to(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Its answer. Raises HostError, and KeyError where a field of the question is missing."""
        try:
            match question["ask"]:
                case "report":
                    return self._report()
                case "hashes":
                    return {"hashes": self._hashes()}
                case "listen":
                    return listen(question["address"])
                case "measure":
                    to = (question["address"], int(question["port"]))
                    return measure(to, question["token"].encode(), float(question["seconds"]))
                case other:
                    raise KeyError(other)
        except DraftdError as error:
            raise HostError(error.message) from None
        except OSError as error:
            raise HostError(in_words(error)) from None

    def _report(self) -> Mapping[str, Any]:
        found: dict[str, Any] = {"host": socket.gethostname(), **self._machine()}
        try:
            self._own = self._own or self._make()
        except DraftdError as error:
            return {**found, "model_error": error.message}
        return {**found, "proof": self._own.proof.model_dump()}

    def _hashes(self) -> dict[str, str]:
        self._own = self._own or self._make()
        return self._own.hashes().result(_HASH_SECONDS)


def listen(address: str) -> dict[str, Any]:
    """Takes two connections of whoever has the token, on a thread and for ten seconds. Raises OSError where the machine
    does not have that address."""
    listener, token = socket.create_server((address, 0), family=socket.AF_INET), secrets.token_hex(16)
    threading.Thread(target=_serve, args=(listener, token.encode()), name="draftd-link", daemon=True).start()
    return {"port": listener.getsockname()[1], "token": token}


def _serve(listener: socket.socket, token: bytes) -> None:
    with listener, contextlib.suppress(OSError):
        listener.settimeout(_LISTEN_SECONDS)
        for _ in range(2):
            peer, _ = listener.accept()
            with peer:
                peer.settimeout(_LISTEN_SECONDS)
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if not secrets.compare_digest(_exactly(peer, len(token)), token):
                    return
                if _exactly(peer, 1) == _TRIPS:
                    while ping := peer.recv(len(_PING)):
                        peer.sendall(ping)
                else:
                    count = 0
                    while block := peer.recv(BLOCK):
                        count += len(block)
                    peer.sendall(count.to_bytes(8))


def measure(to: tuple[str, int], token: bytes, seconds: float) -> dict[str, Any]:
    """`round_trip`: seconds of a small message there and back, the median. `bandwidth`: bytes a second, one way, for
    about `seconds`. Raises OSError."""
    with _connected(to, token + _TRIPS) as one:
        trips = []
        for _ in range(PINGS):
            began = time.perf_counter()
            one.sendall(_PING)
            _exactly(one, len(_PING))
            trips.append(time.perf_counter() - began)
    with _connected(to, token + _STREAM) as one:
        block, began = bytes(BLOCK), time.perf_counter()
        while time.perf_counter() - began < seconds:
            one.sendall(block)
        one.shutdown(socket.SHUT_WR)
        count = int.from_bytes(_exactly(one, 8))
        taken = time.perf_counter() - began
    return {"round_trip": statistics.median(trips), "bandwidth": count / taken}


@contextlib.contextmanager
def _connected(to: tuple[str, int], greeting: bytes) -> Iterator[socket.socket]:
    with socket.create_connection(to, _CONNECT_SECONDS) as one:
        one.settimeout(_LISTEN_SECONDS)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.sendall(greeting)
        yield one


def _exactly(one: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = one.recv(size - len(found))
        if not more:
            raise ConnectionResetError("the other side closed the connection")
        found += more
    return found


# The machine that asks others.


class AskedHost:
    """A process there that answers."""

    def __init__(self, command: Sequence[str]) -> None:
        """Raises HostError where it cannot be started."""
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            raise HostError(f"{command[0]} cannot be started: {in_words(error)}", gone=True) from None
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._said: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._heed, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def ask(self, question: str, **fields: Any) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: `told` says how
            self._process.stdin.write(json.dumps({"ask": question, **fields}) + "\n")
            self._process.stdin.flush()

    def told(self, seconds: float) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=max(0.0, seconds))
        except queue.Empty:
            raise HostError("no answer in time", gone=True) from None
        if line is None:
            code = self._process.wait()
            self._threads[1].join(1.0)
            raise HostError(last_words(self._said) or f"it ended with exit code {code}", gone=True)
        try:
            found = json.loads(line)
        except ValueError:
            raise HostError(f"an answer that is none: {line.strip()[:80]}", gone=True) from None
        if "error" in found:
            raise HostError(str(found["error"]))
        return dict(found)

    def close(self) -> None:
        """What was started here is gone when this returns; over SSH it ends with its input."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join(1.0)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                self._answers.put(line)
        self._answers.put(None)

    def _heed(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            for line in stream:
                self._said = [*self._said[-20:], line.rstrip()]
