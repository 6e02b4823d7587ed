"""Targets whose heads are tried: with full attention, a window, recurrent layers, and heads of other kinds."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from draftd.engine.drafters.sources import LoadedHead
from draftd.engine.pair import LoadedModels, assemble, load_tokenizer
from draftd.models.folder import ModelFolder
from draftd.models.head_families import DFLASH, EAGLE, MTP
from tests.models.architectures import configuration
from tests.models.tiny import tiny
from tests.rigged_head import CHAINED, random_head

NANO = Path(str(files("draftd.models") / "nano"))
EAGLE_HEAD = Path(__file__).parents[2] / "training" / "heads" / "embedded-eagle3"  # trained for the embedded target
HEAD_KINDS = {"chained heads": CHAINED, "EAGLE-3": EAGLE.kind, "DFlash": DFLASH.kind}  # the others' heads are MTP heads
KINDS = ("full attention", "window", "recurrent", *HEAD_KINDS)


def target_with_head(kind: str) -> LoadedModels:
    """Returns a target of this kind with the embedded pair's vocabulary, and a head of random weights over it."""
    tokenizer = load_tokenizer(str(NANO / "target"))
    if kind in ("full attention", *HEAD_KINDS):
        target, _ = ModelFolder(str(NANO / "target")).open()
    else:
        config = configuration("llama" if kind == "window" else "qwen3_next")
        target = tiny(config["model_type"], {**config, "vocab_size": 4096})
    head = random_head(target, HEAD_KINDS.get(kind, MTP))
    loaded = LoadedHead(head=head)
    return assemble(
        target, None, tokenizer, model=kind, draft_model=None, context_length=512, backend="cpu", head=loaded
    )
