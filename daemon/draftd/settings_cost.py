"""Settings of what the machine costs: nothing that the daemon does depends on them; reports reckon with them."""

from __future__ import annotations

from typing import Self

from pydantic import Field, FiniteFloat, model_validator

from draftd.errors import ConfigError
from draftd.settings_base import Section


class CostSettings(Section):
    """What the machine costs: by the hour, or by what it draws and what that costs, or both."""

    currency: str = Field(default="$", min_length=1, max_length=8, description="What prices are in: a sign or a code.")
    per_hour: FiniteFloat | None = Field(
        default=None, ge=0, le=1_000_000, description="Price of the machine for an hour, its power left out."
    )
    watts: FiniteFloat | None = Field(
        default=None, ge=0, le=100_000, description="What it draws while it decodes. Unset: as measured, where it is."
    )
    tariff: FiniteFloat | None = Field(default=None, ge=0, le=1000, description="Price of a kilowatt-hour.")

    @model_validator(mode="after")
    def _power_has_a_price(self) -> Self:
        if self.watts is not None and self.tariff is None:
            raise ConfigError("cost.watts", self.watts, "only together with cost.tariff")
        return self
