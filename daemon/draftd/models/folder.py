"""A model as it lies on disk: a folder, or what a hub id stands for.

Weights are read lazily: opening a model checks its files against its configuration and costs milliseconds. What reads
them is their first evaluation, in the caller's own pieces."""

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
from draftd.models.shards import INDEX, WEIGHTS, only, surplus

# Those that mlx-lm reads. The first kind that a name fits is its own.
_KINDS = (
    ("weights", (WEIGHTS,)),
    ("config", ("config.json", "generation_config.json", "hf_quant_config.json")),
    ("chat_template", ("chat_template.*",)),
    ("tokenizer", ("tokenizer*", "vocab*", "merges*", "special_tokens_map.json", "added_tokens.json", "*.tiktoken")),
)
_ADAPTER = (("adapter", ("adapter_config.json", "adapters.safetensors")),)


@dataclass(frozen=True, slots=True)
class Stamp:
    """Enough of a file to notice that it is another, without reading it."""

    bytes: int
    modified_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """Raises OSError."""
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model lies, and its adapter. `stamps`: their files by name when they were read; None where they are not
    in memory."""

    folder: Path
    stamps: Mapping[str, Stamp] | None = None
    adapter: Path | None = None

    @classmethod
    def noted(cls, folder: Path, adapter: Path | None = None) -> Self:
        """As they are now. Note them before they are read: one that changes meanwhile is then seen to have."""
        return cls(folder, stamps(folder, adapter), adapter)

    @property
    def changed(self) -> bool:
        """Whether what lies there is no longer what was read. Looks at the disk."""
        return self.stamps is not None and self.stamps != stamps(self.folder, self.adapter)


@dataclass(frozen=True, slots=True)
class PairFiles:
    """Of all models that are configured. One that was made in memory has none."""

    target: ModelFiles | None = None
    drafts: Mapping[DrafterName, ModelFiles] = field(default_factory=dict)


def model_files(folder: Path, adapter: Path | None = None) -> list[tuple[Path, str]]:
    """The files that a model is read from, by name, each with its kind: weights, config, chat_template, tokenizer; then
    those of its adapter."""
    files = _files(folder, _KINDS)
    left_out = surplus(folder, (file.name for file, kind in files if kind == "weights"))
    files = [(file, kind) for file, kind in files if kind != "weights" or file.name not in left_out]
    return files if adapter is None else files + _files(adapter, _ADAPTER)


def _files(folder: Path, kinds: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[Path, str]]:
    """Those of these kinds, by name; none where there is no such folder."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        names = sorted(file.name for file in folder.iterdir() if file.is_file())
        return [(folder / name, kind) for name in names if (kind := _kind(name, kinds))]
    return []


def _kind(name: str, kinds: Sequence[tuple[str, Sequence[str]]]) -> str:
    return next((kind for kind, patterns in kinds if any(fnmatchcase(name, one) for one in patterns)), "")


def stamps(folder: Path, adapter: Path | None = None) -> dict[str, Stamp]:
    """Of its files, by name; none where there is no such folder."""
    result = {}
    for file, _ in model_files(folder, adapter):
        with contextlib.suppress(FileNotFoundError):  # it went since the folder was listed
            result[file.name] = Stamp.of(file)
    return result


UNREADABLE = "look at free memory and the disk, and run `draftd doctor`"  # what to do, where weights cannot be read
_LOOK = "look at its permissions, and at the disk"
_NO_TOKENIZER = "its tokenizer cannot be loaded"
_TRAIN = "give an adapter that `mlx_lm.lora` made for this model"
_PIECE_BYTES = 8 << 20  # read at a time; an array that is larger is read whole


