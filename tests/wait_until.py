"""Waits for events on another thread or in another process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from draftd.engine.handle import EngineState
from draftd.engine.loop import EngineWorker
from draftd.model_info import ModelInfo


def until(condition: Callable[[], bool], seconds: float = 60.0, what: str = "what was waited for") -> None:
    """Waits until `condition` is true; fails with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.01)


def loaded(worker: EngineWorker, seconds: float = 60.0) -> ModelInfo:
    """Waits for the models and the calibration. Raises NotServing with the reason if loading failed."""
    until(lambda: worker.state is not EngineState.LOADING, seconds, "the models")
    calibrated(worker, seconds)
    return worker.info


def calibrated(worker: EngineWorker, seconds: float = 60.0) -> None:
    """Waits until no calibration is pending."""
    engine = getattr(worker, "_engine", None)
    if engine is not None:
        until(lambda: not engine.calibration.pending, seconds, "the calibration")


@contextlib.contextmanager
def repeating(what: Callable[[], None], pause: float) -> Iterator[None]:
    """Calls `what` repeatedly on its own thread until the block ends. An exception in it fails the test."""
    stop, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            while not stop.wait(pause):
                what()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not failures, failures
