"""Checks a model's folder by names, sizes and headers of its files, without reading weights.

`serve` checks before it loads, a reload before it reads, and `doctor` instead. The check covers the usual damage from
downloads and clones; mlx-lm finds out whether configuration and weights fit when it opens them.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from draftd.errors import ModelLoadError
from draftd.models.shards import INDEX, WEIGHTS, head_files, indexed_files

FETCH = "fetch the model again"
ANOTHER_HEAD = "give a draft head that was made for this model, or serve it without"
CONVERT = "fetch the model again, or make it anew with `mlx_lm.convert`"
_FORMAT = "give a folder in mlx-lm's format, such as `mlx_lm.convert` makes"
_ANOTHER = "serve a model of an architecture that mlx-lm has, or install a newer mlx-lm that has this one"

_POINTER = b"version https://git-lfs.github.com/spec/"
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.npz", "*.gguf")  # most of which can contain code
_HEADER_BYTES = 100_000_000  # the longest that safetensors allows
_TOKENIZERS = (
    "tokenizer.json",
    "*.model",
    "*.tiktoken",
    "vocab*",
    "tekken.json",
)  # each is a tokenizer, or most of one
_WIDTHS = {8: "BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0", 16: "U16 I16 F16 BF16", 32: "U32 I32 F32", 64: "U64 I64 F64 C64"}
_BITS = {name: bits for bits, names in _WIDTHS.items() for name in names.split()}  # by safetensors dtype


def check_folder(folder: Path, files: Sequence[tuple[Path, str]]) -> None:
    """Checks a folder. `files`: those that the model is read from, with their kinds, as listed by
    `draftd.models.folder`.

    Raises ModelLoadError for the first fault, with the file, the fault and the remedy; OSError for an unreadable file.
    Imports mlx-lm, so the BLAS must be loaded before."""
    heads = set(head_files(folder))  # a faulty head is refused alone, by `draftd.models.heads`
    files = [(file, kind) for file, kind in files if file not in heads]
    for file, kind in files:
        check_no_pointer(file)
        # mlx-lm ignores a broken one: texts would then not end where they should.
        if kind == "config" and file.name != "config.json" and not isinstance(read_json(file), dict):
            raise ModelLoadError(f"{file.name} is no JSON object", FETCH)
    _check_config(folder / "config.json")
    weights = [file for file, kind in files if kind == "weights"]
    _check_shards(folder, weights)
    _check_arrays(weights)
    if not any(True for pattern in _TOKENIZERS for _ in folder.glob(pattern)):
        raise ModelLoadError("no tokenizer (tokenizer.json or the like) in this folder", FETCH)


def check_no_pointer(file: Path) -> None:
    with file.open("rb") as source:
        if source.read(len(_POINTER)) == _POINTER:
            what = f"{file.name} is a Git LFS pointer, not the file"
            raise ModelLoadError(what, f"run `git lfs pull` in {file.parent}")


def read_json(file: Path) -> Any:
    """Reads JSON. Raises ModelLoadError if it is invalid."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ModelLoadError(f"{file.name} is not UTF-8 text", FETCH) from None
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{file.name} is not JSON ({error})", FETCH) from None


def not_served(config: Mapping[str, Any]) -> str:
    """Returns the model's inputs besides text, which are not served: "vision", "vision, audio"; empty for most."""
    return ", ".join(kind for kind in ("vision", "audio") if config.get(f"{kind}_config"))


def _check_config(file: Path) -> None:
    from draftd.models.mlx_lm import model_classes

    if not file.is_file():
        raise ModelLoadError("no config.json in this folder", _FORMAT)
    config = read_json(file)
    kind = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(kind, str):
        raise ModelLoadError("config.json names no model_type", FETCH)
    if own := config.get("model_file"):
        raise ModelLoadError(f"config.json needs code from the folder ({own}), which draftd never runs", _ANOTHER)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            model_classes(config)
    except (ValueError, AttributeError):  # no such module, or not a model's
        what = f"config.json: mlx-lm {version('mlx-lm')} has no architecture {kind!r}"
        raise ModelLoadError(what, _ANOTHER) from None
    except SystemExit:  # one of them exits the process if a package is missing
        what = f"config.json: mlx-lm cannot run {kind!r} here: {' '.join(said.getvalue().split())}"
        raise ModelLoadError(what, _ANOTHER) from None


