"""Settings of the model, the server, the engine and the feature flag."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from draftd.core import LIGHT_DRAFT_MODEL, DepthMode, DrafterName
from draftd.engine.limits import Limits
from draftd.errors import ConfigError
from draftd.settings.kinds import (
    Credential,
    ExistingFile,
    HomePath,
    HttpPort,
    ModelName,
    Names,
    Seconds,
    Section,
    check_listener,
    is_loopback,
)

HTTP_PORT = 8080
"""Where clients of other inference servers look for one."""


class ModelSettings(Section):
    """The served model."""

    path: ModelName | None = None
    """Model to serve: a folder or a hub id. Unset: the embedded nano pair."""
    draft_path: ModelName | None = None
    """Draft model: a folder or a hub id. Unset: the embedded pair's draft, or none."""
    light_draft_path: ModelName | None = None
    """A lighter quantisation of the draft: a folder or a hub id. Unset: none."""
    adapter_path: HomePath | None = None
    """LoRA adapter of the model: the folder that `mlx_lm.lora` made, or a hub id. DoRA and full fine-tuning too. Unset:
    none."""
    max_context: int | None = Field(default=None, ge=16, le=2**24)
    """Tokens of the longest text, prompt and answer together. More than the model declares is served with a warning.
    Unset: what the model declares, with what its rotary embedding extends it to."""
    prompt_lookup: bool = True
    """Also offer drafting by looking up n-grams in the prompt and output."""
    drafter: DrafterName | None = None
    """Drafter if the request names none. Unset: the draft model."""
    generic_tools: bool = True
    """Offer tools as text in the system message if the chat template takes none. False: they are refused."""
    quality: Literal["draft", "standard", "professional"] = "standard"
    """What its answers are good for, for the choice between this machine and another."""

    @model_validator(mode="after")
    def _draft_needs_target(self) -> Self:
        for name, needed in (("draft_path", "path"), ("adapter_path", "path"), ("light_draft_path", "draft_path")):
            if (value := getattr(self, name)) is not None and getattr(self, needed) is None:
                raise ConfigError(f"model.{name}", str(value), f"only together with model.{needed}")
        if self.drafter == LIGHT_DRAFT_MODEL and self.light_draft_path is None:
            raise ConfigError("model.drafter", self.drafter, "a drafter that is configured: set model.light_draft_path")
        return self


class ServerSettings(Section):
    """The daemon's listeners."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on; `localhost` is 127.0.0.1 and ::1. Beyond loopback needs TLS and a token."""
    port: int = Field(default=50551, ge=0, le=65535)
    """Port to listen on; 0 picks a free one."""
    token: Credential | None = None
    """Bearer token that every call must carry. Two, with a space between them, are both valid."""
    tls_cert: ExistingFile | None = None
    """Certificate chain (PEM)."""
    tls_key: ExistingFile | None = None
    """Private key of the certificate (PEM)."""
    tls_client_ca: ExistingFile | None = None
    """Authority (PEM) that client certificates must come from: mutual TLS."""
    max_message_bytes: int = Field(default=4 * 1024 * 1024, ge=1024, le=256 * 1024 * 1024)
    """Largest message accepted from a client."""
    max_concurrent_streams: int = Field(default=256, ge=1, le=65536)
    """Calls that one connection may have open at a time."""
    drain_seconds: Seconds = 20.0
    """On SIGTERM, how long running requests may continue."""
    write_stall_seconds: Seconds = 30.0
    """A request is cancelled if its client reads no message for this long; 0: never."""
    reflection: bool = True
    """Offer gRPC server reflection."""
    http_port: HttpPort | None = None
    """Port of the HTTP server, which speaks OpenAI's and Anthropic's protocols, on the same host, with the same token
    and certificate; 0 picks a free one, `off` serves no HTTP. Unset: 8080, if the daemon listens on loopback, on a port
    that is not picked, and 8080 is free."""
    http_aliases: Names = ()
    """Other names by which HTTP clients may ask for the model; `claude-*` is any that begins so."""
    http_origins: Names = ()
    """Origins of web pages that may call the HTTP server, such as https://chat.example.com; `*` is any. Unset: none."""
    http_connections: int = Field(default=512, ge=1, le=65536)
    """HTTP connections that clients may hold at a time."""
    http_stored_bytes: int = Field(default=64 * 2**20, ge=0, le=2**40)
    """Most memory for answers that `previous_response_id` may name, at most 1,024 of them; 0 stores none."""

    @property
    def http(self) -> int | None:
        """The port for HTTP; None if HTTP is off. With `http_port` unset it is HTTP_PORT, only on loopback; if another
        program has taken HTTP_PORT, the daemon serves without HTTP."""
        if self.http_port is None:
            return HTTP_PORT if self.port and is_loopback(self.host) else None
        return None if self.http_port == "off" else self.http_port

    @model_validator(mode="after")
    def _tls_and_token(self) -> Self:
        if self.tls_client_ca is not None and not self.tls_cert:
            raise ConfigError("server.tls_client_ca", self.tls_client_ca, "only with server.tls_cert")
        check_listener("server", self.host, self.tls_cert, self.tls_key, token=self.token)
        return self


