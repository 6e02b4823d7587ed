"""The alerts that may ask for a level: the ones that draftd's own rules make, and no others."""

from __future__ import annotations

# As in dashboards/alerts.py, which the daemon does not import; a test holds both equal.
KNOWN_ALERTS = frozenset(
    {
        "DraftdAbsent",
        "DraftdAcceptanceBelowFloor",
        "DraftdAcceptanceDrift",
        "DraftdMemoryPressureCritical",
        "DraftdSlowerThanBreakEven",
        "DraftdSwapRising",
        "DraftdTelemetryDropped",
        "DraftdThermalHeavy",
        "DraftdTimeToFirstTokenRegression",
        "DraftdVerifierErrors",
    }
)
