"""The lines of `draftd status` on a model and its drafters, and the words for the drafters of a level."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from draftd.cli import ladder
from draftd.cli.commands.status import describe_head, lines
from draftd.core import DRAFT_HEAD, DRAFT_MODEL, LIGHT_DRAFT_MODEL, PROMPT_LOOKUP, DrafterName
from draftd.v1 import control_pb2 as pb
from draftd.v1 import inference_pb2 as inference

FAMILY = "MTP head of the Qwen3-Next and Qwen3.5 form"
FORM = "embedding, hidden; states after the norm; norms + 1"
HEAD = inference.DraftHead(
    kind="mtp", family=FAMILY, files=["mtp.safetensors"], file_bytes=4_200_000, form=FORM, accepted=0.62, positions=255
)
HEAD_ONLY = (DRAFT_HEAD, PROMPT_LOOKUP)


def model(*drafters: DrafterName, **fields: object) -> inference.GetModelResponse:
    return inference.GetModelResponse(
        model="m", drafters=drafters, speculation_available=True, max_draft_tokens=4, **fields
    )


def shown(response: inference.GetModelResponse) -> dict[str, str]:
    status = pb.GetStatusResponse(model=response, flag_variant="on", level="full", max_draft_tokens=4)
    return {name: text for name, text in lines(status, datetime.now(UTC)) if name}


def test_status_describes_a_draft_head_by_family_files_trial_and_form() -> None:
    rows = shown(model(*HEAD_ONLY, draft_head=HEAD))
    assert rows["draft"] == "none"
    assert rows["draft head"] == f"{FAMILY}, 4 MB in mtp.safetensors; 62% of 255 tokens accepted in the trial; {FORM}"
    assert rows["speculation"].endswith("up to 4 draft tokens at a time")


def test_status_gives_the_reason_for_which_a_draft_head_is_refused() -> None:
    refused = inference.DraftHead(family=FAMILY, files=["a", "b", "c"], refusal="it lacks fc.weight")
    rows = shown(model(PROMPT_LOOKUP, draft_head=refused, speculation_reason="no draft model is loaded"))
    assert rows["draft head"] == f"{FAMILY} in 3 files, refused: it lacks fc.weight"
    assert rows["speculation"].endswith("from prompt_lookup; no draft model is loaded")


def test_status_of_a_model_without_a_draft_head_has_no_line_for_it() -> None:
    assert "draft head" not in shown(model(DRAFT_MODEL, draft_model="d"))


def test_draft_head_whose_weights_were_not_read_awaits_its_trial() -> None:
    untried = inference.DraftHead(family=FAMILY, files=["mtp.safetensors"], file_bytes=4_200_000)
    assert "a trial when the weights are loaded decides whether after or before the final norm" in describe_head(
        untried
    )
    eagle = inference.DraftHead(kind="eagle", family="EAGLE-3 head", files=["model.safetensors"])
    assert "it reads the model's hidden states, a trial when the weights are loaded decides which" in describe_head(
        eagle
    )


@pytest.mark.parametrize(
    ("drafters", "fixed", "text"),
    [
        ((DRAFT_MODEL, PROMPT_LOOKUP), False, "up to 4 tokens a step from draft_model"),
        (HEAD_ONLY, False, "up to 4 tokens a step from draft_head"),
        (HEAD_ONLY, True, "up to 4 tokens a step from draft_head"),
        ((DRAFT_MODEL, DRAFT_HEAD), False, "up to 4 tokens a step from draft_model or draft_head"),
        ((DRAFT_MODEL, DRAFT_HEAD), True, "up to 4 tokens a step from draft_model"),
        ((PROMPT_LOOKUP,), False, "up to 4 tokens a step from prompt_lookup, as there is no draft_model"),
        ((PROMPT_LOOKUP,), True, "no drafts: there is no draft_model"),
    ],
)
def test_words_for_a_level_name_the_drafters_that_stand_in_for_a_draft_model(
    drafters: tuple[DrafterName, ...], fixed: bool, text: str
) -> None:
    mode = inference.DEPTH_MODE_FIXED if fixed else inference.DEPTH_MODE_AUTOMATIC
    level = pb.LadderLevel(level="short_block", max_draft_tokens=4, drafter=DRAFT_MODEL)
    assert ladder.drafting(level, model(*drafters, depth_mode=mode)) == text


def test_draft_head_does_not_stand_in_for_a_light_draft_model() -> None:
    level = pb.LadderLevel(level="light_draft", max_draft_tokens=2, drafter=LIGHT_DRAFT_MODEL)
    assert ladder.drafting(level, model(DRAFT_HEAD)) == "no drafts: there is no light_draft_model"
