"""Background threads that restart: work that raises is logged and run again, so nothing stops silently."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0
_WELL_SECONDS = 60.0  # after this long, a failure does not count as a repetition


def run_again(name: str, work: Callable[[], None], closing: threading.Event) -> None:
    """Calls `work` until it returns. After an exception it is called again, with a pause that doubles with each failure
    and ends early when `closing` is set; then `work` is not repeated."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        last, began = closing.is_set(), time.monotonic()
        try:
            work()
            return
        except Exception:
            if time.monotonic() - began >= _WELL_SECONDS:
                pause = _FIRST_PAUSE_SECONDS
            log.exception("%s failed%s", name, "" if last else f"; it starts again in {pause:g} s")
        if last:
            return
        closing.wait(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def restarting_thread(name: str, work: Callable[[], None], closing: threading.Event) -> threading.Thread:
    """Returns a daemon thread, not yet started, that runs `work` like `run_again`."""
    return threading.Thread(target=run_again, args=(name, work, closing), name=name, daemon=True)
