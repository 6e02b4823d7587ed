"""Layouts of dense models of the Qwen3.5 form."""

from __future__ import annotations

from tests.heads.layouts.conversions import convert_head
from tests.heads.layouts.files import MLX, TORCH
from tests.heads.layouts.layout import (
    CONVERTED_IN_MODEL,
    CONVERTED_SIDECAR,
    DRAFTER,
    RAW_IN_MODEL,
    RAW_SIDECAR,
    Layout,
    StoredHead,
)
from tests.heads.layouts.quantization import BITS, GROUP, USUALLY_BF16, quantize
from tests.heads.layouts.weights import random_head
from tests.heads.layouts.writers import converted_checkpoint, raw_checkpoint, with_drafter, with_sidecar

_FAMILY = "qwen3_5"
_RAW_HEAD = random_head(_FAMILY)
_HEAD, _BARE_HEAD = convert_head(_RAW_HEAD), convert_head(_RAW_HEAD, prefix="")
_BARE_HEAD_4BIT = quantize(_BARE_HEAD, USUALLY_BF16)
_write_target = converted_checkpoint(_FAMILY)
_IN_SECOND_SHARD = StoredHead("model-00002-of-00002.safetensors", "mtp.", norms_shifted=False)
_BARE_SIDECAR = StoredHead("mtp/weights.safetensors", "", norms_shifted=True)
_MTP_FILE = StoredHead("model-mtp.safetensors", "mtp.", norms_shifted=True)
_MTP_FILE_CONFIG = {"mlx_lm_extra_tensors": {"mtp_file": _MTP_FILE.file, "mtp_tensor_count": 15}}
_MTPLX_CONFIG = {
    "mtplx_mtp_quantization": {
        "prequantized": True,
        "bits": BITS,
        "group_size": GROUP,
        "mode": "affine",
        "policy": "cyankiwi",  # MTPLX's word for: all matrices except fc
    }
}

_IN_MODEL_LAYOUTS = [
    Layout("qwen3_5_raw_tied", "qwen3_5_tied", RAW_IN_MODEL, raw_checkpoint(_FAMILY, tied=True)),
    Layout("qwen3_5_raw_untied", "qwen3_5", RAW_IN_MODEL, raw_checkpoint(_FAMILY)),
    Layout("qwen3_5_raw_sharded", "qwen3_5", _IN_SECOND_SHARD, raw_checkpoint(_FAMILY, sharded=True)),
    Layout("qwen3_5_mlx_embedded", "qwen3_5", CONVERTED_IN_MODEL, converted_checkpoint(_FAMILY, head=_HEAD)),
]
_SIDECAR_LAYOUTS = [
    Layout(
        "qwen3_5_mlx_sidecar_raw",
        "qwen3_5",
        RAW_SIDECAR,
        with_sidecar(_write_target, RAW_SIDECAR.file, _RAW_HEAD, TORCH),
    ),
    Layout(
        "qwen3_5_mlx_sidecar_raw_4bit",
        "qwen3_5",
        RAW_SIDECAR,
        with_sidecar(
            converted_checkpoint(_FAMILY, more_config=_MTPLX_CONFIG),
            RAW_SIDECAR.file,
            quantize(_RAW_HEAD, USUALLY_BF16),
        ),
    ),
    Layout(
        "qwen3_5_mlx_sidecar_bare",
        "qwen3_5",
        _BARE_SIDECAR,
        with_sidecar(_write_target, _BARE_SIDECAR.file, _BARE_HEAD, MLX),
    ),
    # vllm-mlx's add_mtp_weights_qwen35.py: the prefix stays, 1 is added, and no metadata says so
    Layout(
        "qwen3_5_mlx_sidecar_vllm_mlx",
        "qwen3_5",
        CONVERTED_SIDECAR,
        with_sidecar(
            converted_checkpoint(_FAMILY, more_config={"num_nextn_predict_layers": 1}), CONVERTED_SIDECAR.file, _HEAD
        ),
    ),
    # mlx-lm's load_model reads this file too, since its name begins with "model"
    Layout(
        "qwen3_5_mlx_sidecar_mtp_file",
        "qwen3_5",
        _MTP_FILE,
        with_sidecar(converted_checkpoint(_FAMILY, more_config=_MTP_FILE_CONFIG), _MTP_FILE.file, _HEAD, MLX),
    ),
]
_DRAFTER_LAYOUTS = [
    Layout("qwen3_5_drafter", "qwen3_5", DRAFTER, with_drafter(_write_target, _FAMILY, _BARE_HEAD)),
    Layout(
        "qwen3_5_drafter_4bit",
        "qwen3_5",
        DRAFTER,
        with_drafter(_write_target, _FAMILY, _BARE_HEAD_4BIT, quantized=True),
    ),
    Layout(
        "qwen3_5_drafter_4bit_fc",
        "qwen3_5",
        DRAFTER,
        with_drafter(_write_target, _FAMILY, quantize(_BARE_HEAD), quantized=True),
    ),
    Layout(
        "qwen3_5_mlx_4bit_drafter_4bit",
        "qwen3_5_4bit",
        DRAFTER,
        with_drafter(converted_checkpoint(_FAMILY, quantized=True), _FAMILY, _BARE_HEAD_4BIT, quantized=True),
    ),
]

LAYOUTS = [*_IN_MODEL_LAYOUTS, *_SIDECAR_LAYOUTS, *_DRAFTER_LAYOUTS]