class ModelFolder:
    """`path` is a local folder or a hub id, which is downloaded if it must be. Raises ModelLoadError for neither."""

    def __init__(
        self,
        path: str,
        role: str = "model",
        adapter: Path | None = None,
        *,
        offline: bool = False,
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`role` is how errors call it. `adapter`: the folder of what is put on its weights, or a hub id. `offline`:
        what is not in the cache is not downloaded. `progress` takes lines on how far a download is."""
        self.path, self._adapter_path = path, adapter
        self.called = f"{role}: {path}"
        self._folder = Path(path)  # for what is said of it while it is looked for
        self._adapter: Path | None = None
        if adapter is not None:
            with self.told("it cannot be found", part=f"adapter {adapter}: "):
                self._adapter = _find(str(adapter), adapter=True, offline=offline, progress=progress)
        with self.told("it cannot be found"):
            self._folder = _find(path, offline=offline, progress=progress)
        self._checked_config: dict[str, Any] | None = None
        self.tokenizer_changes = ""  # how `tokenizer` departs from what transformers makes of the files

    @property
    def name(self) -> str:
        """A label of low cardinality: a hub id as it is, a folder by its last one or two parts; then its adapter's."""
        local = Path(self.path).expanduser()
        label = _label(local, {"target", "draft", "model"}) if local.is_dir() else self.path
        if (adapter := self._adapter_path) is None:
            return label
        own = _label(adapter, {"adapter", "adapters"}) if adapter.is_dir() else str(adapter)
        return f"{label}+{own}"

    def files(self) -> ModelFiles:
        """Its files as they are now."""
        return ModelFiles.noted(self._folder, self._adapter)

    @property
    def surplus(self) -> str:
        """What to say of weight files that are not read, since the index does not name them; empty without any."""
        names = sorted(surplus(self._folder, (file.name for file in self._folder.glob(WEIGHTS))))
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return f"files that {INDEX} does not name are not read: {', '.join(names[:3])}{more}" if names else ""

    def check(self) -> None:
        """Looks at its files; reads no weights. Raises ModelLoadError with what is wrong, and what to do."""
        from draftd.models.adapter import check_adapter
        from draftd.models.advice import check_numbers
        from draftd.models.configuration import check_read
        from draftd.models.mlx_lm import load_config

        with self.told("cannot be read", _LOOK):
            check_folder(self._folder, model_files(self._folder))
            if (config := load_config(self._folder)) != self._checked_config:
                check_numbers(config)
                check_read(config)
                self._checked_config = config
        if self._adapter is not None:
            with self.told("cannot be read", _LOOK, f"adapter {self._adapter_path}: "):
                check_adapter(self._adapter)

    def open(self, share: Callable[[Callable[[], Any]], Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """The model and its configuration; its weights are not read yet. Raises ModelLoadError. `share`: makes of what
        opens it, each time anew, the model that a part of it is kept of.

        On Linux, floating-point weights become fp32: other types do not go through BLAS there. Each matrix is stored as
        BLAS multiplies it fastest (layout.py).
        """
        import mlx.core as mx

        from draftd.models.adapter import apply_adapter
        from draftd.models.configuration import normalised
        from draftd.models.layout import lay_out
        from draftd.models.mlx_lm import load_config, load_model

        self.check()
        config = dict[str, Any]()
        files = [file for file, kind in model_files(self._folder) if kind in ("weights", "config")]

        def opened() -> Any:
            nonlocal config
            with self.told("mlx-lm cannot load it", CONVERT), only(self._folder, files) as folder:
                own = normalised(load_config(folder))
                model, config = load_model(folder, lazy=True, model_config=own)
                if what := _whole_numbers(model):
                    raise ModelLoadError(f"{what}, where its layer needs floating-point numbers", CONVERT)
            if self._adapter is not None:
                with self.told("mlx-lm cannot apply it", _TRAIN, f"adapter {self._adapter_path}: "):
                    apply_adapter(model, self._adapter)
            return model

        model = opened() if share is None else share(opened)
        if mx.default_device() == mx.Device(mx.cpu):
            model.set_dtype(mx.float32)
            lay_out(model)
        model.eval()
        return model, config

    def tokenizer(self, config: dict[str, Any] | None = None) -> Any:
        """mlx-lm's tokenizer. `config`: the model's, which may name more tokens that end a text."""
        from draftd.models.advice import usable_end_ids
        from draftd.models.mlx_lm import load_tokenizer
        from draftd.models.tokenizer import check_template, complete_templates, template_of_processor
        from draftd.models.tokenizer_file import as_described

        def correct(loaded: Any) -> None:
            self.tokenizer_changes = as_described(loaded, self._folder)

        with self.told(_NO_TOKENIZER):
            ends = usable_end_ids(config or {}) or None
            more = template_of_processor(self._folder)
            try:
                loaded_tokenizer = load_tokenizer(self._folder, ends, more, correct)
            except Exception as error:
                if "trust_remote_code" not in str(error):
                    raise
                what = "its tokenizer needs code from the folder, which draftd never runs"
                raise ModelLoadError(what, "serve a model with a tokenizer.json that needs none") from None
        with self.told("its chat template cannot be used"):
            complete_templates(loaded_tokenizer, self._folder)
            check_template(loaded_tokenizer)
        return loaded_tokenizer

    def tokenizer_digest(self) -> str:
        """Differs when the tokenizer's files do: reading them is cheap, making a tokenizer of them is not."""
        digest = hashlib.sha256()
        with self.told("its tokenizer cannot be read"):
            for file, kind in model_files(self._folder):
                if kind == "tokenizer":
                    digest.update(file.name.encode() + b"\0" + file.read_bytes())
        return digest.hexdigest()

    @contextlib.contextmanager
    def told(self, failed: str, cure: str = "fetch the model again", part: str = "") -> Iterator[None]:
        """Says of which model an error is, and of what `part` of it. What another library refuses becomes one line:
        what `failed`, and why. What is no whole model is called that, whatever it lacks."""
        try:
            yield
        except ModelLoadError as error:
            from draftd.models.advice import no_model

            advice = (None if part else no_model(self._folder)) or error
            raise ModelLoadError(f"{self.called}: {part}{advice.what}", self._cure(advice.cure)) from None
        except Exception as error:
            from draftd.models.advice import explained

            if not part and (why := explained(self._folder, error, tokenizer=failed == _NO_TOKENIZER)) is not None:
                raise ModelLoadError(f"{self.called}: {why.what}", self._cure(why.cure)) from error
            what = f"{self.called}: {part}{failed}: {in_one_line(error)}"
            raise ModelLoadError(what, self._cure(cure)) from error

    def _cure(self, cure: str) -> str:
        """What is whole in the hub's cache is not downloaded again by itself."""
        return cure.replace(FETCH, f"run `hf download {self.path} --force-download`") if is_hub_id(self.path) else cure


def _find(path: str, *, adapter: bool = False, offline: bool, progress: Callable[[str], None]) -> Path:
    """The folder that `path` names. Raises ModelLoadError."""
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
    """Weights that are whole numbers and should not be, as those of a format that mlx-lm takes for another: they
    compute nonsense, or nothing."""
    import mlx.core as mx
    from mlx import nn

    for path, module in model.named_modules():
        weight = getattr(module, "weight", None) if type(module) in (nn.Linear, nn.Embedding, nn.RMSNorm) else None
        if weight is not None and not mx.issubdtype(weight.dtype, mx.floating):
            return f"{path}.weight is {str(weight.dtype).removeprefix('mlx.core.')}"
    return ""


def parameters(model: Any) -> list[Any]:
    """A model's arrays, those that it uses first at the end: `read` takes them from there."""
    from mlx.utils import tree_flatten

    return [array for _, array in reversed(tree_flatten(model.parameters()))]


def weight_bytes(model: Any) -> int:
    return sum(array.nbytes for array in parameters(model))


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
            mx.eval(piece)  # by themselves: what is computed to look at them takes memory as well
            sound = _finite([one for one in piece if mx.issubdtype(one.dtype, mx.floating)])
        except Exception as error:
            raise ModelLoadError(f"{what}: its weights cannot be read: {in_one_line(error)}", UNREADABLE) from error
        if not sound:
            raise ModelLoadError(f"{what}: some of its weights are not finite", "fetch the model again")
        yield


def _finite(arrays: list[Any]) -> bool:
    """Whether all of their numbers are. The sums tell, in a sixth of the time that looking at each number takes, unless
    one is too large itself."""
    import mlx.core as mx

    if not arrays or bool(mx.isfinite(mx.stack([one.astype(mx.float32).sum() for one in arrays])).all().item()):
        return True
    return all(bool(mx.isfinite(one).all().item()) for one in arrays)


def check_scales(model: Any, what: str) -> None:
    """Raises ModelLoadError, naming `what` and the layer, where scales that are packed into bytes stand for numbers
    that are not finite. `read` takes them for whole numbers."""
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
