"""How long a text may be: what the configuration declares, under any of its names, or what `model.max_context` says."""

from __future__ import annotations

import logging

import pytest

from draftd.engine.pair import load_models
from draftd.models.configuration import context_length_of
from draftd.settings import load_settings
from tests.conftest import NanoPair
from tests.doctor_findings import check_models
from tests.models.configurations import FULL, SLIDING
from tests.unit.models.test_configuration import LLAMA_3, LONG, YARN, Config, table

YARN_4 = {"type": "yarn", **YARN}
LENGTHS: dict[str, tuple[Config, int]] = {
    "the usual name": ({"max_position_embeddings": 777}, 777),
    "gpt2's": ({"n_positions": 128, "n_ctx": 64}, 128),
    "an older gpt2's": ({"n_ctx": 128}, 128),
    "olmo's": ({"max_sequence_length": 128}, 128),
    "chatglm's": ({"seq_length": 128}, 128),
    "baichuan's": ({"model_max_length": 128}, 128),
    "dbrx's": ({"max_seq_len": 128}, 128),
    "the text model's": ({"text_config": {"max_position_embeddings": 128}}, 128),
    "no text model": ({"text_config": None}, 99),
    "none, or one that is no number": ({"max_position_embeddings": None, "n_positions": True}, 99),
    "yarn": ({"max_position_embeddings": 1024, "rope_scaling": {"type": "yarn", "factor": 4.0}}, 4096),
    "yarn, an older name of long rope": (
        {"max_position_embeddings": 1024, "rope_scaling": {"type": "yarn", "factor": 4} | LONG},
        1024,
    ),
    "yarn that is declared": ({"max_position_embeddings": 512, "rope_scaling": {"type": "yarn", **YARN}}, 512),
    "yarn that is not declared": ({"max_position_embeddings": 128, "rope_parameters": table(kind="yarn", **YARN)}, 512),
    "yarn by more than is declared": ({"max_position_embeddings": 300, "rope_scaling": YARN_4}, 512),
    "linear": ({"max_position_embeddings": 128, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 1024),
    "dynamic": ({"n_positions": 128, "rope_theta": 5.0, "rope_scaling": {"type": "dynamic", "factor": 2.5}}, 320),
    "the full layers'": (
        {
            "max_position_embeddings": 128,
            "rope_parameters": {SLIDING: table(), FULL: table(kind="linear", factor=2.0)},
        },
        256,
    ),
    "gemma3's declares it scaled": (
        {"model_type": "gemma3_text", "max_position_embeddings": 128}
        | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        128,
    ),
    "llama 3's": ({"max_position_embeddings": 512, "rope_scaling": {"rope_type": "llama3", **LLAMA_3}}, 512),
    "long rope": ({"max_position_embeddings": 512, "rope_scaling": {"type": "longrope", "factor": 9.0, **LONG}}, 512),
    "su": ({"max_position_embeddings": 512, "rope_scaling": {"type": "su", **LONG}}, 512),
}


@pytest.mark.parametrize("case", LENGTHS)
def test_context_length_is_read_from_model_config_under_each_known_name_and_scaling(case: str) -> None:
    class Silent:
        model_max_length = 99

    config, expected = LENGTHS[case]
    assert context_length_of(config, Silent()) == expected


def test_max_context_setting_lowers_context_length_or_raises_it_with_warning(
    nano_pair: NanoPair, caplog: pytest.LogCaptureFixture
) -> None:
    declared = load_models(nano_pair.draft, progress=lambda line: None).info.context_length
    lowered = load_models(nano_pair.draft, max_context=256, progress=lambda line: None)
    assert lowered.info.context_length == 256
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        raised = load_models(nano_pair.draft, max_context=declared + 1, progress=lambda line: None)
    assert raised.info.context_length == declared + 1
    assert f"model.max_context raises the context to {declared + 1:,} tokens" in caplog.text
    findings = check_models(load_settings(None, {"model.path": nano_pair.draft, "model.max_context": declared + 1}, {}))
    (note,) = (finding for finding in findings if finding.subject == "max_context")
    assert note.text in caplog.text
