"""Whether the addresses of MLX's ring are right, before MLX is asked: it would wait for a neighbour without end, take a
port that another program listens on, or say a number of the system's.

Each rank listens on its own addresses for a while; then each connects to its neighbour's, which answer with the
group's id.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import threading
from collections.abc import Sequence

from draftd.errors import in_words

_CONNECT_SECONDS = 3.0
_ANSWER = b"draftd "


class AddressError(Exception):
    """In one line, without the rank."""


class RingAddresses:
    """Of one rank, listened on from the making until `close`; answered by a thread."""

    def __init__(self, nodes: Sequence[str], group: str) -> None:
        """`nodes`: "HOST:PORT". Raises AddressError."""
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
        self._thread = threading.Thread(target=self._run, name="draftd-ring-addresses", daemon=True)
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


def check_reached(nodes: Sequence[str], group: str) -> None:
    """Connects to another rank's. Raises AddressError."""
    wanted = _ANSWER + group.encode()
    for node in nodes:
        host, _, port = node.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), _CONNECT_SECONDS) as one:
                one.settimeout(_CONNECT_SECONDS)
                found = b""
                while len(found) < len(wanted) and (more := one.recv(len(wanted) - len(found))):
                    found += more
        except OSError as error:
            raise AddressError(f"{node} cannot be reached: {in_words(error)}") from None
        if found != wanted:
            raise AddressError(f"{node} is not the rank that should listen there: another program answers")


def _listening(node: str) -> socket.socket:
    host, _, port = node.rpartition(":")
    try:
        return socket.create_server((host, int(port)), family=socket.AF_INET)
    except socket.gaierror as error:
        raise AddressError(f"{host} is no address: {in_words(error)}") from None
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise AddressError(f"{host} is no address of this machine: correct the hostfile") from None
        if error.errno == errno.EADDRINUSE:
            raise AddressError(f"port {port} of {host} is taken by another program") from None
        raise AddressError(f"cannot listen on {node}: {in_words(error)}") from None
