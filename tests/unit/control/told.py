"""What a controller is told, and by whom: machine, alerts, operators, the engine."""

from __future__ import annotations

import dataclasses

from draftd.core import FallbackLevel
from draftd.fallback.leases import Applied, Notice
from draftd.hardware.sample import HardwareSample
from draftd.hardware.state import HardwareState
from tests.unit.control.steered import (
    START,
    Steered,
    a_request,
)

GOOD, POOR = 0.8, 0.2


@dataclasses.dataclass
class Machine:
    """A HardwareView whose readings the test makes."""

    state: HardwareState | None = None
    errors: dict[str, int] = dataclasses.field(default_factory=dict)

    def reads(self, at: float, swap_ins: int | None = None, **sample: object) -> None:
        thermal = sample.get("thermal_level")
        found = HardwareSample(**sample)  # type: ignore[arg-type]
        self.state = HardwareState(found, at, thermal_level=thermal, swap_ins=swap_ins)  # type: ignore[arg-type]


def notice(level: FallbackLevel, *, hard: bool = False, firing: bool = True, starts_at: float = START) -> Notice:
    return Notice("DraftdSomething", "abc", firing, starts_at, level, hard)


def tell(steered: Steered, *notices: Notice) -> list[Applied]:
    """As the webhook does, on this thread."""
    asked = steered.controller._inbox.ask(lambda now: steered.controller._steering.notices(notices, now))
    steered.controller.tick()
    return asked.result(0)


def tell_and_resolve(steered: Steered, level: FallbackLevel, *, hard: bool = False, starts_at: float = START) -> None:
    """An alert, and its end."""
    tell(steered, notice(level, hard=hard, starts_at=starts_at))
    tell(steered, notice(level, hard=hard, starts_at=starts_at, firing=False))


def hold(steered: Steered, level: FallbackLevel, expires_in: float | None = None) -> None:
    steered.controller._inbox.ask(lambda now: steered.controller._steering.hold(level, expires_in, now))
    steered.controller.tick()


def release(steered: Steered) -> bool:
    asked = steered.controller._inbox.ask(steered.controller._steering.release)
    steered.controller.tick()
    return asked.result(0)


def fail(steered: Steered, observed: str, times: int = 3) -> None:
    for n in range(times):
        request = dataclasses.replace(a_request(), id=f"request {n}")
        getattr(steered.intake, observed)(request, "broken")
        steered.request()
