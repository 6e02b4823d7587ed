"""Writes a trained head in a published layout, and its model card."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from training.heads.head import Head
from training.heads.target import Shape


def rounded(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """Returns the weights in the 16-bit type with the smaller squared error, and that type's name."""
    types = {"float16": torch.float16, "bfloat16": torch.bfloat16}
    errors = {
        name: sum(float((w - w.to(t).float()).square().sum()) for w in weights.values()) for name, t in types.items()
    }
    best = min(errors, key=lambda name: errors[name])
    return {name: w.to(types[best]).contiguous() for name, w in weights.items()}, best


def write_head(head: Head, ids: Tensor, path: Path, metadata: Mapping[str, str]) -> str:
    """Writes the head and, for a trimmed vocabulary, `d2t`; returns the 16-bit type."""
    weights, kind = rounded(head.state_dict())
    tensors = {head.prefix + name: tensor for name, tensor in weights.items()}
    if len(ids) < head.shape.vocab:
        tensors[f"{head.prefix}d2t"] = (ids - torch.arange(len(ids))).to(torch.int32)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    save_file(tensors, part, {"format": "mlx", **metadata})
    part.chmod(0o644)
    part.replace(path)
    return kind


def read_head(head: Head, path: Path) -> None:
    """Loads the rounded weights back, for the final figures."""
    tensors = load_file(path)
    weights = {name.removeprefix(head.prefix): tensor for name, tensor in tensors.items()}
    head.load_state_dict({name: tensor.float() for name, tensor in weights.items() if name != "d2t"})


def write_config(path: Path, shape: Shape, taps: Sequence[int], vocabulary: int) -> None:
    """Writes the `config.json` of an EAGLE-3 head. `taps`: the layers whose inputs it takes; `vocabulary`: how many ids
    it has."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": shape.dim,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn,
        "vocab_size": shape.vocab,
        "draft_vocab_size": vocabulary,
        "rope_theta": shape.theta,
        "rms_norm_eps": shape.eps,
        "hidden_act": "silu",
        "eagle_aux_hidden_state_layer_ids": list(taps),
    }
    path.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def sha256(*paths: Path) -> str:
    """Returns the digest of the files' bytes one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def processor() -> str:
    """Returns the processor's name, or the machine type where it is unknown."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.machine()


def write_card(path: Path, title: str, about: str, facts: Mapping[str, Any], curve: list[dict[str, Any]]) -> None:
    """Writes `MODEL_CARD.md`: a table of facts, and the held-out figures during the training."""
    lines = [f"# {title}", "", about, "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in facts.items()]
    lines += [
        "",
        "## Held-out figures during the training",
        "",
        "| step | passes | accepted | greedy matches |",
        "|---|---|---|---|",
    ]
    for entry in curve:
        if "accepted" in entry:
            accepted, matched = (", ".join(f"{v:.3f}" for v in entry[key]) for key in ("accepted", "matched"))
            lines.append(f"| {entry['step']} | {entry['passes']} | {accepted} | {matched} |")
    lines += [
        "",
        "Each triple is for draft positions 0, 1 and 2. *Accepted* is the mean of Σ min(p, q) at temperature 1 over",
        "the target's whole vocabulary. *Greedy matches* are the shares of positions in greedily drawn rows at which",
        "the head's most likely token is the target's, of those whose earlier positions all matched.",
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_log(folder: Path) -> dict[str, Any]:
    log: dict[str, Any] = json.loads((folder / "log.json").read_text())
    return log
