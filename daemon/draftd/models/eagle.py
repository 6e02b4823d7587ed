"""EAGLE heads: small models that draft from hidden states of three of the target's layers, or from its last ones.

EAGLE-3 takes the inputs a, b, c of three layers at position t, and the token x_{t+1} after it:

    g = fc([a; b; c]);  e = input_layernorm(embedding(x_{t+1}));  n = hidden_norm(g)
    u = r + attention([e; n]), r = g or n;  h = u + mlp(post_attention_layernorm(u));  logits = lm_head(norm(h))

To look further ahead, h (or norm(h)) takes the place of g. EAGLE-1 and 2 take the last hidden state s in place of g:

    z = fc([embedding(x_{t+1}); s]);  h = layer(z) without its first norm;  logits = the target's lm_head(h)

Sources: EAGLE's cnets.py and cnets1.py; vLLM's llama_eagle3.py and llama_eagle.py; speculators' eagle3.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import mlx.core as mx
from mlx import nn

from draftd.errors import ModelLoadError
from draftd.models.check import ANOTHER_HEAD
from draftd.models.configuration import bare_model, normalise
from draftd.models.fed_head import FedHead, output_layer
from draftd.models.head_families import HeadForm
from draftd.models.mlx_lm import KVCache, base, make_prompt_cache
from draftd.models.target_parts import TargetParts


def eagle_form(config: Mapping[str, Any], parts: TargetParts) -> HeadForm:
    """Returns the form that the configuration of an EAGLE-3 head names. Raises ModelLoadError for layers that the
    target does not have.

    speculators and vLLM name the layers whose inputs are taken, SpecForge and SGLang those whose outputs are."""
    layers, name = len(parts.layers), "eagle_aux_hidden_state_layer_ids"
    options = {} if config.get("eagle_config") is None else config["eagle_config"]
    if not isinstance(options, Mapping):
        raise ModelLoadError(f"its eagle_config is {options!r:.100}, and allowed is an object", ANOTHER_HEAD)
    if config.get(name) is not None:
        taps = parts.read_taps(name, config[name])
    elif options.get(name) is not None:
        taps = parts.read_taps(name, options[name], shift=1)
    else:
        taps = parts.read_taps("default choice of layers", [2, layers // 2, layers - 3])
    return HeadForm(
        taps=taps,
        normed_residual=bool(config.get("norm_before_residual")),
        own_after_norm=bool(config.get("norm_output")),
    )


class FirstLayer(nn.Module):  # type: ignore[misc]
    """The first layer of an EAGLE-3 head: its attention takes the embedding and the state side by side."""

    def __init__(self, layer: Any, size: int, epsilon: float) -> None:
        """`layer`: mlx-lm's, of a head's kind."""
        super().__init__()
        self.self_attn, self.mlp = layer.self_attn, layer.mlp
        self.input_layernorm, self.post_attention_layernorm = layer.input_layernorm, layer.post_attention_layernorm
        self.hidden_norm = nn.RMSNorm(size, eps=epsilon)

    def __call__(self, embedded: mx.array, states: mx.array, mask: Any, cache: Any, *, normed: bool) -> mx.array:
        entering = self.hidden_norm(states)
        both = mx.concatenate([self.input_layernorm(embedded), entering], axis=-1)
        x = (entering if normed else states) + self.self_attn(both, mask, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class EagleHead(FedHead):
    """An EAGLE head."""

    def __init__(
        self,
        parts: TargetParts,
        config: Mapping[str, Any],
        ids: mx.array | None = None,
        stored: Collection[str] = (),
    ) -> None:
        """`config`: the head's. Raises what mlx-lm does for a configuration that it cannot read."""
        super().__init__(parts, ids, stored)
        like = bare_model(normalise({**config.get("transformer_layer_config", config), "vocab_size": 1}))
        size, epsilon = parts.size, float(like.args.rms_norm_eps)
        first, *others = like.layers
        tapped = "layers.0.hidden_norm.weight" in stored
        for name in ("q_proj", "k_proj", "v_proj"):
            rows, bias = first.self_attn[name].weight.shape[0], f"layers.0.self_attn.{name}.bias" in stored
            setattr(first.self_attn, name, nn.Linear(2 * size if tapped else size, rows, bias=bias))
        self.form = eagle_form(config, parts) if tapped else HeadForm()
        self.fc = nn.Linear((len(self.form.taps) or 2) * size, size, bias="fc.bias" in stored)
        if tapped:
            first = FirstLayer(first, size, epsilon)
            self.norm = nn.RMSNorm(size, eps=epsilon)
            if "input_norm.weight" in stored:
                self.input_norm = nn.RMSNorm(len(self.form.taps) * size, eps=epsilon)
            if "fc_norm.0.weight" in stored:
                self.fc_norm = [nn.RMSNorm(size, eps=epsilon) for _ in self.form.taps]
        else:
            first.input_layernorm = nn.Identity()
        self.layers = [first, *others]
        self.lm_head = output_layer(parts, ids, own="lm_head.weight" in stored)
        window = getattr(like.args, "sliding_window", None)
        self._windows = [window if getattr(layer, "use_sliding", False) else None for layer in like.layers]
        self._new_caches = partial(make_prompt_cache, like)

    def project(self, states: mx.array) -> mx.array:
        if states.shape[-1] == self._size:
            return states
        if "input_norm" in self:
            states = self.input_norm(states)
        if "fc_norm" in self:
            parts = mx.split(states, len(self.fc_norm), axis=-1)
            states = mx.concatenate([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], axis=-1)
        return self.fc(states)

    def make_cache(self) -> list[Any]:
        return [*self._new_caches(), KVCache()]

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        embedded = self.embed(tokens)
        states = self.fed.take(tokens.shape[1])
        states = embedded if states is None else states.astype(embedded.dtype)
        self.keep_states(states, cache)
        caches = [None] * len(self.layers) if cache is None else cache[:-1]
        if not self.form.taps:
            states = self.fc(mx.concatenate([embedded, states], axis=-1))
        for layer, own, window in zip(self.layers, caches, self._windows, strict=True):
            mask = base.create_attention_mask(embedded, own, window_size=window)
            if isinstance(layer, FirstLayer):
                states = layer(embedded, states, mask, own, normed=self.form.normed_residual)
            else:
                states = layer(states, mask, own)
        return self.lm_head(self.norm(states) if "norm" in self else states)
