"""The manifest: the models, the software, the settings and the machine of this daemon."""

from __future__ import annotations

import asyncio
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import SecretStr

from draftd.core import DRAFT_HEAD, DRAFT_MODEL, LIGHT_DRAFT_MODEL
from draftd.engine.handle import EngineHandle
from draftd.fronts.grpc.reply import exactness, fill
from draftd.hardware.state import HardwareView
from draftd.hardware.system import device, versions
from draftd.model_info import HeadInfo, ModelInfo
from draftd.models.blas import describe_blas
from draftd.models.folder import ModelFiles
from draftd.protocol import duration
from draftd.settings import UNSET, Settings, shown
from draftd.v1 import control_pb2 as pb

# Packages that affect tokens and times. The manifest lists those that are installed.
_PACKAGES = (
    *("mlx", "mlx-cpu", "mlx-metal", "mlx-cuda-12", "mlx-cuda-13", "mlx-lm"),
    *("mkl", "tokenizers", "transformers", "grpcio"),
)

SET = "set"  # stands for a secret, a file or an address

_POWER = {None: "", True: "mains", False: "battery"}


class Manifests:
    """Builds manifests one at a time on the thread that hashes model files. Hashing takes long; neither the event loop
    nor the engine waits for it."""

    def __init__(self, worker: EngineHandle, hardware: HardwareView, settings: Settings, *, version: str) -> None:
        self._worker, self._hardware, self._settings, self._version = worker, hardware, settings, version

    async def take(self) -> pb.GetManifestResponse:
        """Builds a manifest. Raises NotServing while the models load, NotNow if a model file cannot be read. Continues
        if the caller leaves: no file is hashed twice."""
        return await asyncio.wrap_future(self._worker.fingerprints.submit(self._compose))

    def _compose(self) -> pb.GetManifestResponse:
        worker = self._worker
        info, machine = worker.info, device()
        state = self._hardware.state
        sample = state.sample if state is not None else None
        library = re.fullmatch(r"cpu \((.+)\)", info.backend)
        labels = {
            "model.path": info.model,
            "model.draft_path": info.draft_model or (info.head.family if info.head is not None else ""),
            "model.light_draft_path": info.light_draft_model or "",
        }
        return fill(
            pb.GetManifestResponse,
            machine,
            version=self._version,
            packages=versions(_PACKAGES),
            python=platform.python_version(),
            os=platform.platform(),
            device=machine.name,
            backend=info.backend,
            blas=describe_blas(library[1]) if library else "",
            power_source=_POWER[sample.plugged_in] if sample is not None else "",
            low_power=sample.low_power if sample is not None else None,
            models=self._models(info),
            settings=in_force(self._settings, labels),
            load_time=duration(worker.load_seconds),
            exactness=exactness(worker.status().exactness),  # last: it may be measured while files are hashed
        )

    def _models(self, info: ModelInfo) -> Mapping[str, pb.ModelManifest]:
        files, sizes = self._worker.files, self._worker.draft_bytes
        models = {"target": self._model(info.model, info.weight_bytes, files.target)}
        drafts = {"draft": (info.draft_model, DRAFT_MODEL), "light_draft": (info.light_draft_model, LIGHT_DRAFT_MODEL)}
        for role, (name, kind) in drafts.items():
            if name:
                models[role] = self._model(name, sizes.get(kind, 0), files.drafts.get(kind))
        if info.head is not None and DRAFT_HEAD in info.drafters:
            models[DRAFT_HEAD] = self._head(info.head, files.drafts.get(DRAFT_HEAD))
        return models

    def _head(self, head: HeadInfo, files: ModelFiles | None) -> pb.ModelManifest:
        """Describes the draft head that drafts. Its files are listed only if they are not the target's."""
        target, size = self._worker.files.target, self._worker.draft_bytes.get(DRAFT_HEAD, 0)
        manifest = self._model(head.family, size, files)
        manifest.kind, manifest.form = head.kind, head.form
        if files is not None and target is not None and files.folder == target.folder:
            manifest.ClearField("files")
        return manifest

    def _model(self, name: str, weight_bytes: int, files: ModelFiles | None) -> pb.ModelManifest:
        if files is None:
            return pb.ModelManifest(name=name, quantization="none", weight_bytes=weight_bytes)
        fingerprint = self._worker.fingerprints.of(files.folder, files.adapter)
        return pb.ModelManifest(
            name=name,
            quantization=fingerprint.quantization,
            weight_bytes=weight_bytes,
            files=[fill(pb.ModelFile, file) for file in fingerprint.files],
            changed_since_load=files.changed,
        )


def in_force(settings: Settings, labels: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings in force, by dotted name. A secret, a file or an address only shows whether it is set.
    `labels`: texts by dotted name that replace set values: a model's label replaces its path."""
    effective = {}
    for section, values in settings:
        for key, value in values:
            name, hidden = f"{section}.{key}", isinstance(value, (SecretStr, Path)) or key.endswith("_url")
            effective[name] = UNSET if value is None else labels.get(name, SET if hidden else shown(value))
    return effective
