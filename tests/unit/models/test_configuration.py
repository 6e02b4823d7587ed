"""A configuration is served with the same numbers whichever version of transformers wrote it, or it is refused."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from draftd.cli.findings import Severity
from draftd.engine.pair import load_models
from draftd.errors import ModelLoadError
from draftd.models.configuration import check_read, computation, normalise
from draftd.models.folder import ModelFolder
from draftd.settings import load_settings
from tests.conftest import NanoPair
from tests.doctor_findings import check_models
from tests.models.architectures import configuration
from tests.models.configurations import FULL, SLIDING
from tests.models.forms import forms, version_4
from tests.models.tiny import logits, stored, tiny
from tests.unit.models.checkpoints import rewrite

Config = dict[str, Any]

LONG = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "original_max_position_embeddings": 128}
YARN = {"factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32.0, "beta_slow": 1.0}
LLAMA_3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "rotary_emb_base", "rotary_pct")


def table(theta: float = 10000.0, kind: str = "default", **more: Any) -> Config:
    """`rope_parameters` as version 5 writes it."""
    return {"rope_theta": theta, "rope_type": kind, **more}


def of(architecture: str, **keys: Any) -> Config:
    """Its tiny configuration, with no other keys of the rotary embedding than these."""
    config = copy.deepcopy(configuration(architecture))
    part = config.get("text_config", config)
    for name in ROPE_KEYS:
        config.pop(name, None)
        part.pop(name, None)
    part.update(keys)
    return config


# Of each architecture: the keys of the form that its code in mlx-lm reads, and those of the other version.
FORMS: dict[str, tuple[str, Config, Config]] = {
    "another theta": ("llama", {"rope_theta": 500.0}, {"rope_parameters": table(500.0)}),
    "linear": (
        "llama",
        {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 8.0}},
        {"rope_parameters": table(kind="linear", factor=8.0)},
    ),
    "llama 3's": (
        "llama",
        {"rope_theta": 500.0, "rope_scaling": {"rope_type": "llama3", **LLAMA_3}},
        {"rope_parameters": table(500.0, "llama3", **LLAMA_3)},
    ),
    "an architecture by another name": ("mistral", {"rope_theta": 500.0}, {"rope_parameters": table(500.0)}),
    "no scaling at all": ("gemma2", {"rope_theta": 500.0}, {"rope_parameters": table(500.0)}),
    "theta without a default": ("granite", {"rope_theta": 500.0}, {"rope_parameters": table(500.0)}),
    "experts": ("mixtral", {"rope_theta": 500.0}, {"rope_parameters": table(500.0)}),
    "a whole number as factor": (
        "deepseek",
        {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 8.0}},
        {"rope_parameters": table(500.0, "linear", factor=8)},
    ),
    "latent attention that cannot do without scaling": (
        "deepseek_v2",
        {"rope_theta": 500.0, "rope_scaling": {"type": "yarn", "factor": 1.0}},
        {"rope_parameters": table(500.0)},
    ),
    "long rope": (
        "phi3",
        {"rope_theta": 500.0, "partial_rotary_factor": 1.0, "rope_scaling": {"type": "longrope", **LONG}}
        | {"original_max_position_embeddings": 128},
        {"rope_parameters": table(500.0, "longrope", partial_rotary_factor=1.0, **LONG)},
    ),
    "a part of each head": (
        "stablelm",
        {"rope_theta": 500.0, "partial_rotary_factor": 0.25},
        {"rope_parameters": table(500.0, partial_rotary_factor=0.25)},
    ),
    "names of its own": (
        "gpt_neox",
        {"rotary_emb_base": 500, "rotary_pct": 0.25},
        {"rope_parameters": table(500.0, partial_rotary_factor=0.25)},
    ),
    "a table for each type of layer": (
        "gemma3_text",
        {"rope_theta": 5000.0, "rope_local_base_freq": 50.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {"rope_parameters": {FULL: table(5000.0, "linear", factor=8.0), SLIDING: table(50.0)}},
    ),
    "windows without scaling": (
        "olmo3",
        {"rope_theta": 500.0, "rope_scaling": {"rope_type": "yarn", **YARN}},
        {"rope_parameters": {FULL: table(500.0, "yarn", **YARN), SLIDING: table(500.0)}},
    ),
    "a text model inside": (
        "qwen2_vl",
        {"rope_theta": 500.0, "rope_scaling": None},
        {"rope_parameters": table(500.0, mrope_section=[2, 3, 3])},
    ),
    "theta from the new form, scaling from the old": (
        "exaone_moe",
        {"rope_theta": 500.0, "rope_scaling": {"rope_type": "yarn", **YARN}},
        {"rope_parameters": table(500.0, "yarn", **YARN)},
    ),
    "only the new form": (
        "qwen3_5",
        {"rope_parameters": table(500.0, partial_rotary_factor=0.5)},
        {"rope_theta": 500.0, "rope_scaling": None, "partial_rotary_factor": 0.5},
    ),
    "the new form without layers": (
        "laguna",
        {"rope_parameters": {FULL: table(500.0), SLIDING: table(500.0)}},
        {"rope_parameters": table(500.0)},
    ),
    "an older name of long rope": (
        "llama",
        {"rope_theta": 500.0, "rope_scaling": {"rope_type": "longrope", **LONG}},
        {"rope_theta": 500.0, "rope_scaling": {"type": "su", **LONG}},
    ),
    "yarn without its original length": (
        "llama",
        {"rope_theta": 500.0, "rope_scaling": {"type": "yarn", **YARN, "original_max_position_embeddings": 512}},
        {"rope_theta": 500.0, "rope_scaling": {"type": "yarn", "factor": 4.0}},
    ),
    "yarn with a factor for attention": (
        "llama",
        {"rope_theta": 500.0, "rope_scaling": {"type": "yarn", **YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
        {"rope_theta": 500.0, "rope_scaling": {"type": "yarn", **YARN, "attention_factor": 1.0}},
    ),
}


@pytest.fixture
def uncompiled() -> Iterator[None]:
    """Compiling a kernel takes longer than these forwards do."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("form", FORMS)
