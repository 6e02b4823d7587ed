"""Settings of remote decoding: verifying for other daemons, and having another daemon verify."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from draftd.errors import ConfigError
from draftd.settings.kinds import ExistingFile, Names, Seconds, Section, Token, is_loopback


class VerifySettings(Section):
    """Verification for other daemons: their drafts, this daemon's target."""

    enabled: bool = False
    """Verify what other daemons draft, on the port of the gRPC server, with its token and certificate."""
    peers: int = Field(default=64, ge=1, le=4096)
    """Connections of other daemons at a time; more are refused."""
    sequences_per_peer: int = Field(default=16, ge=1, le=4096)
    """Sequences that a peer may have open; more are refused."""
    tokens_per_peer: int = Field(default=131_072, ge=1, le=2**31 - 1)
    """Tokens of context that a peer's sequences may reserve together, prompts and longest answers; more are refused."""
    target_share_per_peer: FiniteFloat = Field(default=1.0, ge=0.01, le=1)
    """Share of the target's time that a peer may take, over 10 s, while others want it too; its steps wait beyond
    that."""
    idle_seconds: FiniteFloat = Field(default=60, ge=1, le=3600)
    """A sequence without a step for so long is closed, and one whose connection was lost is kept so long for it to come
    back."""
    gather_seconds: FiniteFloat = Field(default=0.002, ge=0, le=1)
    """Longest that a step waits for those of other sequences, where a forward for several is cheaper."""


class RemoteSettings(Section):
    """Another daemon that verifies what this one drafts, or answers in its place."""

    enabled: bool = False
    """Nothing leaves this machine unless this is set."""
    target: str | None = None
    """The other daemon's host:port."""
    token: Token | None = None
    """Bearer token of the other daemon."""
    tls: bool = False
    """Speak TLS. Always on beyond loopback."""
    tls_ca: ExistingFile | None = None
    """Authority (PEM) of its certificate. Unset: the system's."""
    tls_cert: ExistingFile | None = None
    """This daemon's own certificate (PEM), for mutual TLS."""
    tls_key: ExistingFile | None = None
    """The private key (PEM) of that certificate."""
    quality: Literal["draft", "standard", "professional"] | None = None
    """What its answers are good for. Unset: as it says itself."""
    default_strategy: Literal["local", "remote", "speculative", "auto"] = "auto"
    """Variant of the flag `decoding-strategy` in a newly written file, and if it cannot be evaluated."""
    local_callers: Names = ()
    """Callers whose requests never leave this machine."""
    local_workloads: Names = ()
    """Workload classes whose requests never leave this machine: code, tool_call, chat, prose, edit."""
    step_seconds: FiniteFloat = Field(default=5, ge=0.05, le=300)
    """Deadline of a verdict, besides what the verifier's own queue takes: beyond that a request goes on locally."""
    probe_seconds: FiniteFloat = Field(default=5, ge=0.1, le=3600)
    """How often a remote that is down is tried again, give or take a quarter."""
    max_draft_tokens: int = Field(default=8, ge=0, le=16)
    """Most tokens proposed in a step; 0 streams without drafts."""
    in_flight: int = Field(default=4, ge=1, le=16)
    """Most steps of a sequence on their way at a time."""
    connect_seconds: Seconds = 5.0
    """How long a connection may take to come up."""

    @model_validator(mode="after")
    def _reachable_and_private(self) -> Self:
        if self.enabled and self.target is None:
            raise ConfigError("remote.target", None, "host:port of the other daemon, where remote.enabled is set")
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise ConfigError(f"remote.{missing}", None, "remote.tls_cert and remote.tls_key together")
        if self.target is not None:
            host, _, port = self.target.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ConfigError("remote.target", self.target, "host:port")
            if self.token is None and not is_loopback(host):
                raise ConfigError("remote.token", None, "the other daemon's token, beyond loopback")
        return self

    @property
    def encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        host = (self.target or "").rpartition(":")[0]
        return self.tls or self.tls_ca is not None or self.tls_cert is not None or not is_loopback(host)
