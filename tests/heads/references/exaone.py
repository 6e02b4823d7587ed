"""Computes what the draft head of EXAONE-MoE (K-EXAONE-236B-A23B) says, in NumPy's float64.

Written after vLLM's exaone_moe_mtp.py and exaone_moe.py (by LG) and Megatron-Bridge's exaone_moe_bridge.py.
"""

from __future__ import annotations

from pathlib import Path

from tests.heads.layouts.files import Config, Tensors
from tests.heads.layouts.layout import Layout
from tests.heads.reference import Array
from tests.heads.references.mimo import PlainHead, read_head


class ExaoneHead(PlainHead):
    """Computes the head `mtp`, whose names are Qwen3-Next's and whose norms hold w, not w of (1 + w).

    - fc takes the embedding first: fc [pre_fc_norm_embedding; pre_fc_norm_hidden].
    - The target's state is taken after its final norm (ExaoneMoeModel.forward returns that), and the output of
      mtp.norm is fed on and makes logits with the target's lm_head.
    - No embedding is zeroed.
    - The layer is pre-norm and its MLP dense (`not is_mtp` in ExaoneMoeDecoderLayer), with norms of q and k.
    - The published config.json has mtp_layer_types ["full_attention"]: no window, and no rotary embedding, since
      the target has windowed layers. Without this key it is the same (Megatron-Bridge). Earlier vLLM and SGLang took
      layer_types[0], and so a window with rotary embeddings.
    """

    embedding_norm, hidden_norm = "pre_fc_norm_embedding", "pre_fc_norm_hidden"
    projection, final_norm, layer_prefix = "fc", "norm", "layers.0."
    takes_normed_states, feeds_normed_state = True, True

    def __init__(self, config: Config, tensors: Tensors, embedding: Array, lm_head: Array) -> None:
        super().__init__(config, tensors, embedding, lm_head)
        kinds = config.get("mtp_layer_types", ["full_attention"])
        if kinds != ["full_attention"] or "sliding_attention" not in config["layer_types"]:
            raise ValueError("only a head without window and rotary embedding is known")

    def _rotated(self, values: Array, positions: Array) -> Array:
        return values


def reference(layout: Layout, folder: Path) -> ExaoneHead:
    """Returns the reference for a layout that was written to `folder`."""
    return ExaoneHead(*read_head(layout, folder))
