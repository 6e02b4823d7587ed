"""Finds the draft head of a checkpoint: among the model's arrays, in a file beside them, or in a repository of its own.

A head is recognised by its arrays, whose names are in the headers of safetensors files; no weights are read. A faulty
head is refused by itself, and the target is served without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from draftd.errors import ModelLoadError, in_words
from draftd.models.check import WeightHeader, check_no_pointer, read_header
from draftd.models.folder import model_files
from draftd.models.head_families import MTP, QWEN, UNKNOWN, HeadFamily, HeadFiles, family_apart, family_inside
from draftd.models.shards import HEAD_ARRAY, HEAD_FOLDER, WEIGHTS, head_files


def find_head(folder: Path, config: Mapping[str, Any]) -> HeadFiles | None:
    """Returns the draft head in a model's folder; None without one. Of several, the first that is served: the model's
    own, then those in files beside it. `config`: the model's. Imports MLX if there is a head of the served form."""
    from draftd.models.head_weights import misfit

    heads = list[HeadFiles]()
    for head in _heads_in(folder, config):
        if not head.refusal and (why := misfit(head, config)):
            head = replace(head, refusal=f"the {head.family.words} in {_list_names(head.files)} does not fit: {why}")
        if not head.refusal:
            return head
        heads.append(head)
    return heads[0] if heads else None


def head_repository(folder: Path) -> HeadFiles | None:
    """Returns the draft head whose repository this folder is; None for others, such as a whole model. Whether it fits a
    target shows when it is opened."""
    files = [file for file, kind in model_files(folder) if kind == "weights"]
    parts, faults = _read_parts(files)
    arrays = _arrays(parts)
    if any(HEAD_ARRAY.match(name) for name in arrays) and all(map(HEAD_ARRAY.match, arrays)):
        return _describe(parts, family_inside(arrays, {}))
    if (family := family_apart(arrays)) is not None:
        return _describe(parts, family)
    return faults[0] if faults and files == head_files(folder) else None


class _Part(NamedTuple):
    """A file and its header."""

    file: Path
    header: WeightHeader


def _heads_in(folder: Path, config: Mapping[str, Any]) -> Iterator[HeadFiles]:
    """Yields the heads in a model's folder, the preferred first."""
    beside = head_files(folder)
    own, _ = _read_parts([file for file, kind in model_files(folder) if kind == "weights" and file not in beside])
    parts, faults = _read_parts(beside)
    taken = _arrays(own).keys()
    shards = [  # which the index names: together with the model's other files they may hold one head
        part
        for part in parts
        if part.file.match(WEIGHTS)
        and part.header.arrays
        and all(map(HEAD_ARRAY.match, part.header.arrays))
        and taken.isdisjoint(part.header.arrays)
    ]
    own += shards
    if (family := family_inside(_arrays(own), config)) is not None:
        yield _describe(own, family)
    for part in parts:
        if part in shards:
            continue
        names = part.header.arrays
        head = _describe([part], family_inside(names, config) or family_apart(names))
        if not head.refusal and head.family.kind != MTP:  # its configuration would be another config.json
            place = f"the {head.family.words} in {part.file.name} must be in a folder of its own, with its config.json"
            head = replace(head, refusal=f"{place}, and given as the draft model")
        yield head
    yield from faults


def _read_parts(files: Sequence[Path]) -> tuple[list[_Part], list[HeadFiles]]:
    """Returns the readable files with their headers; and a refused head for each other file."""
    parts, faults = list[_Part](), list[HeadFiles]()
    for file in files:
        try:
            check_no_pointer(file)
            parts.append(_Part(file, read_header(file)))
        except ModelLoadError as error:
            faults.append(HeadFiles(QWEN, (file,), refusal=f"its draft head cannot be read: {error.what}"))
        except OSError as error:
            what = f"its draft head cannot be read: {file.name}: {in_words(error)}"
            faults.append(HeadFiles(QWEN, (file,), refusal=what))
    return parts, faults


def _arrays(parts: Sequence[_Part]) -> dict[str, Path]:
    """Returns the file of each array."""
    return {name: part.file for part in parts for name in part.header.arrays}


def _describe(parts: Sequence[_Part], family: HeadFamily | None) -> HeadFiles:
    """Describes the head of this family in files; None is an unknown family."""
    if family is None:
        files = tuple(part.file for part in parts)
        return HeadFiles(UNKNOWN, files, refusal=f"{_list_names(files)} holds no draft head that draftd knows")
    arrays = _arrays(parts)
    stored = family.read_arrays(arrays)
    parts = [part for part in parts if any(name in part.header.arrays for name in stored)]
    names = {family.standard_name(name): (arrays[name], name) for name in stored}
    refusal = ""
    if not family.names:
        why = f": {family.unserved}" if family.unserved else ""
        refusal = f"its draft head ({family.words}) is of a kind that draftd does not serve yet{why}"
    elif len(names) < len(stored):
        twice = Counter(map(family.standard_name, stored)).most_common(1)[0][0]
        refusal = f"its draft head ({family.words}) has several arrays for {twice}, and draftd serves one layer"
    elif not stored:
        refusal = f"its draft head ({family.words}) has no weights"
    raws = {None if family.chained else _is_raw(part) for part in parts}  # else names tell
    return HeadFiles(
        family,
        tuple(part.file for part in parts),
        names,
        raws.pop() if len(raws) == 1 else None,
        sum(_bytes(part.header.arrays[name]) for part in parts for name in stored if name in part.header.arrays),
        refusal,
    )


def _is_raw(part: _Part) -> bool | None:
    """Whether norms in this file hold w of 1 + w: those with the vendor's names do, unless MLX wrote the file. One
    converter (vllm-mlx) changes the values, keeps the names, and writes no metadata."""
    if part.header.metadata.get("format") == "mlx" or not any(map(HEAD_ARRAY.match, part.header.arrays)):
        return False
    return None if part.file.parent.name == HEAD_FOLDER and "format" not in part.header.metadata else True


def _bytes(array: Mapping[str, Any]) -> int:
    begin, end = array["data_offsets"]
    return int(end) - int(begin)


def _list_names(files: Sequence[Path]) -> str:
    names = [file.name for file in files]
    return " and ".join(names) if len(names) < 3 else f"{names[0]} and {len(names) - 1} more files"
