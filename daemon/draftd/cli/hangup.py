"""SIGHUP: a daemon drains where that tells that its terminal was closed. Elsewhere it asks to read certificates and
tokens anew, and to reopen the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from draftd.client.signals import hangup_reloads
from draftd.errors import ConfigError, in_one_line
from draftd.settings import Settings

if TYPE_CHECKING:  # help does without
    from draftd.cli.credentials import Credentials
    from draftd.fronts.daemon import Daemon

log = logging.getLogger(__name__)

#: Reads what may fail, and returns what puts it into use. Raises ConfigError.
Reloading = Callable[[Settings], Callable[[], Awaitable[None]]]


def hang_up_follower(stop: Callable[[], None], reopen: Callable[[], None]) -> None:
    """A follower has no credentials: SIGHUP reopens its log, or stops it where its terminal was closed."""
    reloads = hangup_reloads()

    def reopened() -> None:
        reopen()
        log.info("SIGHUP: the log was reopened")

    def act(*_: object) -> None:
        if reloads:  # on a thread: the one that is interrupted may be logging
            threading.Thread(target=reopened, name="draftd-reopen", daemon=True).start()
        else:
            stop()

    signal.signal(signal.SIGHUP, act)


class Hangup:
    """Answers SIGHUP. `reopen` opens the log again."""

    def __init__(self, credentials: Credentials, reopen: Callable[[], None]) -> None:
        self._credentials, self._reopen = credentials, reopen
        self._reloads = hangup_reloads()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._daemon: Daemon | None = None
        self._parts: Sequence[Reloading] = ()
        self._lock = asyncio.Lock()
        self._tasks = set[asyncio.Task[None]]()

    def serving(self, daemon: Daemon, *parts: Reloading) -> None:
        """From now on it acts on these, whose event loop this is."""
        self._loop, self._daemon, self._parts = asyncio.get_running_loop(), daemon, parts

    def __call__(self, *_: object) -> None:
        """The handler of the signal."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._act)
        elif not self._reloads:  # there is nothing to drain yet
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            signal.raise_signal(signal.SIGHUP)

    def _act(self) -> None:
        assert self._daemon is not None
        if self._daemon.stopping:
            return  # a terminal that is closed may say so twice: that is no wish to hurry
        if self._reloads:
            task = asyncio.create_task(self._reload())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            log.info("SIGHUP: the terminal was closed")
            self._daemon.stop()

    async def _reload(self) -> None:
        async with self._lock:
            self._reopen()
            try:
                change = await asyncio.to_thread(self._credentials.changed)
                for apply in [prepare(change.settings) for prepare in self._parts]:
                    await apply()
            except ConfigError as error:
                log.error("SIGHUP: %s; certificates and tokens stay as they were", error.message)
                return
            except Exception as error:  # a file that was taken away just now, or no more descriptors
                log.error("SIGHUP: certificates and tokens could not be reloaded: %s", in_one_line(error))
                return
            self._credentials.use(change)
            log.info("SIGHUP: reloaded: %s", change)
            if change.later:
                log.warning("SIGHUP: %s: changed, which applies after a restart", ", ".join(change.later))
