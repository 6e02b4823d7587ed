"""The training loop of target and draft: schedule, checkpoints, resuming, and the log that the model card quotes."""

from __future__ import annotations

import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from training.corpus import Corpus
from training.model import Llama
from training.optim import optimisers
from training.workers import LossFunction, Workers


@dataclass(frozen=True)
class Plan:
    """Length and rates of a training. It ends at `steps`, or after `minutes` of training time if `steps` is 0."""

    minutes: float
    steps: int = 0
    seed: int = 1
    tokens_per_batch: int = 4096
    muon_lr: float = 0.02
    adam_lr: float = 2e-3
    decay: float = 0.05
    warmup_steps: int = 40
    decay_from: float = 0.55
    """Share of the training after which the learning rate falls linearly to 0; it is constant before."""
    lengths: tuple[tuple[float, int], ...] = ((0.0, 256), (0.85, 512), (0.97, 1024))
    """(share of the training from which it applies, sequence length)."""

    def length(self, progress: float) -> int:
        return [n for start, n in self.lengths if progress >= start][-1]

    def rate(self, step: int, progress: float) -> float:
        warm = min(1.0, (step + 1) / self.warmup_steps)
        cool = max(0.0, (1 - progress) / (1 - self.decay_from)) if progress > self.decay_from else 1.0
        return warm * cool


def run(model: Llama, loss_of: LossFunction, corpus: Corpus, plan: Plan, folder: Path) -> None:
    """Trains to the plan's end. Resumes from `folder/checkpoint.pt` and writes `folder/log.json` regularly.

    If the file `folder/decay` appears, the decay of the learning rate starts early. Training then ends once the decay
    has taken the share that the plan gives it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint, log_file, decay_now = folder / "checkpoint.pt", folder / "log.json", folder / "decay"
    parts = optimisers(model, plan.muon_lr, plan.adam_lr, plan.decay)
    base = [part.param_groups[0]["lr"] for part in parts]
    step, seconds, tokens, jump = 0, 0.0, 0, 0.0
    curve: list[dict[str, float]] = []
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=False)
        model.load_state_dict(state["model"])
        for part, saved in zip(parts, state["optimisers"], strict=True):
            part.load_state_dict(saved)
        step, seconds, tokens, curve, jump = (state[k] for k in ("step", "seconds", "tokens", "curve", "jump"))

    workers = Workers(model, loss_of)
    parts[0].map = workers.map

    def save(done: bool) -> None:
        state = {
            "model": model.state_dict(),
            "optimisers": [p.state_dict() for p in parts],
            "step": step,
            "seconds": seconds,
            "tokens": tokens,
            "curve": curve,
            "jump": jump,
        }
        torch.save(state, checkpoint.with_suffix(".part"))
        checkpoint.with_suffix(".part").replace(checkpoint)
        log = {
            "done": done,
            "steps": step,
            "tokens": tokens,
            "seconds": round(seconds, 1),
            "plan": asdict(plan),
            "size": model.size.as_dict(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "schedule_jump": round(jump, 4),
            "curve": curve,
        }
        log_file.write_text(json.dumps(log, indent=1) + "\n")

    saved_at, smooth = seconds, 0.0
    while True:
        progress = (step / plan.steps if plan.steps else seconds / 60 / plan.minutes) + jump
        if decay_now.exists() and progress < plan.decay_from:
            jump += plan.decay_from - progress
            progress = plan.decay_from
        if progress >= 1:
            break
        started = time.monotonic()
        length = plan.length(progress)
        ids, weights = corpus.batch(step, plan.tokens_per_batch // length, length)
        inputs, targets = torch.from_numpy(ids[:, :-1]), torch.from_numpy(ids[:, 1:])
        loss = workers.gradients(inputs, targets, torch.from_numpy(weights[:, 1:]))
        rate = plan.rate(step, progress)
        for part, lr in zip(parts, base, strict=True):
            part.param_groups[0]["lr"] = lr * rate
            part.step()
            part.zero_grad(set_to_none=True)
        step += 1
        tokens += inputs.numel()
        spent = time.monotonic() - started
        seconds += spent
        smooth = loss if not smooth else 0.95 * smooth + 0.05 * loss
        if step % 20 == 0:
            curve.append(
                {
                    "step": step,
                    "tokens": tokens,
                    "seconds": round(seconds, 1),
                    "loss": round(smooth, 4),
                    "rate": round(rate, 4),
                }
            )
            print(
                f"step {step} loss {smooth:.4f} rate {rate:.3f} length {length} {inputs.numel() / spent:.0f} tokens/s "
                f"{progress:.1%} of the run, {seconds / 60:.1f} min",
                flush=True,
            )
        if seconds - saved_at > 120:
            saved_at = seconds
            save(done=False)
    save(done=True)
