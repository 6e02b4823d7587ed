"""A checkpoint's own draft head is found and opened in every published layout, and never disturbs its target."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from draftd.errors import ModelLoadError
from draftd.models.fingerprint import Fingerprints
from draftd.models.folder import ModelFiles, ModelFolder, model_files, parameters
from draftd.models.head_families import HeadFiles
from draftd.models.head_weights import open_head
from draftd.models.heads import find_head, head_repository
from draftd.models.shards import HEAD_ARRAY
from tests.heads.layouts import LAYOUTS, REFUSED
from tests.heads.layouts.files import Config, Tensors, bf16, read_safetensors, write_safetensors
from tests.heads.layouts.layout import Layout
from tests.heads.make_fixtures import target_states
from tests.heads.numbers import draft_logits
from tests.heads.reference import Array, fixtures

FIXTURES = fixtures()
BY_NAME = {layout.name: layout for layout in LAYOUTS}
SIDECAR = "qwen3_5_mlx_sidecar_raw"
UNREAD = re.compile(r"(embed_tokens|shared_head\.head)\.|t2d$")  # copies of the target's, and what d2t says too
TAPS = "eagle_aux_hidden_state_layer_ids"
ABOVE = "../elsewhere.safetensors"


@dataclass(frozen=True)
class Written:
    """A layout's folder, and the folder of its target."""

    layout: Layout
    folder: Path

    @property
    def target(self) -> Path:
        return self.layout.target_folder(self.folder)

    @property
    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = json.loads((self.target / "config.json").read_text())
        return config

    def head(self) -> HeadFiles:
        """Returns the head that is found where the layout has it."""
        if self.layout.is_drafter:
            head = head_repository(self.layout.head_folder(self.folder))
        else:
            head = find_head(self.target, self.config)
        assert head is not None
        return head

    def model(self) -> Any:
        return ModelFolder(str(self.target)).open()[0]

    def change(self, change: Callable[[Tensors], Tensors]) -> None:
        """Rewrites the file that the head is in."""
        file = self.folder / self.layout.head.file
        tensors, metadata = read_safetensors(file)
        write_safetensors(file, change(dict(tensors)), metadata)


def written(name: str, folder: Path) -> Written:
    layout = BY_NAME[name]
    layout.write(folder)
    (layout.target_folder(folder) / "tokenizer.json").write_text("{}")
    return Written(layout, folder)


@pytest.fixture
def sidecar(tmp_path: Path) -> Written:
    """A converted target with a raw head beside it."""
    return written(SIDECAR, tmp_path / "model")


@pytest.fixture(scope="module")
def headless(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Written], list[mx.array]]:
    """Returns a target's weights as they are opened where no head is beside it, which is the same in its raw layouts,
    and in its converted ones."""
    opened = dict[tuple[str, bool], list[mx.array]]()

    def weights(model: Written) -> list[mx.array]:
        name, prefixes = model.layout.name, tuple(filter(None, model.layout.head.prefixes))
        key = model.layout.target, "_raw" in re.sub("_4bit$|sidecar_raw|embedded_raw", "", name)
        if key not in opened:
            folder = shutil.copytree(model.target, tmp_path_factory.mktemp("headless") / "model")
            for file in folder.rglob("*.safetensors"):
                tensors, metadata = read_safetensors(file)
                own = {
                    name: tensor
                    for name, tensor in tensors.items()
                    if not HEAD_ARRAY.match(name) and not name.startswith(prefixes)
                }
                file.unlink()
                if own and file.name.startswith("model"):
                    write_safetensors(file, own, metadata)
            opened[key] = parameters(ModelFolder(str(folder)).open()[0])
        return opened[key]

    return weights


@pytest.mark.parametrize("name", BY_NAME)
def test_head_of_each_layout_gives_the_reference_logits_over_an_undisturbed_target(
    name: str, headless: Callable[[Written], list[mx.array]], tmp_path: Path
) -> None:
    model, fixture = written(name, tmp_path), FIXTURES[name]
    target = model.model()
    assert all(mx.array_equal(*pair).item() for pair in zip(parameters(target), headless(model), strict=True))
    files = model.head()
    assert not files.refusal
    head = open_head(files, target)
    if head.zero_centred:
        assert files.raw in (not model.layout.head.norms_shifted, None)
    assert head.form.taps == model.layout.taps
    states = target_states(target, fixture.tokens, normed=head.form.after_norm, taps=head.form.taps)
    np.testing.assert_allclose(states, fixture.hidden, atol=1e-3)
    np.testing.assert_allclose(draft_logits(head, fixture.hidden, fixture.tokens), fixture.logits, atol=1e-4)
    own, prefixes = mx.load(str(model.folder / model.layout.head.file)), model.layout.head.prefixes
    read = {stored for _, stored in files.names.values()}
    assert all(UNREAD.search(stored) for stored in own.keys() - read if stored.startswith(prefixes))
    assert files.nbytes == sum(own[stored].nbytes for stored in read)


