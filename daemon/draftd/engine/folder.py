"""A model as it lies on disk: a folder, or what a hub id stands for.

Weights are read lazily: opening a model checks its files against its configuration and costs milliseconds. What reads
them is their first evaluation, in the caller's own pieces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from draftd.engine.files import TOKENIZER_FILES, ModelFiles
from draftd.errors import ModelLoadError

_PIECE_BYTES = 8 << 20  # read at a time; an array that is larger is read whole


class ModelFolder:
    """`path` is a local folder or a hub id, which is downloaded if it must be. Raises ModelLoadError for neither."""

    def __init__(self, path: str, role: str = "model") -> None:
        """`role` is how errors call it."""
        self._path, self._role = path, role
        self._folder = self._found(path)

    @property
    def name(self) -> str:
        """A label of low cardinality: a hub id as it is, a folder by its last one or two parts."""
        local = Path(self._path).expanduser()
        if not local.is_dir():
            return self._path
        local = local.resolve()
        generic = {"target", "draft", "model"}
        return f"{local.parent.name}/{local.name}" if local.name in generic else local.name

    def files(self, *, noted: bool = True) -> ModelFiles:
        """Its files as they are now, or only where they lie."""
        return ModelFiles.noted(self._folder) if noted else ModelFiles(self._folder)

    def open(self) -> tuple[Any, dict[str, Any]]:
        """The model and its configuration; its weights are not read yet. Raises ModelLoadError.

        On Linux, floating-point weights become fp32: other types do not go through BLAS there.
        """
        import mlx.core as mx
        from mlx_lm.utils import load_model

        try:
            model, config = load_model(self._folder, lazy=True)
        except Exception as error:
            raise self.failed(error) from error
        if mx.default_device() == mx.Device(mx.cpu):
            model.set_dtype(mx.float32)
        model.eval()
        return model, config

    def tokenizer(self, config: dict[str, Any] | None = None) -> Any:
        """mlx-lm's tokenizer. `config`: the model's, which may name more tokens that end a text."""
        from mlx_lm.utils import load_tokenizer

        try:
            return load_tokenizer(self._folder, eos_token_ids=(config or {}).get("eos_token_id"))
        except Exception as error:
            raise self.failed(error) from error

    def tokenizer_digest(self) -> str:
        """Differs when the tokenizer's files do: reading them is cheap, making a tokenizer of them is not."""
        digest = hashlib.sha256()
        try:
            for file in sorted({file for pattern in TOKENIZER_FILES for file in self._folder.glob(pattern)}):
                digest.update(file.name.encode() + b"\0" + file.read_bytes())
        except OSError as error:
            raise self.failed(error) from error
        return digest.hexdigest()

    def failed(self, error: Exception) -> ModelLoadError:
        return ModelLoadError(f"{self._role}: {self._path}: {type(error).__name__}: {error}")

    def _found(self, path: str) -> Path:
        folder = Path(path).expanduser()
        if folder.is_dir():
            for pattern in ("config.json", "*.safetensors"):
                if not list(folder.glob(pattern)):
                    raise ModelLoadError(f"{self._role}: {path}: no {pattern} in this folder")
            return folder
        if path.startswith((".", "/", "~")) or path.count("/") > 1:
            raise ModelLoadError(f"{self._role}: {path}: no such folder")
        return self._downloaded(path)

    def _downloaded(self, path: str) -> Path:
        from huggingface_hub import snapshot_download
        from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS

        try:
            return Path(snapshot_download(path, allow_patterns=DEFAULT_ALLOW_PATTERNS))
        except Exception as error:
            raise self.failed(error) from error


def read(arrays: list[Any], what: str) -> Iterator[None]:
    """Reads weights a piece at a time, and takes each array from the list then: whoever wants them holds them besides.

    Raises ModelLoadError, naming `what`, where one cannot be read or is not finite.
    """
    import mlx.core as mx

    while arrays:
        piece, size = [], 0
        while arrays and size < _PIECE_BYTES:
            piece.append(arrays.pop())
            size += piece[-1].nbytes
        try:
            finite = [mx.isfinite(array).all() for array in piece if mx.issubdtype(array.dtype, mx.floating)]
            mx.eval(piece, finite)
            sound = all(bool(one.item()) for one in finite)
        except Exception as error:
            raise ModelLoadError(f"{what}: {type(error).__name__}: {error}") from error
        if not sound:
            raise ModelLoadError(f"{what}: some of its weights are not finite")
        yield
