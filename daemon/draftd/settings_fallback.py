"""Settings of the fallback: when the daemon steps down and back up, who may tell it to, and who is told."""

from __future__ import annotations

import re
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, FiniteFloat, SecretStr, field_validator, model_validator

from draftd.core import DrafterKind
from draftd.errors import ConfigError
from draftd.settings_base import Blocks, Drafters, ExistingFile, HomePath, Seconds, Section, is_loopback, sendable

TIMESTAMP_HEADER = "X-Grafana-Alerting-Timestamp"  # as draftd sets Grafana's contact point up


class FallbackSettings(Section):
    """How far, when and why the daemon steps down, and back up."""

    guard: bool = Field(
        default=True, description="Judge acceptance, speed, errors, memory and heat in the daemon, and step down by it."
    )
    blocks: Blocks = Field(
        default=(6, 4, 3, 2), description="Shorter block lengths to step through, those below engine.max_draft_tokens."
    )
    lighter: Drafters = Field(
        default=(DrafterKind.LIGHT_DRAFT_MODEL, DrafterKind.PROMPT_LOOKUP),
        description="Lighter drafters to step through after them, those that there are.",
    )
    window_seconds: FiniteFloat = Field(
        default=300.0, ge=0.5, le=86400, description="Window over which acceptance, speed and errors are judged."
    )
    acceptance_floor: FiniteFloat = Field(
        default=0.40,
        ge=0,
        le=1,
        description="Least acceptance of reached draft tokens; less, two windows long, is bad.",
    )
    least_requests: int = Field(
        default=10, ge=1, le=1_000_000, description="Requests in a window below which it says nothing."
    )
    baseline: ExistingFile | None = Field(
        default=None, description="Frozen acceptance baselines (JSON). Unset: learnt from the first requests."
    )
    errors: int = Field(
        default=3, ge=1, le=1_000_000, description="Failed decode rounds, or failed drafts, in a window that are bad."
    )
    dwell_seconds: FiniteFloat = Field(
        default=300.0, ge=0.1, le=86400, description="Least time between two steps, hard signals down excepted."
    )
    longest_wait_seconds: FiniteFloat = Field(
        default=7200.0, ge=0.1, le=604800, description="Most that the wait for a step up grows to after relapses."
    )
    critical_seconds: Seconds = Field(
        default=10.0, description="How long critical memory pressure lasts before it is acted on."
    )
    thermal_seconds: Seconds = Field(default=60.0, description="How long heavy heat lasts before it is acted on.")
    swap_bytes: int = Field(
        default=128 * 1024 * 1024, ge=1, le=2**50, description="Bytes read back from swap in a window that are bad."
    )
    probe_share: FiniteFloat = Field(
        default=0.02, ge=0, le=0.5, description="Most of its time that a busy daemon spends on probes; 0 is never."
    )
    canary_period_seconds: FiniteFloat = Field(
        default=3600.0, ge=0, le=604800, description="How often the quality canaries run; 0 is on demand only."
    )
    canary_tolerance: FiniteFloat = Field(
        default=0.005, ge=0, le=1, description="How far the canaries' score may lie below the autoregressive one."
    )
    state_dir: HomePath | None = Field(
        default=None,
        description="Where the level and its history are kept. Unset: the user's state folder, by port; nothing is "
        "kept where the port is 0.",
    )


