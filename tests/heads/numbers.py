"""Each published layout of a head gives the logits of an independent forward."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from draftd.engine.cache.layouts import make_caches
from draftd.engine.cache.model_layers import record_states
from draftd.models.chained import ChainedHeads
from draftd.models.dflash import DFlashHead
from draftd.models.head_weights import Head, open_head
from draftd.models.heads import find_head, head_repository
from draftd.models.mlx_lm import load_target
from tests.heads.layouts import LAYOUTS, REFUSED
from tests.heads.layouts.layout import Layout
from tests.heads.reference import Array, fixtures

TOLERANCE = 1e-4


def check() -> tuple[dict[str, int], list[str]]:
    """Opens every layout, and compares its logits. Returns the counts, and what failed."""
    failures, loaded, refused, families = list[str](), 0, 0, dict[str, bool]()
    references = fixtures()
    for layout in LAYOUTS:
        with tempfile.TemporaryDirectory() as folder:
            apart = _largest_difference(layout, Path(folder), references[layout.name])
        loaded += 1
        family = re.split("_(?:mlx|raw|drafter)", layout.name)[0]
        families[family] = families.get(family, True) and apart <= TOLERANCE
        print(f"{layout.name:34} logits differ by {apart:.1e}", flush=True)
        if apart > TOLERANCE:
            failures.append(f"{layout.name}: its logits differ by {apart:.1e}")
    for name, write in REFUSED:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder))
            config = json.loads((Path(folder) / "config.json").read_text())
            files = find_head(Path(folder), config) or head_repository(Path(folder))
        if files is None or not files.refusal:
            failures.append(f"{name}: its head is not refused")
        else:
            refused += 1
            print(f"{name:34} {files.refusal}", flush=True)
    exact = sum(families.values())
    return {
        "layouts": len(LAYOUTS) + len(REFUSED),
        "loaded": loaded,
        "refused": refused,
        "families_exact": exact,
    }, failures


def _largest_difference(layout: Layout, folder: Path, fixture: Any) -> float:
    layout.write(folder)
    target_folder = layout.target_folder(folder)
    config = json.loads((target_folder / "config.json").read_text())
    target, _ = load_target(target_folder, config)
    target.set_dtype(mx.float32)
    apart = head_repository(layout.head_folder(folder)) if layout.is_drafter else find_head(target_folder, config)
    assert apart is not None
    head = open_head(apart, target)
    return float(np.abs(draft_logits(head, fixture.hidden, fixture.tokens) - fixture.logits).max())


def draft_logits(head: Head, hidden: Array, tokens: Array, steps: int = 3) -> Array:
    """Returns the logits of a head, steps × its vocabulary: after the last of `tokens` (hidden: tokens × size), then
    after each token that it would draft itself; of a block, for its first tokens."""
    chained = isinstance(head, ChainedHeads)
    record_states(head, [head.states] if chained else [] if head.form.own_after_norm else [head.norm])
    caches, ids = make_caches(head).fresh(), mx.array(tokens)[None, 1:]
    states = head.project(mx.array(hidden)[None, :-1])
    if isinstance(head, DFlashHead):
        with head.fed.of(states):
            caches.forward(ids.astype(mx.uint32), [ids.shape[1]])
        block = mx.array([[int(tokens[-1]), *[head.mask_token] * (head.block - 1)]], dtype=mx.uint32)
        with head.whole_blocks():
            return np.array(caches.forward(block, [head.block])[0, 1 : steps + 1])
    rows = []
    for step in range(steps):
        with head.fed.of(states), head.reading(step) if chained else contextlib.nullcontext():
            rows.append(caches.forward(ids.astype(mx.uint32), [ids.shape[1]])[0, -1])
        assert caches.states is not None
        token = mx.argmax(rows[-1])
        own = caches.states[:, -1:]
        states, ids = (
            (head.project_own(own) if chained else own),
            (token if head.ids is None else head.ids[token])[None, None],
        )
    return np.array(mx.stack(rows))
