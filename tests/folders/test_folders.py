"""A folder of each kind that `python -m tests.folders` has, and that the command tells a wrong one."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import NanoPair
from tests.folders.cases import CASES
from tests.folders.judge import judged

NAMED = {case.name: case for case in CASES}
SAMPLE = (
    "a pair, with its chat template",
    "5.x, cohere2: types of layers",
    "5.x, mixtral: linear",
    "gpt2: n_positions",
    "NaN in a draft",
    "shards and a whole file",
    "half of lora_b missing",
    "an EAGLE head as a draft",
    "an EAGLE head as a model",
)


@pytest.mark.parametrize("name", SAMPLE)
def test_model_folder_is_served_correctly_or_refused(name: str, nano_pair: NanoPair, tmp_path: Path) -> None:
    assert judged(NAMED[name], tmp_path, nano_pair.draft).wrong == ""


def test_folder_check_detects_weights_that_change_the_logits(nano_pair: NanoPair, tmp_path: Path) -> None:
    case = NAMED["an adapter, LoRA"]
    without = replace(case, make=lambda place: replace(case.make(place), adapter=None, clean=place.path("adapted")))
    (tmp_path / "adapted").symlink_to(Path(nano_pair.target), target_is_directory=True)
    result = judged(without, tmp_path, nano_pair.draft)
    assert result.served
    assert "logits differ" in result.wrong


def test_folder_check_detects_a_refusal_with_an_unexpected_message(nano_pair: NanoPair, tmp_path: Path) -> None:
    case = NAMED["two whole files"]
    other = replace(case, make=lambda place: replace(case.make(place), refused="another reason"))
    assert "refused in other words" in judged(other, tmp_path, nano_pair.draft).wrong


def test_model_folder_cases_have_unique_names_and_twenty_valid_folders() -> None:
    assert len(NAMED) == len(CASES) >= 60
    assert Counter(case.item for case in CASES)["right"] >= 20