class EngineSettings(Section):
    """The engine's limits, and how it decodes."""

    queue_capacity: int = Field(default=64, ge=1, le=65536)
    """Requests that may wait; more are refused (RESOURCE_EXHAUSTED)."""
    max_batch: int = Field(default=8, ge=1, le=256)
    """Requests decoded together."""
    prefill_chunk: int = Field(default=512, ge=1, le=16384)
    """Most prompt tokens in one forward pass of prefill. If nothing else runs, it takes that many."""
    prefill_slice_seconds: FiniteFloat = Field(default=1.0, ge=0.001, le=60)
    """Longest delay of running requests between two steps by prefill. A prompt that takes no longer is prefilled whole;
    a longer one by slices of at most 0.7 of the time of a step (at least 16 tokens)."""
    kv_cache_bytes: int | None = Field(default=None, ge=1, le=2**50)
    """Memory for the key-value caches of running requests. A request waits until its cache, at full length, fits; it is
    refused if it never could. Unset: three quarters of the headroom after loading, or an eighth of the machine's memory
    if the headroom is not known."""
    max_draft_tokens: int = Field(default=4, ge=0, le=16)
    """Most tokens drafted in a step; 0 turns speculation off."""
    depth_mode: DepthMode = DepthMode.AUTOMATIC
    """How many tokens a step drafts if the request does not choose: as many as pay, which may be none, or always
    engine.max_draft_tokens."""
    prefix_cache_bytes: int | None = Field(default=None, ge=0, le=2**50)
    """Most memory for keys and values of finished requests, kept for later ones that begin with the same tokens; 0
    keeps nothing. Less is kept under memory pressure. Unset: a quarter of the headroom after loading, if the limit of
    running requests leaves so much, but no more than an eighth of the machine's memory or engine.max_batch texts of the
    whole context need, and at least 256 MiB (a thirty-second of the memory if that is less)."""
    prefix_dir: HomePath | None = None
    """Folder for prefixes that are kept over a restart; no other daemon may use it. Unset: `prefixes` in the folder of
    fallback.state_dir."""
    prefix_disk_bytes: int = Field(default=0, ge=0, le=2**50)
    """Most disk space for prefixes of finished requests; those used last stay. They are what clients wrote, so by
    default only pinned prefixes are kept on disk."""
    prefix_pinned_bytes: int = Field(default=4 * 2**30, ge=0, le=2**50)
    """Most disk space for prefixes that were pinned by name (`draftd prefix pin`)."""
    learnt_file: HomePath | None = None
    """Where the measured costs and acceptance rates of drafting are kept over a restart, for each pair and machine.
    Unset: in the folder of fallback.state_dir."""
    idle_unload_seconds: FiniteFloat = Field(default=0, ge=0, le=30 * 86400)
    """Seconds without requests until the weights are unloaded; the next request loads them again, and waits for it. 0:
    never."""
    default_max_tokens: int = Field(default=4096, ge=1, le=1_048_576)
    """Most tokens of an answer if the request does not say; fewer where the context, or the memory for it, has room for
    fewer. Memory for them is reserved: with fewer, more requests run together."""

    def limits(self, **overrides: Any) -> Limits:
        """Returns the engine's limits, which have the same names. `overrides`: limits that depend on the machine at run
        time."""
        named = {field.name for field in fields(Limits)}
        return Limits(**{name: value for name, value in self if name in named}, **overrides)


class FlagSettings(Section):
    """The provider of the feature flags `speculative-decoding` and `decoding-strategy`."""

    provider: Literal["file", "flagd"] = "file"
    """A file in flagd's format, or a flagd server."""
    file: HomePath | None = None
    """The flags' file, written if missing: all daemons with the same file follow it. Unset: `flags.json` in the folder
    of fallback.state_dir, of this daemon alone; with port 0 a temporary file."""
    host: str = Field(default="localhost", min_length=1)
    """Host of the flagd server."""
    port: int = Field(default=8015, ge=1, le=65535)
    """Port of the flagd server's sync service."""
    tls: bool = False
    """Speak TLS to the flagd server."""
    default_variant: Literal["on", "off"] = "on"
    """Variant of `speculative-decoding` in a newly written file, and if the flag cannot be evaluated."""