class WebhookSettings(Section):
    """Where Grafana and Alertmanager tell the daemon of alerts. It listens once a token or a secret is set."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on. Beyond loopback needs TLS.")
    port: int = Field(default=50552, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    token: SecretStr | None = Field(default=None, description="Bearer token of the sender (Alertmanager, Grafana).")
    secret: SecretStr | None = Field(default=None, description="Key of the sender's HMAC-SHA256 signature (Grafana).")
    timestamp_header: str = Field(
        default=TIMESTAMP_HEADER,
        min_length=1,
        description="Header with the signature's time, in seconds since 1970; a signature without it is refused.",
    )
    replay_seconds: FiniteFloat = Field(
        default=300.0, ge=1, le=86400, description="How old a signature's time may be, and how far ahead."
    )
    max_body_bytes: int = Field(default=256 * 1024, ge=1024, le=16 * 1024 * 1024, description="Largest body taken.")
    max_per_second: FiniteFloat = Field(
        default=20.0, ge=0.1, le=10_000, description="Notifications a second that are looked at; more are refused."
    )
    lease_seconds: FiniteFloat = Field(
        default=1800.0, ge=1, le=604800, description="How long an alert holds without being repeated."
    )
    tls_cert: ExistingFile | None = Field(default=None, description="Certificate chain (PEM).")
    tls_key: ExistingFile | None = Field(default=None, description="Private key of the certificate (PEM).")
    poll_url: str | None = Field(
        default=None, description="Alertmanager's address, or Grafana's /api/alertmanager/grafana, to poll for alerts."
    )
    poll_token: SecretStr | None = Field(default=None, description="Bearer token for poll_url.")
    poll_seconds: FiniteFloat = Field(default=30.0, ge=0.1, le=3600, description="How often poll_url is asked.")

    @property
    def listens(self) -> bool:
        return self.token is not None or self.secret is not None

    @field_validator("token", "secret", "poll_token")
    @classmethod
    def _unset(cls, value: SecretStr | None) -> SecretStr | None:
        return sendable(value)

    @field_validator("timestamp_header")
    @classmethod
    def _header(cls, value: str) -> str:
        if re.fullmatch(r"[0-9A-Za-z-]+", value) is None:
            raise ConfigError("webhook.timestamp_header", value, "the name of a header: letters, digits and hyphens")
        return value

    @field_validator("poll_url")
    @classmethod
    def _polled(cls, value: str | None) -> str | None:
        return _address("webhook.poll_url", value)

    @model_validator(mode="after")
    def _tls(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise ConfigError(f"webhook.{missing}", None, "webhook.tls_cert and webhook.tls_key together")
        if not is_loopback(self.host) and self.tls_cert is None:
            allowed = "127.0.0.0/8, ::1 or localhost; elsewhere set webhook.tls_cert and webhook.tls_key too"
            raise ConfigError("webhook.host", self.host, allowed)
        _only_told_safely("webhook.poll_url", self.poll_url, self.poll_token, "poll_token")
        return self


class AnnotationSettings(Section):
    """Grafana, where each transition is marked on the dashboards."""

    grafana_url: str | None = Field(default=None, description="Grafana's address. Unset: no annotations.")
    grafana_token: SecretStr | None = Field(default=None, description="Service account token for it.")

    @field_validator("grafana_url")
    @classmethod
    def _reached(cls, value: str | None) -> str | None:
        return _address("annotations.grafana_url", value)

    @field_validator("grafana_token")
    @classmethod
    def _unset(cls, value: SecretStr | None) -> SecretStr | None:
        return sendable(value)

    @model_validator(mode="after")
    def _secret(self) -> Self:
        _only_told_safely("annotations.grafana_url", self.grafana_url, self.grafana_token, "grafana_token")
        return self


def _address(name: str, value: str | None) -> str | None:
    """An address to ask; empty is none. Raises ConfigError."""
    if not value:
        return None
    parts = urlsplit(value)
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.port == 0
        or "@" in parts.netloc
        or parts.query
    ):
        shown = value if "@" not in value else "…@" + value.rsplit("@", 1)[1]  # what precedes it may be a password
        raise ConfigError(name, shown, "http:// or https://, a host, a path; a token by itself")
    return value.rstrip("/")


def _only_told_safely(name: str, url: str | None, token: SecretStr | None, token_name: str) -> None:
    """A token that is sent in the clear could be read on the way. Raises ConfigError."""
    if token is None or url is None:
        return
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise ConfigError(name, url, f"https beyond loopback, where {token_name} is sent")