def test_model_config_of_either_transformers_version_gives_mlx_lms_logits(form: str, tmp_path: Path) -> None:
    architecture, read, other = FORMS[form]
    model = tiny(architecture, of(architecture, **read))
    expected = logits(model)
    for name, keys in (("read", read), ("other", other)):
        served, _ = ModelFolder(str(stored(tmp_path / name, model, of(architecture, **keys)))).open()
        assert mx.allclose(logits(served), expected, rtol=0, atol=1e-3).item(), name


def test_model_config_that_its_architecture_reads_natively_is_not_changed() -> None:
    own = {FULL: table(500.0), SLIDING: table(50.0)}
    assert normalise(of("gemma4_text", rope_parameters=own)) == of("gemma4_text", rope_parameters=own)
    whole = {"model_type": "gemma4_unified", "text_config": {"model_type": "of its own", "rope_parameters": own}}
    assert normalise(whole) == whole
    for architecture in ("qwen3", "lfm2", "mistral4", "glm_moe_dsa", "olmo_hybrid"):
        kept = normalise(of(architecture, rope_parameters=table(500.0)))
        assert kept["rope_parameters"] == table(500.0), architecture
    assert normalise(of("olmo_hybrid", rope_parameters=table() | {"rope_theta": None})).get("rope_theta") is None


TINY_CLASS = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 16, "n_embd": 64, "n_layer": 4, "n_head": 4,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1, "kv_lora_rank": 32, "q_lora_rank": 32,
    "num_heads": 8, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16, "first_k_dense_replace": 1,
}  # fmt: skip


