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
    """Longest time in seconds for the last export when the daemon stops."""
    capture_content: bool = False
    """Put prompts and answers on trace spans. The variable OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT sets it
    too."""


class HardwareSettings(Section):
    """How the machine's state is read."""

    period_seconds: FiniteFloat = Field(default=5.0, ge=0.1, le=3600)
    """Seconds between two readings of memory, heat and power."""
    memory_floor_bytes: int | None = Field(default=None, ge=0, le=2**50)
    """Memory in bytes to leave to other programs. The headroom is what is available above it. The engine's memory
    limits are computed from the headroom, or from an eighth of what is available if that is more. Unset: 10/24 of the
    machine's memory; a 16 GB Mac has 17.2 GB in decimal figures, so its floor is 7.2 GB."""


class CostSettings(Section):
    """Prices of this machine, by the hour, by its power or by the token, and of the remote. Reports use them, and so
    does the choice between local and remote."""

    currency: str = Field(default="$", min_length=1, max_length=8)
    """Currency of all prices, as a sign or a code. It is only shown."""
    per_hour: FiniteFloat | None = Field(default=None, ge=0, le=1_000_000)
    """Price of one hour of this machine, without its power. Unset: not counted."""
    watts: FiniteFloat | None = Field(default=None, ge=0, le=100_000)
    """Power of this machine while it decodes, in watts. It needs cost.tariff. Unset: the measured power, if the machine
    reports it."""
    tariff: FiniteFloat | None = Field(default=None, ge=0, le=1000)
    """Price of a kilowatt-hour. Unset: power is not counted."""
    per_token: FiniteFloat | None = Field(default=None, ge=0, le=1000)
    """Price of one token that this daemon's model chooses. Unset: not counted."""
    remote_per_hour: FiniteFloat | None = Field(default=None, ge=0, le=1_000_000)
    """Price of one hour that a request spends at the remote, until its last token. Unset: not counted."""
    remote_per_target_hour: FiniteFloat | None = Field(default=None, ge=0, le=1_000_000)
    """Price of one hour of the remote's target. Each request pays for its share of the forward passes in which it takes
    part. Unset: not counted."""
    remote_per_token: FiniteFloat | None = Field(default=None, ge=0, le=1000)
    """Price of one token that the remote's model chooses. Unset: not counted."""

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
    """Format of each line: text, with local time, or json, with UTC."""
    file: HomePath | None = None
    """File to log to, which only its owner may read. Stderr then has only the daemon's announcements and the error that
    ends it. Unset: the log goes to stderr."""
    file_bytes: int = Field(default=10 * 2**20, ge=0, le=2**40)
    """Largest size of the log file in bytes. Before the file grows beyond it, the file is renamed to FILE.1, FILE.1 to
    FILE.2, and so on. 0: no limit."""
    file_count: int = Field(default=5, ge=1, le=1000)
    """How many renamed log files are kept. Older ones are deleted."""
