"""Trains the target with cross-entropy on the whole mix. `python -m training.target --work build/nano`"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from training import loop, tokenizer
from training.corpus import Corpus
from training.model import TARGET, Llama


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="where checkpoints and the log go")
    parser.add_argument("--minutes", type=float, default=52.0, help="training time; evaluation is not counted")
    parser.add_argument("--steps", type=int, default=0, help="end at this step instead of by time")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = Llama(TARGET)

    def loss_of(model: Llama, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        chosen = weights > 0  # logits over the whole vocabulary are expensive: only where the loss counts
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = functional.linear(model.hidden(inputs)[chosen], model.model.embed_tokens.weight)
        losses = functional.cross_entropy(logits.float(), targets[chosen], reduction="none")
        return (losses * weights[chosen]).sum()

    corpus = Corpus(tokenizer.ensure(args.work / "tokenizer", TARGET.vocab), args.seed)
    loop.run(model, loss_of, corpus, loop.Plan(args.minutes, args.steps, args.seed), args.work / "target")


if __name__ == "__main__":
    main()