@pytest.mark.parametrize(("name", "write"), REFUSED, ids=[name for name, _ in REFUSED])
def test_heads_of_other_families_are_refused_by_their_name(
    name: str, write: Callable[[Path], None], tmp_path: Path
) -> None:
    words = {
        "deepseek_v4": "DeepSeek-V4",
        "qwen4_exp": "Qwen3.8-Flash-Next",
        "gemma4_assistant": "Gemma 4",
    }
    write(tmp_path)
    heads = [find_head(tmp_path, json.loads((tmp_path / "config.json").read_text())), head_repository(tmp_path)]
    (head,) = [head for head in heads if head is not None]
    assert words[name] in head.refusal
    assert "does not serve" in head.refusal
    with pytest.raises(ModelLoadError, match=words[name]):
        open_head(head, None)


def without(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {stored: tensor for stored, tensor in tensors.items() if stored != name}


def with_array(name: str, array: Array) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {name: array}


UP, MOE_UP = "mtp.layers.0.mlp.up_proj", "mtp.layers.0.mlp.experts.2.up_proj"
FUSED = "mtp.layers.0.mlp.experts.gate_up_proj"
MISFITS: dict[str, tuple[str, Callable[[Tensors], Tensors], str]] = {
    "missing": (SIDECAR, without(f"{UP}.weight"), "lacks layers.0.mlp.up_proj.weight"),
    "no norm": (SIDECAR, without("mtp.norm.weight"), "lacks norm.weight"),
    "shape": (SIDECAR, with_array("mtp.fc.weight", bf16(np.ones((64, 64)))), r"fc.weight has the shape \(64, 64\)"),
    "unknown": (SIDECAR, with_array(f"{UP}.weight_scale_inv", bf16(np.ones(1))), "has layers.0.mlp.up_proj.weight_sc"),
    "two layers": (SIDECAR, with_array("mtp.layers.1.mlp.up_proj.weight", bf16(np.ones(1))), "has 2 layers"),
    "integers": (SIDECAR, with_array(f"{UP}.weight", np.ones((128, 64), np.uint32)), "up_proj.weight is uint32"),
    "packing": (
        f"{SIDECAR}_4bit",
        with_array(f"{UP}.scales", bf16(np.ones((128, 3)))),
        "up_proj is quantised in a way",
    ),
    "scales": (f"{SIDECAR}_4bit", without(f"{UP}.biases"), "lacks layers.0.mlp.up_proj.biases"),
    "expert": ("qwen3_next_raw", without(f"{MOE_UP}.weight"), "up_proj.weight: expert 2 is missing"),
    "expert's shape": ("qwen3_next_raw", with_array(f"{MOE_UP}.weight", bf16(np.ones((64, 8)))), "their shapes differ"),
    "last expert": (
        "qwen3_next_raw",
        without("mtp.layers.0.mlp.experts.3.up_proj.weight"),
        r"up_proj.weight has the s",
    ),
    "fused": ("qwen3_5_moe_raw", with_array(FUSED, bf16(np.ones((4, 3, 64)))), r"gate_up_proj has the shape"),
    "d2t": (SIDECAR, with_array("mtp.d2t", np.full(8, 250, np.int64)), "d2t leads to ids that are not among"),
    "d2t twice": (SIDECAR, with_array("mtp.d2t", -np.arange(8, dtype=np.int64)), "d2t leads to ids"),
}


@pytest.mark.parametrize("fault", MISFITS)
def test_head_that_does_not_fit_is_refused_by_array_and_its_target_opens(fault: str, tmp_path: Path) -> None:
    name, change, words = MISFITS[fault]
    model = written(name, tmp_path)
    model.change(change)
    head = model.head()
    assert model.layout.head.file in head.refusal
    with pytest.raises(ModelLoadError, match=words):
        open_head(head, model.model())


CONFIGS: dict[str, tuple[str, Config | list[Any], str]] = {
    "layer": (
        "eagle3_specforge",
        {"eagle_config": {TAPS: [0, 2, 6]}},
        r"is \[0, 2, 6\], and allowed are two to 16 lay",
    ),
    "one layer": ("eagle3_specforge", {"eagle_config": {TAPS: [3]}}, "and allowed are two to 16 layers from 0 to 5"),
    "names": ("eagle3_speculators", {TAPS: ["a", "b", "c"]}, "allowed are two to 16 layers from 0 to 6"),
    "list": ("eagle3_specforge", {"eagle_config": [3]}, r"eagle_config is \[3\], and allowed is an object"),
    "kind": ("eagle3_specforge", {"model_type": "gpt2"}, "cannot be opened over this target: TypeError"),
    "stops": ("eagle3_specforge", {"model_type": "olmo"}, "cannot be opened over this target: SystemExit"),
    "no object": ("eagle1", [], "config.json is no object"),
    "block": ("dflash", {"block_size": 1}, "block_size is 1, and allowed is 2 to 64"),
    "mask": ("dflash", {"dflash_config": {"target_layer_ids": [0, 1], "mask_token_id": 256}}, "allowed is 0 to 255"),
    "layer types": ("dflash", {"layer_types": ["full_attention"]}, "name 1 layers, and it has 2"),
}


@pytest.mark.parametrize("fault", CONFIGS)
def test_configuration_that_does_not_fit_a_head_is_refused_by_field_and_value(fault: str, tmp_path: Path) -> None:
    name, change, words = CONFIGS[fault]
    model = written(name, tmp_path)
    file = model.layout.head_folder(tmp_path) / "config.json"
    config = change if isinstance(change, list) else json.loads(file.read_text()) | change
    file.write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match=words):
        open_head(model.head(), model.model())


