"""Takes a manifest: the daemon's own account of itself, and what the harness brings to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from draftd import __version__
from draftd.acceptance.manifest import Manifest, ModelFile, ModelManifest
from draftd.acceptance.validation import first_fault
from draftd.errors import FieldError

if TYPE_CHECKING:
    from draftd.client.client import DraftdClient
    from draftd.client.prompts import Prompt
    from draftd.v1 import control_pb2 as pb

SECONDS = 600.0  # large files are hashed when they are first asked for


class ManifestError(FieldError):
    """A manifest's file is not as it should be."""


def take_manifest(
    client: DraftdClient, prompts: Mapping[str, str] | None = None, *, timeout: float = SECONDS
) -> Manifest:
    """`prompts`: `prompt_checksum` of each group that is asked. Raises CallError."""
    found = client.manifest(timeout=timeout)
    return Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        harness=__version__,
        draftd=found.version,
        packages=dict(sorted(found.packages.items())),
        python=found.python,
        os=found.os,
        device=found.device,
        cores=found.cores,
        memory_bytes=found.memory_bytes,
        backend=found.backend,
        blas=found.blas,
        power_source=found.power_source,
        low_power=found.low_power if found.HasField("low_power") else None,
        models={role: _model(model) for role, model in sorted(found.models.items())},
        settings=dict(sorted(found.settings.items())),
        prompts=dict(prompts or {}),
        load_seconds=found.load_time.ToNanoseconds() / 1e9 if found.HasField("load_time") else None,
    )


def prompt_checksum(prompts: Sequence[Prompt]) -> str:
    """SHA-256 of what is asked, in its order. What a prompt is called does not change it."""
    asked = [
        {"messages": prompt.messages, "workload": prompt.workload, "max_tokens": prompt.max_tokens}
        for prompt in prompts
    ]
    text = json.dumps(asked, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def to_json(manifest: Manifest) -> str:
    """As it lies in a run's folder."""
    kept = TypeAdapter(Manifest).dump_python(manifest, mode="json")
    return json.dumps(kept, indent=2, ensure_ascii=False) + "\n"


def from_json(text: str | bytes, source: str = "manifest") -> Manifest:
    """Raises ManifestError, naming `source` and the field."""
    try:
        return TypeAdapter(Manifest).validate_json(text)
    except ValidationError as error:
        raise ManifestError(*first_fault(error, source)) from None


def _model(found: pb.ModelManifest) -> ModelManifest:
    files = tuple(ModelFile(file.name, file.kind, file.bytes, file.sha256) for file in found.files)
    return ModelManifest(found.name, found.quantization, found.weight_bytes, files, found.changed_since_load)
