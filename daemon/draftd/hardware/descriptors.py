"""How many files this process may have open, and how many of them clients' connections may be.

A client needs no credential to hold a connection, and each is a file: their number is bounded well below the process's
limit, so that models, state, telemetry and alerts always find some left.
"""

from __future__ import annotations

import contextlib
import resource

_ENOUGH = 10_240  # as many as macOS allows where its limit says "unlimited"
_OWN = 256  # the daemon's own, those of the alerts' connections among them


def raise_limit() -> None:
    """Raises the limit of open files as far as that is allowed and useful."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(_ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """How many connections clients may hold at a time, by the limit as it is now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _ENOUGH if soft == resource.RLIM_INFINITY else soft
    return max(limit - _OWN, limit // 2)
