"""A model on disk: a local folder, or the folder of a hub id.

Weights are read lazily: opening a model checks its files against its configuration in milliseconds. Weights are read
when first evaluated, in pieces that the caller chooses.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

from draftd.core import DrafterName
from draftd.errors import ModelLoadError, in_one_line
from draftd.models.check import CONVERT, FETCH, check_folder
from draftd.models.download import download
from draftd.models.hub import is_hub_id, no_model_name
from draftd.models.shards import INDEX, WEIGHTS, head_files, only, surplus

# Files that mlx-lm reads. A file has the first kind whose pattern it matches.
_KINDS = (
    ("weights", (WEIGHTS,)),
    ("config", ("config.json", "generation_config.json", "hf_quant_config.json")),
    ("chat_template", ("chat_template.*",)),
    ("tokenizer", ("tokenizer*", "vocab*", "merges*", "special_tokens_map.json", "added_tokens.json", "*.tiktoken")),
)
_ADAPTER = (("adapter", ("adapter_config.json", "adapters.safetensors")),)


@dataclass(frozen=True, slots=True)
class Stamp:
    """Enough of a file's metadata to notice a change without reading it."""

    bytes: int
    modified_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """Reads a file's stamp. Raises OSError."""
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The paths of a model and its adapter. `stamps`: their files by name, when they were read; None if the model is
    not in memory. `part`: which part of the files it is, if they hold more than this model."""

    folder: Path
    stamps: Mapping[str, Stamp] | None = None
    adapter: Path | None = None
    part: str = ""

    @classmethod
    def of(cls, folder: Path, adapter: Path | None = None) -> Self:
        """Returns the files' present state. Call it before reading them, so that a change meanwhile is noticed."""
        return cls(folder, stamps(folder, adapter), adapter)

    @property
    def changed(self) -> bool:
        """Whether the files on disk differ from those that were read."""
        return self.stamps is not None and self.stamps != stamps(self.folder, self.adapter)


@dataclass(frozen=True, slots=True)
class PairFiles:
    """The files of all configured models; a model made in memory has none."""

    target: ModelFiles | None = None
    drafts: Mapping[DrafterName, ModelFiles] = field(default_factory=dict)


def model_files(folder: Path, adapter: Path | None = None) -> list[tuple[Path, str]]:
    """Returns the files that a model is read from, by name, each with its kind: weights, config, chat_template,
    tokenizer; then those that hold its draft head, also weights; then its adapter's."""
    files, heads = _files(folder, _KINDS), head_files(folder)
    left_out = surplus(folder, (file.name for file, kind in files if kind == "weights"))
    left_out |= {head.name for head in heads if head.parent == folder}
    files = [(file, kind) for file, kind in files if kind != "weights" or file.name not in left_out]
    files += [(head, "weights") for head in heads]
    return files if adapter is None else files + _files(adapter, _ADAPTER)


def _files(folder: Path, kinds: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[Path, str]]:
    """Returns the files of these kinds, by name; none if there is no such folder."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        names = sorted(file.name for file in folder.iterdir() if file.is_file())
        return [(folder / name, kind) for name in names if (kind := _kind(name, kinds))]
    return []


def _kind(name: str, kinds: Sequence[tuple[str, Sequence[str]]]) -> str:
    return next((kind for kind, patterns in kinds if any(fnmatchcase(name, one) for one in patterns)), "")


def stamps(folder: Path, adapter: Path | None = None) -> dict[str, Stamp]:
    """Returns the stamps of a model's files, by name; none if there is no such folder."""
    result = {}
    for file, _ in model_files(folder, adapter):
        with contextlib.suppress(FileNotFoundError):  # it was deleted after the folder was listed
            result[file.name] = Stamp.of(file)
    return result


UNREADABLE = "look at free memory and the disk, and run `draftd doctor`"  # the remedy if weights cannot be read
_LOOK = "look at its permissions, and at the disk"
_NO_TOKENIZER = "its tokenizer cannot be loaded"
_TRAIN = "give an adapter that `mlx_lm.lora` made for this model"
_PIECE_BYTES = 8 << 20  # read at a time; larger arrays are read whole


