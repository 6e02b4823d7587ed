"""The options choose the models that a benchmark measures."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks import options
from benchmarks.run import _without_draft


def parsed(*arguments: str, real: Path = Path("nowhere")) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    options.add_model_options(parser)
    args = parser.parse_args(arguments)
    options.resolve(parser, args, real)
    return args


def test_benchmark_options_default_to_embedded_target_and_draft_model() -> None:
    args = parsed()
    assert Path(args.model).name == "target"
    assert Path(args.draft_model).name == "draft"


def test_benchmark_model_option_alone_selects_no_draft_model() -> None:
    args = parsed("--model", "a")
    assert (args.model, args.draft_model) == ("a", "")


def test_benchmark_model_and_draft_model_options_select_given_pair() -> None:
    args = parsed("--model", "a", "--draft-model", "b")
    assert (args.model, args.draft_model) == ("a", "b")


def test_benchmark_option_named_real_selects_downloaded_model_without_draft_model(tmp_path: Path) -> None:
    args = parsed("--real", real=tmp_path)
    assert (args.model, args.draft_model) == (str(tmp_path), "")


@pytest.mark.parametrize("option", ["--model", "--draft-model"])
def test_benchmark_option_named_real_is_refused_together_with_model_options(
    option: str, tmp_path: Path, capsys
) -> None:
    with pytest.raises(SystemExit):
        parsed("--real", option, "a", real=tmp_path)
    assert f"--real: got {option} a as well; allowed: one of the two" in capsys.readouterr().err


def test_benchmark_option_named_real_suggests_make_target_when_model_is_missing(tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        parsed("--real", real=tmp_path / "gone")
    assert "is missing; make it with `make real-model`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "single"),
    [
        ([], False),
        (["--real", "--parts", "ar"], True),
        (["--model", "a", "--repetitions", "1"], True),
        (["--model", "a", "--draft-model", "b"], False),
        (["--real", "--before", "elsewhere"], False),
    ],
)
def test_benchmark_without_draft_model_and_before_options_measures_chosen_model_undrafted(
    arguments: list[str], single: bool
) -> None:
    assert _without_draft(arguments) is single