DAMAGE: dict[str, tuple[bytes, str]] = {
    "page": (b"<!DOCTYPE html><html>", "is no safetensors file"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
    "cut": (b"\x10\0\0\0\0\0\0\0{", "is cut off"),
    "other arrays": (b"\x02\0\0\0\0\0\0\0{}", "holds no draft head"),
}


@pytest.mark.parametrize(
    ("damage", "file"),
    [
        *((damage, "mtp.safetensors") for damage in DAMAGE),
        ("page", "mtp/weights.safetensors"),
        ("cut", "model-mtp.safetensors"),
        ("other arrays", "model-mtp.safetensors"),
    ],
)
def test_damaged_head_file_is_refused_alone_and_its_target_opens(sidecar: Written, damage: str, file: str) -> None:
    content, words = DAMAGE[damage]
    (sidecar.folder / "mtp.safetensors").unlink()
    (sidecar.folder / "mtp").mkdir()
    (sidecar.folder / file).write_bytes(content)
    sidecar.model()
    head = find_head(sidecar.folder, sidecar.config)
    assert head is not None
    assert words in head.refusal
    assert Path(file).name in head.refusal


def test_damaged_head_among_several_gives_way_to_a_sound_one(sidecar: Written) -> None:
    (sidecar.folder / "mtp").mkdir()
    (sidecar.folder / "mtp.safetensors").rename(sidecar.folder / "mtp" / "weights.safetensors")
    (sidecar.folder / "mtp.safetensors").write_bytes(b"<html>")
    head = sidecar.head()
    assert head.refusal == ""
    assert [file.parent.name for file in head.files] == ["mtp"]


@pytest.mark.parametrize(
    ("name", "served"),
    [
        ("elsewhere.safetensors", True),
        (ABOVE, False),
        (f"model/{ABOVE}", False),
        ("..", False),
        (".safetensors", False),
        ("a\0.safetensors", False),
        ("model.safetensors", False),
        (7, False),
    ],
)
def test_configured_head_file_is_read_only_from_the_model_folder_itself(
    sidecar: Written, name: object, served: bool
) -> None:
    head = sidecar.folder / "mtp.safetensors"
    for place in (sidecar.folder / ABOVE, sidecar.folder / "elsewhere.safetensors"):
        shutil.copy(head, place)
    head.unlink()
    for more in ({"mtp_file": name}, {"mlx_lm_extra_tensors": {"mtp_file": name}}):
        config = sidecar.config | more
        (sidecar.folder / "config.json").write_text(json.dumps(config))
        assert (find_head(sidecar.folder, config) is not None) is served


def test_configuration_keys_without_head_arrays_find_no_head(sidecar: Written) -> None:
    (sidecar.folder / "mtp.safetensors").unlink()
    config = sidecar.config | {"mtp_file": "mtp.safetensors", "num_nextn_predict_layers": 1}
    assert find_head(sidecar.folder, config) is None
    assert head_repository(sidecar.folder) is None


def test_whole_model_with_mtp_in_its_file_name_is_read_as_the_model(sidecar: Written) -> None:
    (sidecar.folder / "mtp.safetensors").unlink()
    (sidecar.folder / "model.safetensors").rename(sidecar.folder / "model-mtp-4bit.safetensors")
    sidecar.model()
    assert find_head(sidecar.folder, sidecar.config) is None


def test_missing_head_file_that_the_index_names_leaves_the_target_served(tmp_path: Path) -> None:
    model = written("qwen3_5_raw_sharded", tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    model.model()
    assert find_head(tmp_path, model.config) is None


def test_trimmed_head_has_the_logits_of_its_own_vocabulary(sidecar: Written) -> None:
    target, fixture = sidecar.model(), FIXTURES[SIDECAR]
    ids = np.array([0, 3, 4, 100, 255])
    whole = draft_logits(open_head(sidecar.head(), target), fixture.hidden, fixture.tokens, 1)
    sidecar.change(with_array("mtp.d2t", ids - np.arange(5)))
    files = sidecar.head()
    head = open_head(files, target)
    assert head.ids is not None
    assert head.ids.tolist() == ids.tolist()
    trimmed = draft_logits(head, fixture.hidden, fixture.tokens, 1)
    np.testing.assert_allclose(trimmed, whole[:, ids], atol=1e-5)


def test_head_with_its_own_embedding_and_output_layer_uses_them(sidecar: Written) -> None:
    target, fixture = sidecar.model(), FIXTURES[SIDECAR]
    whole = draft_logits(open_head(sidecar.head(), target), fixture.hidden, fixture.tokens, 1)
    body = target.language_model.model
    lm_head, embedding = np.array(target.language_model.lm_head.weight), np.array(body.embed_tokens.weight)
    ids = np.array([1, 5, 9])
    for arrays, expected in (
        ({"mtp.lm_head.weight": 2 * lm_head, "mtp.embed_tokens.weight": embedding}, 2 * whole),
        ({"mtp.lm_head.weight": lm_head[ids], "mtp.d2t": ids - np.arange(3)}, whole[:, ids]),
        ({"mtp.embed_tokens.weight": embedding[::-1]}, None),
    ):
        stored = read_safetensors(sidecar.folder / "mtp.safetensors")[0]
        sidecar.change(lambda tensors, more=arrays: tensors | more)  # type: ignore[misc]
        logits = draft_logits(open_head(sidecar.head(), target), fixture.hidden, fixture.tokens, 1)
        if expected is None:
            assert np.abs(logits - whole).max() > 0.1
        else:
            np.testing.assert_allclose(logits, expected, atol=1e-4)
        sidecar.change(lambda tensors, before=stored: before)  # type: ignore[misc]


def test_head_with_another_kind_of_layer_than_its_target_is_refused(sidecar: Written) -> None:
    config = {"model_type": "gemma3_text", "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 64}
    head = find_head(sidecar.folder, config)
    assert head is not None
    assert "lacks layers.0.post_feedforward_layernorm.weight" in head.refusal


def test_head_over_another_target_raises_with_the_wrong_shape(tmp_path: Path) -> None:
    dense = written("qwen3_5_drafter", tmp_path / "dense")
    moe = written("qwen3_5_moe_drafter", tmp_path / "moe")
    with pytest.raises(ModelLoadError, match=r"lacks layers.0.mlp.gate.weight"):
        open_head(dense.head(), moe.model())


def test_unreadable_head_file_raises_an_error_with_its_remedy(sidecar: Written) -> None:
    head, target = sidecar.head(), sidecar.model()
    (sidecar.folder / "mtp.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="the draft head cannot be read.*fetch the model again"):
        open_head(head, target)


@pytest.mark.parametrize(
    "name", ["qwen3_5_mlx_sidecar_raw", "qwen3_5_mlx_sidecar_bare", "qwen3_5_mlx_sidecar_mtp_file"]
)
def test_file_of_a_head_belongs_to_the_model_fingerprint_and_its_changes(name: str, tmp_path: Path) -> None:
    model, noted = written(name, tmp_path), ModelFiles.of(tmp_path)
    file = model.folder / model.layout.head.file
    assert (file, "weights") in model_files(tmp_path)
    prints = Fingerprints()
    assert file.name in {listed.name for listed in prints.of(tmp_path).files}
    file.unlink()
    assert noted.changed
    assert file.name not in {listed.name for listed in prints.of(tmp_path).files}
    assert file not in prints._digests
