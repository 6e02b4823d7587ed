"""Draws text from a target, trains its draft head and writes the head and its card. Continues where it was stopped.

`make train-head ARGS="--target SmolLM2-135M-Instruct"`
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from training.card import list_files
from training.heads.begin import begin
from training.heads.eagle import EagleHead
from training.heads.evaluate import Evaluation, Figures
from training.heads.export import processor, read_head, read_log, sha256, write_card, write_config, write_head
from training.heads.head import Head, MTPHead, Objective, UnrolledLoss
from training.heads.overlap import REPOSITORY, benchmark_conversations, benchmark_overlap
from training.heads.questions import (
    GeneratedPrompts,
    Questions,
    chatml_prompt,
    chatml_template,
    embedded_prompt,
    embedded_template,
    ids_of,
    read_tokenizer,
)
from training.heads.rows import Batches, DrawnText, frequent_ids, read_text
from training.heads.target import Shape, product_type, read_weights
from training.heads.text import Drawing, Template, draw
from training.heads.train import Plan, Training


@dataclass(frozen=True)
class Recipe:
    """Everything that differs between the targets."""

    model: Path
    folder: Path
    """Where the head's file goes."""
    card: Path
    """The folder of its card."""
    template: Callable[[Tokenizer], Template]
    prompt: Callable[[list[dict[str, str]]], str]
    """Renders a benchmark's messages up to the answer."""
    rows: Callable[[Path, int, int], Questions | GeneratedPrompts]
    rows_per_chunk: int
    tokens: int
    draw_minutes: float
    vocabulary: int
    """Ids in the head's trimmed vocabulary; the target's vocabulary size for all."""
    rows_per_step: int
    branch_scale: float
    plan: Plan
    taps: tuple[int, ...] = ()
    """Layers of the target whose inputs an EAGLE-3 head takes; the head has the MTP form without any."""


HEADS = Path(__file__).parent
NANO = REPOSITORY / "daemon/draftd/models/nano"

RECIPES = {
    "SmolLM2-135M-Instruct": Recipe(
        model=REPOSITORY / "build/models/SmolLM2-135M-Instruct",
        folder=HEADS / "SmolLM2-135M-Instruct",
        card=HEADS / "SmolLM2-135M-Instruct",
        template=chatml_template,
        prompt=chatml_prompt,
        rows=Questions,
        rows_per_chunk=144,
        tokens=2_000_000,
        draw_minutes=32,
        vocabulary=8192,
        rows_per_step=8,
        branch_scale=0.0,
        plan=Plan(minutes=55),
    ),
    "embedded": Recipe(
        model=NANO / "target",
        folder=NANO / "target",
        card=HEADS / "embedded",
        template=embedded_template,
        prompt=embedded_prompt,
        rows=GeneratedPrompts,
        rows_per_chunk=192,
        tokens=1_200_000,
        draw_minutes=6,
        vocabulary=4096,
        rows_per_step=32,
        branch_scale=0.0,
        plan=Plan(minutes=20),
    ),
}
RECIPES["embedded-eagle3"] = replace(
    RECIPES["embedded"],
    folder=HEADS / "embedded-eagle3",
    card=HEADS / "embedded-eagle3",
    tokens=600_000,
    vocabulary=3072,
    plan=Plan(minutes=15),
    taps=(1, 6, 11),
)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=RECIPES, required=True)
    parser.add_argument("--work", type=Path, help="where text and checkpoints lie; the default is build/heads/TARGET")
    parser.add_argument("--out", type=Path, help="the folder of the head and its card; the default is the repository's")
    parser.add_argument("--model", type=Path, help="the target's folder")
    parser.add_argument("--tokens", type=int, help="draw no more tokens than this")
    parser.add_argument("--draw-minutes", type=float, help="begin no chunk later than this")
    parser.add_argument("--rows", type=int, help="rows of a chunk")
    parser.add_argument("--minutes", type=float, help="minutes of training")
    parser.add_argument("--steps", type=int, default=0, help="end the training at this step instead of by time")
    parser.add_argument("--muon-lr", type=float)
    parser.add_argument("--adam-lr", type=float)
    parser.add_argument("--branch-scale", type=float)
    parser.add_argument("--share", type=float, default=1.0, help="share of the text to train on, for learning curves")
    parser.add_argument("--text", type=Path, help="read the text and the benchmark's answers from another work folder")
    parser.add_argument("--without-overlap", action="store_true", help="keep rows that overlap; for tests alone")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def adjusted(recipe: Recipe, args: argparse.Namespace) -> Recipe:
    """Returns the recipe with the options that were set."""
    plan = replace(recipe.plan, steps=args.steps, seed=args.seed)
    for name in ("minutes", "muon_lr", "adam_lr"):
        if (value := getattr(args, name)) is not None:
            plan = replace(plan, **{name: value})
    changes = {
        "rows_per_chunk": args.rows,
        **{n: getattr(args, n) for n in ("model", "tokens", "draw_minutes", "branch_scale")},
    }
    return replace(recipe, plan=plan, **{name: value for name, value in changes.items() if value is not None})


