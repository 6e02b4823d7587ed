"""Which weight files of a folder belong to its model, and a view of the folder for mlx-lm.

mlx-lm reads every model*.safetensors in disk order, and an array in a later file replaces one of the same name. A file
left by an earlier download would thus become part of the model. The index names the files that belong to it.
"""

from __future__ import annotations

import contextlib
import glob
import json
import tempfile
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

INDEX, WEIGHTS = "model.safetensors.index.json", "model*.safetensors"
# A head for multi-token prediction is published beside the files of the index. With it, some architectures read
# their other weights differently.
_SIDECARS = ("model*mtp*.safetensors", "model*nextn*.safetensors")


def indexed_files(folder: Path) -> set[str]:
    """Returns the files of mlx-lm's pattern that the index names; none without a readable index."""
    named: set[str] = set()
    with contextlib.suppress(OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        named = set(map(str, json.loads((folder / INDEX).read_bytes())["weight_map"].values()))
    return {name for name in named if fnmatchcase(name, WEIGHTS)}


def surplus(folder: Path, names: Iterable[str]) -> set[str]:
    """Returns those of the weight files `names` that the index does not name; none if it names none of them, because
    such an index belongs to the files from which these were converted."""
    named, there = indexed_files(folder), set(names)
    if not named & there:
        return set()
    return {name for name in there - named if not any(fnmatchcase(name.lower(), pattern) for pattern in _SIDECARS)}


@contextlib.contextmanager
def only(folder: Path, files: Iterable[Path]) -> Iterator[Path]:
    """Yields a folder with links to just these `files`. Yields `folder` itself if it has no surplus weight files and
    its path has no wildcards: mlx-lm uses the path as a pattern. The links exist only inside the `with` block, which is
    enough: MLX opens files at once and reads them later."""
    path = str(folder)
    if glob.escape(path) == path and not surplus(folder, (file.name for file in folder.glob(WEIGHTS))):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="draftd-model-") as place:
        for file in files:
            (Path(place) / file.name).symlink_to(file.resolve())
        yield Path(place)
