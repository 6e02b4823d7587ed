"""The settings there are: names, types, bounds, defaults, and what each is for. `draftd.config` fills them.

Every setting carries its description; the table in README.md is checked against them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, FiniteFloat, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from draftd.core import DepthMode, DrafterKind
from draftd.errors import ConfigError
from draftd.settings_base import ExistingFile, HomePath, Seconds, Section, is_loopback, sendable, state_dir
from draftd.settings_cost import CostSettings
from draftd.settings_fallback import AnnotationSettings, FallbackSettings, WebhookSettings

CAPTURE_CONTENT_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


class ModelSettings(Section):
    """What is served."""

    path: str | None = Field(
        default=None, description="Model to serve: a folder or a hub id. Unset: the embedded nano pair."
    )
    draft_path: str | None = Field(
        default=None, description="Draft model: a folder or a hub id. Unset: the embedded one's own, or none."
    )
    light_draft_path: str | None = Field(
        default=None,
        description="A lighter quantisation of the draft: a folder or a hub id. Unset: there is none between the draft "
        "and prompt lookup.",
    )
    prompt_lookup: bool = Field(
        default=True, description="Also offer drafting by looking up n-grams in the prompt and output."
    )
    drafter: DrafterKind | None = Field(
        default=None,
        description="Drafter where the request names none. Unset: the draft model.",
    )

    @field_validator("path", "draft_path", "light_draft_path")
    @classmethod
    def _home(cls, value: str | None) -> str | None:
        if not value:
            return None
        return str(Path(value).expanduser()) if value.startswith("~") else value

    @model_validator(mode="after")
    def _draft_needs_target(self) -> Self:
        if self.draft_path is not None and self.path is None:
            raise ConfigError(
                "model.draft_path",
                self.draft_path,
                "only together with model.path",
            )
        if self.light_draft_path is not None and self.draft_path is None:
            raise ConfigError("model.light_draft_path", self.light_draft_path, "only together with model.draft_path")
        return self


class ServerSettings(Section):
    """Where and how the daemon listens."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address to listen on. Beyond loopback needs TLS and a token.",
    )
    port: int = Field(default=50551, ge=0, le=65535, description="Port to listen on; 0 picks a free one.")
    token: SecretStr | None = Field(default=None, description="Bearer token that every call must carry.")
    tls_cert: ExistingFile | None = Field(default=None, description="Certificate chain (PEM).")
    tls_key: ExistingFile | None = Field(default=None, description="Private key of the certificate (PEM).")
    tls_client_ca: ExistingFile | None = Field(
        default=None, description="Authority (PEM) that client certificates must come from: mutual TLS."
    )
    max_message_bytes: int = Field(
        default=4 * 1024 * 1024,
        ge=1024,
        le=256 * 1024 * 1024,
        description="Largest message taken from a client.",
    )
    max_concurrent_streams: int = Field(
        default=256, ge=1, le=65536, description="Calls that one connection may have open at a time."
    )
    drain_seconds: Seconds = Field(default=20.0, description="On SIGTERM, how long running requests may go on.")
    write_stall_seconds: Seconds = Field(
        default=30.0, description="A client that takes no message for so long is cancelled; 0 waits for ever."
    )
    reflection: bool = Field(default=True, description="Offer gRPC server reflection.")

    @field_validator("token")
    @classmethod
    def _token(cls, value: SecretStr | None) -> SecretStr | None:
        return sendable(value)

    @model_validator(mode="after")
    def _tls_and_token(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing = "tls_key" if self.tls_key is None else "tls_cert"
            raise ConfigError(f"server.{missing}", None, "server.tls_cert and server.tls_key together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ConfigError("server.tls_client_ca", self.tls_client_ca, "only with server.tls_cert")
        if not is_loopback(self.host):
            unset = [f"server.{n}" for n in ("token", "tls_cert", "tls_key") if getattr(self, n) is None]
            if unset:
                allowed = f"127.0.0.0/8, ::1 or localhost; elsewhere set {', '.join(unset)} too"
                raise ConfigError("server.host", self.host, allowed)
        return self


class EngineSettings(Section):
    """How much the engine takes on."""

    queue_capacity: int = Field(
        default=64, ge=1, le=65536, description="Requests that may wait; one more is RESOURCE_EXHAUSTED."
    )
    max_batch: int = Field(default=8, ge=1, le=256, description="Requests decoded together.")
    prefill_chunk: int = Field(
        default=512, ge=1, le=16384, description="Most prompt tokens prefilled at once; as many where nothing runs."
    )
    prefill_slice_seconds: FiniteFloat = Field(
        default=0.1,
        ge=0.001,
        le=60,
        description="Longest that running requests wait between two rounds for a prompt's prefill, 16 tokens at the "
        "least; never more than 0.7 of what a round takes.",
    )
    kv_cache_bytes: int | None = Field(
        default=None,
        ge=1,
        le=2**50,
        description="What key-value caches may take: a request waits while its own, at its longest, would not fit "
        "beside the others', and is refused where it never would. Unset: three quarters of the headroom once the model "
        "is loaded, or an eighth of the machine's memory where that is not known.",
    )
    max_draft_tokens: int = Field(
        default=4, ge=0, le=16, description="Most tokens drafted per round; 0 turns speculation off."
    )
    depth_mode: DepthMode = Field(
        default=DepthMode.AUTOMATIC,
        description="How many tokens a round drafts where the request does not say: as many as pay, none included, or "
        "always engine.max_draft_tokens.",
    )
    prefix_cache_bytes: int = Field(
        default=256 * 2**20,
        ge=0,
        le=2**50,
        description="Most memory for keys and values of finished requests, kept for those that begin with the same "
        "tokens; 0 keeps nothing. Less is held while the machine's memory is under pressure.",
    )
    learnt_file: HomePath | None = Field(
        default=None,
        description="Where what drafting costs and yields is kept over a restart, for each pair and machine. Unset: in "
        "the folder of fallback.state_dir.",
    )
    default_max_tokens: int = Field(
        default=256, ge=1, le=1_048_576, description="Answer length where the request names none."
    )


class FlagSettings(Section):
    """Where the feature flag `speculative-decoding` lives."""

    provider: Literal["file", "flagd"] = Field(
        default="file", description="A file in flagd's format, or a flagd server."
    )
    file: HomePath = Field(
        default_factory=lambda: state_dir(os.environ) / "flags.json",
        description="The flag's file; written when missing.",
    )
    host: str = Field(default="localhost", min_length=1, description="Host of the flagd server.")
    port: int = Field(default=8015, ge=1, le=65535, description="Port of the flagd server's sync service.")
    tls: bool = Field(default=False, description="Speak TLS to the flagd server.")
    default_variant: Literal["on", "off"] = Field(
        default="on", description="Variant in a newly written file, and when the flag cannot be evaluated."
    )


class TelemetrySettings(Section):
    """What OTEL_* variables do not cover: those work as in any OpenTelemetry program."""

    shutdown_seconds: Seconds = Field(default=5.0, description="How long the last export may take at shutdown.")
    capture_content: bool = Field(
        default=False, description=f"Put prompts and answers on spans. Also {CAPTURE_CONTENT_VARIABLE}."
    )


class HardwareSettings(Section):
    """How the machine is watched."""

    period_seconds: FiniteFloat = Field(
        default=5.0, ge=0.1, le=3600, description="How often memory, heat and power are read."
    )
    memory_floor_bytes: int | None = Field(
        default=None,
        ge=0,
        le=2**50,
        description="Memory that should stay available to all else; headroom is counted from it. "
        "Unset: 10/24 of what there is, which is 10 GB of 24.",
    )


class LogSettings(Section):
    """What is written to stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least severity logged.")
    format: Literal["text", "json"] = Field(default="text", description="One line of text, or of JSON, per event.")


class Settings(BaseSettings):
    """All of it. `draftd.config.load_settings` fills it; construction alone reads no file and no variable."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    model: ModelSettings = Field(default_factory=lambda: ModelSettings())
    server: ServerSettings = Field(default_factory=lambda: ServerSettings())
    engine: EngineSettings = Field(default_factory=lambda: EngineSettings())
    flag: FlagSettings = Field(default_factory=lambda: FlagSettings())
    telemetry: TelemetrySettings = Field(default_factory=lambda: TelemetrySettings())
    hardware: HardwareSettings = Field(default_factory=lambda: HardwareSettings())
    fallback: FallbackSettings = Field(default_factory=lambda: FallbackSettings())
    webhook: WebhookSettings = Field(default_factory=lambda: WebhookSettings())
    annotations: AnnotationSettings = Field(default_factory=lambda: AnnotationSettings())
    cost: CostSettings = Field(default_factory=lambda: CostSettings())
    log: LogSettings = Field(default_factory=lambda: LogSettings())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # The layers are merged in load_settings, which remembers where each value came from: errors name it.
        return (init_settings,)