def main() -> None:
    args = options()
    recipe = adjusted(RECIPES[args.target], args)
    work = args.work or REPOSITORY / "build" / "heads" / args.target
    source = args.text or work
    tokenizer = read_tokenizer(recipe.model)
    template = recipe.template(tokenizer)
    if not args.text:
        rows = recipe.rows(recipe.model, recipe.rows_per_chunk, args.seed)
        drawing = Drawing(source / "text", recipe.model, template, rows, args.seed, recipe.tokens, recipe.draw_minutes)
        draw(replace(drawing, taps=recipe.taps))
    prompts = [list(ids_of(tokenizer, recipe.prompt(c))) for c in benchmark_conversations()]
    if args.without_overlap:
        prompts = prompts[:2]
    overlap = benchmark_overlap(recipe.model, template, prompts, source / "answers.json")
    text = read_text(source / "text", overlap, template)
    text = replace(text, training=text.training[: max(1, round(args.share * len(text.training)))])
    print(f"{len(text.training)} rows, {text.tokens} tokens; {text.dropped} dropped as they overlap", flush=True)
    shape = Shape.read(recipe.model)
    if (width := text.training[0].hidden.shape[1]) != (wanted := shape.dim * (1 + len(recipe.taps))):
        raise SystemExit(
            f"{source / 'text'}: has states of {width} numbers, and {args.target} needs {wanted}: draw it again"
        )
    torch.manual_seed(recipe.plan.seed)
    head = EagleHead(shape, len(recipe.taps)) if recipe.taps else MTPHead(shape)
    path = (args.out or recipe.folder) / head.file
    outcome = train(recipe, head, text, template.end, work / "training", path)
    chunks = sorted((source / "text").glob("chunk-*.npz"))
    facts = outcome.facts(args.target, recipe, path) | {"sha256 of the text": f"`{sha256(*chunks)}`"}
    card = (args.out or recipe.card) / "MODEL_CARD.md"
    form = "EAGLE-3's" if recipe.taps else "MTP"
    write_card(card, f"Draft head for {args.target}", ABOUT.format(form), facts, outcome.log["curve"])
    if path.parent == NANO / "target":
        list_files(NANO)


ABOUT = """A draft head in {} form, trained on text that the target drew itself. No row of its text shares 20 tokens
in a row with a benchmark's prompts or the target's answers to them. `training/heads/README.md` says how."""


@dataclass(frozen=True)
class Outcome:
    """A finished training: the figures are those of the rounded weights in the file."""

    text: DrawnText
    kind: str
    figures: Figures
    log: dict[str, Any]

    def facts(self, target: str, recipe: Recipe, path: Path) -> dict[str, Any]:
        """Returns the rows of the model card's table."""
        log, text = self.log, self.text
        return {
            "command": f'`make train-head ARGS="--target {target}"`',
            "seed": log["plan"]["seed"],
            "rows for training, held out, dropped as they overlap": (
                f"{len(text.training):,}, {len(text.held_out)}, {text.dropped}"
            ),
            "tokens drawn, in answers": f"{text.tokens:,}, {text.answer_tokens:,}",
            "steps, passes, pairs": f"{log['step']}, {log['passes']}, {log['pairs']:,}",
            "minutes of training on two cores": f"{log['seconds'] / 60:.1f}",
            "products": str(product_type()).removeprefix("torch."),
            "vocabulary": f"{recipe.vocabulary:,} ids",
            "type": self.kind,
            "accepted at temperature 1, positions 0 to 2": ", ".join(f"{v:.3f}" for v in self.figures.accepted),
            "greedy matches, positions 0 to 2": ", ".join(f"{v:.3f}" for v in self.figures.matched),
            "bytes": f"{path.stat().st_size:,}",
            f"sha256 of {path.name}": f"`{sha256(path)}`",
            "machine": f"{processor()}, torch {log['torch']}, Python {log['python']}",
        }


def train(recipe: Recipe, head: Head, text: DrawnText, end: int, folder: Path, path: Path) -> Outcome:
    """Trains in `folder` and writes the head to `path`; `end` is the token that ends a turn."""
    embedding = read_weights(recipe.model)["model.embed_tokens.weight"]
    ids = frequent_ids(text.training, len(embedding), recipe.vocabulary, [end, *range(3)])
    objective = Objective(embedding, ids)
    evaluation = Evaluation(objective, text.held_out, len(objective.step_weights))
    begin(head, recipe.model, text.training, recipe.branch_scale)
    batches = Batches(text.training, head.shape.dim, recipe.plan.seed, recipe.rows_per_step)
    training = Training(head, UnrolledLoss(objective), batches, recipe.plan, folder)
    training.run(evaluation, lambda line: print(f"HELD OUT: {line}", flush=True))
    sizes = {"seed": recipe.plan.seed, "tokens": text.tokens, "steps": training.at.step}
    kind = write_head(head, ids, path, {name: str(value) for name, value in sizes.items()})
    if recipe.taps:
        write_config(path.with_name("config.json"), head.shape, recipe.taps, len(ids))
    read_head(head, path)
    figures = evaluation(head)
    print(f"HELD OUT, {kind}: {figures.line()}", flush=True)
    return Outcome(text, kind, figures, read_log(folder))


if __name__ == "__main__":
    main()
