"""Cuts a connection of another process: on Linux only, for its owner or root."""

from __future__ import annotations

import ctypes
import os
import socket
import sys

import psutil

_PIDFD_GETFD = 438  # the same on all architectures


def connections(pid: int) -> list[int]:
    """Returns the descriptors of its TCP connections."""
    found = psutil.Process(pid).net_connections("tcp")
    return [one.fd for one in found if one.status == psutil.CONN_ESTABLISHED and one.fd >= 0]


def cut(pid: int, descriptor: int) -> None:
    """Shuts the connection down in both directions. Raises OSError."""
    assert sys.platform == "linux"
    process = os.pidfd_open(pid)
    try:
        ours = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, descriptor, 0)
    finally:
        os.close(process)
    if ours < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    with socket.socket(fileno=ours) as there:
        there.shutdown(socket.SHUT_RDWR)
