"""Layouts of mixtures of experts of the Qwen3.5 form."""

from __future__ import annotations

from tests.heads.layouts.conversions import convert_head
from tests.heads.layouts.files import MODEL_FILE, TORCH
from tests.heads.layouts.layout import CONVERTED_SIDECAR, DRAFTER, RAW_IN_MODEL, RAW_SIDECAR, Layout, StoredHead
from tests.heads.layouts.quantization import USUALLY_BF16, quantize
from tests.heads.layouts.weights import random_head
from tests.heads.layouts.writers import converted_checkpoint, raw_checkpoint, with_drafter, with_sidecar

_FAMILY = "qwen3_5_moe"
_RAW_HEAD = random_head(_FAMILY)
_BARE_HEAD = convert_head(_RAW_HEAD, prefix="")
_write_target = converted_checkpoint(_FAMILY)
_IN_LANGUAGE_MODEL = StoredHead(MODEL_FILE, "language_model.mtp.", norms_shifted=True)

LAYOUTS = [
    Layout("qwen3_5_moe_raw", "qwen3_5_moe", RAW_IN_MODEL, raw_checkpoint(_FAMILY)),
    # as the FP8 release of 35B-A3B and the 122B have it
    Layout("qwen3_5_moe_raw_numbered", "qwen3_5_moe", RAW_IN_MODEL, raw_checkpoint(_FAMILY, separate=True)),
    Layout(
        "qwen3_5_moe_mlx_embedded",
        "qwen3_5_moe",
        _IN_LANGUAGE_MODEL,
        converted_checkpoint(_FAMILY, head=convert_head(_RAW_HEAD, _IN_LANGUAGE_MODEL.prefix)),
    ),
    Layout(
        "qwen3_5_moe_mlx_sidecar_raw",
        "qwen3_5_moe",
        RAW_SIDECAR,
        with_sidecar(_write_target, RAW_SIDECAR.file, _RAW_HEAD, TORCH),
    ),
    Layout(
        "qwen3_5_moe_mlx_sidecar_vllm_mlx_4bit",
        "qwen3_5_moe",
        CONVERTED_SIDECAR,
        with_sidecar(
            converted_checkpoint(_FAMILY, more_config={"num_nextn_predict_layers": 1}),
            CONVERTED_SIDECAR.file,
            quantize(convert_head(_RAW_HEAD), USUALLY_BF16),
        ),
    ),
    Layout("qwen3_5_moe_drafter", "qwen3_5_moe", DRAFTER, with_drafter(_write_target, _FAMILY, _BARE_HEAD)),
    # mlx-vlm keeps the router, and quantises the shared expert's gate and fc
    Layout(
        "qwen3_5_moe_drafter_4bit",
        "qwen3_5_moe",
        DRAFTER,
        with_drafter(_write_target, _FAMILY, quantize(_BARE_HEAD, ("mlp.gate.weight",)), quantized=True),
    ),
]
