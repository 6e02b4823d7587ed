"""Settings of remote decoding: verifying for other daemons, and having another daemon verify."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from draftd.errors import ConfigError
from draftd.settings.kinds import ExistingFile, Names, Seconds, Section, Token, is_loopback


class VerifySettings(Section):
    """Verification for other daemons: they draft, and this daemon's target verifies."""

    enabled: bool = False
    """Verify drafts of other daemons (peers). They connect to the gRPC port, with its token and certificate."""
    peers: int = Field(default=64, ge=1, le=4096)
    """Most peers connected at a time. Further peers are refused."""
    sequences_per_peer: int = Field(default=16, ge=1, le=4096)
    """Most sequences (answers in progress) that one peer may have open. Further sequences are refused."""
    tokens_per_peer: int = Field(default=131_072, ge=1, le=2**31 - 1)
    """Most tokens of context that the open sequences of one peer may reserve together, each with its prompt and its
    longest answer. A sequence that does not fit is refused."""
    target_share_per_peer: FiniteFloat = Field(default=1.0, ge=0.01, le=1)
    """Largest share of the target's time that one peer gets while other peers or clients want it too, from 0.01 to 1. A
    peer that has used its share waits."""
    idle_seconds: FiniteFloat = Field(default=60, ge=1, le=3600)
    """A peer's sequence is closed if it gets no step for this many seconds. If its connection is lost, it is kept this
    long for the peer to continue it."""
    gather_seconds: FiniteFloat = Field(default=0.002, ge=0, le=1)
    """Longest time in seconds that one peer's step waits for steps of other peers, if one forward pass for all of them
    is cheaper. 0: steps do not wait."""


class RemoteSettings(Section):
    """The remote: another daemon that verifies what this one drafts, or answers in its place."""

    enabled: bool = False
    """Use the remote. False: no request leaves this machine."""
    target: str | None = None
    """The remote's gRPC address, host:port. Required if remote.enabled is true."""
    token: Token | None = None
    """Bearer token of the remote (its server.token). Required beyond loopback. Unset: no token is sent."""
    tls: bool = False
    """Use TLS to the remote. Always on if remote.target is beyond loopback, or if remote.tls_ca or remote.tls_cert is
    set."""
    tls_ca: ExistingFile | None = None
    """Certificate authority (PEM) that the remote's certificate must come from. Unset: the authorities that the system
    trusts."""
    tls_cert: ExistingFile | None = None
    """This daemon's own certificate (PEM) for mutual TLS, if the remote requires one. Unset: none."""
    tls_key: ExistingFile | None = None
    """Private key (PEM) of remote.tls_cert, without a passphrase."""
    quality: Literal["draft", "standard", "professional"] | None = None
    """Quality class of the remote's answers. Unset: the class that the remote states (its model.quality)."""
    default_strategy: Literal["local", "remote", "speculative", "auto"] = "auto"
    """Strategy of requests that name none: the default of the flag `decoding-strategy` in a new file, and its value if
    the flag is missing or cannot be evaluated."""
    local_callers: Names = ()
    """Callers whose requests never leave this machine, by the name that a request gives in `caller`. Empty: none."""
    local_workloads: Names = ()
    """Workload classes whose requests never leave this machine: code, tool_call, chat, prose, edit. Empty: none."""
    step_seconds: FiniteFloat = Field(default=5, ge=0.05, le=300)
    """Longest time in seconds to wait for the remote's verdict on a step, not counting time in the remote's queue.
    After that, this daemon's model continues the answer if the request allows it."""
    probe_seconds: FiniteFloat = Field(default=5, ge=0.1, le=3600)
    """Seconds between attempts to reach a remote that is down, varied at random by up to a quarter."""
    max_draft_tokens: int = Field(default=8, ge=0, le=16)
    """Most tokens that one step proposes to the remote. 0: this daemon proposes none, and the remote decodes by
    itself."""
    in_flight: int = Field(default=4, ge=1, le=16)
    """Most steps of one request that may be on their way, sent and without a verdict, at a time."""
    connect_seconds: Seconds = 5.0
    """Longest time in seconds for connecting to the remote, until it has answered the greeting."""

    @model_validator(mode="after")
    def _reachable_and_private(self) -> Self:
        if self.enabled and self.target is None:
            raise ConfigError("remote.target", None, "host:port of the other daemon, because remote.enabled is true")
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise ConfigError(f"remote.{missing}", None, "remote.tls_cert and remote.tls_key together")
        if self.target is not None:
            host, _, port = self.target.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ConfigError("remote.target", self.target, "host:port")
            if self.token is None and not is_loopback(host):
                raise ConfigError(
                    "remote.token", None, "the other daemon's token, because remote.target is not on loopback"
                )
        return self

    @property
    def encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        host = (self.target or "").rpartition(":")[0]
        return self.tls or self.tls_ca is not None or self.tls_cert is not None or not is_loopback(host)
