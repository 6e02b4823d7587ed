"""A model as it lies on disk: a folder, or what a hub id stands for.

Weights are read lazily: opening a model checks its files against its configuration and costs milliseconds. What reads
them is their first evaluation, in the caller's own pieces."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

from draftd.core import DrafterName
from draftd.errors import ModelLoadError, in_one_line

TOKENIZER_FILES = ("tokenizer*", "vocab*", "merges*", "special_tokens_map.json", "added_tokens.json", "*.tiktoken")


# Those that mlx-lm reads. The first kind that a name fits is its own.
_KINDS = (
    ("weights", ("model*.safetensors",)),
    ("config", ("config.json", "generation_config.json", "hf_quant_config.json")),
    ("chat_template", ("chat_template.*",)),
    ("tokenizer", TOKENIZER_FILES),
)


@dataclass(frozen=True, slots=True)
class Stamp:
    """Enough of a file to notice that it is another, without reading it."""

    bytes: int
    modified_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """Raises OSError."""
        found = path.stat()
        return cls(found.st_size, found.st_mtime_ns, found.st_ino)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model lies. `stamps`: its files by name when it was read; None where it is not in memory."""

    folder: Path
    stamps: Mapping[str, Stamp] | None = None

    @classmethod
    def noted(cls, folder: Path) -> Self:
        """As they are now. Note them before they are read: one that changes meanwhile is then seen to have."""
        return cls(folder, stamps(folder))

    @property
    def changed(self) -> bool:
        """Whether what lies there is no longer what was read. Looks at the disk."""
        return self.stamps is not None and self.stamps != stamps(self.folder)


@dataclass(frozen=True, slots=True)
class PairFiles:
    """Of all models that are configured. One that was made in memory has none."""

    target: ModelFiles | None = None
    drafts: Mapping[DrafterName, ModelFiles] = field(default_factory=dict)


def model_files(folder: Path) -> list[tuple[Path, str]]:
    """The files that a model is read from, by name, each with its kind: weights, config, chat_template, tokenizer."""
    try:
        names = sorted(file.name for file in folder.iterdir() if file.is_file())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [(folder / name, kind) for name in names if (kind := _kind(name))]


def _kind(name: str) -> str:
    return next((kind for kind, patterns in _KINDS if any(fnmatchcase(name, one) for one in patterns)), "")


def stamps(folder: Path) -> dict[str, Stamp]:
    """Of its files, by name; none where there is no such folder."""
    found = {}
    for file, _ in model_files(folder):
        with contextlib.suppress(FileNotFoundError):  # it went since the folder was listed
            found[file.name] = Stamp.of(file)
    return found


UNREADABLE = "look at free memory and the disk, and run `draftd doctor`"  # what to do, where weights cannot be read
_PIECE_BYTES = 8 << 20  # read at a time; an array that is larger is read whole


def is_hub_id(path: str) -> bool:
    """Whether it is taken for OWNER/NAME on the hub: it looks like that, and there is no such folder."""
    return path.count("/") == 1 and not path.startswith((".", "/", "~")) and not Path(path).is_dir()


class ModelFolder:
    """`path` is a local folder or a hub id, which is downloaded if it must be. Raises ModelLoadError for neither."""

    def __init__(self, path: str, role: str = "model") -> None:
        """`role` is how errors call it."""
        self._path = path
        self.called = f"{role}: {path}"
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

    def check(self) -> None:
        """Looks at its files; reads no weights. Raises ModelLoadError with what is wrong, and what to do."""
        from draftd.models.check import check_folder

        try:
            check_folder(self._folder, model_files(self._folder))
        except ModelLoadError as found:
            raise ModelLoadError(f"{self.called}: {found.what}", found.cure) from None
        except Exception as error:
            raise self.failed("cannot be read", error, "look at its permissions, and at the disk") from error

    def open(self) -> tuple[Any, dict[str, Any]]:
        """The model and its configuration; its weights are not read yet. Raises ModelLoadError.

        On Linux, floating-point weights become fp32: other types do not go through BLAS there.
        """
        import mlx.core as mx

        from draftd.models.mlx_lm import load_model

        self.check()
        try:
            model, config = load_model(self._folder, lazy=True)
        except Exception as error:
            cure = "fetch the model again, or make it anew with `mlx_lm.convert`"
            raise self.failed("mlx-lm cannot load it", error, cure) from error
        if mx.default_device() == mx.Device(mx.cpu):
            model.set_dtype(mx.float32)
        model.eval()
        return model, config

    def tokenizer(self, config: dict[str, Any] | None = None) -> Any:
        """mlx-lm's tokenizer. `config`: the model's, which may name more tokens that end a text."""
        from draftd.models.mlx_lm import load_tokenizer

        try:
            return load_tokenizer(self._folder, eos_token_ids=(config or {}).get("eos_token_id"))
        except Exception as error:
            raise self.failed("its tokenizer cannot be loaded", error) from error

    def tokenizer_digest(self) -> str:
        """Differs when the tokenizer's files do: reading them is cheap, making a tokenizer of them is not."""
        digest = hashlib.sha256()
        try:
            for file in sorted({file for pattern in TOKENIZER_FILES for file in self._folder.glob(pattern)}):
                digest.update(file.name.encode() + b"\0" + file.read_bytes())
        except OSError as error:
            raise self.failed("its tokenizer cannot be read", error) from error
        return digest.hexdigest()

    def failed(self, what: str, error: Exception, cure: str = "fetch the model again") -> ModelLoadError:
        """What another library refused, in one line."""
        return ModelLoadError(f"{self.called}: {what}: {in_one_line(error)}", cure)

    def _found(self, path: str) -> Path:
        folder = Path(path).expanduser()
        if folder.is_dir():
            return folder
        if not is_hub_id(path):
            raise ModelLoadError(
                f"{self.called}: no such folder", "give a model's folder, or its OWNER/NAME on the hub"
            )
        return self._downloaded(path)

    def _downloaded(self, path: str) -> Path:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import RepositoryNotFoundError

        from draftd.models.mlx_lm import DEFAULT_ALLOW_PATTERNS

        try:
            return Path(snapshot_download(path, allow_patterns=DEFAULT_ALLOW_PATTERNS))
        except RepositoryNotFoundError as error:
            what = f"{self.called}: no such folder, and the hub shows no such model"
            raise ModelLoadError(what, "correct the name, or log in to the hub if the model is not public") from error
        except Exception as error:
            cure = "look at the connection, or give a folder"
            raise self.failed("it cannot be fetched from the hub", error, cure) from error


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
            raise ModelLoadError(f"{what}: its weights cannot be read: {in_one_line(error)}", UNREADABLE) from error
        if not sound:
            raise ModelLoadError(f"{what}: some of its weights are not finite", "fetch the model again")
        yield
