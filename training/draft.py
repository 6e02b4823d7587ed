"""Distils the draft from the target: 0.8 KL divergence from its full distribution, 0.2 cross-entropy.

`python -m training.draft --work build/nano`
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from training import loop, tokenizer
from training.corpus import Corpus, Mix
from training.model import DRAFT, Llama

KL_SHARE = 0.8
# The draft predicts the assistant's text, so the library has a smaller share than in the target's mix.
MIX = Mix(library=(0.0, 0.0, 0.08), stage_steps=(0, 0))


def load_target(work: Path) -> Llama:
    from training.model import TARGET

    model = Llama(TARGET)
    model.load_state_dict(torch.load(work / "target" / "checkpoint.pt", weights_only=False)["model"])
    return model.requires_grad_(False).eval()


def inherit_embeddings(draft: Llama, target: Llama) -> None:
    """Initialises the draft's embeddings, which are half of its weights, with the target's in their first principal
    directions."""
    e = target.model.embed_tokens.weight.float()
    u, s, _ = torch.linalg.svd(e, full_matrices=False)
    with torch.no_grad():
        draft.model.embed_tokens.weight.copy_(u[:, : DRAFT.dim] * s[: DRAFT.dim])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="where the target lies; the draft is put beside it")
    parser.add_argument("--minutes", type=float, default=16.0)
    parser.add_argument("--steps", type=int, default=0, help="end at this step instead of by time")
    parser.add_argument("--seed", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    target, draft = load_target(args.work), Llama(DRAFT)
    inherit_embeddings(draft, target)

    def loss_of(model: Llama, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Computes the loss only where the weight is above 0.5: logits over the whole vocabulary are the main cost."""
        chosen = weights > 0.5
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                teacher = functional.linear(target.hidden(inputs)[chosen], target.model.embed_tokens.weight)
            student = functional.linear(model.hidden(inputs)[chosen], model.model.embed_tokens.weight)
        log_q = functional.log_softmax(student.float(), dim=-1)
        log_p = functional.log_softmax(teacher.float(), dim=-1)
        divergence = (log_p.exp() * (log_p - log_q)).sum()
        own = functional.nll_loss(log_q, targets[chosen], reduction="sum")
        return KL_SHARE * divergence + (1 - KL_SHARE) * own

    corpus = Corpus(tokenizer.ensure(args.work / "tokenizer", DRAFT.vocab), args.seed, MIX)
    plan = loop.Plan(
        args.minutes,
        args.steps,
        args.seed,
        tokens_per_batch=2048,  # a whole distribution for each token has little noise: more and smaller steps
        muon_lr=0.02,
        adam_lr=2e-3,
        decay=0.0,
        decay_from=0.4,
        lengths=((0.0, 256), (0.9, 512)),
    )
    loop.run(draft, loss_of, corpus, plan, args.work / "draft")


if __name__ == "__main__":
    main()
