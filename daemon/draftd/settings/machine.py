"""Settings of the machine: its monitoring and its cost, telemetry and the log."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from draftd.errors import ConfigError
from draftd.settings.kinds import HomePath, Seconds, Section

CAPTURE_CONTENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


class TelemetrySettings(Section):
    """Telemetry beyond the OTEL_* variables, which work as in any OpenTelemetry program."""

    shutdown_seconds: Seconds = 5.0
    """How long the last export may take at shutdown."""
    capture_content: bool = False
    """Put prompts and answers on spans. Also OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT."""


class HardwareSettings(Section):
    """How the machine's state is read."""

    period_seconds: FiniteFloat = Field(default=5.0, ge=0.1, le=3600)
    """How often memory, heat and power are read."""
    memory_floor_bytes: int | None = Field(default=None, ge=0, le=2**50)
    """Memory to leave available to other programs; headroom is what is available above it. Unset: 10/24 of the
    machine's memory, which is 10 GB of 24."""


class CostSettings(Section):
    """The cost of the machine, by the hour, by its power, or both; and of the remote daemon. Used by reports, and by
    the choice between the two."""

    currency: str = Field(default="$", min_length=1, max_length=8)
    """Currency of the prices: a sign or a code."""
    per_hour: FiniteFloat | None = Field(default=None, ge=0, le=1_000_000)
    """Price of the machine for an hour, without power."""
    watts: FiniteFloat | None = Field(default=None, ge=0, le=100_000)
    """Power while it decodes, in watts. Unset: as measured, if it is."""
    tariff: FiniteFloat | None = Field(default=None, ge=0, le=1000)
    """Price of a kilowatt-hour."""
    per_token: FiniteFloat | None = Field(default=None, ge=0, le=1000)
    """Price of a token that the local model chooses."""
    remote_per_hour: FiniteFloat | None = Field(default=None, ge=0, le=1_000_000)
    """Price of an hour of a request at the remote daemon, from its first token asked to its last."""
    remote_per_target_hour: FiniteFloat | None = Field(default=None, ge=0, le=1_000_000)
    """Price of an hour of the remote daemon's target: a request pays its share of the forwards it was in."""
    remote_per_token: FiniteFloat | None = Field(default=None, ge=0, le=1000)
    """Price of a token that the remote daemon's model chooses."""

    @model_validator(mode="after")
    def _power_has_a_price(self) -> Self:
        if self.watts is not None and self.tariff is None:
            raise ConfigError("cost.watts", self.watts, "only together with cost.tariff")
        return self


class LogSettings(Section):
    """The log: its level and destination."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest severity that is logged."""
    format: Literal["text", "json"] = "text"
    """One line per event, with its time: text (local time) or JSON (UTC)."""
    file: HomePath | None = None
    """File to log to, which only its owner may read; stderr then has only what the daemon announces. Unset: stderr."""
    file_bytes: int = Field(default=10 * 2**20, ge=0, le=2**40)
    """The log file is renamed (FILE.1, FILE.2 and so on) before it grows beyond this; 0: never."""
    file_count: int = Field(default=5, ge=1, le=1000)
    """Renamed log files that are kept."""
