"""Asks the daemon off the screen's thread, and again, ever more seldom, while it is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from draftd.cli.top.rates import Snapshot
from draftd.client.client import DraftdClient
from draftd.errors import DraftdError

T = TypeVar("T")

_STATUS_SECONDS = 5.0  # a daemon that takes longer does not answer
_LONGEST_PAUSE = 10.0


class Link:
    """One connection at a time. Futures end with what the call raised."""

    def __init__(self, connect: Callable[[], DraftdClient], woken: Callable[[], None] = lambda: None) -> None:
        """`woken` is called, on a thread of the link's, whenever an answer is there."""
        self._connect, self._woken = connect, woken
        self._lock = threading.Lock()
        self._client: DraftdClient | None = connect()
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="draftd-top")

    def ask(self) -> Future[Snapshot]:
        return self._told(self._threads.submit(self._status))

    def set_flag(self, variant: str) -> Future[str]:
        """Ends with a line for people."""
        return self._told(self._threads.submit(self._set_flag, variant))

    def close(self) -> None:
        """Calls under way end at once."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _told(self, answer: Future[T]) -> Future[T]:
        answer.add_done_callback(lambda _: self._woken())
        return answer

    def _status(self) -> Snapshot:
        client, began = self._open(), time.monotonic()
        try:
            status = client.status(timeout=_STATUS_SECONDS)
        except DraftdError:
            self._renew(client)
            raise
        return Snapshot((began + time.monotonic()) / 2, status)

    def _set_flag(self, variant: str) -> str:
        reply = self._open().set_flag(variant)
        now, before = reply.flag.default_variant, reply.previous_variant
        return f"flag {now} (was {before})" if now != before else f"flag {now} already"

    def _open(self) -> DraftdClient:
        with self._lock:
            if self._client is None:
                raise RuntimeError("the link is closed")
            return self._client

    def _renew(self, failed: DraftdClient) -> None:
        """A new connection is tried at once; an old one waits by a schedule of its own, up to two minutes."""
        with self._lock:
            if self._client is not failed:
                return
            self._client = self._connect()
        failed.close()


def pause(failures: int, interval: float) -> float:
    """Seconds until the next try after so many failures in a row."""
    return min(interval * 2.0 ** min(failures - 1, 16), max(_LONGEST_PAUSE, interval))
