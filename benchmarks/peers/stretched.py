"""Copies a pair so that it accepts longer prompts than it was trained on. Its texts mean nothing then, but its speed
does."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.part import Pair

_CONFIGURATION = ("config.json", "tokenizer_config.json", "generation_config.json")


@contextlib.contextmanager
def stretched(pair: Pair, context: int = 4096, *, endless: bool = False) -> Iterator[Pair]:
    """Yields a copy of `pair` that accepts `context` tokens, with the same weight files. With `endless` no end token
    ends a text, so that answers have the maximum length."""
    from draftd.models.folder import ModelFolder

    with tempfile.TemporaryDirectory(prefix="draftd-stretched-") as folder:
        made = []
        for role, path in (("target", pair.model), ("draft", pair.draft)):
            if path:
                copy = Path(folder) / role
                _copy(ModelFolder(path).files().folder, copy, context, endless)
                made.append(str(copy))
        yield Pair(*made)


def _copy(source: Path, copy: Path, context: int, endless: bool) -> None:
    copy.mkdir()
    for file in source.iterdir():
        if file.name not in _CONFIGURATION:
            (copy / file.name).symlink_to(file.resolve())
    config = _read(source / "config.json")
    config["max_position_embeddings"] = max(context, int(config.get("max_position_embeddings", 0)))
    tokenizer = _read(source / "tokenizer_config.json")
    tokenizer["model_max_length"] = max(context, int(tokenizer.get("model_max_length", 0)))
    if endless:
        _without_end(source, config, tokenizer)
    _write(copy / "config.json", config)
    _write(copy / "tokenizer_config.json", tokenizer)


def _without_end(source: Path, config: dict[str, Any], tokenizer: dict[str, Any]) -> None:
    """Makes a token that the model never writes, such as padding, the end token, so that only the length limit ends a
    text. Raises ValueError if the tokenizer has none."""
    names = ("pad_token", "unk_token", "bos_token")
    for token in map(tokenizer.get, names):
        if token is not None and token != tokenizer.get("eos_token"):
            config.pop("eos_token_id", None)
            tokenizer["eos_token"] = token
            return
    raise ValueError(f"{source}: {', '.join(names)}: none differs from the end token; allowed: one that can replace it")


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document), encoding="utf-8")
