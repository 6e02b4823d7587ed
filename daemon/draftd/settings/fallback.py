"""Settings of the fallback: when the daemon steps down and up, which alerts it obeys, and where transitions are
marked."""

from __future__ import annotations

from typing import Self

from pydantic import Field, FiniteFloat, model_validator

from draftd.core import LIGHT_DRAFT_MODEL, PROMPT_LOOKUP
from draftd.settings.kinds import (
    Address,
    BlockLengths,
    Credential,
    Drafters,
    ExistingFile,
    HeaderName,
    HomePath,
    Seconds,
    Section,
    Token,
    check_listener,
    check_token_is_private,
)

TIMESTAMP_HEADER = "X-Grafana-Alerting-Timestamp"  # as set in draftd's contact point for Grafana


class FallbackSettings(Section):
    """When the daemon steps down, how far, and when it steps up again."""

    guard: bool = True
    """Judge acceptance, speed, errors, memory and heat in the daemon, and step down if one is bad."""
    blocks: BlockLengths = (6, 4, 3, 2)
    """Shorter block lengths to step through, if below engine.max_draft_tokens."""
    lighter: Drafters = (LIGHT_DRAFT_MODEL, PROMPT_LOOKUP)
    """Lighter drafters to step through after these blocks, if available."""
    window_seconds: FiniteFloat = Field(default=300.0, ge=0.5, le=86400)
    """Window in which acceptance, speed and errors are judged."""
    acceptance_floor: FiniteFloat = Field(default=0.40, ge=0, le=1)
    """Acceptance of reached tokens below this for two windows is bad."""
    least_requests: int = Field(default=10, ge=1, le=1_000_000)
    """With fewer requests a window gives no verdict."""
    baseline: ExistingFile | None = None
    """Frozen acceptance baselines (JSON). Unset: learnt from the first requests."""
    errors: int = Field(default=3, ge=1, le=1_000_000)
    """So many failed steps, or failed drafts, in a window are bad."""
    cooldown_seconds: FiniteFloat = Field(default=300.0, ge=0.1, le=86400)
    """The cooldown: least time between two changes of level, except steps down at once."""
    longest_wait_seconds: FiniteFloat = Field(default=7200.0, ge=0.1, le=604800)
    """Longest wait for a step up, after any number of relapses."""
    critical_seconds: Seconds = 10.0
    """How long critical memory pressure lasts before the daemon steps down."""
    thermal_seconds: Seconds = 60.0
    """How long heavy thermal pressure lasts before the daemon steps down."""
    swap_bytes: int = Field(default=128 * 1024 * 1024, ge=1, le=2**50)
    """More bytes read back from swap in a window are bad."""
    probe_share: FiniteFloat = Field(default=0.02, ge=0, le=0.5)
    """Most of its time that a busy daemon spends on probes; 0: none."""
    canary_period_seconds: FiniteFloat = Field(default=3600.0, ge=0, le=604800)
    """How often the quality canaries run; 0: only on demand."""
    canary_tolerance: FiniteFloat = Field(default=0.005, ge=0, le=1)
    """How far the canaries' score with drafts may be below the score without."""
    remote_failures: FiniteFloat = Field(default=0.2, ge=0, le=1)
    """More than this share of the remote's requests failing, in two windows, is bad: then nothing is sent to it."""
    remote_round_trip_seconds: FiniteFloat = Field(default=0.5, ge=0.001, le=60)
    """A round trip to the remote above this for a window is bad: it answers, but nothing is drafted for it."""
    remote_speed_floor: FiniteFloat = Field(default=0.9, ge=0, le=1)
    """Drafting for the remote at less than so much of its own streaming's speed, for two windows, is bad."""
    state_dir: HomePath | None = None
    """Where the level, its history and the flags are kept; no other daemon may use it. Unset: a folder for each port in
    the user's state folder; with port 0 nothing is kept."""


class WebhookSettings(Section):
    """The webhook for alerts from Grafana and Alertmanager. It listens once a token or a secret is set."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on; `localhost` is 127.0.0.1 and ::1. Beyond loopback needs TLS."""
    port: int = Field(default=50552, ge=0, le=65535)
    """Port to listen on; 0 picks a free one."""
    token: Credential | None = None
    """Bearer token of the sender (Alertmanager, Grafana). Two, with a space between them, are both valid."""
    secret: Credential | None = None
    """Key of the sender's HMAC-SHA256 signature (Grafana). Two, with a space between them, are both valid."""
    timestamp_header: HeaderName = TIMESTAMP_HEADER
    """Header with the signature's time, in seconds since 1970. Signatures without it are refused."""
    replay_seconds: FiniteFloat = Field(default=300.0, ge=1, le=86400)
    """How far a signature's time may be before or after the daemon's."""
    max_body_bytes: int = Field(default=256 * 1024, ge=1024, le=16 * 1024 * 1024)
    """Largest body accepted."""
    max_per_second: FiniteFloat = Field(default=20.0, ge=0.1, le=10_000)
    """Notifications a second that are accepted; more are refused."""
    lease_seconds: FiniteFloat = Field(default=1800.0, ge=1, le=604800)
    """How long an alert applies after it was last repeated."""
    tls_cert: ExistingFile | None = None
    """Certificate chain (PEM)."""
    tls_key: ExistingFile | None = None
    """Private key of the certificate (PEM)."""
    poll_url: Address | None = None
    """Address to poll: Alertmanager's, or Grafana's with /api/alertmanager/grafana."""
    poll_token: Token | None = None
    """Bearer token for poll_url."""
    poll_seconds: FiniteFloat = Field(default=30.0, ge=0.1, le=3600)
    """How often poll_url is polled."""

    @property
    def listens(self) -> bool:
        return self.token is not None or self.secret is not None

    @model_validator(mode="after")
    def _tls(self) -> Self:
        check_listener("webhook", self.host, self.tls_cert, self.tls_key)
        check_token_is_private("webhook.poll_url", self.poll_url, self.poll_token, "poll_token")
        return self


class AnnotationSettings(Section):
    """The Grafana in which each transition is marked on the dashboards."""

    grafana_url: Address | None = None
    """Grafana's address. Unset: no annotations."""
    grafana_token: Token | None = None
    """Service account token for grafana_url."""

    @model_validator(mode="after")
    def _token_is_private(self) -> Self:
        check_token_is_private("annotations.grafana_url", self.grafana_url, self.grafana_token, "grafana_token")
        return self
