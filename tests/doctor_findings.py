"""Runs `draftd doctor`'s checks of the models in given settings."""

from __future__ import annotations

from draftd.cli.commands.doctor_models import look_at_models
from draftd.cli.findings import Finding
from draftd.settings import Settings


def check_models(settings: Settings) -> list[Finding]:
    findings, _ = look_at_models(settings)
    return findings