def _check_shards(folder: Path, weights: Sequence[Path]) -> None:
    """Checks that the weight files named by the index exist. An index that names none of the files belongs to those
    from which they were converted."""
    named = indexed_files(folder)
    missing = sorted(named - {file.name for file in weights})
    if missing and (len(missing) < len(named) or not weights):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelLoadError(f"missing: {missing[0]}{more}, of {len(named)} files that {INDEX} lists", FETCH)
    if not weights:
        other = next((file.name for pattern in _OTHER_WEIGHTS for file in folder.glob(pattern)), "")
        also = f"; {other} is of a kind that draftd never reads" if other else ""
        raise ModelLoadError(f"no {WEIGHTS} in this folder{also}", _FORMAT)


def _check_arrays(weights: Sequence[Path]) -> None:
    """Checks that each file is whole and no array is in two of them: which one mlx-lm would use depends on the disk."""
    files = dict[str, str]()
    for file in weights:
        names = check_weights(file)
        if both := min((name for name in names if name in files), default=""):
            what = f"{both} is in {files[both]} and in {file.name}, and only one of them can be the model's"
            raise ModelLoadError(what, "take the other file out of the folder")
        files |= dict.fromkeys(names, file.name)


class WeightHeader(NamedTuple):
    """The header of a safetensors file. `arrays`: by name, with their `dtype`, `shape` and `data_offsets`."""

    arrays: Mapping[str, Mapping[str, Any]]
    metadata: Mapping[str, str]


def check_weights(file: Path) -> set[str]:
    """Checks header and sizes, and returns the names of the arrays."""
    return set(read_header(file).arrays)


def read_header(file: Path) -> WeightHeader:
    """Checks header and sizes, and returns the header. Its length is in the first eight bytes, and offsets of arrays
    count from its end: https://github.com/huggingface/safetensors#format. Raises ModelLoadError, or OSError."""

    def refuse(what: str) -> NoReturn:
        raise ModelLoadError(f"{file.name} {what}", FETCH) from None

    size = file.stat().st_size
    with file.open("rb") as source:
        length = int.from_bytes(source.read(8), "little")
        if length > _HEADER_BYTES:
            refuse("is no safetensors file")
        if size < 8 + length:
            refuse(f"is cut off after {size:,} bytes, within its header")
        try:
            header = json.loads(source.read(length))
            metadata = header.pop("__metadata__", None)
            sizes = {name: _sizes(entry) for name, entry in header.items()}
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError, IndexError):
            refuse("is no safetensors file: its header cannot be read")
    # The end of the last array, in bytes after the header.
    expected = 8 + length + max((end for end, _, _ in sizes.values()), default=0)
    if size < expected:
        refuse(f"is cut off: it has {size:,} of {expected:,} bytes")
    if size > expected:
        refuse(f"is too long: it has {size:,} bytes, and {expected:,} by its header")
    for name, (_, has, needs) in sizes.items():
        if needs is not None and has != needs:
            entry = header[name]
            refuse(f"is damaged: {name}, {entry['dtype']} of shape {entry['shape']}, has {has:,} of {needs:,} bytes")
    return WeightHeader(header, metadata if isinstance(metadata, dict) else {})


def _sizes(entry: Mapping[str, Any]) -> tuple[int, int, int | None]:
    """Returns an array's end, its bytes, and the bytes that its shape and dtype need (None for a rare dtype)."""
    begin, end = (int(offset) for offset in entry["data_offsets"])
    bits = _BITS.get(entry["dtype"])
    return end, end - begin, None if bits is None else math.prod(map(int, entry["shape"])) * bits // 8
