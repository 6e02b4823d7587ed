"""A representative part of `make models`: an architecture of each kind, and what the engine does with it today."""

from __future__ import annotations

import pytest

from tests.models.architectures import OWN, architectures
from tests.models.scene import Size, examine

pytestmark = [pytest.mark.parity, pytest.mark.timeout(120)]

SMALL = Size(tokens=14, depths=(4,), alone=(3,), quantised=False, forms=False)

# What is not so is held to as well: who changes it changes this table.
WHOLE_TEXTS = {"batched", "speculating", "prefix"}  # of prefixes
ALL = {*WHOLE_TEXTS, "shared"}
EXPECTED = {
    "qwen3": ALL,
    "deepseek_v3": ALL,  # experts, as in the two next and in gpt_oss and llama4
    "deepseek_v32": ALL,
    "gemma2": ALL,
    "gemma3_text": ALL,  # while a text is not much longer than the window
    "gpt_oss": ALL,
    "llama4": ALL,
    "qwen3_next": WHOLE_TEXTS,
    "mamba2": WHOLE_TEXTS,
    "nemotron_h": WHOLE_TEXTS,  # these two know no lengths: only rows of equal width share a forward
    "rwkv7": WHOLE_TEXTS,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_architecture_gives_mlx_lms_text_and_expected_batching_drafting_and_prefix_reuse(name: str) -> None:
    result = examine(name, SMALL)
    assert result.served, result.reasons
    assert result.different == []
    holds = {one for one in ("batched", "speculating", "prefix", "shared") if getattr(result, one)}
    assert holds == EXPECTED[name], result.reasons
    assert set(result.reasons) >= {"batched", "speculating"} - holds
    if result.speculating:
        assert result.rollbacks > 0
        assert result.accepted > 0


def test_every_mlx_lm_architecture_has_a_test_configuration() -> None:
    assert set(OWN) == set(architectures())
