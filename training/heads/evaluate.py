"""Held-out figures of a head: accepted probability at temperature 1, and greedy matches, by unroll step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from training.heads.head import Head, Objective, PaddedRows
from training.heads.rows import padded
from training.heads.text import Row

BLOCK = 256
"""Positions whose logits over the whole vocabulary are computed at once."""


@dataclass(frozen=True)
class Figures:
    """Held-out figures of each unroll step."""

    accepted: tuple[float, ...]
    """Mean of Σ min(p, q) at temperature 1, over all rows."""
    matched: tuple[float, ...]
    """Share of greedy rows' positions with the target's most likely token, of those whose earlier steps all matched."""
    matched_all: float
    """Share of all rows' positions with the target's most likely token, at step 0."""

    def line(self) -> str:
        accepted, matched = (" ".join(f"{v:.3f}" for v in values) for values in (self.accepted, self.matched))
        return f"accepted {accepted} | greedy matches {matched} | on all rows {self.matched_all:.3f}"


@dataclass(frozen=True)
class Answers:
    """One held-out micro-batch with the target's answers for its counting pairs."""

    batch: PaddedRows
    greedy: bool
    normal: Tensor
    """Log of the sum of exponentials over the whole vocabulary: (count,)."""
    best: Tensor
    """The target's most likely token: (count,)."""


class Evaluation:
    """Computes the target's side once, and the head's at each call. Runs on the calling thread."""

    def __init__(self, objective: Objective, rows: Sequence[Row], steps: int) -> None:
        self.objective, self.steps = objective, steps
        self.vocabulary, _ = objective.trimmed()
        groups = [[r for r in rows if (r.temperature == 0) == greedy] for greedy in (True, False)]
        parts = [group[i : i + 4] for group in groups for i in range(0, len(group), 4)]
        self.parts = [self._answers(part) for part in parts]

    @torch.no_grad()
    def _answers(self, rows: Sequence[Row]) -> Answers:
        batch = padded(rows, self.vocabulary.shape[1])
        states = functional.pad(batch.hidden[:, 1:], (0, 0, 0, 1))[batch.counts]
        normals, bests = [], []
        for some in states.split(BLOCK):
            logits = functional.linear(some, self.objective.embedding)
            bests.append(logits.argmax(dim=-1))
            normals.append(torch.logsumexp(logits, dim=-1))
        return Answers(batch, rows[0].temperature == 0, torch.cat(normals), torch.cat(bests))

    @torch.no_grad()
    def __call__(self, head: Head) -> Figures:
        overlap, match, reached = ([[0.0, 0] for _ in range(self.steps)] for _ in range(3))
        all_matches: list[Tensor] = []
        for part in self.parts:
            counts = part.batch.counts
            embedded = functional.embedding(part.batch.tokens[:, 1:], self.objective.embedding)
            alive = torch.ones_like(counts)
            for step, y in enumerate(head.unroll(embedded, part.batch.inputs, self.steps)):
                shared, hits = self._compare(y, part)
                valid = counts.clone()
                valid[:, :step] = False
                overlap[step][0] += float(shared[valid].sum())
                overlap[step][1] += int(valid.sum())
                if step == 0:
                    all_matches.append(hits[valid])
                before = functional.pad(alive[:, :-1], (1, 0)) if step else alive
                alive = before & hits & counts
                if part.greedy:
                    reached[step][0] += int((before & valid).sum())
                    match[step][0] += int((alive & valid).sum())
        return Figures(
            accepted=tuple(total / max(count, 1) for total, count in overlap),
            matched=tuple(m[0] / max(r[0], 1) for m, r in zip(match, reached, strict=True)),
            matched_all=float(torch.cat(all_matches).float().mean()),
        )

    def _compare(self, y: Tensor, part: Answers) -> tuple[Tensor, Tensor]:
        """Returns Σ min(p, q) and whether the most likely tokens agree, of each pair: (rows, time)."""
        counts = part.batch.counts
        logits = functional.linear(y[counts], self.vocabulary)
        states = functional.pad(part.batch.hidden[:, 1:], (0, 0, 0, 1))[counts]
        target = functional.linear(states, self.vocabulary).sub_(part.normal[:, None]).exp_()
        shared, hits = torch.zeros(counts.shape), torch.zeros(counts.shape, dtype=torch.bool)
        shared[counts] = torch.minimum(target, torch.softmax(logits, dim=-1)).sum(dim=-1)
        hits[counts] = self.objective.ids[logits.argmax(dim=-1)] == part.best
        return shared, hits
