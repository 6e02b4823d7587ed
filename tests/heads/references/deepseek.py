"""Computes what the heads of DeepSeek-V3 and V3.2 say. `nextn` and `latent` name the public sources of the details."""

from __future__ import annotations

from pathlib import Path

from tests.heads.layouts.layout import Layout
from tests.heads.references.latent import LatentHead
from tests.heads.references.nextn import read_head


class DeepseekV3Head(LatentHead):
    """The head of DeepSeek-V3, V3.1 and R1.

    - Inputs: eh_proj [enorm(embedding); hnorm(state)]; vLLM's deepseek_mtp.py, SGLang's deepseek_nextn.py.
    - The state comes from after the target's final norm: in both, the model's output is normed. Fed back after
      shared_head.norm: SGLang, and vLLM since #45895. No embedding is zeroed: SGLang; vLLM zeroes pair 0's.
    - Norms: w, nothing added, epsilon rms_norm_eps; those of the latents 1e-6, which is the same in V3
      (modeling_deepseek_v3.py of transformers).
    - Attention: latent, full, causal; RoPE in pairs (2 i, 2 i + 1) with YaRN, and scores times
      (0.1 mscale_all_dim ln factor + 1)²; DeepSeek's inference/model.py, modeling_deepseek_v3.py.
    - MLP: experts, although first_k_dense_replace makes the target's first layers dense: SGLang's is_nextn.
      Sigmoid scores, choice by groups with the bias; DeepSeek's inference/model.py, class Gate.
    - Embedding and output layer: the target's, repeated in the checkpoint; DeepSeek's README_WEIGHTS.md.
    """

    latent_epsilon = 1e-6


class DeepseekV32Head(DeepseekV3Head):
    """The head of DeepSeek-V3.2: V3's, with an indexer.

    Up to index_topk pairs the indexer keeps all of them, so it is not computed here: in DeepSeek-V3.2-Exp's
    inference/model.py, class Indexer takes min(index_topk, pairs), and mlx-lm's deepseek_v32.py returns before it
    computes scores.
    """


_HEADS: dict[str, type[LatentHead]] = {"deepseek_v3": DeepseekV3Head, "deepseek_v32": DeepseekV32Head}


def reference(layout: Layout, folder: Path) -> LatentHead:
    """Returns the reference for a layout that was written to `folder`."""
    config, *tensors = read_head(layout, folder)
    return _HEADS[config["model_type"]](config, *tensors)
