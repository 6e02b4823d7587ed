"""One number, four places: what clients received, what the spans say, what the metrics say, what the engine counted.

A real daemon process and a real OTLP receiver; a run with stops, ends of text, cancellations and errors. The model is
slow on purpose, but for taking prompts in: a client that leaves does so in the middle of a step, whose tokens then
reach nobody. A drafted token costs nearly as much as a step of its own: requests whose depth is automatic draft beside
those whose depth is fixed, as far as their own bound allows, and are parked once they are among themselves.
"""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from draftd.client.client import CallError, DraftdClient
from draftd.core import PROMPT_LOOKUP, DepthMode, ModePreference, SamplingParams, WorkloadClass
from draftd.v1 import inference_pb2 as pb
from tests.custom_daemon import composed
from tests.live_check import findings, violations
from tests.otlp import OtlpReceiver
from tests.wait_until import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

STEP = 0.15  # seconds a step's forward takes: far longer than a cancellation
FURTHER = 0.8  # of it, for each token beyond the first
WIDEST = 5  # a step's forward: four drafted and the one before; all prompts are longer
DAEMON = f"""
import sys
import time
from draftd.models.blas import load_blas
load_blas()
from draftd.cli.serve import run_daemon
from tests.scripted import ScriptedModel, scripted_models
from draftd.settings import EngineSettings, FallbackSettings, ServerSettings, Settings
settings = Settings(
    server=ServerSettings(port=0, drain_seconds=5),
    engine=EngineSettings(max_batch=8),
    fallback=FallbackSettings(guard=False),  # the errors are on purpose
)
class Slow(ScriptedModel):
    again = 0  # prompts that are prefilled anew after a failure, and whose next tokens would come at once
    def __call__(self, inputs, cache):
        width = inputs.shape[1]
        if width <= {WIDEST}:
            time.sleep({STEP} * (1 + {FURTHER} * (width - 1)))
        elif self.again:
            self.again -= 1
            time.sleep({STEP})
        try:
            return super().__call__(inputs, cache)
        except Exception:
            self.again = 8
            raise
def load(progress):
    models = scripted_models(0.7, eos_after=21)
    models.target.__class__ = Slow
    models.target.fail_on_token = 1
    return models
say = lambda line: print("draftd: " + line, file=sys.stderr, flush=True)
sys.exit(run_daemon(settings, announce=say, load=load))
"""

SPECULATIVE, AUTOREGRESSIVE, AUTO = ModePreference.SPECULATIVE, ModePreference.AUTOREGRESSIVE, ModePreference.AUTO

REQUESTS = 36
CHOICES = [2 if number % 6 == 5 else 1 for number in range(REQUESTS)]  # each is a request of the engine's
HISTORY = "What was said before. " * 12  # as some requests have it in common


