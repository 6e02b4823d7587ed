"""Runs all steps in order: target, draft, export, prompts, evaluation, card. `python -m training --help`

Each step is a process of its own, because PyTorch and MLX each bring their own threads. An interrupted step continues
where it stopped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/nano"), help="checkpoints, logs and reports")
    parser.add_argument("--out", type=Path, default=Path("daemon/draftd/models/nano"), help="where the pair goes")
    parser.add_argument("--target-minutes", type=float, default=52.0)
    parser.add_argument("--draft-minutes", type=float, default=16.0)
    parser.add_argument("--target-steps", type=int, default=0, help="end by steps, to repeat a run")
    parser.add_argument("--draft-steps", type=int, default=0)
    args = parser.parse_args()
    work, out = str(args.work), str(args.out)

    def step(name: str, *options: str) -> None:
        print(f"== {name}", flush=True)
        subprocess.run([sys.executable, "-m", f"training.{name}", *options], check=True)

    step("target", "--work", work, "--minutes", str(args.target_minutes), "--steps", str(args.target_steps))
    step("draft", "--work", work, "--minutes", str(args.draft_minutes), "--steps", str(args.draft_steps))
    step("export", "--work", work, "--out", out)
    step("prompts", "--out", f"{out}/prompts")
    step("evaluate", "--pair", out, "--prompts", f"{out}/prompts", "--out", f"{work}/evaluation.json")
    step("card", "--work", work, "--out", out)


if __name__ == "__main__":
    main()
