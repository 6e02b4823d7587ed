"""Layouts of Qwen3-Next."""

from __future__ import annotations

from tests.heads.layouts.conversions import convert_head
from tests.heads.layouts.files import TORCH
from tests.heads.layouts.layout import CONVERTED_IN_MODEL, RAW_IN_MODEL, RAW_SIDECAR, Layout
from tests.heads.layouts.weights import random_head
from tests.heads.layouts.writers import converted_checkpoint, raw_checkpoint, with_sidecar

_FAMILY = "qwen3_next"
_RAW_HEAD = random_head(_FAMILY)

LAYOUTS = [
    Layout("qwen3_next_raw", "qwen3_next", RAW_IN_MODEL, raw_checkpoint(_FAMILY)),
    # 1 was added to the head's norms too, and mlx-lm's sanitize of qwen3_next does not drop the head
    Layout(
        "qwen3_next_mlx_embedded",
        "qwen3_next",
        CONVERTED_IN_MODEL,
        converted_checkpoint(_FAMILY, head=convert_head(_RAW_HEAD)),
    ),
    Layout(
        "qwen3_next_mlx_sidecar_raw",
        "qwen3_next",
        RAW_SIDECAR,
        with_sidecar(converted_checkpoint(_FAMILY), RAW_SIDECAR.file, _RAW_HEAD, TORCH),
    ),
]
