"""Command-line options that choose the models of a benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from scripts.real_model import FULL as REAL


def parse(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None, *, otherwise_real: bool = False
) -> argparse.Namespace:
    """Adds the model options to `parser` and parses the arguments. In the result, `model` and `draft_model` are folders
    or hub ids; `draft_model` is empty for none. With `otherwise_real`, --real is the default."""
    add_model_options(parser)
    args = parser.parse_args(arguments)
    args.real = args.real or (otherwise_real and not (args.model or args.draft_model))
    resolve(parser, args)
    return args


def add_model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models: folders or hub ids; the default is the embedded pair")
    group.add_argument("--model", help="the target model; it has no draft model unless --draft-model names one")
    group.add_argument("--draft-model", help="the target's draft model")
    group.add_argument("--real", action="store_true", help=f"short for --model {REAL.relative_to(REAL.parents[2])}")


def resolve(parser: argparse.ArgumentParser, args: argparse.Namespace, real: Path = REAL) -> None:
    """Sets `args.model` and `args.draft_model` to the chosen models, or else to the embedded pair: the tiny target
    and draft model in the draftd package. Ends the process if options contradict each other, or if the real model is
    missing."""
    if args.real:
        for option in ("model", "draft_model"):
            if (value := getattr(args, option)) is not None:
                parser.error(f"--real: got --{option.replace('_', '-')} {value} as well; allowed: one of the two")
        if not real.is_dir():
            parser.error(f"--real: {real} is missing; make it with `make real-model`")
        args.model = str(real)
    nano = files("draftd.models.nano")
    if args.draft_model is None:
        args.draft_model = "" if args.model else str(nano / "draft")
    args.model = args.model or str(nano / "target")
