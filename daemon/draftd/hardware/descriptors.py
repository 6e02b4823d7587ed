"""Limits on open files: for this process, and for clients' connections.

A client needs no credential to hold a connection, and each is an open file. Their number stays well below the process's
limit, so that models, state, telemetry and alerts always find free ones.
"""

from __future__ import annotations

import contextlib
import resource

_ENOUGH = 10_240  # the most that macOS allows if its limit is "unlimited"
_OWN = 256  # the daemon's own files, including the alerts' connections


def raise_limit() -> None:
    """Raises the limit of open files as far as allowed and useful."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(_ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """Returns how many connections clients may hold at once, under the present limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _ENOUGH if soft == resource.RLIM_INFINITY else soft
    return max(limit - _OWN, limit // 2)
