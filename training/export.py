"""Writes a checkpoint as a model folder: bf16 safetensors, `config.json` and the tokenizer.

`python -m training.export --work build/nano --out daemon/draftd/models/nano`
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from training import tokenizer as tokenizers_
from training.model import DRAFT, TARGET, Size


def export(checkpoint: Path, size: Size, tokenizer_folder: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    weights = torch.load(checkpoint, weights_only=False)["model"]
    save_file(
        {name: w.to(torch.bfloat16).contiguous() for name, w in weights.items()},
        out / "model.safetensors",
        metadata={"format": "pt"},
    )
    (out / "model.safetensors").chmod(0o644)
    (out / "config.json").write_text(json.dumps(size.hf_config(), indent=1) + "\n")
    tokenizers_.save(tokenizers_.ensure(tokenizer_folder, size.vocab), out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=("target", "draft"))
    args = parser.parse_args()
    for name, size in (("target", TARGET), ("draft", DRAFT)):
        if args.only in (None, name):
            export(args.work / name / "checkpoint.pt", size, args.work / "tokenizer", args.out / name)


if __name__ == "__main__":
    main()
