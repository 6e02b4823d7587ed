"""Checkpoints as people have them are served with mlx-lm's own text, with drafts and without."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten

from draftd.core import DRAFT_MODEL, SamplingParams
from draftd.engine.drafters.base import Text
from draftd.engine.drafters.draft_model import DraftModel
from draftd.engine.pair import LoadedModels, load_models
from draftd.engine.sampling.transforms import Sampling
from draftd.errors import ModelLoadError
from draftd.models.fingerprint import Fingerprints
from draftd.models.folder import ModelFolder
from draftd.settings import load_settings
from tests.conftest import NanoPair
from tests.doctor_findings import check_models
from tests.models.architectures import configuration
from tests.models.result import Result
from tests.models.scene import Engine, Way, planned
from tests.models.tiny import tiny
from tests.rig import request
from tests.unit.models.checkpoints import (
    PROMPT,
    TOKENS,
    adapter,
    quantised,
    reference,
    rewrite,
    sharded,
    untied,
    widened,
)


def loaded(folder: Path | str, draft: Path | str | None = None, adapter: Path | None = None) -> LoadedModels:
    return load_models(str(folder), draft and str(draft), adapter=adapter, progress=lambda line: None)


def texts(models: LoadedModels, *ways: Way, prompt: list[int] = PROMPT, **sampling: Any) -> list[list[int]]:
    """Of the engine, for each way of decoding; none ends by itself."""
    models.tokenizer.eos_ids = frozenset()
    engine, found = Engine(models, Result("checkpoint")), []
    for way in ways:
        one = request(
            prompt, planned(way, engine.info, len(prompt)), max_tokens=TOKENS, sampling=SamplingParams(**sampling)
        )
        (sink,) = engine.run([one])
        found.append(sink.tokens)
    return found


LAYOUTS: dict[str, tuple[Callable[[str, Path], object], str]] = {
    "shards": (sharded, "none"),
    "a head of its own": (untied, "none"),
    "4 bits": (quantised("affine", 4, 64), "4 bits, groups of 64"),
    "8 bits": (quantised("affine", 8, 32), "8 bits, groups of 32"),
    "mixed": (quantised("affine", 4, 64, mixed=True), "4 bits, groups of 64, some layers otherwise"),
    "mxfp4": (quantised("mxfp4", 4, 32), "4 bits, groups of 32, mxfp4"),
    "nvfp4, mixed": (quantised("nvfp4", 4, 16, mixed=True), "4 bits, groups of 16, nvfp4, some layers otherwise"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_checkpoint_weight_layout_gives_mlx_lms_text(layout: str, nano_pair: NanoPair, tmp_path: Path) -> None:
    make, words = LAYOUTS[layout]
    make(nano_pair.draft, tmp_path / "model")
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"\x80\x04")  # beside the others it does no harm
    models = loaded(tmp_path / "model", nano_pair.draft)
    expected = reference(tmp_path / "model")
    assert models.draft is not None
    assert texts(models, Way(0), Way(4)) == [expected, expected]
    assert Fingerprints().of(tmp_path / "model").quantization == words
    if layout == "mixed":
        assert {module.bits for _, module in models.target.named_modules() if hasattr(module, "bits")} == {4, 8}


def test_model_with_column_major_matrices_gives_logits_of_row_major_one(
    nano_pair: NanoPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftd.models.layout.by_columns", lambda rows, columns: True)
    ours, _ = ModelFolder(nano_pair.draft).open()
    matrices = [m.weight for m in ours.modules() if isinstance(m, nn.Linear | nn.Embedding)]
    mx.eval(matrices)
    assert matrices
    for matrix in matrices:
        rows, columns = matrix.shape
        assert memoryview(matrix).strides == (4, 4 * rows), (rows, columns)
    monkeypatch.setattr("draftd.models.layout.by_columns", lambda rows, columns: False)
    theirs, _ = ModelFolder(nano_pair.draft).open()
    for width in (1, 5, 40):
        tokens = mx.array([[(7 * i) % 4096 for i in range(width)]])
        assert mx.allclose(ours(tokens), theirs(tokens), rtol=0, atol=1e-4).item(), width


def test_slow_weight_loading_reports_increasing_percentages_up_to_100(
    nano_pair: NanoPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftd.engine.pair._PROGRESS_SECONDS", 0.0)
    said: list[str] = []
    load_models(nano_pair.target, progress=said.append)
    shares = [int(found[1]) for line in said if (found := re.search(r"loading model: .*: (\d+)% of 0\.0 GB", line))]
    assert len(shares) > 2
    assert shares == sorted(shares)
    assert shares[-1] == 100


def test_several_end_tokens_in_generation_config_are_all_used(nano_pair: NanoPair, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(nano_pair.draft, tmp_path / "model"))
    rewrite(folder / "generation_config.json", eos_token_id=[5, 77], temperature=0.6)
    assert loaded(folder).tokenizer.eos_ids == {1, 5, 77}


# adapters


@pytest.mark.parametrize(
    ("kind", "bits"), [("lora", 0), ("dora", 0), ("full", 0), ("lora", 4)], ids=["lora", "dora", "full", "of 4 bits"]
)
def test_model_with_adapter_gives_mlx_lms_text(kind: str, bits: int, nano_pair: NanoPair, tmp_path: Path) -> None:
    like = nano_pair.draft
    if bits:
        like = str(tmp_path / "quantised")
        quantised("affine", bits, 64)(nano_pair.draft, Path(like))
    made = adapter(like, tmp_path / "french", kind)
    models = loaded(like, nano_pair.draft, made)
    expected = reference(like, made)
    assert expected != reference(like)
    assert texts(models, Way(0), Way(4)) == [expected, expected]
    assert models.info.model.endswith("+french")
    assert models.info.drafters[0] == DRAFT_MODEL


def test_adapter_files_belong_to_model_fingerprint_and_change_detection(nano_pair: NanoPair, tmp_path: Path) -> None:
    made = adapter(nano_pair.draft, tmp_path / "adapters")
    folder = ModelFolder(nano_pair.draft, adapter=made)
    files = folder.files()
    assert folder.name == f"nano/draft+{tmp_path.name}/adapters"
    found = Fingerprints().of(files.folder, files.adapter).files
    assert [one.name for one in found if one.kind == "adapter"] == ["adapter_config.json", "adapters.safetensors"]
    assert not files.changed
    (made / "adapters.safetensors").touch()
    assert files.changed


def pointed(folder: Path) -> None:
    (folder / "adapters.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")


def of_peft(folder: Path) -> None:
    (folder / "adapters.safetensors").rename(folder / "adapter_model.safetensors")


def with_weights(change: Callable[[dict[str, mx.array]], dict[str, mx.array]]) -> Callable[[Path], object]:
    def put(folder: Path) -> None:
        file = folder / "adapters.safetensors"
        weights = change(mx.load(str(file)))
        mx.eval(weights)
        mx.save_safetensors(str(file), weights)

    return put


def configured(**values: Any) -> Callable[[Path], object]:
    return lambda folder: rewrite(folder / "adapter_config.json", **values)


def only(keeps: Callable[[str], bool]) -> Callable[[Path], object]:
    return with_weights(lambda weights: {name: one for name, one in weights.items() if keeps(name)})


Q_PROJ = "model.layers.0.self_attn.q_proj"
BAD_ADAPTERS = {
    "no folder": (shutil.rmtree, "no such folder"),
    "no configuration": (lambda folder: (folder / "adapter_config.json").unlink(), "no adapter_config.json"),
    "broken": (lambda folder: (folder / "adapter_config.json").write_text("{"), "adapter_config.json is not JSON"),
    "pointer": (pointed, "adapters.safetensors is a Git LFS pointer"),
    "PEFT's weights": (of_peft, "no adapters.safetensors in this folder; adapter_model.safetensors is PEFT's"),
    "PEFT's configuration": (configured(peft_type="LORA"), "adapter_config.json is PEFT's"),
    "another kind": (configured(fine_tune_type="ia3"), "fine_tune_type 'ia3', not one of lora, dora, full"),
    "no layers": (configured(num_layers=None), "has no num_layers"),
    "no parameters": (configured(lora_parameters=None), "has no lora_parameters"),
    "no scale": (configured(lora_parameters={"rank": 4, "alpha": 8}), "has no number lora_parameters.scale"),
    "another rank": (
        configured(lora_parameters={"rank": 8, "scale": 10.0, "dropout": 0.0}),
        "14 arrays do not fit the model, such as model.layers.0.",
    ),
    "another model's": (
        with_weights(lambda weights: {name.replace("layers.0", "layers.7"): one for name, one in weights.items()}),
        "14 arrays do not fit the model, such as model.layers.7.",
    ),
    "half": (
        with_weights(lambda weights: {name: one for name, one in weights.items() if name != f"{Q_PROJ}.lora_a"}),
        f"adapters.safetensors has {Q_PROJ}.lora_b without its lora_a",
    ),
    "empty": (with_weights(lambda weights: {}), "adapters.safetensors is empty"),
    "no lora_b": (only(lambda name: not name.endswith("lora_b")), "lacks 7 of the 14 arrays"),
    "half of lora_b": (
        only(lambda name: not name.endswith("lora_b") or "mlp" in name),
        "lacks 4 of the 14 arrays that adapter_config.json lists, such as model.layers.0.self_attn.k_proj.lora_b",
    ),
    "not every matrix": (
        only(lambda name: Q_PROJ not in name),
        f"lacks 2 of the 14 arrays that adapter_config.json lists, such as {Q_PROJ}.lora_a",
    ),
    "fewer keys": (
        configured(lora_parameters={"rank": 4, "scale": 10.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]}),
        "12 arrays do not fit the model, such as model.layers.0.",
    ),
}


@pytest.mark.parametrize("damage", BAD_ADAPTERS)
def test_damaged_adapter_is_refused_with_one_line_naming_its_folder(
    damage: str, nano_pair: NanoPair, tmp_path: Path
) -> None:
    change, what = BAD_ADAPTERS[damage]
    made = adapter(nano_pair.draft, tmp_path / "french")
    change(made)
    with pytest.raises(ModelLoadError) as caught:
        ModelFolder(nano_pair.draft, adapter=made).open()
    assert caught.value.message.startswith(f"model: {nano_pair.draft}: adapter {made}: ")
    assert what in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.cure


@pytest.mark.parametrize(
    ("kind", "keeps", "what"),
    [
        ("lora", lambda name: ".layers.11." in name, "lacks 14 of the 28 arrays"),
        ("dora", lambda name: not name.endswith(".m"), "lacks 14 of the 42 arrays"),
        ("full", lambda name: ".layers.11.mlp." not in name, "model.layers.11.mlp.down_proj.weight"),
    ],
    ids=["a layer of lora", "all magnitudes of dora", "some matrices of full"],
)
def test_adapter_lacking_some_arrays_of_its_layers_is_refused(
    kind: str, keeps: Callable[[str], bool], what: str, nano_pair: NanoPair, tmp_path: Path
) -> None:
    made = adapter(nano_pair.target, tmp_path / "french", kind, num_layers=2)
    ModelFolder(nano_pair.target, adapter=made).open()
    only(keeps)(made)
    with pytest.raises(ModelLoadError, match="arrays that adapter_config.json lists") as caught:
        ModelFolder(nano_pair.target, adapter=made).open()
    assert what in caught.value.message
    assert caught.value.cure == "fetch the adapter again, with its own adapter_config.json"


# vocabularies


@pytest.mark.parametrize("wide", ["target", "draft"])
def test_target_and_draft_with_different_vocabulary_padding_speculate_together(
    wide: str, nano_pair: NanoPair, tmp_path: Path
) -> None:
    """What the wide one would say is in its padding: the target says it, and the draft does not."""
    padded = widened(nano_pair.draft, tmp_path / "wide", 64, value=-5.0)
    target, draft = (padded, nano_pair.draft) if wide == "target" else (nano_pair.draft, padded)
    models = loaded(target, draft)
    assert models.info.vocab_size == 4096 + 64 * (wide == "target")
    assert DRAFT_MODEL in models.info.drafters
    expected = reference(target)
    assert texts(models, Way(0), Way(4)) == [expected, expected]
    assert (max(expected) >= 4096) == (wide == "target")
    sampled = texts(models, Way(0), Way(4), temperature=1.5, seed=11)
    assert sampled[0] == sampled[1]
    assert len(texts(models, Way(4), temperature=1.5)[0]) == TOKENS


@pytest.mark.parametrize("rows", [-96, 96])
def test_draft_model_proposes_only_tokens_of_the_targets_vocabulary(
    rows: int, nano_pair: NanoPair, tmp_path: Path
) -> None:
    """`rows`: how many more the draft has. They would be all that it drafts, were they not cut."""
    like = nano_pair.draft if rows < 0 else widened(nano_pair.draft, tmp_path / "wide", rows, value=-5.0)
    model, _ = ModelFolder(str(like)).open()
    vocabulary, text = 4096 - min(rows, 0), Text([*PROMPT])
    drafter = DraftModel(model, vocabulary)
    assert drafter.prefill(text, 100)
    assert rows < 0 or model(mx.array([PROMPT]))[0, -1].argmax().item() >= 4096
    for sampling in (SamplingParams(), SamplingParams(2.0, seed=3), SamplingParams(2.0)):
        draft = drafter.propose([text], [4], Sampling([sampling]))
        assert max(draft.tokens.tolist()[0]) < 4096
    assert draft.q is not None
    assert draft.q.shape == (1, 4, vocabulary)
    assert draft.q.sum(axis=-1).tolist()[0] == pytest.approx([1.0] * 4, abs=1e-5)
    assert draft.q[..., 4096:].sum().item() == 0


def test_padding_tokens_in_prompt_never_index_beyond_draft_embeddings(nano_pair: NanoPair, tmp_path: Path) -> None:
    """Beyond an array's end MLX reads what lies there."""
    folder = widened(nano_pair.draft, tmp_path / "wide", 1 << 16)
    models = loaded(folder, nano_pair.draft)
    fed: list[int] = []

    class Noting(type(models.draft.model.embed_tokens)):  # type: ignore[misc]
        def __call__(self, tokens: mx.array) -> mx.array:
            fed.extend(tokens.reshape(-1).tolist())
            return super().__call__(tokens)

    models.draft.model.embed_tokens.__class__ = Noting
    prompt = [*PROMPT, 4096 + 60_000, *PROMPT, 4096]
    expected = reference(folder, prompt=prompt)
    assert texts(models, Way(4), prompt=prompt) == [expected]
    assert max(fed) == 4095


