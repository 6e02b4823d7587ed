"""The seam behind which drafters stand: what is registered by name serves requests, and rolls itself back."""

from __future__ import annotations

import random

import mlx.core as mx
import pytest

from draftd.cli.options import check_drafters
from draftd.core import BUILT_IN_DRAFTERS, PROMPT_LOOKUP, DepthMode, SamplingParams
from draftd.engine.drafters.base import Draft, DraftSequence, Text, TextDrafter, merge
from draftd.engine.drafters.draft_model import DraftModel
from draftd.engine.drafters.registry import DrafterNeeds, DrafterRegistry, built_in_drafters
from draftd.engine.pair import LoadedModels, assemble
from draftd.engine.sampling.transforms import Sampling
from draftd.errors import ConfigError
from draftd.fronts.grpc.inference import request_of
from draftd.planning.planner import RequestedPlan
from draftd.service.request import ServedModel, validate_request
from draftd.settings import Settings
from draftd.v1 import inference_pb2 as pb
from tests.rig import automatic, autoregressive, request, speculative, tiny_llama
from tests.scripted import ByteTokenizer

VOCAB = 32
GREEDY = SamplingParams()


class Repeat(TextDrafter):
    """Guesses that the last token comes again."""

    def continuation(self, sequence: DraftSequence, depth: int) -> list[int]:
        return [sequence.tokens[-1]] * depth


def models_with(registry: DrafterRegistry, draft: object = None) -> LoadedModels:
    tokenizer = ByteTokenizer(VOCAB)
    tokenizer.eos_ids = frozenset()
    names = {"model": "target", "draft_model": None, "backend": "test"}
    return assemble(tiny_llama(1), draft, tokenizer, context_length=4096, registry=registry, **names)


def test_registered_custom_drafter_serves_request_by_name(running):
    registry = built_in_drafters()
    registry.register("repeat", lambda provided: Repeat())
    engine = running(lambda: models_with(registry))
    info = engine.worker.info
    assert info.drafters == (PROMPT_LOOKUP, "repeat")
    model = ServedModel(info, 32, 4, DepthMode.FIXED, chat_template=False)
    assert validate_request(request_of(pb.GenerateRequest(prompt="x", drafter="repeat")), model).wish == RequestedPlan(
        drafter="repeat"
    )
    plans = autoregressive(), speculative(4, "repeat"), automatic(4, "repeat")
    sinks = [engine.ask(request([3, 1, 4, 1, 5], plan, max_tokens=40)) for plan in plans]
    engine.ended(*sinks)
    assert sinks[0].tokens == sinks[1].tokens == sinks[2].tokens
    assert sinks[1].done.stats.counts.drafted >= 40
    assert sinks[1].done.degraded == ""


def test_drafter_with_unmet_requirement_is_not_offered_and_reason_is_given():
    registry = built_in_drafters()
    registry.register("eagle", lambda provided: Repeat(), DrafterNeeds.HEAD)
    registry.register("medusa", lambda provided: Repeat(), DrafterNeeds.MODEL)
    info = models_with(registry).info
    assert info.drafters == (PROMPT_LOOKUP,)
    assert info.registered_drafters == (*BUILT_IN_DRAFTERS, "eagle", "medusa")
    needed = "it needs a head that drafts from the target's hidden states, and none is configured for it"
    assert info.why_no("eagle") == needed
    assert info.why_no("medusa") == "it needs a model of its own, and none is configured for it"


def test_drafter_registry_rejects_unknown_taken_and_malformed_names():
    registry = built_in_drafters()
    with pytest.raises(
        ConfigError, match="model.drafter: got 'eagle'; allowed: draft_model, draft_head, light_draft_m"
    ):
        registry.get("eagle", "model.drafter")
    with pytest.raises(ConfigError, match="in use: draft_model, draft_head, light_draft_model, prompt_lookup"):
        registry.register(PROMPT_LOOKUP, lambda provided: Repeat())
    with pytest.raises(ConfigError, match="lower-case letters"):
        registry.register("Eagle 3", lambda provided: Repeat())


@pytest.mark.parametrize("seed", range(12))
def test_draft_model_after_guess_rollback_proposes_the_same_as_a_fresh_draft_model(seed):
    """Whatever is guessed, taken back and guessed anew, its proposals are those of one that knows only the text."""
    dice, model, sampling = random.Random(seed), tiny_llama(2), Sampling([GREEDY])
    drafter, text = DraftModel(model, VOCAB), Text([1, 2, 3, 4])
    assert drafter.prefill(text, 100)
    final = list(text.tokens)
    for _ in range(5):
        guesses = [dice.randrange(VOCAB) for _ in range(dice.randrange(4))]
        text.tokens, text.guesses = [*final, *guesses], len(guesses)
        fresh, other = Text(list(text.tokens)), DraftModel(model, VOCAB)
        assert other.prefill(fresh, 100)
        depth = dice.randint(1, 4)
        drafted = drafter.propose([text], [depth], sampling).tokens.tolist()
        assert drafted == other.propose([fresh], [depth], sampling).tokens.tolist()
        continued = [*guesses, *drafted[0]] if dice.random() < 0.5 else [dice.randrange(VOCAB) for _ in range(3)]
        final += continued[: dice.randint(1, len(continued))]


def test_merged_draft_keeps_proposal_of_each_sequence():
    one = Draft(mx.array([[1, 2, 3]], dtype=mx.uint32), [3], None, [3])
    two = Draft(mx.array([[4], [0]], dtype=mx.uint32), [1, 0], None, [0, 0])
    merged = merge([([2], one), ([0, 3], two)], 4, 10, deterministic=True)
    assert merged is not None
    assert merged.depths == [1, 0, 3, 0]
    assert merged.forwards == [0, 0, 3, 0]
    assert merged.tokens.tolist()[0][:1] == [4]
    assert merged.tokens.tolist()[2] == [1, 2, 3]


def test_merging_empty_proposals_gives_no_draft():
    empty = Draft(mx.zeros((1, 0), dtype=mx.uint32), [0], None, [0])
    assert merge([([0], empty)], 1, 10, deterministic=True) is None
    assert merge([], 3, 10, deterministic=True) is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"model": {"drafter": "eagle"}},
            "model.drafter: got 'eagle'; allowed: draft_model, draft_head, light_draft_model",
        ),
        (
            {"fallback": {"lighter": ["eagle"]}},
            "fallback.lighter: got 'eagle'; allowed: draft_model, draft_head, light",
        ),
    ],
)
def test_setting_naming_unknown_drafter_is_refused_with_config_error(settings, said):
    with pytest.raises(ConfigError, match=said):
        check_drafters(Settings(**settings), built_in_drafters())
