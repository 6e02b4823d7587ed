"""One number, four places: what clients received, what the spans say, what the metrics say, what the engine counted.

A real daemon process and a real OTLP receiver; a run with stops, ends of text, cancellations and errors. The model is
slow on purpose: a client that leaves does so in the middle of a round, whose tokens then reach nobody.
"""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from draftd.core import DrafterKind, ModePreference, SamplingParams, WorkloadClass
from draftd.server.client import CallError, DraftdClient
from draftd.v1 import inference_pb2 as pb
from tests.composed import composed
from tests.otlp import OtlpReceiver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

STEP = 0.2  # seconds a target forward takes: far longer than a cancellation
DAEMON = f"""
import sys
from draftd.engine.blas import load_blas
load_blas()
from draftd.cli.serve import run_daemon
from draftd.engine.scripted import scripted_models
from draftd.settings import EngineSettings, FallbackSettings, ServerSettings, Settings
settings = Settings(
    server=ServerSettings(port=0, drain_seconds=5),
    engine=EngineSettings(max_batch=8),
    fallback=FallbackSettings(guard=False),  # the errors are on purpose
)
def load(progress):
    models = scripted_models(0.7, step_seconds={STEP}, eos_after=24)
    models.target.fail_on_token = 1
    return models
say = lambda line: print("draftd: " + line, file=sys.stderr, flush=True)
sys.exit(run_daemon(settings, announce=say, load=load))
"""

SPECULATIVE, AUTOREGRESSIVE, AUTO = ModePreference.SPECULATIVE, ModePreference.AUTOREGRESSIVE, ModePreference.AUTO


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
        tokens = drafted = chunks = 0
        ended = "none"
        stream = client.generate(
            # Byte 1 is the one that the model fails on; some texts also come upon it by themselves.
            "poison \x01!" if number % 9 == 8 else f"prompt number {number}",
            max_tokens=9 + number % 7,
            mode=mode,
            drafter=DrafterKind.PROMPT_LOOKUP if number % 8 == 3 else None,
            stop=[chr(40 + number)] if kind == 0 else (),
            sampling=SamplingParams(temperature=0.9 if kind == 2 else 0.0, seed=number),
            workload=list(WorkloadClass)[number % 5],
            timeout=120,
        )
        try:
            for response in stream:
                if response.HasField("chunk"):
                    chunks += 1
                    tokens += len(response.chunk.token_ids)
                    drafted += sum(response.chunk.from_draft)
                    if leaves and chunks == 2:
                        stream.close()  # type: ignore[attr-defined]
                        ended = "cancelled"
                        break
                elif response.HasField("finished"):
                    ended = pb.FinishReason.Name(response.finished.reason)
                    assert response.finished.usage.output_tokens == tokens
                    assert response.finished.counts.accepted_tokens == drafted
        except CallError as error:
            ended = error.code.name
        with self.lock:
            self.sums.update(tokens=tokens, accepted=drafted)
            self.ended[ended] += 1


def test_four_places_say_the_same_number(tmp_path: Path) -> None:
    received = Received()
    with (
        OtlpReceiver() as receiver,
        composed(DAEMON, tmp_path, receiver.environ()) as address,
        DraftdClient(address) as client,
        ThreadPoolExecutor(10) as pool,
    ):
        client.wait_ready(30)
        list(pool.map(lambda n: received.ask(client, n), range(48)))
        status = client.status()
        while status.active_requests or status.queued_requests:
            status = client.status()

    assert received.ended["cancelled"] >= 5
    assert received.ended["INTERNAL"] >= 3
    assert sum(status.finished_requests.values()) == 48

    spans = [s.attributes for s in receiver.spans() if "draftd.spec_decode.draft_tokens" in s.attributes]
    assert len(spans) == 48
    engine = status.counts
    names = {
        "drafts": engine.drafts,
        "draft_tokens": engine.drafted_tokens,
        "accepted_tokens": engine.accepted_tokens,
        "rollbacks": engine.rollbacks,
        "rolled_back_tokens": engine.rolled_back_tokens,
        "draft_forwards": engine.draft_forwards,
        "target_forwards": engine.target_forwards,
    }
    for name, counted in names.items():
        assert counted > 0, name
        assert receiver.total(f"draftd.spec_decode.{name}") == counted, name
        assert sum(s[f"draftd.spec_decode.{name}"] for s in spans) == counted, name
    by_position = receiver.by("draftd.spec_decode.accepted_tokens_per_pos", "draftd.position")
    assert [by_position[i] for i in range(len(engine.accepted_per_position))] == list(engine.accepted_per_position)

    assert received.sums["tokens"] == status.output_tokens > 0
    assert sum(s["gen_ai.usage.output_tokens"] for s in spans) == status.output_tokens
    assert receiver.total("draftd.tokens", {"gen_ai.token.type": "output"}) == status.output_tokens
    assert received.sums["accepted"] == engine.accepted_tokens
    assert engine.drafted_tokens == engine.accepted_tokens + engine.rolled_back_tokens
    past_the_end = engine.accepted_tokens + engine.rounds - status.output_tokens
    assert 0 <= past_the_end <= 48
    assert receiver.total("draftd.requests") == 48
