"""The daemon that faults are injected into: what `draftd serve` composes of the embedded pair, in a process of its own.
At its seams a test can make parts fail. A thread obeys the commands that the test sends through a pipe."""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import os
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from draftd.core import DecodeRequest, Origin
from draftd.outcome import Emission, Outcome, TokenSink
from tests.faults.clock import attach

_PROBE_PROMPTS = 4  # of the frozen ones: enough for a verdict, and soon over
_LOOK_SECONDS = 0.05
_WELL_SECONDS = 0.2  # a thread's failures have nothing to do with one another: here they come one a second


class Injected(RuntimeError):
    """The error that a part raises because a test injects it."""


@dataclass
class Entry:
    tokens: int = 0
    ends: list[str] = field(default_factory=list)


class Ledger:
    """Counts the tokens and ends of clients' requests at the sink, where they leave the engine."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._tokens, self._ends = 0, Counter[str]()

    def counted(self, submit: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(submit)
        def submitting(worker: Any, choices: Sequence[tuple[DecodeRequest, TokenSink]]) -> None:
            if choices[0][0].origin is not Origin.CLIENT:
                return submit(worker, choices)
            entries = {request.id: Entry() for request, _ in choices}
            with self._lock:
                self._entries |= entries
            try:
                return submit(worker, [(one, _Counted(sink, entries[one.id])) for one, sink in choices])
            except BaseException:
                with self._lock:
                    for name in entries:
                        del self._entries[name]
                raise

        return submitting

    def taken(self) -> tuple[dict[str, tuple[int, list[str]]], int, dict[str, int]]:
        """Returns the requests since the last call (tokens and end reasons by id), and the totals since the start:
        tokens, and ends by reason."""
        with self._lock:
            found, self._entries = self._entries, {}
        for entry in found.values():
            self._tokens += entry.tokens
            self._ends.update(entry.ends)
        return {name: (one.tokens, one.ends) for name, one in found.items()}, self._tokens, dict(self._ends)


class _Counted:
    def __init__(self, inner: TokenSink, entry: Entry) -> None:
        self._inner, self._entry = inner, entry

    def on_tokens(self, emission: Emission) -> None:
        self._entry.tokens += len(emission.tokens)
        self._inner.on_tokens(emission)

    def on_finish(self, outcome: Outcome) -> None:
        self._entry.ends.append(outcome.reason.value)
        self._inner.on_finish(outcome)


class Seams:
    """Places where faults are injected. A test may call the public methods by name."""

    def __init__(self, folder: str) -> None:
        self._folder = folder  # whose disk can fail
        self._armed: Counter[str] = Counter()  # how many times more a place raises
        self._slow = 0.0
        self._errno, self._pressed = 0, False
        self._ledger = Ledger()
        self._taken = list[int]()  # descriptors, so that there are no others
        self._files: tuple[int, int] | None = None  # the limit to go back to
        self._size = resource.getrlimit(resource.RLIMIT_FSIZE)

    # asked for by the test

    def arm(self, place: str, times: int) -> None:
        """Makes the next so many calls of a place (`_PLACES`) raise."""
        self._armed[place] = times

    def slow(self, seconds: float) -> None:
        """Makes the target's next forward take so much longer."""
        self._slow = seconds

    def disk(self, errno: int) -> None:
        """Makes writes to the state folder fail with this errno; 0 ends that."""
        self._errno = errno

    def pressure(self, critical: bool) -> None:
        """Makes readings of the machine report critical memory pressure."""
        self._pressed = critical

    def files(self, spare: int | None) -> None:
        """Allows so many more descriptors to be opened; None restores the limit."""
        while self._taken:
            os.close(self._taken.pop())
        if spare is None:
            if self._files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, self._files)
            self._files = None
            return
        self._files = self._files or resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(int(name) for name in os.listdir("/dev/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + spare, self._files[1]))
        with suppress(OSError):
            while True:
                self._taken.append(os.dup(0))
        for _ in range(min(spare, len(self._taken))):
            os.close(self._taken.pop())

    def quota(self, most: int | None) -> None:
        """Limits the size of files to so many bytes; None restores the limit."""
        soft, hard = self._size
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft if most is None else most, hard))

    def ledger(self) -> tuple[dict[str, tuple[int, list[str]]], int, dict[str, int]]:
        return self._ledger.taken()

    def threads(self) -> list[str]:
        return sorted(one.name for one in threading.enumerate())

    # put in once, before the daemon starts

    def install(self) -> None:
        from draftd import threads
        from draftd.canaries.prompts import FrozenPrompts
        from draftd.engine.loop import EngineWorker
        from draftd.engine.targets.local import LocalTarget
        from draftd.fallback.alerts.connections import AlertConnections
        from draftd.hardware.monitor import HardwareProbe
        from draftd.hardware.state import HardwareSample, MemoryPressure

        for place, (owner, name) in _places().items():
            _before(owner, name, functools.partial(self._raise, place))
        _before(LocalTarget, "submit", self._sleep)
        serve = AlertConnections.serve

        async def serving(*given: Any) -> None:
            async with asyncio.TaskGroup() as both:
                both.create_task(serve(*given))
                both.create_task(self._raise_when_armed("webhook"))

        AlertConnections.serve = serving  # type: ignore[method-assign]
        EngineWorker.submit_choices = self._ledger.counted(EngineWorker.submit_choices)  # type: ignore[method-assign]
        sample, shipped = HardwareProbe.sample, FrozenPrompts.of_package

        def sampled(probe: HardwareProbe) -> HardwareSample:
            found = sample(probe)
            return replace(found, memory_pressure=MemoryPressure.CRITICAL) if self._pressed else found

        def some() -> FrozenPrompts:
            every = shipped()
            return replace(every, probe=every.probe[:_PROBE_PROMPTS], canaries=every.canaries[:_PROBE_PROMPTS])

        threads._WELL_SECONDS = _WELL_SECONDS
        HardwareProbe.sample = sampled  # type: ignore[method-assign]
        FrozenPrompts.of_package = some  # type: ignore[method-assign]
        for name in ("open", "replace", "truncate", "unlink", "link"):
            _before(os, name, self._check_disk if name == "open" else self._check_write)

    def _raise(self, place: str, *arguments: Any, **named: Any) -> None:
        if self._armed[place] > 0:
            self._armed[place] -= 1
            raise Injected(f"{place}: a test wants it to fail")

    async def _raise_when_armed(self, place: str) -> None:
        """Raises Injected once the place is armed. It loops, because the coroutine it replaces may wait for ever."""
        while True:
            self._raise(place)
            await asyncio.sleep(_LOOK_SECONDS)

    def _sleep(self, *arguments: Any, **named: Any) -> None:
        seconds, self._slow = self._slow, 0.0
        time.sleep(seconds)

    def _check_disk(self, path: Any, flags: int = 0, *more: Any, **named: Any) -> None:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            self._check_write(path)

    def _check_write(self, path: Any, *more: Any, **named: Any) -> None:
        if self._errno and not isinstance(path, int) and os.fsdecode(path).startswith(self._folder):
            raise OSError(self._errno, os.strerror(self._errno), os.fsdecode(path))