class ModelFolder:
    """A model's folder. `path`: a local folder or a hub id, which is downloaded if needed. Raises ModelLoadError if it
    is neither."""

    def __init__(
        self,
        path: str,
        role: str = "model",
        adapter: Path | None = None,
        *,
        offline: bool = False,
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`role`: its name in errors. `adapter`: an adapter's folder or hub id. `offline`: nothing is downloaded.
        `progress` receives lines about a download."""
        self.path, self._adapter_path = path, adapter
        self.called = f"{role}: {path}"
        self._folder = Path(path)  # for messages while it is being found
        self._adapter: Path | None = None
        if adapter is not None:
            with self.naming_errors("it cannot be found", part=f"adapter {adapter}: "):
                self._adapter = _find(str(adapter), adapter=True, offline=offline, progress=progress)
        with self.naming_errors("it cannot be found"):
            self._folder = _find(path, offline=offline, progress=progress)
        self._checked_config: dict[str, Any] | None = None
        self.tokenizer_changes = ""  # how `tokenizer` differs from transformers' own for the same files

    @property
    def name(self) -> str:
        """A label of low cardinality: a hub id, or the last one or two parts of a folder; then the adapter's."""
        local = Path(self.path).expanduser()
        label = _label(local, {"target", "draft", "model"}) if local.is_dir() else self.path
        if (adapter := self._adapter_path) is None:
            return label
        own = _label(adapter, {"adapter", "adapters"}) if adapter.is_dir() else str(adapter)
        return f"{label}+{own}"

    def files(self) -> ModelFiles:
        """Returns the present state of its files."""
        return ModelFiles.of(self._folder, self._adapter)

    @property
    def surplus(self) -> str:
        """A warning about weight files that are ignored because the index does not name them; empty without any."""
        names = sorted(surplus(self._folder, (file.name for file in self._folder.glob(WEIGHTS))))
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f"files that {INDEX} does not name are not read: {', '.join(names[:3])}{more}" if names else ""

    def check(self) -> None:
        """Checks its files without reading weights. Raises ModelLoadError with the fault and the remedy."""
        from draftd.models.adapter import check_adapter
        from draftd.models.advice import check_numbers
        from draftd.models.configuration import check_read
        from draftd.models.mlx_lm import load_config

        with self.naming_errors("cannot be read", _LOOK):
            check_folder(self._folder, model_files(self._folder))
            if (config := load_config(self._folder)) != self._checked_config:
                check_numbers(config)
                check_read(config)
                self._checked_config = config
        if self._adapter is not None:
            with self.naming_errors("cannot be read", _LOOK, f"adapter {self._adapter_path}: "):
                check_adapter(self._adapter)

    def open(self, share: Callable[[Callable[[], Any]], Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Returns the model, without its weights read yet, and its configuration. `share`: takes a function that opens
        the whole model, and returns the part to keep. Raises ModelLoadError.

        On Linux, floating-point weights become fp32, the only type that goes through BLAS. Each matrix is stored as
        BLAS multiplies it fastest (layout.py)."""
        import mlx.core as mx

        from draftd.models.adapter import apply_adapter
        from draftd.models.configuration import normalise
        from draftd.models.layout import lay_out
        from draftd.models.mlx_lm import load_config, load_target

        self.check()
        config = dict[str, Any]()
        heads = head_files(self._folder)
        files = [
            file for file, kind in model_files(self._folder) if kind in ("weights", "config") and file not in heads
        ]

        def open_model() -> Any:
            nonlocal config
            with self.naming_errors("mlx-lm cannot load it", CONVERT), only(self._folder, files) as folder:
                own = normalise(load_config(folder))
                model, config = load_target(folder, own)
                if what := _whole_numbers(model):
                    raise ModelLoadError(f"{what}, but its layer needs floating-point numbers", CONVERT)
            if self._adapter is not None:
                with self.naming_errors("mlx-lm cannot apply it", _TRAIN, f"adapter {self._adapter_path}: "):
                    apply_adapter(model, self._adapter)
            return model

        model = open_model() if share is None else share(open_model)
        if mx.default_device() == mx.Device(mx.cpu):
            model.set_dtype(mx.float32)
            lay_out(model)
        model.eval()
        return model, config

    def tokenizer(self, config: dict[str, Any] | None = None) -> Any:
        """Returns mlx-lm's tokenizer. `config`: the model's, which may name more end tokens."""
        from draftd.models.advice import usable_end_ids
        from draftd.models.mlx_lm import load_tokenizer
        from draftd.models.tokenizer import check_template, complete_templates, template_of_processor
        from draftd.models.tokenizer_file import as_described

        def correct(loaded: Any) -> None:
            self.tokenizer_changes = as_described(loaded, self._folder)

        with self.naming_errors(_NO_TOKENIZER):
            ends = usable_end_ids(config or {}) or None
            more = template_of_processor(self._folder)
            try:
                loaded_tokenizer = load_tokenizer(self._folder, ends, more, correct)
            except Exception as error:
                if "trust_remote_code" not in str(error):
                    raise
                what = "its tokenizer needs code from the folder, which draftd never runs"
                raise ModelLoadError(what, "serve a model with a tokenizer.json that needs none") from None
        with self.naming_errors("its chat template cannot be used"):
            complete_templates(loaded_tokenizer, self._folder)
            check_template(loaded_tokenizer)
        return loaded_tokenizer

    def tokenizer_digest(self) -> str:
        """Returns a digest of the tokenizer's files: much cheaper than making the tokenizer."""
        digest = hashlib.sha256()
        with self.naming_errors("its tokenizer cannot be read"):
            for file, kind in model_files(self._folder):
                if kind == "tokenizer":
                    digest.update(file.name.encode() + b"\0" + file.read_bytes())
        return digest.hexdigest()

    @contextlib.contextmanager
    def naming_errors(self, failed: str, cure: str = "fetch the model again", part: str = "") -> Iterator[None]:
        """Turns another library's error into one line that names the model and its `part`: what `failed`, and why. An
        incomplete model is reported as such, whatever it lacks."""
        try:
            yield
        except ModelLoadError as error:
            from draftd.models.advice import no_model

            advice = (None if part else no_model(self._folder)) or error
            raise ModelLoadError(f"{self.called}: {part}{advice.what}", self._cure(advice.cure)) from None
        except Exception as error:
            from draftd.models.advice import explain_error

            if not part and (why := explain_error(self._folder, error, tokenizer=failed == _NO_TOKENIZER)) is not None:
                raise ModelLoadError(f"{self.called}: {why.what}", self._cure(why.cure)) from error
            what = f"{self.called}: {part}{failed}: {in_one_line(error)}"
            raise ModelLoadError(what, self._cure(cure)) from error

    def _cure(self, cure: str) -> str:
        """Returns the remedy; files that are complete in the hub's cache are not downloaded again by themselves."""
        return cure.replace(FETCH, f"run `hf download {self.path} --force-download`") if is_hub_id(self.path) else cure


def _find(path: str, *, adapter: bool = False, offline: bool, progress: Callable[[str], None]) -> Path:
    """Returns the folder that `path` names. Raises ModelLoadError."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    if is_hub_id(path):
        return download(path, adapter=adapter, offline=offline, progress=progress)
    if (refusal := no_model_name(path)) is not None:
        raise refusal
    cure = "give the folder that `mlx_lm.lora` made (--adapter-path)" if adapter else "give a model's folder"
    raise ModelLoadError("no such folder", f"{cure}, or its OWNER/NAME on the hub")


def _label(folder: Path, generic: set[str]) -> str:
    folder = folder.resolve()
    return f"{folder.parent.name}/{folder.name}" if folder.name in generic else folder.name


def _whole_numbers(model: Any) -> str:
    """Returns the weights that are unexpectedly integers, as in a format that mlx-lm mistakes for another: they compute
    nonsense, or nothing."""
    import mlx.core as mx
    from mlx import nn

    for path, module in model.named_modules():
        weight = getattr(module, "weight", None) if type(module) in (nn.Linear, nn.Embedding, nn.RMSNorm) else None
        if weight is not None and not mx.issubdtype(weight.dtype, mx.floating):
            return f"{path}.weight is {str(weight.dtype).removeprefix('mlx.core.')}"
    return ""


def parameters(model: Any) -> list[Any]:
    """Returns a model's arrays in reverse order of use, because `read` takes them from the end."""
    from mlx.utils import tree_flatten

    return [array for _, array in reversed(tree_flatten(model.parameters()))]


def weight_bytes(model: Any) -> int:
    return sum(array.nbytes for array in parameters(model))


def read(arrays: list[Any], what: str) -> Iterator[None]:
    """Reads weights piece by piece, and removes each array from the list before; callers that need them keep their own
    references. Raises ModelLoadError, naming `what`, if one is unreadable or not finite."""
    import mlx.core as mx

    while arrays:
        piece, size = [], 0
        while arrays and size < _PIECE_BYTES:
            piece.append(arrays.pop())
            size += piece[-1].nbytes
        try:
            mx.eval(piece)  # separately: checking them takes memory too
            sound = _finite([one for one in piece if mx.issubdtype(one.dtype, mx.floating)])
        except Exception as error:
            raise ModelLoadError(f"{what}: its weights cannot be read: {in_one_line(error)}", UNREADABLE) from error
        if not sound:
            raise ModelLoadError(f"{what}: some of its weights are not finite", "fetch the model again")
        yield


def _finite(arrays: list[Any]) -> bool:
    """Whether all numbers in the arrays are finite. Checks their sums, which takes a sixth of the time of checking each
    number, unless a sum itself overflows."""
    import mlx.core as mx

    if not arrays or bool(mx.isfinite(mx.stack([one.astype(mx.float32).sum() for one in arrays])).all().item()):
        return True
    return all(bool(mx.isfinite(one).all().item()) for one in arrays)


def check_scales(model: Any, what: str) -> None:
    """Raises ModelLoadError, naming `what` and the layer, if scales packed into bytes stand for numbers that are not
    finite. To `read` they are integers."""
    import mlx.core as mx

    for path, module in model.named_modules():
        scales = getattr(module, "scales", None)
        if not isinstance(scales, mx.array) or scales.dtype != mx.uint8:
            continue
        # The mx formats have powers of two, nvfp4 has E4M3, with a sign.
        wrong = (scales & 0x7F) == 0x7F if getattr(module, "mode", "") == "nvfp4" else scales == 0xFF
        if bool(wrong.any().item()):
            where = f"{path}.scales" if path else "scales"
            raise ModelLoadError(f"{what}: some of its weights are not finite ({where})", "fetch the model again")
