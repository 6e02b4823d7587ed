"""Makes fixtures.npz: python -m tests.heads.make_fixtures"""

from __future__ import annotations

import json
import tempfile
from itertools import count, groupby
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model

from tests.heads.layouts import LAYOUTS
from tests.heads.layouts.layout import Layout
from tests.heads.layouts.reading import embedding_and_lm_head, raw_head
from tests.heads.reference import FIXTURES, Array, ReferenceHead

_LENGTH, _STEPS = 24, 3
_VOCABULARY = 256
# Tokens are such that rounding changes neither the likeliest token nor the experts.
_LEAST_MARGIN, _LEAST_ROUTER_MARGIN = 0.1, 2e-3


def reference_head(layout: Layout, folder: Path) -> ReferenceHead:
    """Returns the reference for a layout that was written to `folder`."""
    config = json.loads((layout.target_folder(folder) / "config.json").read_text())
    return ReferenceHead(config, raw_head(layout, folder), *embedding_and_lm_head(layout, folder))


def target_model(layout: Layout, folder: Path) -> Any:
    """Returns the target of a written layout as mlx-lm loads it, in fp32."""
    drops_head = layout.name != "qwen3_next_mlx_embedded"  # mlx-lm 0.32 does not, and would refuse
    model, _ = load_model(layout.target_folder(folder), strict=drops_head)
    model.set_dtype(mx.float32)
    return model


def target_states(model: Any, tokens: Array) -> Array:
    """Returns the states (tokens, hidden) after the target's final norm."""
    states = model.model(mx.array(tokens)[None])[0]
    mx.eval(states)
    return np.array(states, np.float32)


def _is_decided(head: ReferenceHead, logits: Array) -> bool:
    ordered = np.sort(logits, axis=-1)
    margin = float((ordered[:, -1] - ordered[:, -2]).min())
    return margin > _LEAST_MARGIN and head.least_router_margin > _LEAST_ROUTER_MARGIN


def _of_target(target: str, layouts: list[Layout], folder: Path) -> dict[str, Array]:
    for layout in layouts:
        layout.write(folder / layout.name)
    models = [target_model(layout, folder / layout.name) for layout in layouts]
    for seed in count():
        tokens = np.random.default_rng(seed).integers(0, _VOCABULARY, _LENGTH)
        hidden = target_states(models[0], tokens)
        arrays = {f"tokens/{target}": tokens.astype(np.int32), f"hidden/{target}": hidden}
        for layout, model in zip(layouts, models, strict=True):
            np.testing.assert_allclose(target_states(model, tokens), hidden, atol=1e-6)
            head = reference_head(layout, folder / layout.name)
            logits = head.logits(hidden[:-1], tokens[1:], _STEPS)
            if not _is_decided(head, logits):
                break
            arrays[f"logits/{layout.name}"] = logits.astype(np.float32)
            arrays[f"target/{layout.name}"] = np.array(target)
        else:
            return arrays
    raise AssertionError("count() does not end")


def main() -> None:
    """Writes the file."""
    arrays: dict[str, Array] = {}
    by_target = sorted(LAYOUTS, key=lambda layout: layout.target)
    with tempfile.TemporaryDirectory() as folder:
        for target, layouts in groupby(by_target, key=lambda layout: layout.target):
            arrays |= _of_target(target, list(layouts), Path(folder))
    np.savez_compressed(FIXTURES, **arrays)


if __name__ == "__main__":
    main()
