"""Proofs that all ranks of a group are alike before any computes: versions, and the model to the last byte.

Different sizes prove that files differ, but equal sizes do not prove that they are alike: across machines hashes do.
Hashing a large model takes minutes, so it comes last, reports progress, and its results are kept in the state folder.
On one machine the same files, by path, size, time and inode, need no hashes.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from draftd import __version__
from draftd.errors import ModelLoadError
from draftd.hardware.system import versions
from draftd.models.blas import load_blas
from draftd.models.fingerprint import DECISIVE, FILE, Fingerprints
from draftd.models.folder import ModelFolder, Stamp, model_files
from draftd.settings import state_dir

_PACKAGES = ("mlx", "mlx-cpu", "mlx-metal", "mlx-cuda-12", "mlx-cuda-13", "mlx-lm")
_SYSTEMS = {"darwin": "macOS", "linux": "Linux"}


class Proof(BaseModel):
    """A rank's versions and files. `files`: bytes of each file that the model is computed from, by name. `same`: a
    digest of their paths and identities, equal for the same files on one machine only."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    draftd: str
    packages: dict[str, str]
    system: str
    model: str
    files: dict[str, int]
    same: str

    @classmethod
    def of(cls, folder: ModelFolder) -> Proof:
        """Describes a folder without reading weights; other faults are left to loading. Raises ModelLoadError if there
        are no weights."""
        contents = folder.files()
        named = model_files(contents.folder, contents.adapter)
        if not any(kind == "weights" for _, kind in named):
            raise ModelLoadError(f"{folder.called}: it has no weights", "fetch the model again")
        files = [path for path, kind in named if kind in DECISIVE]
        try:
            stamps = {path: Stamp.of(path) for path in files}
        except OSError as error:
            raise ModelLoadError(f"{folder.called}: {error.filename}: {error.strerror}") from None
        where = [
            (os.path.realpath(path), stamp.bytes, stamp.modified_ns, stamp.inode) for path, stamp in stamps.items()
        ]
        return cls(
            draftd=__version__,
            packages=versions(_PACKAGES),
            system=_SYSTEMS.get(sys.platform, sys.platform),
            model=folder.name,
            files={path.name: stamp.bytes for path, stamp in stamps.items()},
            same=hashlib.sha256(json.dumps(where).encode()).hexdigest(),
        )


def difference(own: Proof, theirs: Proof, who: str) -> str:
    """Returns how rank 0 (`own`) and another rank differ, in one line; empty if they do not."""
    if theirs.draftd != own.draftd:
        return f"{who} has draftd {theirs.draftd}, rank 0 has {own.draftd}"
    for name in _PACKAGES:
        here, there = own.packages.get(name), theirs.packages.get(name)
        if here != there:
            return f"{who} has {f'{name} {there}' if there else f'no {name}'}, rank 0 has {here or 'none'}"
    if theirs.system != own.system:
        return f"{who} runs on {theirs.system}, rank 0 on {own.system}: they compute in other types"
    for name in sorted(own.files.keys() | theirs.files.keys()):
        mine, other = own.files.get(name), theirs.files.get(name)
        if mine != other:
            there = "no such file" if other is None else f"{other:,} bytes"
            here = "none" if mine is None else f"{mine:,}"
            return f"{who} has another model ({theirs.model}): {name}: {there}, rank 0 ({own.model}) has {here}"
    return ""


def hash_difference(own: Mapping[str, str], theirs: Mapping[str, object], who: str) -> str:
    """Returns how two ranks' files differ, by SHA-256 and name; empty if they do not."""
    name = next((name for name, digest in own.items() if theirs.get(name) != digest), None)
    if name is None:
        return ""
    return f"{who} has other weights: {name} has the size of rank 0's, and another content (SHA-256)"


class OwnProof:
    """This process's proof. `hashes` starts hashing on its own thread, which may take minutes."""

    def __init__(
        self,
        model: str,
        adapter: Path | None = None,
        environ: Mapping[str, str] | None = None,
        *,
        offline: bool = False,
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`model`: a folder or hub id, downloaded if needed unless `offline`. `environ`: names the state folder, in
        which hashes are kept. `progress` receives lines about a download. Raises ModelLoadError."""
        load_blas()  # looking up a hub id imports mlx-lm
        self._folder = ModelFolder(model, adapter=adapter, offline=offline, progress=progress)
        self.proof = Proof.of(self._folder)
        self._fingerprints = Fingerprints(None if environ is None else state_dir(environ) / FILE)
        self._hashes: Future[dict[str, str]] | None = None

    @property
    def hashing(self) -> bool:
        return self._hashes is not None and not self._hashes.done()

    @property
    def progress(self) -> dict[str, int]:
        """The `hashed` bytes, and the `bytes` of all files that need hashing."""
        return {"hashed": self._fingerprints.hashed_bytes, "bytes": sum(self.proof.files.values())}

    def hashes(self) -> Future[dict[str, str]]:
        """Returns a future of the SHA-256 of each file, by its name; every call returns the same future. It raises
        DraftdError if a file cannot be read."""
        if self._hashes is None:
            self._hashes = self._fingerprints.submit(self._hash_files)
        return self._hashes

    def close(self) -> None:
        """Stops hashing after the current piece."""
        self._fingerprints.close()

    def _hash_files(self) -> dict[str, str]:
        files = self._folder.files()
        fingerprint = self._fingerprints.of(files.folder, files.adapter)
        return {file.name: file.sha256 for file in fingerprint.files if file.kind in DECISIVE}