# models that take more than text

VISION = {
    "qwen3_vl": ("language_model.", "vision_tower.patch_embed.weight"),
    "mistral3": ("language_model.", "multi_modal_projector.linear_1.weight"),
    "gemma3": ("language_model.", "vision_tower.vision_model.embeddings.weight"),
    "kimi_vl": ("language_model.", "vision_tower.encoder.weight"),
}


@pytest.mark.parametrize("name", VISION)
def test_vision_model_is_served_for_text_only_with_mlx_lms_text(name: str, nano_pair: NanoPair, tmp_path: Path) -> None:
    """In mlx-vlm's layout, with the weights of both."""
    _, tower = VISION[name]
    model = tiny(name)
    for file in Path(nano_pair.draft).glob("tokenizer*"):
        shutil.copy(file, tmp_path)
    config = configuration(name) | {"vision_config": {"hidden_size": 8}, "image_token_index": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = dict(tree_flatten(model.parameters())) | {tower: mx.zeros((4, 4))}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), weights)
    told: list[str] = []
    models = load_models(str(tmp_path), progress=told.append)
    assert models.info.left_out == "vision"
    assert f"{tmp_path.name} is served for text only, without its vision" in told
    looked = check_models(load_settings(None, {"model.path": str(tmp_path)}, {}))
    assert any("; text only, without its vision" in finding.text for finding in looked)
    prompt = [one % 90 for one in PROMPT]
    assert texts(models, Way(0), prompt=prompt) == [reference(tmp_path, prompt=prompt)]