class Received:
    """Sums over all clients, of what they were sent and of nothing else."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sums: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()

    def ask(self, client: DraftdClient, number: int) -> None:
        leaves = number % 5 == 4
        kind = number % 4
        mode = (SPECULATIVE, AUTOREGRESSIVE, AUTO, SPECULATIVE)[kind]
        tokens, drafted = Counter[int](), Counter[int]()
        chunks = read = cut = 0
        ended = "none"
        stream = client.generate(
            # Byte 1 is the one that the model fails on; some texts also come upon it by themselves.
            "poison \x01!" if number % 9 == 8 else HISTORY * (number % 3 == 0) + f"prompt number {number}",
            max_tokens=8 + number % 5,
            mode=mode,
            drafter=PROMPT_LOOKUP if number % 8 == 3 else None,
            depth_mode=DepthMode.FIXED if number < REQUESTS // 2 and number % 3 else DepthMode.AUTOMATIC,
            max_draft_tokens=1 + number % 4,
            stop=[chr(40 + number)] if kind == 0 else (),
            sampling=SamplingParams(temperature=0.9 if kind == 2 else 0.0, seed=number),
            n=CHOICES[number],
            workload=list(WorkloadClass)[number % len(WorkloadClass)],
            timeout=120,
        )
        try:
            for response in stream:
                if response.HasField("chunk"):
                    chunks += 1
                    choice = response.chunk.choice
                    tokens[choice] += len(response.chunk.token_ids)
                    drafted[choice] += sum(response.chunk.from_draft)
                    if leaves and chunks == 2:
                        stream.close()  # type: ignore[attr-defined]
                        ended = "cancelled"
                        break
                elif response.HasField("finished"):
                    ended = pb.FinishReason.Name(response.finished.reason)
                    counts, choice = response.finished.counts, response.finished.choice
                    assert response.finished.usage.output_tokens == tokens[choice]
                    assert tokens[choice] == counts.accepted_tokens + counts.steps - counts.cut_tokens
                    assert drafted[choice] == counts.accepted_tokens - drafted_beyond(counts.cut_tokens)
                    read += response.finished.usage.cache_read_tokens
                    cut += counts.cut_tokens
        except CallError as error:
            ended = error.code.name
        with self.lock:
            self.sums.update(tokens=tokens.total(), accepted=drafted.total(), read=read, cut=cut)
            self.ended[ended] += 1


def drafted_beyond(cut: int) -> int:
    """Of the tokens that one text's end cut, those that were drafted: the last of a step is the target's own."""
    return max(0, cut - 1)


def test_token_totals_agree_in_client_answers_in_spans_in_metrics_and_in_engine_status(tmp_path: Path) -> None:
    received = Received()
    with (
        OtlpReceiver() as receiver,
        composed(DAEMON, tmp_path, receiver.environ()) as address,
        DraftdClient(address) as client,
        ThreadPoolExecutor(10) as pool,
    ):
        until(client.serving, 30)
        list(pool.map(lambda n: received.ask(client, n), range(REQUESTS)))
        status = client.status()
        while status.active_requests or status.queued_requests:
            status = client.status()

    assert received.ended["cancelled"] >= 5
    assert received.ended["INTERNAL"] >= 3
    assert sum(status.finished_requests.values()) == sum(CHOICES)

    spans = [s.attributes for s in receiver.spans() if "draftd.spec_decode.draft_tokens" in s.attributes]
    assert len(spans) == sum(CHOICES)
    engine = status.counts
    names = {
        "drafts": engine.drafts,
        "draft_tokens": engine.drafted_tokens,
        "accepted_tokens": engine.accepted_tokens,
        "cut_tokens": engine.cut_tokens,
        "rollbacks": engine.rollbacks,
        "rolled_back_tokens": engine.rolled_back_tokens,
        "draft_forwards": engine.draft_forwards,
        "target_forwards": engine.target_forwards,
        "parked_steps": engine.parked_steps,
        "capped_steps": engine.capped_steps,
    }
    whenever = {"parked_steps": engine.parked_steps, "capped_steps": engine.capped_steps}  # only if so chosen
    assert engine.drafts + engine.parked_steps <= engine.target_forwards
    for name, counted in (names | whenever).items():
        assert counted > 0 or name in whenever, name
        assert receiver.total(f"draftd.spec_decode.{name}") == counted, name
        assert sum(s[f"draftd.spec_decode.{name}"] for s in spans) == counted, name
    by_position = receiver.by("draftd.spec_decode.accepted_tokens_per_pos", "draftd.position")
    assert [by_position[i] for i in range(len(engine.accepted_per_position))] == list(engine.accepted_per_position)

    assert received.sums["tokens"] == status.output_tokens > 0
    assert sum(s["gen_ai.usage.output_tokens"] for s in spans) == status.output_tokens
    assert receiver.total("draftd.tokens", {"gen_ai.token.type": "output"}) == status.output_tokens
    beyond = sum(drafted_beyond(s["draftd.spec_decode.cut_tokens"]) for s in spans)
    assert received.sums["accepted"] == engine.accepted_tokens - beyond
    assert received.sums["cut"] == engine.cut_tokens, "a text that its client left was not cut"
    assert engine.drafted_tokens == engine.accepted_tokens + engine.rolled_back_tokens

    # What was read of kept prompts: a client that leaves is told no usage, so of all requests only the spans know.
    kept = status.prefix_cache
    finished = [s for s in spans if s["draftd.outcome"] in ("stop", "length")]
    assert 0 < received.sums["read"] == sum(s["gen_ai.usage.cache_read.input_tokens"] for s in finished)
    assert sum(s["gen_ai.usage.cache_read.input_tokens"] for s in spans) == kept.read_tokens
    assert receiver.total("draftd.prefix_cache.read_tokens") == kept.read_tokens
    assert receiver.total("draftd.prefix_cache.hits") == kept.hits <= kept.lookups <= sum(CHOICES)

    assert status.output_tokens == engine.accepted_tokens + engine.steps - engine.cut_tokens
    for s in spans:
        accepted, cut = s["draftd.spec_decode.accepted_tokens"], s["draftd.spec_decode.cut_tokens"]
        assert s["gen_ai.usage.output_tokens"] == accepted + s["draftd.steps"] - cut, s
    assert receiver.total("draftd.requests") == sum(CHOICES)

    assert violations(receiver) == [], "all of it is in the registries, and as they want it"
    missing = {(one.of, one.name) for one in findings(receiver) if one.id == "recommended_attribute_not_present"}
    assert not missing, "it knows its model and where it listens"
