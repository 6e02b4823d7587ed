"""Trains a head on drawn text with Muon and AdamW; unrolls more steps as the run advances. Runs can be resumed."""

from __future__ import annotations

import copy
import json
import platform
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from training.heads.evaluate import Evaluation
from training.heads.head import Head, PaddedRows, UnrolledLoss
from training.heads.rows import Batches
from training.heads.target import product_type
from training.optim import Muon

WORKERS = 2


@dataclass(frozen=True)
class Plan:
    """Length and rates of a training. It ends at `steps`, or after `minutes` if `steps` is 0.

    Minutes are of processor time on each of two cores: on a busy machine the schedule stretches with the work."""

    minutes: float
    steps: int = 0
    seed: int = 1
    muon_lr: float = 0.02
    adam_lr: float = 1e-3
    warmup_steps: int = 20
    decay_from: float = 0.2
    """Share of the training after which the learning rates fall linearly to 0."""
    unroll: tuple[tuple[float, int], ...] = ((0.0, 1), (0.3, 2), (0.55, 3))
    """(share of the training from which it applies, unroll steps)."""
    evaluate_every: float = 0.1
    """Share of the training between held-out figures."""

    def unroll_steps(self, progress: float) -> int:
        return [n for start, n in self.unroll if progress >= start][-1]

    def rate(self, step: int, progress: float) -> float:
        warm = min(1.0, (step + 1) / self.warmup_steps)
        return warm * (min(1.0, (1 - progress) / (1 - self.decay_from)) if progress > self.decay_from else 1.0)


class GradientPool:
    """Computes gradients with single-threaded workers that take micro-batches from one queue, as `training.workers`."""

    def __init__(self, head: Head, loss: UnrolledLoss, count: int = WORKERS) -> None:
        self.heads, self.loss = [head, *(copy.deepcopy(head) for _ in range(count - 1))], loss
        for replica in self.heads[1:]:
            for own, shared in zip(replica.parameters(), head.parameters(), strict=True):
                own.data = shared.data  # weights are shared, gradients are not
        self.pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))

    def map(self, work: Callable[[Any], None], items: list[Any]) -> None:
        list(self.pool.map(work, items))

    def gradients(self, parts: list[PaddedRows], unroll: int) -> tuple[float, int]:
        """Puts the mean gradient into the first head; returns step 0's mean loss and the number of pairs."""
        total = sum(int(part.counts.sum()) for part in parts)
        queue = deque(parts)

        def work(head: Head) -> float:
            done = 0.0
            while True:
                try:
                    part = queue.popleft()
                except IndexError:
                    return done
                loss, first = self.loss(head, part, unroll)
                (loss / total).backward()
                done += first / total

        first_loss = sum(self.pool.map(work, self.heads))
        for replica in self.heads[1:]:
            for own, main in zip(replica.parameters(), self.heads[0].parameters(), strict=True):
                if own.grad is not None:
                    main.grad = own.grad if main.grad is None else main.grad.add_(own.grad)
                    own.grad = None
        return first_loss, total


@dataclass
class Progress:
    """The contents of a checkpoint besides weights and optimisers."""

    step: int = 0
    seconds: float = 0.0
    pairs: int = 0
    evaluations: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)


class Training:
    """One run in `folder`: `checkpoint.pt` to resume from, and `log.json`."""

    def __init__(self, head: Head, loss: UnrolledLoss, batches: Batches, plan: Plan, folder: Path) -> None:
        self.head, self.batches, self.plan, self.folder = head, batches, plan, folder
        matrices = [p for p in head.parameters() if p.ndim == 2]
        factors = [p for p in head.parameters() if p.ndim < 2]
        self.optimisers = (
            Muon(matrices, plan.muon_lr, steps=4, products=product_type()),
            torch.optim.AdamW(factors, plan.adam_lr, weight_decay=0.0),
        )
        self.base = [o.param_groups[0]["lr"] for o in self.optimisers]
        self.pool = GradientPool(head, loss)
        self.optimisers[0].map = self.pool.map
        self.at = Progress()
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "checkpoint.pt").exists():
            self._restore()

    def run(self, evaluation: Evaluation, report: Callable[[str], None] = print) -> None:
        """Trains to the plan's end."""
        saved_at, smooth = self.at.seconds, 0.0
        while (share := self._share()) < 1:
            if share >= self.at.evaluations * self.plan.evaluate_every:
                self._evaluate(evaluation, report)
            began = time.process_time()
            unroll, rate = self.plan.unroll_steps(share), self.plan.rate(self.at.step, share)
            first_loss, pairs = self.pool.gradients(self.batches(self.at.step), unroll)
            self._update(rate)
            spent = (time.process_time() - began) / WORKERS
            self.at.step += 1
            self.at.seconds += spent
            self.at.pairs += pairs
            smooth = 0.9 * smooth + 0.1 * first_loss if smooth else first_loss
            if self.at.step % 10 == 0:
                entry = {"step": self.at.step, "seconds": round(self.at.seconds), "loss": round(smooth, 4)}
                self.at.curve.append(entry)
                print(f"{entry} unroll {unroll} rate {rate:.2f} {pairs / spent:.0f} pairs/s {share:.1%}", flush=True)
            if self.at.seconds - saved_at > 120:
                saved_at = self.at.seconds
                self.save(done=False)
        self._evaluate(evaluation, report)
        self.save(done=True)

    def save(self, done: bool) -> None:
        path = self.folder / "checkpoint.pt"
        states = [o.state_dict() for o in self.optimisers]
        state = {"head": self.head.state_dict(), "optimisers": states, "at": asdict(self.at)}
        torch.save(state, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)
        versions = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
        passes = round(self.batches.passes(self.at.step), 2)
        log = {"done": done, "passes": passes, "plan": asdict(self.plan), **versions, **asdict(self.at)}
        (self.folder / "log.json").write_text(json.dumps(log, indent=1) + "\n")

    def _share(self) -> float:
        if self.plan.steps:
            return self.at.step / self.plan.steps
        return self.at.seconds / 60 / self.plan.minutes

    def _update(self, rate: float) -> None:
        for optimiser, lr in zip(self.optimisers, self.base, strict=True):
            optimiser.param_groups[0]["lr"] = lr * rate
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    def _evaluate(self, evaluation: Evaluation, report: Callable[[str], None]) -> None:
        figures = evaluation(self.head)
        passes = self.batches.passes(self.at.step)
        self.at.curve.append({"step": self.at.step, "passes": round(passes, 2), **asdict(figures)})
        self.at.evaluations += 1
        report(f"step {self.at.step}, {self.at.seconds / 60:.1f} min, {passes:.2f} passes: {figures.line()}")

    def _restore(self) -> None:
        state = torch.load(self.folder / "checkpoint.pt", weights_only=False)
        self.head.load_state_dict(state["head"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.at = Progress(**state["at"])
