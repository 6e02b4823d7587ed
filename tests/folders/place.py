"""Writes the folders of one case from common building blocks. Imports MLX: load the BLAS first."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from tests.models.architectures import configuration
from tests.models.configurations import Config
from tests.models.forms import ROPE_KEYS, text_part
from tests.models.tiny import tiny

_VOCABULARY = 4096  # of the embedded pair's tokenizer, which all models here have unless a case makes another
END = 1  # its token that ends a text
SAMPLES = (
    "The capital of France is",
    "In 2024: 12345  words, don't  stop!\n\n\tdef f(x):\n",
    "naïve café, 日本語 🦙",
)


@dataclass(frozen=True)
class Asked:
    """A folder, and the expected result.

    - clean: a folder of the same model that mlx-lm reads right; unset stands for `model` itself.
    - refused: words of the line that refuses it; empty if it must be served. `unread`: only the weights show the fault,
      which `doctor` does not read.
    - said: words of `doctor`'s finding about it, although it is served.
    - context: maximum tokens of a text.
    - ends: the ids that end a text.
    - chat: the chat template's rendering of one user message, "Hi".
    - request: words of the error with which a request for that chat is refused or ends.
    """

    model: Path
    clean: Path | None = None
    draft: Path | None = None
    adapter: Path | None = None
    max_context: int | None = None
    refused: str = ""
    unread: bool = False
    said: str = ""
    context: int | None = None
    ends: frozenset[int] | None = None
    chat: str | None = None
    request: str = ""


@dataclass(frozen=True)
class Case:
    """One case. `item` is the subject that it is an example of."""

    item: str
    name: str
    make: Callable[[Place], Asked]


class Place:
    """A folder of its own for each case. `like` is the embedded pair's draft, a trained model of one layer."""

    def __init__(self, root: Path, like: str) -> None:
        self.root, self.like = root, like

    def path(self, name: str = "model") -> Path:
        return self.root / name

    def copy(self, name: str = "model", **config: Any) -> Path:
        """Copies the embedded pair's draft. `config` changes keys of its config.json."""
        folder = Path(shutil.copytree(self.like, self.path(name)))
        rewrite(folder / "config.json", **config)
        return folder

    def random(self, architecture: str, read: Config, written: Config | None = None) -> Asked:
        """Builds a tiny random model. mlx-lm computes from the keys `read` what the keys `written` say. Both go into
        the text model's part; the clean folder has `read`."""
        clean = bare(architecture, **read)
        model = tiny(architecture, clean)
        self._store("clean", model, clean)
        if written is None:
            return Asked(self.path("clean"))
        self._store("model", model, bare(architecture, **written))
        return Asked(self.path(), self.path("clean"))

    def refused(self, architecture: str, words: str, written: Config) -> Asked:
        """Builds a tiny random model that mlx-lm would compute differently from what `written` says."""
        self._store("model", tiny(architecture), bare(architecture, **written))
        return Asked(self.path(), refused=words)

    def _store(self, name: str, model: Any, config: Config) -> None:
        folder = self.path(name)
        folder.mkdir()
        for file in Path(self.like).glob("tokenizer*"):
            shutil.copy(file, folder)
        (folder / "config.json").write_text(json.dumps(config))
        weights = {path: array for path, array in tree_flatten(model.parameters()) if isinstance(array, mx.array)}
        mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})


def bare(architecture: str, **keys: Any) -> Config:
    """Returns the architecture's tiny configuration with the embedded pair's vocabulary, and with no keys of the rotary
    embedding except these."""
    config = copy.deepcopy(configuration(architecture))
    part = text_part(config)
    for name in ROPE_KEYS:
        config.pop(name, None)
        part.pop(name, None)
    for one in (config, part):
        one |= {name: _VOCABULARY for name in ("vocab_size", "vocab_size_per_layer_input") if name in one}
    part |= keys
    return config | {"eos_token_id": END}


def samples(fast: Any) -> list[str]:
    """Returns texts; the last one contains the tokens with this tokenizer's highest ids."""
    last = sorted(fast.get_vocab(with_added_tokens=False).values())[-8:]
    return [*SAMPLES, fast.decode(last)]


def rewrite(file: Path, **values: Any) -> None:
    """Changes keys of a JSON file."""
    found = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(found | values))


def reweigh(file: Path, change: Callable[[dict[str, mx.array]], dict[str, mx.array]]) -> None:
    """Changes the arrays in a file of weights."""
    weights = change(mx.load(str(file)))
    mx.eval(weights)
    mx.save_safetensors(str(file), weights, metadata={"format": "mlx"})
