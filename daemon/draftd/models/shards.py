"""Which of a folder's weight files belong to its model, and the folder as mlx-lm is to see it.

mlx-lm reads every model*.safetensors, in the order in which the disk lists them, and an array of a later file replaces
one of the same name. A file that was left there by an earlier download would so become part of the model. The index
names the files that belong to it.
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
# A head that predicts further tokens is published beside the files of the index. Some architectures read their other
# weights in another way when it is there.
_SIDECARS = ("model*mtp*.safetensors", "model*nextn*.safetensors")


def indexed(folder: Path) -> set[str]:
    """The files in mlx-lm's pattern that the index names; none where there is no index that can be read."""
    named: set[str] = set()
    with contextlib.suppress(OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        named = set(map(str, json.loads((folder / INDEX).read_bytes())["weight_map"].values()))
    return {name for name in named if fnmatchcase(name, WEIGHTS)}


def surplus(folder: Path, names: Iterable[str]) -> set[str]:
    """Those of the weight files `names` that the index does not name. None where it names none of them: such an index
    belongs to the files that these were converted from."""
    named, there = indexed(folder), set(names)
    if not named & there:
        return set()
    return {name for name in there - named if not any(fnmatchcase(name.lower(), pattern) for pattern in _SIDECARS)}


@contextlib.contextmanager
def only(folder: Path, files: Iterable[Path]) -> Iterator[Path]:
    """A folder with just these `files` of `folder`, as links; `folder` itself where it has no surplus and mlx-lm, to
    which its path is a pattern, finds its files. It lasts for the time of the call: MLX opens files when it is told of
    them, and reads them later."""
    path = str(folder)
    if glob.escape(path) == path and not surplus(folder, (file.name for file in folder.glob(WEIGHTS))):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="draftd-model-") as place:
        for file in files:
            (Path(place) / file.name).symlink_to(file.resolve())
        yield Path(place)
