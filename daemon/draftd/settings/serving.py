"""Settings of the model, the server, the engine and the feature flag."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from draftd.core import LIGHT_DRAFT_MODEL, DepthMode, DrafterName
from draftd.engine.limits import EXACT_SLICE, Limits
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
    """Model to serve: a folder or a Hugging Face hub id. Unset: the small pair of models that is embedded in draftd."""
    draft_path: ModelName | None = None
    """Draft model for model.path, or the repository of a draft head for it: a folder or a hub id. Unset: no draft
    model, or the embedded pair's if model.path is unset. A draft head in the model's own files is found without it."""
    light_draft_path: ModelName | None = None
    """The draft model with coarser weights, which the fallback uses before it stops drafting with a model: a folder or
    a hub id. Unset: none."""
    adapter_path: HomePath | None = None
    """Adapter of the model (LoRA, DoRA or full fine-tuning): the folder that `mlx_lm.lora` made, or a hub id. Unset:
    none."""
    max_context: int | None = Field(default=None, ge=16, le=2**24)
    """Most tokens of a text, prompt and answer together. A value above what the model declares is used, with a warning.
    Unset: what the model declares, including RoPE scaling."""
    prompt_lookup: bool = True
    """Offer the drafter prompt_lookup, which needs no draft model: it finds the latest tokens earlier in the prompt or
    answer, or in earlier answers to the same caller, and proposes what most often followed them there."""
    drafter: DrafterName | None = None
    """Drafter of requests that name none: draft_model, draft_head, light_draft_model or prompt_lookup. A draft head
    drafts in place of a draft model that is not there, and the other way round. Under automatic depth the faster of the
    two drafts, and prompt_lookup where it promises more, unless model.prompt_lookup is false. Unset: draft_model."""
    generic_tools: bool = True
    """If the model's chat template takes no tools, describe a request's tools to the model as text in the system
    message. False: requests with tools are refused."""
    quality: Literal["draft", "standard", "professional"] = "standard"
    """Quality class of this model's answers. The router compares it with the remote's class and with the class that a
    request asks for."""

    @model_validator(mode="after")
    def _draft_needs_target(self) -> Self:
        for name, needed in (("draft_path", "path"), ("adapter_path", "path"), ("light_draft_path", "draft_path")):
            if (value := getattr(self, name)) is not None and getattr(self, needed) is None:
                raise ConfigError(f"model.{name}", str(value), f"only together with model.{needed}")
        if self.drafter == LIGHT_DRAFT_MODEL and self.light_draft_path is None:
            raise ConfigError("model.drafter", self.drafter, "a drafter that is configured: set model.light_draft_path")
        return self


class ServerSettings(Section):
    """Listeners for clients: gRPC and HTTP."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on; `localhost` means 127.0.0.1 and ::1. An address beyond loopback requires server.tls_cert,
    server.tls_key and server.token."""
    port: int = Field(default=50551, ge=0, le=65535)
    """Port of the gRPC server. 0: any free port; then no state survives a restart, unless fallback.state_dir is set."""
    token: Credential | None = None
    """Bearer token that each call and HTTP request must carry, except health checks. Two tokens with a space between
    them are both valid, so that clients can change over. Unset: no token is required."""
    tls_cert: ExistingFile | None = None
    """Certificate chain (PEM) of the gRPC and HTTP servers, the daemon's own certificate first. Unset: no TLS."""
    tls_key: ExistingFile | None = None
    """Private key (PEM) of server.tls_cert, without a passphrase."""
    tls_client_ca: ExistingFile | None = None
    """Certificate authority (PEM) for mutual TLS: only clients with a certificate from this authority can connect.
    Unset: clients need no certificate."""
    max_message_bytes: int = Field(default=4 * 1024 * 1024, ge=1024, le=256 * 1024 * 1024)
    """Largest gRPC message or HTTP request body that the daemon accepts, in bytes. A larger one is refused."""
    max_concurrent_streams: int = Field(default=256, ge=1, le=65536)
    """Most gRPC calls that one connection may have open at a time. Further calls wait in the client."""
    drain_seconds: Seconds = 20.0
    """Seconds that running requests may continue after SIGTERM or Ctrl-C. In this time
    waiting requests also begin. Those that have not ended then end with UNAVAILABLE (HTTP 503)."""
    write_stall_seconds: Seconds = 30.0
    """A request is cancelled if its client reads nothing for this many seconds. 0: no limit."""
    reflection: bool = True
    """Offer gRPC server reflection, with which tools such as grpcurl find services and messages."""
    http_port: HttpPort | None = None
    """Port of the HTTP server for OpenAI's and Anthropic's protocols; host, token and certificate are those of the gRPC
    server. 0: any free port. `off`: no HTTP. Unset: 8080 if server.host is loopback, server.port is not 0 and 8080 is
    free; otherwise no HTTP."""
    http_aliases: Names = ()
    """Further names under which HTTP clients may ask for the model. `*` stands for any text: `claude-*` allows every
    name that begins with `claude-`. Empty: only the model's own names."""
    http_origins: Names = ()
    """Origins of web pages that may call the HTTP server, such as https://chat.example.com; `*` allows all. Empty:
    none."""
    http_connections: int = Field(default=512, ge=1, le=65536)
    """Most HTTP connections open at a time. A further connection replaces the one that has been idle longest; if none
    is idle, it is closed."""
    http_stored_bytes: int = Field(default=64 * 2**20, ge=0, le=2**40)
    """Memory in bytes for answers that later requests may name in `previous_response_id`. Beyond it, or beyond 1,024
    answers, the least recently used are dropped. 0: no answer is stored."""

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
    """Most requests that may wait for the engine. Further requests are refused with RESOURCE_EXHAUSTED (HTTP 429). Each
    request waits until the next step of decoding. So of a burst, even an idle daemon takes at most this number."""
    max_batch: int = Field(default=8, ge=1, le=256)
    """Most requests decoded together. Further requests wait."""
    prefill_chunk: int = Field(default=512, ge=1, le=16384)
    """Most prompt tokens in one forward pass of prefill. While other requests run, passes are usually shorter: see
    engine.prefill_slice_seconds."""
    exact: bool = False
    """Makes a text the same at every draft depth, batch size, prefill slice and cached prefix, on one machine.
    Operations whose result for a token depends on the other tokens in the call are computed in smaller calls, and
    prompts in slices of 64 tokens. Drafts and batches gain less speed. Loading takes longer, because the model is
    measured (`draftd doctor --exactness`). Not with several ranks. False: where two tokens nearly tie, the chosen one
    may differ."""
    prefill_slice_seconds: FiniteFloat = Field(default=1.0, ge=0.001, le=60)
    """Longest time in seconds that prefill may delay running requests between two decoding steps. A prompt that fits
    into this time is prefilled at once; a longer one in slices of at least 16 tokens that take at most 0.7 of the time
    of a step."""
    kv_cache_bytes: int | None = Field(default=None, ge=1, le=2**50)
    """Memory in bytes for the key-value caches of running requests. A request waits until its cache at full length
    fits, and is refused if it could never fit. Unset: three quarters of the headroom (see hardware.memory_floor_bytes)
    after loading, or an eighth of the machine's memory if the headroom is unknown. But at least the need of one text as
    long as the context, or an eighth of the machine's memory if that is less, even if that takes memory below the
    floor."""
    max_draft_tokens: int = Field(default=4, ge=0, le=16)
    """Most tokens drafted in one step. 0: no speculation."""
    depth_mode: DepthMode = DepthMode.AUTOMATIC
    """How many tokens a step drafts if the request does not choose. automatic: as many as pay, possibly none. fixed:
    always the most allowed, up to engine.max_draft_tokens."""
    prefix_cache_bytes: int | None = Field(default=None, ge=0, le=2**50)
    """Memory in bytes for the prefix cache: keys and values of earlier requests, reused by requests that begin with the
    same tokens. 0: no prefix cache, in memory or on disk. Memory pressure lowers the limit. Unset: a quarter of the
    headroom after loading, but no more than engine.kv_cache_bytes leaves of it, an eighth of the machine's memory, or
    the need of engine.max_batch texts of full length; at least 256 MiB, or a thirty-second of the memory if that is
    less."""
    prefix_dir: HomePath | None = None
    """Folder for cached prefixes that survive a restart. No other daemon may use it. Unset: `prefixes` in the daemon's
    state folder (fallback.state_dir)."""
    prefix_disk_bytes: int = Field(default=0, ge=0, le=2**50)
    """Disk space in bytes for cached prefixes of finished requests. Beyond it the least recently used are deleted. 0:
    only pinned prefixes are kept on disk, because the others contain what clients wrote."""
    prefix_pinned_bytes: int = Field(default=4 * 2**30, ge=0, le=2**50)
    """Disk space in bytes for prefixes pinned with `draftd prefix pin`. A pin that does not fit is refused."""
    learnt_file: HomePath | None = None
    """File that keeps the measured costs and acceptance rates of drafting over a restart, for each pair of models and
    machine. Several daemons may share it. Unset: a file in the daemon's state folder (fallback.state_dir)."""
    idle_unload_seconds: FiniteFloat = Field(default=0, ge=0, le=30 * 86400)
    """Seconds without requests after which weights and cached prefixes are removed from memory. The next request waits
    until the weights are loaded again. 0: never."""
    default_max_tokens: int = Field(default=4096, ge=1, le=1_048_576)
    """Most tokens of an answer if the request sets no limit; fewer if the context, or the memory for it, has less room.
    Memory is reserved for all of them, so a smaller value lets more requests run together."""

    @model_validator(mode="after")
    def _whole_slices(self) -> Self:
        if self.exact and self.prefill_chunk < EXACT_SLICE:
            raise ConfigError(
                "engine.prefill_chunk", self.prefill_chunk, f"at least {EXACT_SLICE} where engine.exact is true"
            )
        return self

    def limits(self, **overrides: Any) -> Limits:
        """Returns the engine's limits, which have the same names. `overrides`: limits that depend on the machine at run
        time."""
        named = {field.name for field in fields(Limits)}
        return Limits(**{name: value for name, value in self if name in named}, **overrides)


class FlagSettings(Section):
    """The provider of the feature flags `speculative-decoding` and `decoding-strategy`."""

    provider: Literal["file", "flagd"] = "file"
    """Source of the flags: `file`, a file in flagd's format (flag.file), or `flagd`, a flagd server (flag.host)."""
    file: HomePath | None = None
    """File of the flags, created if it is missing. All daemons that name the same file follow it. Unset: `flags.json`
    in the daemon's state folder (fallback.state_dir); a temporary file if there is no such folder."""
    host: str = Field(default="localhost", min_length=1)
    """Host of the flagd server. Used only if flag.provider is flagd."""
    port: int = Field(default=8015, ge=1, le=65535)
    """Port of the flagd server's sync service."""
    tls: bool = False
    """Use TLS to the flagd server."""
    default_variant: Literal["on", "off"] = "on"
    """Whether requests may draft: the default of the flag `speculative-decoding` in a new file, and its value if the
    flag cannot be evaluated."""
