"""The embedded pair's files are the ones that its manifest and card describe."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

MEGABYTE = 1_000_000


def test_embedded_model_files_match_manifest_sizes_and_checksums(nano: Path, manifest: dict[str, Any]) -> None:
    assert {"target/model.safetensors", "draft/model.safetensors", "prompts/chat.jsonl"} <= set(manifest["files"])
    for name, stated in manifest["files"].items():
        data = (nano / name).read_bytes()
        assert len(data) == stated["bytes"], name
        assert hashlib.sha256(data).hexdigest() == stated["sha256"], name


def test_embedded_model_manifest_lists_exactly_the_shipped_files(nano: Path, manifest: dict[str, Any]) -> None:
    shipped = {f"{d}/{p.name}" for d in ("target", "draft", "prompts") for p in (nano / d).iterdir() if p.is_file()}
    assert shipped == set(manifest["files"])


def test_embedded_models_with_their_head_are_at_most_27_megabytes(nano: Path) -> None:
    size = sum(p.stat().st_size for d in ("target", "draft") for p in (nano / d).rglob("*") if p.is_file())
    assert size <= 27 * MEGABYTE


def test_embedded_target_and_draft_have_identical_tokenizer_files(nano: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (nano / "target" / name).read_bytes() == (nano / "draft" / name).read_bytes()


def test_embedded_model_configs_are_llama_and_agree_with_manifest(nano: Path, manifest: dict[str, Any]) -> None:
    for name in ("target", "draft"):
        config = json.loads((nano / name / "config.json").read_text())
        size = manifest[name]["size"]
        assert config["model_type"] == "llama"
        assert config["num_hidden_layers"] == size["layers"]
        assert config["hidden_size"] == size["dim"]
        assert config["vocab_size"] == size["vocab"]
        assert config["max_position_embeddings"] == manifest["context"]
        # Two bytes a parameter, and a header.
        header = manifest["files"][f"{name}/model.safetensors"]["bytes"] - 2 * manifest[name]["parameters"]
        assert 0 < header < 20_000


def test_embedded_model_card_quotes_the_manifests_figures(nano: Path, manifest: dict[str, Any]) -> None:
    text = (nano / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert manifest["licence"] == "Apache-2.0"
    assert f"Licence: {manifest['licence']}" in text
    for name, stated in manifest["files"].items():
        assert f"| `{name}` | {stated['bytes']:,} | `{stated['sha256']}` |" in text
    for name in ("target", "draft"):
        run = manifest[name]
        assert f"{run['steps']:,} steps" in text
        assert f"{run['tokens']:,} tokens" in text
        assert f"seed {run['plan']['seed']}" in text
    for workload, row in manifest["evaluation"]["workloads"].items():
        assert f"| `{workload}` | {row['prompts']} | {row['tokens']:,} | {row['alpha']} |" in text