def _places() -> dict[str, tuple[Any, str]]:
    """Returns what can be made to raise, by name: the function that each thread or part calls."""
    from draftd.engine.drafters.draft_model import DraftModel
    from draftd.engine.scheduler import Scheduler
    from draftd.engine.targets.local import LocalTarget
    from draftd.fallback.alerts.connections import AlertConnections
    from draftd.fallback.alerts.poller import Poller
    from draftd.fallback.annotations import Annotator
    from draftd.fallback.controller import Controller
    from draftd.fallback.probe_requests import ProbeRequests
    from draftd.fallback.store import LearntFile
    from draftd.hardware.monitor import HardwareProbe
    from draftd.planning.planner import Planner
    from draftd.telemetry.link import WatchedExporter

    return {
        "drafter": (DraftModel, "propose"),
        "forward": (LocalTarget, "submit"),
        "engine": (Scheduler, "step"),
        "planning": (Planner, "plan"),
        "fallback": (Controller, "tick"),
        "look": (Controller, "_look"),
        "notices": (Controller, "notices"),
        "accept": (AlertConnections, "_take"),
        "poll": (Poller, "_wait"),
        "annotations": (Annotator, "_next"),
        "hardware": (HardwareProbe, "sample"),
        "probe": (ProbeRequests, "compare"),
        "learnt": (LearntFile, "save"),
        "export": (WatchedExporter, "export"),
    }


def _before(owner: Any, name: str, act: Callable[..., None]) -> None:
    """Makes `act` be called before the function, with its arguments; for a method, without the object."""
    original, method = getattr(owner, name), isinstance(owner, type)

    @functools.wraps(original)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        act(*arguments[method:], **named)
        return original(*arguments, **named)

    setattr(owner, name, wrapped)


def main(
    control: Connection,
    environ: Mapping[str, str],
    conditions: Mapping[str, Any],
    broken: str,
    clocks: str,
    config: str,
) -> int:
    """Serves until it is told to stop. `conditions` apply from the start, by their names in Seams. `broken` names a
    deliberate break (tests.faults.breaking), `clocks` the file of its clocks (tests.faults.clock), and `config` the
    TOML file of its settings, which SIGHUP reloads."""
    faulthandler.enable()
    os.setsid()  # without a terminal, wherever the test runs
    attach(clocks)
    from draftd.cli.serve import run_daemon
    from draftd.settings.load import load_settings
    from tests.faults.breaking import BREAKS

    seams = Seams(environ["DRAFTD_FALLBACK__STATE_DIR"])
    seams.install()
    if broken:
        BREAKS[broken].apply()
    for name, value in conditions.items():
        getattr(seams, name)(value)
    threading.Thread(target=_obey, args=(control, seams), name="test-control", daemon=True).start()
    read = functools.partial(load_settings, Path(config), {"server.port": 0}, environ)
    return run_daemon(read(), announce=lambda line: print(f"draftd: {line}", file=sys.stderr, flush=True), read=read)


def _obey(control: Connection, seams: Seams) -> None:
    """Obeys commands: receives (number, name, arguments), and sends (number, answer) if the number is not 0. Ends with
    its test."""
    with suppress(EOFError, OSError):
        while True:
            number, name, arguments = control.recv()
            found = getattr(seams, name)(*arguments)
            if number:
                control.send((number, found))
    os._exit(3)
