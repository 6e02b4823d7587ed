"""A DFlash head: a small model that drafts a whole block of tokens in one forward.

It keeps keys and values of the text only, made from inputs of some of the target's layers:

    context = hidden_norm(fc([a; b; ...]))

A block is the last token and then mask tokens, in the target's embedding. Its tokens see the context and each other,
later ones too, except in layers with a window. logits = lm_head(norm(block)), from the second position on.

Sources: z-lab's dflash/model.py and model_mlx.py; vLLM's qwen3_dflash.py; SGLang's dflash.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import mlx.core as mx
from mlx import nn

from draftd.errors import ModelLoadError
from draftd.models.check import ANOTHER_HEAD
from draftd.models.configuration import bare_model, normalise
from draftd.models.fed_head import FedHead, output_layer
from draftd.models.head_families import HeadForm
from draftd.models.mlx_lm import base
from draftd.models.target_parts import TargetParts

_MOST = 64  # tokens of a block


def dflash_form(config: Mapping[str, Any], parts: TargetParts) -> HeadForm:
    """Returns the form that the configuration of a head names. z-lab names the layers whose outputs are taken,
    speculators those whose inputs are. Raises ModelLoadError for layers that the target does not have."""
    outputs, inputs = "target_layer_ids", "aux_hidden_state_layer_ids"
    if (named := _options(config).get(outputs)) is not None:
        return HeadForm(taps=parts.read_taps(outputs, named, shift=1))
    return HeadForm(taps=parts.read_taps(inputs, config.get(inputs)))


def _options(config: Mapping[str, Any]) -> Mapping[str, Any]:
    options = config.get("dflash_config")
    return options if isinstance(options, Mapping) else {}


class DFlashHead(FedHead):
    """A DFlash head. If states are `fed`, a call only adds their keys and values to the
    caches. Else its tokens are a block; they see each other while `whole_blocks` is set."""

    def __init__(
        self, parts: TargetParts, config: Mapping[str, Any], ids: mx.array | None = None, stored: Collection[str] = ()
    ) -> None:
        """`config`: the head's. Raises ModelLoadError for a configuration without what it needs, and what mlx-lm does
        for one that it cannot read."""
        super().__init__(parts, ids, stored)
        layer_config = config.get("transformer_layer_config", config)
        like = bare_model(normalise({**layer_config, "vocab_size": 1}))
        self.form = dflash_form(config, parts)
        size, epsilon, options = parts.size, float(like.args.rms_norm_eps), _options(config)
        self.block, self.mask_token = (
            _number(name, config.get(name, options.get(name)), *bounds)
            for name, bounds in (
                ("block_size", (2, _MOST)),
                ("mask_token_id", (0, parts.embedding.weight.shape[0] - 1)),
            )
        )
        self.fc = nn.Linear(len(self.form.taps) * size, size, bias=False)
        self.hidden_norm, self.norm = nn.RMSNorm(size, eps=epsilon), nn.RMSNorm(size, eps=epsilon)
        self.layers = list(like.layers)
        self.lm_head = output_layer(parts, ids, own="lm_head.weight" in stored)
        kinds = layer_config.get("layer_types") or ["full_attention"] * len(self.layers)
        if len(kinds) != len(self.layers):
            what = f"its layer_types name {len(kinds)} layers, and it has {len(self.layers)}"
            raise ModelLoadError(what, ANOTHER_HEAD)
        window = layer_config.get("sliding_window")
        self._windows = [window if kind == "sliding_attention" else None for kind in kinds]
        self._whole_blocks = False

    def project(self, states: mx.array) -> mx.array:
        return states if states.shape[-1] == self._size else self.hidden_norm(self.fc(states))

    @contextlib.contextmanager
    def whole_blocks(self) -> Iterator[None]:
        """Lets the tokens of a block see later ones, inside the `with` block."""
        self._whole_blocks = True
        try:
            yield
        finally:
            self._whole_blocks = False

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        x = self.embed(tokens)
        context = self.fed.take(tokens.shape[1])
        kept = x if context is None else context.astype(x.dtype)
        self.keep_states(kept, cache)
        caches = [None] * len(self.layers) if cache is None else cache[:-1]
        for layer, own, window in zip(self.layers, caches, self._windows, strict=False):  # a trial may cut the layers
            mask = base.create_attention_mask(x, own, window_size=window, return_array=True)
            if context is not None:
                layer.self_attn(kept, mask, own)  # what attention returns is never computed
                continue
            if self._whole_blocks and not window and mask is not None:
                mask = mx.broadcast_to(mask[..., -1:, :], mask.shape)
            x = layer(x, mask, own)
        return mx.zeros((*tokens.shape, 1)) if context is not None else self.lm_head(self.norm(x))


def _number(name: str, value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ModelLoadError(f"its {name} is {value!r:.100}, and allowed is {least} to {most:,}", ANOTHER_HEAD)
    return value
