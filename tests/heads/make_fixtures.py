"""Makes fixtures.npz: python -m tests.heads.make_fixtures"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import count, groupby
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx_lm.utils import load_model

from tests.heads.layouts import LAYOUTS
from tests.heads.layouts.layout import Layout
from tests.heads.reference import FIXTURES, Array
from tests.heads.references import Reference, reference

_LENGTH, _STEPS = 24, 3
_KEPT = ("qwen3_next_mlx_embedded", "deepseek_v3_raw", "bailing_moe_raw")  # mlx-lm 0.32 does not drop their heads
_VOCABULARY = 256
# Tokens are such that rounding changes neither the likeliest token nor the experts.
_LEAST_MARGIN, _LEAST_ROUTER_MARGIN = 0.1, 2e-3


def target_model(layout: Layout, folder: Path) -> Any:
    """Returns the target of a written layout as mlx-lm loads it, in fp32."""
    model, _ = load_model(layout.target_folder(folder), strict=layout.name not in _KEPT)
    model.set_dtype(mx.float32)
    return model


def target_states(model: Any, tokens: Array, *, normed: bool, taps: Sequence[int] = ()) -> Array:
    """Returns the states (tokens, hidden) after the target's final norm, or before it; with `taps` the inputs of these
    layers of a Llama model side by side, the number of layers standing for the final norm."""
    if taps:
        return _layer_inputs(model.model, tokens, taps)
    text_model = getattr(model, "language_model", model)
    body = text_model.get("model") or text_model.backbone
    name = "norm" if "norm" in body else "norm_f"
    norm = body[name]
    if not normed:
        body[name] = nn.Identity()
    states = body(mx.array(tokens)[None])[0]
    body[name] = norm
    mx.eval(states)
    return np.array(states, np.float32)


def _layer_inputs(body: Any, tokens: Array, taps: Sequence[int]) -> Array:
    inputs = [body.embed_tokens(mx.array(tokens)[None])]
    for layer in body.layers:
        inputs.append(layer(inputs[-1], "causal", None))
    states = mx.concatenate([inputs[tap] for tap in taps], axis=-1)[0]
    mx.eval(states)
    return np.array(states, np.float32)


def _is_decided(head: Reference, logits: Array) -> bool:
    ordered = np.sort(logits, axis=-1)
    margin = float((ordered[:, -1] - ordered[:, -2]).min())
    return margin > _LEAST_MARGIN and head.least_router_margin > _LEAST_ROUTER_MARGIN


def _of_target(target: str, layouts: list[Layout], folder: Path) -> dict[str, Array]:
    for layout in layouts:
        layout.write(folder / layout.name)
    models = [target_model(layout, folder / layout.name) for layout in layouts]
    for seed in count():
        tokens = np.random.default_rng(seed).integers(0, _VOCABULARY, _LENGTH)
        heads = [reference(layout, folder / layout.name) for layout in layouts]
        normed, taps = heads[0].takes_normed_states, layouts[0].taps
        hidden = target_states(models[0], tokens, normed=normed, taps=taps)
        arrays = {f"tokens/{target}": tokens.astype(np.int32), f"hidden/{target}": hidden}
        for layout, model, head in zip(layouts, models, heads, strict=True):
            np.testing.assert_allclose(target_states(model, tokens, normed=normed, taps=taps), hidden, atol=1e-6)
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
    by_target = sorted(LAYOUTS, key=lambda layout: layout.states_of)
    with tempfile.TemporaryDirectory() as folder:
        for target, layouts in groupby(by_target, key=lambda layout: layout.states_of):
            arrays |= _of_target(target, list(layouts), Path(folder))
    np.savez_compressed(FIXTURES, **arrays)


if __name__ == "__main__":
    main()
