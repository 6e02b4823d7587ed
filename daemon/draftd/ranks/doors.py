"""Whether the addresses of MLX's ring are right, before MLX is asked: it would wait for a neighbour without end, take a
port that another program listens on, or say a number of the system's.

Each rank opens its doors, the addresses where it will listen; then each knocks at its neighbour's, which answers with
the group's id.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import threading
from collections.abc import Sequence

_KNOCK_SECONDS = 3.0
_ANSWER = b"draftd "


class DoorError(Exception):
    """In one line, without the rank."""


class Doors:
    """Of one rank, open from the making until `close`; answered by a thread."""

    def __init__(self, nodes: Sequence[str], group: str) -> None:
        """`nodes`: "HOST:PORT". Raises DoorError."""
        self._answer, self._sockets = _ANSWER + group.encode(), list[socket.socket]()
        self._selector = selectors.DefaultSelector()
        self._closing = threading.Event()
        try:
            for node in nodes:
                self._sockets.append(_listening(node))
                self._selector.register(self._sockets[-1], selectors.EVENT_READ)
        except BaseException:
            self._drop()
            raise
        self._thread = threading.Thread(target=self._run, name="draftd-rank-doors", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The ports are free when this returns."""
        self._closing.set()
        self._thread.join()
        self._drop()

    def _run(self) -> None:
        while not self._closing.is_set():
            for key, _ in self._selector.select(0.05):
                with contextlib.suppress(OSError), key.fileobj.accept()[0] as one:  # type: ignore[union-attr]
                    one.sendall(self._answer)

    def _drop(self) -> None:
        self._selector.close()
        for one in self._sockets:
            one.close()


def knock(nodes: Sequence[str], group: str) -> None:
    """At another rank's. Raises DoorError."""
    wanted = _ANSWER + group.encode()
    for node in nodes:
        host, _, port = node.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), _KNOCK_SECONDS) as one:
                one.settimeout(_KNOCK_SECONDS)
                found = b""
                while len(found) < len(wanted) and (more := one.recv(len(wanted) - len(found))):
                    found += more
        except OSError as error:
            raise DoorError(f"{node} cannot be reached: {reason(error)}") from None
        if found != wanted:
            raise DoorError(f"{node} is not the rank that should listen there: another program answers")


def reason(error: OSError) -> str:
    """In words, without the number."""
    if isinstance(error, TimeoutError):
        return "no answer"
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)  # socket.create_server puts more into the error's own


def _listening(node: str) -> socket.socket:
    host, _, port = node.rpartition(":")
    try:
        return socket.create_server((host, int(port)), family=socket.AF_INET)
    except socket.gaierror as error:
        raise DoorError(f"{host} is no address: {reason(error)}") from None
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise DoorError(f"{host} is no address of this machine: correct the hostfile") from None
        if error.errno == errno.EADDRINUSE:
            raise DoorError(f"port {port} of {host} is taken by another program") from None
        raise DoorError(f"cannot listen on {node}: {reason(error)}") from None
