"""What the settings mean for policy: the limits by which the guard and the ladder judge."""

from __future__ import annotations

import json
from pathlib import Path

from draftd.errors import ConfigError
from draftd.fallback import baselines
from draftd.fallback.drift import Baseline, FloorSettings
from draftd.fallback.ladder import LadderSettings
from draftd.fallback.signals import GuardSettings, Kind
from draftd.settings import FallbackSettings

_DWELLS, _WINDOWS = 6, 4  # so long after a step up a fall is a relapse: it takes two windows to see one
_REACHED_PER_REQUEST = 20  # tokens of a draft that a request shows at least, on average, for a window to count


def limits(settings: FallbackSettings) -> LadderSettings:
    """How the ladder moves."""
    return LadderSettings(
        dwell=settings.dwell_seconds,
        longest_wait=max(settings.longest_wait_seconds, settings.dwell_seconds),
        relapse_within=max(_DWELLS * settings.dwell_seconds, _WINDOWS * settings.window_seconds),
        forgiven_after=max(settings.longest_wait_seconds, settings.dwell_seconds),
    )


def thresholds(settings: FallbackSettings) -> GuardSettings:
    """What the guard takes for bad."""
    return GuardSettings(
        floor=FloorSettings(
            floor=settings.acceptance_floor,
            window_seconds=settings.window_seconds,
            least_requests=settings.least_requests,
            least_reached=_REACHED_PER_REQUEST * settings.least_requests,
        ),
        errors=settings.errors,
        critical_seconds=settings.critical_seconds,
        thermal_seconds=settings.thermal_seconds,
        swap_bytes=settings.swap_bytes,
    )


def frozen(path: Path | None) -> dict[Kind, Baseline]:
    """The baselines of the settings' file; none where there is no file. Raises ConfigError."""
    if path is None:
        return {}
    try:
        return baselines.parse(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError("fallback.baseline", str(path), f"a file of baselines ({error})") from None
