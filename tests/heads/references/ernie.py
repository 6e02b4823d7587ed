"""Computes what the draft head of ERNIE-4.5 mixtures says, in NumPy's float64.

Written after Baidu's code: ERNIE's ernie/modeling_moe.py and PaddleFormers' ernie4_5_moe/modeling.py, which train the
head, and FastDeploy's ernie4_5_mtp.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.heads.layouts.layout import Layout
from tests.heads.reference import Array
from tests.heads.references.mimo import PlainHead, read_head


class ErnieHead(PlainHead):
    """Computes the head `model.mtp_*.0`.

    - mtp_linear_proj takes the embedding first: [mtp_emb_norm; mtp_hidden_norm] (all sources).
    - The target's state is taken before its final norm (modeling_moe.py; vmlx#272 too). FastDeploy, vLLM's ernie_mtp.py
      and SGLang's ernie4_eagle.py take it after the norm.
    - The layer's output goes through the target's own final norm and lm_head (modeling_moe.py, FastDeploy, vmlx#272).
      vLLM and SGLang leave the norm out.
    - What precedes the norm is fed on (modeling_moe.py, vmlx#272); FastDeploy feeds what follows it.
    - No embedding is zeroed by Baidu; vLLM and SGLang zero the one at position 0.
    - A dense layer, as the target's first: full attention, rotary pairs, no norms of q and k.
    """

    embedding_norm, hidden_norm = "mtp_emb_norm.0", "mtp_hidden_norm.0"
    projection, final_norm, layer_prefix = "mtp_linear_proj.0", "target_norm", "mtp_block.0."
    takes_normed_states, feeds_normed_state = False, False

    def _rotated(self, values: Array, positions: Array) -> Array:
        angles = positions[:, None, None] * self._rotary_base ** (-np.arange(0, self._size, 2) / self._size)
        even, odd = values[..., 0::2], values[..., 1::2]
        turned = [even * np.cos(angles) - odd * np.sin(angles), even * np.sin(angles) + odd * np.cos(angles)]
        return np.stack(turned, axis=-1).reshape(values.shape)


def reference(layout: Layout, folder: Path) -> ErnieHead:
    """Returns the reference for a layout that was written to `folder`."""
    return ErnieHead(*read_head(layout, folder, keeps="mtp_"))
