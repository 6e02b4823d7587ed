"""The daemon that alerts are about: the embedded pair as `draftd serve` composes it, in a process of its own, with the
seams of tests.faults and some more. Heat and swap, which a test cannot cause, are simulated where they are read."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from tests import forked_daemon
from tests.faults.child import Seams, _obey


class Causes(Seams):
    """Causes of alerts. A test may call the public methods by name."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self._lag = 0.0
        self._hot = self._wrong = False
        self._swapped: float | None = None  # since when pages are read back

    def lag(self, seconds: float) -> None:
        """Makes each forward of the target take so much longer."""
        self._lag = seconds

    def heat(self, hot: bool) -> None:
        """Makes macOS's thermal level read as heavy, or normal again."""
        self._hot = hot

    def swap(self, swaps: bool) -> None:
        """Makes 100 MB per second be read back from swap, or none."""
        self._swapped = time.monotonic() if swaps else None

    def wrong(self, wrong: bool) -> None:
        """Makes every drafted token accepted, whatever the target chose."""
        self._wrong = wrong

    def install(self) -> None:
        super().install()
        import mlx.core as mx

        from draftd.engine.targets import choice
        from draftd.engine.targets.local import LocalTarget
        from draftd.hardware.monitor import HardwareProbe
        from draftd.hardware.state import HardwareSample, ThermalLevel

        submit, sample, accept = LocalTarget.submit, HardwareProbe.sample, choice.accept  # type: ignore[attr-defined]
        read = 0

        def slowly(target: LocalTarget, plan: Any) -> None:
            time.sleep(self._lag)
            submit(target, plan)

        def sampled(probe: HardwareProbe) -> HardwareSample:
            nonlocal read
            if self._swapped is not None:
                now = time.monotonic()
                read += int((now - self._swapped) * 100e6)
                self._swapped = now
            thermal = ThermalLevel.HEAVY if self._hot else ThermalLevel.NOMINAL
            return replace(sample(probe), thermal_level=thermal, swap_in_bytes=read)

        def accepting(drafted: Any, depths: Any, target: Any, *more: Any, **named: Any) -> Any:
            if self._wrong and isinstance(target, mx.array):
                target = mx.concatenate([drafted.astype(target.dtype), target[:, -1:]], axis=1)
            return accept(drafted, depths, target, *more, **named)

        LocalTarget.submit = slowly  # type: ignore[method-assign]
        HardwareProbe.sample = sampled  # type: ignore[method-assign]
        choice.accept = accepting  # type: ignore[attr-defined]


def main(control: Connection, environ: Mapping[str, str]) -> int:
    """Serves until it is told to stop."""
    from draftd.cli.serve import run_daemon
    from draftd.settings.load import load_settings

    causes = Causes(environ["DRAFTD_FALLBACK__STATE_DIR"])
    causes.install()
    threading.Thread(target=_obey, args=(control, causes), name="test-control", daemon=True).start()
    settings = load_settings(None, {"server.port": 0}, environ)
    return run_daemon(settings, announce=lambda line: print(f"draftd: {line}", file=sys.stderr, flush=True))


class Steered:
    """A daemon's address, and the connection that its seams obey."""

    def __init__(self, address: str, control: Connection) -> None:
        self.address, self._control = address, control

    def tell(self, name: str, *arguments: Any) -> None:
        self._control.send((0, name, arguments))


@contextlib.contextmanager
def steered(environ: Mapping[str, str]) -> Iterator[Steered]:
    ours, theirs = Pipe()
    with forked_daemon.serving(main, theirs, environ, environ=environ) as daemon:
        theirs.close()
        yield Steered(daemon.address, ours)
