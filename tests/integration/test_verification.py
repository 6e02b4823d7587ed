"""A verifier and an edge of the test's own, over gRPC: the text is the verifier's own whoever proposes, and every token
is accounted for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence

import pytest

from draftd.core import SamplingParams
from draftd.engine.pair import load_models
from draftd.v1 import inference_pb2 as pb
from draftd.v1 import inference_pb2_grpc as rpc
from tests.conftest import NanoPair
from tests.in_process_daemon import Served, serving
from tests.wait_until import until
from tests.wire_edge import Decoded, Edge, Propose, at, decode

TOKENS = 24
PROMPTS = ("def fibonacci(n):\n", "import os\n\ndef ", "Once upon a time there was a")
GREEDY, SEEDED = SamplingParams(), SamplingParams(0.8, seed=7)

Answers = dict[SamplingParams, list[tuple[list[int], list[int]]]]
"""Prompts and what follows them."""


@pytest.fixture(scope="module")
def served(nano_pair: NanoPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    def models() -> object:
        return load_models(nano_pair.draft, nano_pair.draft, progress=lambda line: None)

    with serving(
        tmp_path_factory.mktemp("nano"),
        models,  # type: ignore[arg-type]
        verify={"enabled": True},
        engine={"max_draft_tokens": 8, "prefix_cache_bytes": 2**26},
    ) as served:
        yield served


@pytest.fixture(scope="module")
def answers(served: Served) -> Answers:
    prompts = [served.worker.tokenizer.encode(text) for text in PROMPTS]
    return {sampling: [(one, own(served, one, sampling)) for one in prompts] for sampling in (GREEDY, SEEDED)}


def own(served: Served, prompt: Sequence[int], sampling: SamplingParams) -> list[int]:
    """The text that the verifier itself answers."""
    given = pb.SamplingParams(temperature=sampling.temperature)
    if sampling.seed is not None:
        given.seed = sampling.seed
    with served.channel() as channel:
        stream = rpc.InferenceServiceStub(channel).Generate(  # type: ignore[no-untyped-call]
            pb.GenerateRequest(tokens=pb.TokenInput(ids=prompt), max_tokens=TOKENS, sampling=given)
        )
        return [token for event in stream for token in event.chunk.token_ids]


def guesses(prompt: Sequence[int], text: Sequence[int], dice: random.Random) -> Propose:
    """What the text goes on with, one token in five another."""

    def propose(known: Sequence[int], most: int) -> list[int]:
        found = text[len(known) - len(prompt) :][:most]
        return [token if dice.random() < 0.8 else (token + 1) % 256 for token in found]

    return propose


@pytest.mark.parametrize(
    ("depth", "run", "sampling"), [(0, 3, GREEDY), (1, 0, SEEDED), (4, 0, GREEDY), (4, 3, SEEDED), (8, 0, SEEDED)]
)
def test_remotely_verified_text_equals_the_verifiers_text_despite_lost_connections(
    served: Served, answers: Answers, depth: int, run: int, sampling: SamplingParams
) -> None:
    tokenizer, service = served.worker.tokenizer, served.daemon.verification
    wanted, before = answers[sampling], service.status().total

    async def run_all() -> list[Decoded]:
        edge = Edge(served.target)
        await edge.connect()
        assert edge.welcome.max_draft_tokens == 8
        made = await asyncio.gather(
            *(
                decode(
                    edge,
                    i,
                    prompt,
                    guesses(prompt, text, random.Random(i)),
                    max_tokens=TOKENS,
                    depth=depth,
                    run=run,
                    sampling=sampling,
                    ends=tuple(tokenizer.eos_ids),
                    dice=random.Random(100 * depth + i),
                    loses=0.2,
                )
                for i, (prompt, text) in enumerate(wanted, 1)
            )
        )
        await edge.finish()
        return made

    decoded = at(served, run_all())
    assert [one.tokens for one in decoded] == [text for _, text in wanted]
    until(lambda: service.status().open_sequences == 0)
    after = service.status().total
    assert after.tokens - after.discarded - (before.tokens - before.discarded) == sum(one.applied for one in decoded)
    assert after.connections - before.connections > 1, "connections were lost"
    assert (after.accepted > before.accepted) == (depth > 0)
