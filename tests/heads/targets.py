"""Targets whose heads are tried: with full attention, a window, and recurrent layers."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import mlx.core as mx

from draftd.engine.cache.model_layers import record_states
from draftd.engine.drafters.sources import LoadedHead
from draftd.engine.pair import LoadedModels, assemble, load_tokenizer
from draftd.models.folder import ModelFolder
from draftd.models.mtp import MTPHead, TargetParts
from tests.models.architectures import configuration
from tests.models.tiny import tiny

NANO = Path(str(files("draftd.models") / "nano"))
KINDS = ("full attention", "window", "recurrent")


def target_with_head(kind: str) -> LoadedModels:
    """Returns a target of this kind with the embedded pair's vocabulary, and a head of random weights over it."""
    tokenizer = load_tokenizer(str(NANO / "target"))
    if kind == "full attention":
        target, _ = ModelFolder(str(NANO / "target")).open()
    else:
        config = configuration("llama" if kind == "window" else "qwen3_next")
        target = tiny(config["model_type"], {**config, "vocab_size": 4096})
    parts = TargetParts.of(target)
    assert parts is not None
    mx.random.seed(7)
    head = MTPHead(parts)
    mx.eval(head.parameters())
    record_states(target)
    loaded = LoadedHead(head=head)
    return assemble(
        target, None, tokenizer, model=kind, draft_model=None, context_length=512, backend="cpu", head=loaded
    )
