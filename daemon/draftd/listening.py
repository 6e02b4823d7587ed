"""Sockets that servers of the daemon listen on, and the TLS that they speak."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path


def listening_socket(host: str, port: int) -> socket.socket:
    """Bound, and listening. Raises OSError; socket.gaierror where there is no such host."""
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # Where a name is both, as localhost may be, clients are told of 127.0.0.1.
    family, *_, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # [::] takes what comes to 0.0.0.0 as well
    made = socket.create_server(address, family=family, backlog=256, dualstack_ipv6=both)
    made.setblocking(False)
    return made


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """Raises OSError, of which ssl.SSLError is one, or ValueError where the files have no certificate with its key."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    # A key with a password would be asked for on the terminal.
    context.load_cert_chain(cert, key, password=lambda: b"")
    return context
