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
    """When the daemon lowers the level of drafting, how far, and when it raises the level again."""

    guard: bool = True
    """Watch acceptance, speed, errors, memory, heat and the remote, and step down if one is bad. False: only alerts and
    quality canaries step down."""
    blocks: BlockLengths = (6, 4, 3, 2)
    """Block lengths of the levels short_block, in tokens per step. Lengths that are not below engine.max_draft_tokens
    are left out."""
    lighter: Drafters = (LIGHT_DRAFT_MODEL, PROMPT_LOOKUP)
    """Drafters of the levels light_draft, which follow the shorter blocks. Drafters that are not configured are left
    out."""
    window_seconds: FiniteFloat = Field(default=300.0, ge=0.5, le=86400)
    """Length in seconds of the windows over which acceptance, speed, errors, swap and the remote are judged."""
    acceptance_floor: FiniteFloat = Field(default=0.40, ge=0, le=1)
    """Least share of reached tokens that the target must accept: accepted / (accepted + rollbacks). If a draft model or
    a draft head is below it in two windows in a row, the daemon steps down."""
    least_requests: int = Field(default=10, ge=1, le=1_000_000)
    """Fewest requests in a window for a verdict on acceptance, speed or the remote. With fewer, the window is
    ignored."""
    baseline: ExistingFile | None = None
    """JSON file with frozen acceptance baselines, against which drift is measured. Unset: the daemon learns baselines
    from its first requests."""
    errors: int = Field(default=3, ge=1, le=1_000_000)
    """If this many speculative steps, or this many drafts, fail within fallback.window_seconds, the daemon steps down
    at once."""
    cooldown_seconds: FiniteFloat = Field(default=300.0, ge=0.1, le=86400)
    """Shortest time in seconds between two changes of the level. Steps down at once do not wait for it."""
    longest_wait_seconds: FiniteFloat = Field(default=7200.0, ge=0.1, le=604800)
    """Longest wait before a step up, in seconds. Each relapse doubles the wait up to this limit."""
    critical_seconds: Seconds = 10.0
    """Seconds of critical memory pressure after which the daemon stops drafting and releases the draft's weights."""
    thermal_seconds: Seconds = 60.0
    """Seconds of heavy thermal pressure after which the daemon steps down to shorter blocks."""
    swap_bytes: int = Field(default=128 * 1024 * 1024, ge=1, le=2**50)
    """If more bytes than this are read back from swap within fallback.window_seconds, the daemon steps down to a
    lighter drafter."""
    probe_share: FiniteFloat = Field(default=0.02, ge=0, le=0.5)
    """Largest share of its time that a busy daemon spends on probes and canaries, from 0 to 0.5. 0: it waits until it
    is idle."""
    canary_period_seconds: FiniteFloat = Field(default=3600.0, ge=0, le=604800)
    """Seconds between two runs of the quality canaries. 0: only `draftd canary run` starts them."""
    canary_tolerance: FiniteFloat = Field(default=0.005, ge=0, le=1)
    """How much smaller the share of passed canaries may be with drafts than without, from 0 to 1. If it is smaller
    still, the daemon stops drafting."""
    remote_failures: FiniteFloat = Field(default=0.2, ge=0, le=1)
    """Largest share of the remote's requests that may fail. If more fail in two windows in a row, no request is sent to
    the remote."""
    remote_round_trip_seconds: FiniteFloat = Field(default=0.5, ge=0.001, le=60)
    """Longest round trip to the remote, in seconds. If it is longer for a whole window, this daemon stops drafting for
    the remote, which then decodes by itself."""
    remote_speed_floor: FiniteFloat = Field(default=0.9, ge=0, le=1)
    """Least speed of requests that this daemon drafts for, relative to the remote decoding by itself. If it is lower in
    two windows in a row, this daemon stops drafting for the remote."""
    state_dir: HomePath | None = None
    """Folder for what survives a restart: level, history, flags, learnt costs, cached prefixes. No other daemon may use
    it. Unset: a folder named after server.port in the user's state folder; with server.port 0, nothing is kept."""


class WebhookSettings(Section):
    """Webhook for alerts from Grafana and Alertmanager. It listens if webhook.token or webhook.secret is set."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on; `localhost` means 127.0.0.1 and ::1. An address beyond loopback requires webhook.tls_cert
    and webhook.tls_key."""
    port: int = Field(default=50552, ge=0, le=65535)
    """Port to listen on. 0: any free port."""
    token: Credential | None = None
    """Bearer token that a sender (Alertmanager or Grafana) shows. Two tokens with a space between them are both valid,
    so that senders can change over. Unset: no bearer token is accepted."""
    secret: Credential | None = None
    """Key with which Grafana signs its notifications (HMAC-SHA256). Two keys with a space between them are both valid,
    so that senders can change over. Unset: no signature is accepted."""
    timestamp_header: HeaderName = TIMESTAMP_HEADER
    """Header with the time of a signature, in seconds since 1970. A signature without this header is refused."""
    replay_seconds: FiniteFloat = Field(default=300.0, ge=1, le=86400)
    """How many seconds the time of a signature may differ from the daemon's clock. Beyond that the notification is
    refused."""
    max_body_bytes: int = Field(default=256 * 1024, ge=1024, le=16 * 1024 * 1024)
    """Largest body of a notification, in bytes. A larger one is refused."""
    max_per_second: FiniteFloat = Field(default=20.0, ge=0.1, le=10_000)
    """Most notifications accepted per second. Further ones are refused with 429."""
    lease_seconds: FiniteFloat = Field(default=1800.0, ge=1, le=604800)
    """An alert stops to apply this many seconds after its last notification, even if it was not resolved."""
    tls_cert: ExistingFile | None = None
    """Certificate chain (PEM) of the webhook, its own certificate first. Unset: no TLS."""
    tls_key: ExistingFile | None = None
    """Private key (PEM) of webhook.tls_cert, without a passphrase."""
    poll_url: Address | None = None
    """Address that the daemon polls for firing alerts: Alertmanager's, or Grafana's followed by
    /api/alertmanager/grafana. Unset: no polling."""
    poll_token: Token | None = None
    """Bearer token for webhook.poll_url. Unset: no token is sent."""
    poll_seconds: FiniteFloat = Field(default=30.0, ge=0.1, le=3600)
    """Seconds between two polls of webhook.poll_url. After failures the daemon waits longer."""

    @property
    def listens(self) -> bool:
        return self.token is not None or self.secret is not None

    @model_validator(mode="after")
    def _tls(self) -> Self:
        check_listener("webhook", self.host, self.tls_cert, self.tls_key)
        check_token_is_private("webhook.poll_url", self.poll_url, self.poll_token, "poll_token")
        return self


class AnnotationSettings(Section):
    """Grafana on whose dashboards each transition is marked."""

    grafana_url: Address | None = None
    """Address of the Grafana. Unset: no annotations."""
    grafana_token: Token | None = None
    """Service account token for annotations.grafana_url. Unset: no token is sent."""

    @model_validator(mode="after")
    def _token_is_private(self) -> Self:
        check_token_is_private("annotations.grafana_url", self.grafana_url, self.grafana_token, "grafana_token")
        return self
