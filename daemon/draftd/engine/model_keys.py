"""Identifies the model of a prefix on disk: a digest of the model's files, and of all else that the arrays depend
on."""

from __future__ import annotations

import contextlib
import logging
from concurrent.futures import Future
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from draftd.engine.cache.prefix_file import FORMAT
from draftd.errors import DraftdError
from draftd.models.fingerprint import Fingerprints, digest, model_digest
from draftd.models.folder import ModelFiles

_log = logging.getLogger(__name__)

_PACKAGES = ("mlx", "mlx-lm")  # versions may differ in how they compute or lay out caches


class ModelKey(NamedTuple):
    """`model`: the digest of the model's files. `key`: the digest of `model`, packages' versions, backend and file
    format: of everything that stored arrays depend on."""

    model: str
    key: str


class ModelKeys:
    """Computes models' keys once. Engine thread only; files are hashed on another thread, and no call waits for
    that."""

    def __init__(self, fingerprints: Fingerprints, backend: str) -> None:
        self._backend, self._fingerprints = backend, fingerprints
        self._keys: dict[Any, Future[ModelKey | None]] = {}

    def of(self, files: ModelFiles | None) -> Future[ModelKey | None]:
        """Returns a model's key; None if it was made in memory, or its files have changed since it was read."""
        identity = _identity(files)
        if identity not in self._keys:
            self._keys[identity] = self._fingerprints.submit(partial(self._compute, files))
        return self._keys[identity]

    def now(self, files: ModelFiles | None) -> ModelKey | None:
        """Returns a model's key, or None also while it is still being computed."""
        key = self.of(files)
        return key.result() if key.done() and not key.cancelled() and key.exception() is None else None

    def _compute(self, files: ModelFiles | None) -> ModelKey | None:
        if files is None or files.stamps is None:
            return None
        try:
            fingerprint = self._fingerprints.of(files.folder, files.adapter)
        except DraftdError as error:
            _log.warning("prefixes of %s are neither read from disk nor kept there: %s", files.folder, error.message)
            return None
        if files.changed:
            _log.warning(
                "prefixes of %s are neither read from disk nor kept there: its files changed after they were loaded",
                files.folder,
            )
            return None
        model = model_digest(fingerprint)
        parts = [files.part] if files.part else []
        return ModelKey(model, digest([FORMAT, model, self._backend, *map(_version, _PACKAGES), *parts]))


def _identity(files: ModelFiles | None) -> Any:
    if files is None or files.stamps is None:
        return None
    return files.folder, files.adapter, files.part, tuple(sorted(files.stamps.items()))


def _version(package: str) -> str:
    with contextlib.suppress(PackageNotFoundError):
        return version(package)
    return ""
