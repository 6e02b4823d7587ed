"""Which weight files of a folder belong to its model, which to its draft head, and a view of the folder for mlx-lm.

mlx-lm reads every model*.safetensors in disk order, and an array in a later file replaces one of the same name. A file
left by an earlier download would thus become part of the model. The index names the files that belong to it. A draft
head is in files of its own, or among the model's arrays, by which mlx-lm would be disturbed.
"""

from __future__ import annotations

import contextlib
import glob
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

INDEX, WEIGHTS = "model.safetensors.index.json", "model*.safetensors"
HEAD_ARRAY = re.compile(r"(?:(?:model|language_model)\.)*mtp\.")  # the beginning of an array's name
HEAD_FOLDER = "mtp"
_SIDECARS = ("mtp.safetensors", f"{HEAD_FOLDER}/weights.safetensors")  # files that hold a draft head only
_SIDECAR_SHARDS = ("model*mtp*.safetensors", "model*nextn*.safetensors")  # the same, and mlx-lm would read them


def indexed_files(folder: Path) -> set[str]:
    """Returns the files of mlx-lm's pattern that the index names for more than a draft head; none without a readable
    index."""
    return {file for array, file in _index(folder) if fnmatchcase(file, WEIGHTS) and not HEAD_ARRAY.match(array)}


def surplus(folder: Path, names: Iterable[str]) -> set[str]:
    """Returns those of the weight files `names` that the index does not name; none if it names none of them, because
    such an index belongs to the files from which these were converted."""
    named, there = indexed_files(folder), set(names)
    if not named & there:
        return set()
    return there - named - set(head_names(folder, there))


def head_files(folder: Path) -> list[Path]:
    """Returns the files in a folder that hold only a draft head, the preferred first; none if there is no such
    folder."""
    files = list[Path]()
    for name in head_names(folder, {*_SIDECARS, *(file.name for file in folder.glob("*.safetensors"))}):
        with contextlib.suppress(OSError):  # a subfolder that may not be read
            if (folder / name).is_file():
                files.append(folder / name)
    return files


def head_names(folder: Path | None, names: Iterable[str]) -> list[str]:
    """Returns those of a model's files, relative to its folder, that hold only a draft head, the preferred first.
    `folder`: has the index and the configuration, if they are known."""
    there, index = set(names), [] if folder is None else _index(folder)
    shards = {name for name in there if fnmatchcase(name, WEIGHTS)}
    own = {file for array, file in index if not HEAD_ARRAY.match(array)}
    heads = {name for name in shards if any(fnmatchcase(name.lower(), pattern) for pattern in _SIDECAR_SHARDS)}
    heads = (heads | {file for _, file in index} & shards) - own
    if not shards - heads:  # then a whole model has such a name
        heads = set()
    named = "" if folder is None else _named_sidecar(folder)
    ordered = dict.fromkeys((named, *_SIDECARS, *sorted(heads)))
    return [name for name in ordered if name in there and (name in heads or name not in shards)]


def _index(folder: Path) -> list[tuple[str, str]]:
    """Returns pairs of an array and its file."""
    with contextlib.suppress(AttributeError, KeyError):
        return [(str(array), str(file)) for array, file in _json(folder / INDEX)["weight_map"].items()]
    return []


def _named_sidecar(folder: Path) -> str:
    """Returns the file of a draft head that the configuration names; empty unless it is a plain name."""
    config = _json(folder / "config.json")
    extra = config.get("mlx_lm_extra_tensors")
    for table in (config, extra if isinstance(extra, dict) else {}):
        name = table.get("mtp_file")
        if isinstance(name, str) and re.fullmatch(r"\w[\w.-]*\.safetensors", name):
            return name
    return ""


def _json(file: Path) -> dict[str, Any]:
    """Reads a JSON object; empty if the file is missing or unreadable."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        if isinstance(value := json.loads(file.read_bytes()), dict):
            return value
    return {}


@contextlib.contextmanager
def only(folder: Path, files: Iterable[Path]) -> Iterator[Path]:
    """Yields a folder with links to just these `files`. Yields `folder` itself if it has no other weight files and its
    path has no wildcards: mlx-lm uses the path as a pattern. The links exist only inside the `with` block, which is
    enough: MLX opens files at once and reads them later."""
    path, files = str(folder), list(files)
    if glob.escape(path) == path and set(folder.glob(WEIGHTS)) <= set(files):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="draftd-model-") as place:
        for file in files:
            (Path(place) / file.name).symlink_to(file.resolve())
        yield Path(place)