def written(architecture: str) -> Config:
    """The configuration of a small model as the installed transformers, version 5, writes it."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[architecture]
    text = kind.sub_configs.get("text_config", kind)
    own = {name: value for name, value in TINY_CLASS.items() if name in text.__dataclass_fields__}
    configured = kind(**own) if text is kind else kind(text_config=own)  # type: ignore[call-arg]
    config: Config = json.loads(configured.to_json_string())
    return config


BOTH_VERSIONS = (
    "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "ernie4_5", "gemma", "gemma2", "gemma3", "gemma3_text", "glm",
    "glm4", "gpt_neox", "gpt_oss", "granite", "granitemoe", "helium", "hunyuan_v1_dense", "llama", "mistral", "mixtral",
    "nemotron", "olmo2", "olmo3", "phi", "phi3", "qwen2", "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_5", "qwen3_moe",
    "smollm3", "stablelm", "starcoder2",
)  # fmt: skip
ONE_VERSION = (
    "apertus",
    "exaone_moe",
    "glm_moe_dsa",
    "lfm2",
    "longcat_flash",
    "mamba2",
    "gemma4_text",
    "gemma4_unified",
    "gptj",
    "gpt2",
    "kimi_linear",
    "laguna",
    "mimo_v2_flash",
    "nanochat",
    "solar_open",
)


@pytest.mark.parametrize("architecture", BOTH_VERSIONS)
def test_model_configs_of_both_transformers_versions_describe_the_same_computation(architecture: str) -> None:
    config = written(architecture)
    assert "rope_parameters" in config.get("text_config", config)
    older = version_4(config)
    for form in (config, older):
        check_read(form)
    assert computation(normalise(config)).facts == computation(normalise(older)).facts


# Their layers, heads, experts or vocabulary have another name in one version, or the rotary embedding is a part's.
RENAMED = ("cohere2", "qwen3_next", "exaone4", "gemma3", "gemma4_text", "bailing_hybrid", "kimi_linear", "qwen3_5_moe")


@pytest.mark.parametrize("architecture", RENAMED)
def test_renamed_model_config_fields_describe_the_same_computation(architecture: str) -> None:
    read, *written = forms(architecture)
    for form in written:
        check_read(form)
        assert computation(normalise(form)).facts == computation(read).facts


@pytest.mark.parametrize(
    "config",
    [
        of("minicpm3", rope_theta=10000.0, rope_scaling={"type": "longrope", "short_factor": 1.0, "long_factor": 1.0}),
        of("gemma4_text", rope_parameters=table(500.0)),
        of("gemma4", rope_parameters=table(500.0)),
        of("gemma4_text", rope_theta=500.0),
        of("nanochat", rope_theta=500.0, final_logit_softcapping=15.0),
        of("gemma3_text", rope_theta=500.0, rope_local_base_freq=50.0, num_hidden_layers=2),
    ],
    ids=["long rope by 1", "one table", "one table inside", "a theta beside", "a constant cap", "no full layers"],
)
def test_neutral_model_config_values_are_accepted(config: Config) -> None:
    check_read(config)


@pytest.mark.parametrize("architecture", ONE_VERSION)
def test_model_config_existing_in_one_transformers_version_only_is_accepted(architecture: str) -> None:
    check_read(written(architecture))


def test_model_config_names_of_one_transformers_version_are_translated() -> None:
    experts = of("qwen3_moe")
    experts["num_local_experts"] = experts.pop("num_experts")
    del experts["head_dim"], experts["tie_word_embeddings"]
    own = normalise(experts)
    assert (own["num_experts"], own["head_dim"], own["tie_word_embeddings"]) == (4, 16, True)
    positions = of("gpt2")
    del positions["n_ctx"]
    assert normalise(positions)["n_ctx"] == positions["n_positions"]
    types = of("granitemoehybrid", layer_types=["linear_attention", FULL])
    assert normalise(types)["layer_types"] == ["mamba", "attention"]
    mimo = normalise(written("mimo_v2_flash"))
    assert (mimo["hybrid_layer_pattern"], mimo["moe_layer_freq"]) == ([0, 1, 1, 1], [0, 1, 1, 1])
    assert (mimo["sliding_window_size"], mimo["swa_num_key_value_heads"]) == (128, 4)
    kimi = normalise(written("kimi_linear"))
    assert kimi["linear_attn_config"]["kda_layers"] == [1, 2, 3, 4]
    assert (kimi["linear_attn_config"]["num_heads"], kimi["first_k_dense_replace"]) == (32, 1)
    for config in (of("llama"), of("gpt2")):  # where nothing is missing, nothing is added
        assert normalise(config) == config


YARN_4 = {"type": "yarn", **YARN}
REFUSED: dict[str, tuple[Config, str]] = {
    "scaling that is not computed": (of("gemma2", rope_theta=500.0, rope_scaling=YARN_4), "rope_scaling yarn × 4 "),
    "in the new form": (
        of("mixtral", rope_parameters=table(kind="linear", factor=8.0)),
        "rope_scaling linear × 8 ",
    ),
    "scaling that ends in an error": (
        of("qwen2_moe", rope_theta=500.0, rope_scaling=YARN_4),
        "rope_scaling yarn × 4 ",
    ),
    "scaling that mlx-lm drops": (of("phi3", rope_theta=500.0, rope_scaling=YARN_4), "rope_scaling yarn × 4 "),
    "a theta of the windows": (
        of("olmo3", rope_parameters={FULL: table(500.0), SLIDING: table(50.0)}),
        "rope_theta 50 of sliding_attention ",
    ),
    "scaling of the windows": (
        of("gemma3", rope_parameters={FULL: table(500.0), SLIDING: table(50.0, "linear", factor=2.0)}),
        "text_config.rope_scaling linear × 2 of sliding_attention ",
    ),
    "layers in no regular order": (
        of("gemma3_text", layer_types=[FULL, SLIDING, SLIDING, FULL]),
        "layer_types has full_attention at irregular intervals ",
    ),
    "another activation": (of("llama", rope_theta=500.0, hidden_act="gelu"), "hidden_act 'gelu' "),
    "capped logits": (of("qwen3", rope_theta=500.0, final_logit_softcapping=30.0), "final_logit_softcapping 30.0 "),
    "scaled logits": (of("olmo2", rope_theta=500.0, logits_scaling=8.0), "logits_scaling 8.0 "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_model_config_value_that_mlx_lm_ignores_is_refused_by_name(case: str) -> None:
    config, named = REFUSED[case]
    with pytest.raises(ModelLoadError) as refused:
        check_read(config)
    assert f"config.json: {named}" in refused.value.what
    assert repr(config["model_type"]) in refused.value.what
    assert "take the key out" in refused.value.cure


def test_doctor_and_serve_refuse_ignored_model_config_value_in_the_same_words(
    nano_pair: NanoPair, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(nano_pair.draft, folder)
    rewrite(folder / "config.json", hidden_act="gelu")
    with pytest.raises(ModelLoadError, match="hidden_act 'gelu'") as refused:
        load_models(str(folder), progress=lambda line: None)
    found = check_models(load_settings(None, {"model.path": str(folder)}, {}))[0]
    assert (found.verdict, found.mend) == (Severity.BAD, refused.value.cure)
    assert found.text in refused.value.what
