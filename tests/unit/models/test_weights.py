"""Weights as they are read: whatever is finite is taken, whatever is not is refused by name."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx import nn

from draftd.errors import ModelLoadError
from draftd.models.folder import check_scales, read


def test_finite_weights_are_accepted_even_if_their_sum_overflows() -> None:
    for _ in read([mx.full((8,), 3e38), mx.full((8,), 60_000.0, dtype=mx.float16)], "model: here"):
        pass


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_non_finite_weights_are_refused_at_load(wrong: float, dtype: mx.Dtype) -> None:
    weights = mx.array([1.0, wrong, 2.0, -wrong], dtype=dtype)  # whose infinities might cancel out
    with pytest.raises(ModelLoadError, match="model: here: some of its weights are not finite"):
        list(read([mx.ones((4,)), weights, mx.zeros((2,), dtype=mx.int32)], "model: here"))


@pytest.mark.parametrize(
    ("mode", "bits", "group", "wrong", "sound"),
    [
        ("mxfp4", 4, 32, 0xFF, 0x7F),
        ("mxfp8", 8, 32, 0xFF, 0x7F),
        ("nvfp4", 4, 16, 0xFF, 0xFE),
        ("nvfp4", 4, 16, 0x7F, 0x7E),
    ],
)
def test_non_finite_packed_quantisation_scales_are_refused_by_array_name(
    mode: str, bits: int, group: int, wrong: int, sound: int
) -> None:
    model = nn.Sequential(nn.Linear(64, 4, bias=False))
    nn.quantize(model, group_size=group, bits=bits, mode=mode)
    layer = model.layers[0]
    layer.scales[1, 1] = sound
    check_scales(model, "model: here")
    layer.scales[1, 1] = wrong
    with pytest.raises(ModelLoadError, match=r"model: here: some of its weights are not finite \(layers\.0\.scales\)"):
        check_scales(model, "model: here")
