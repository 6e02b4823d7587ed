"""A daemon under load while its collector is lost: no request notices, nothing is miscounted, it stops in time."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from draftd.client.client import DraftdClient
from draftd.core import ModePreference, WorkloadClass
from draftd.telemetry.attributes import DAEMON_STATE
from draftd.telemetry.catalog import STATE
from draftd.v1 import inference_pb2 as pb
from tests import forked_daemon
from tests.otlp import OtlpReceiver, SpanRecord, Value
from tests.wait_until import until

DRAIN = 5.0
FLUSH = 3.0
SLACK = 15.0  # for an interpreter to end on a machine that is busy; an export left to itself takes thirty

MODES = (ModePreference.AUTO, ModePreference.SPECULATIVE, ModePreference.AUTOREGRESSIVE, ModePreference.AUTO)

# The daemon as `draftd serve` composes it, on models that need no weights.
DAEMON = f"""
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
from draftd.models.blas import load_blas
load_blas()
from draftd.cli.serve import run_daemon
from tests.scripted import scripted_models
from draftd.settings import EngineSettings, ServerSettings, Settings, TelemetrySettings
settings = Settings(
    server=ServerSettings(port=0, drain_seconds={DRAIN}),
    engine=EngineSettings(max_batch=4, depth_mode="fixed"),
    telemetry=TelemetrySettings(shutdown_seconds={FLUSH}),
)
say = lambda line: print("draftd: " + line, file=sys.stderr, flush=True)
load = lambda progress: scripted_models(0.7, step_seconds=0.002)
sys.exit(run_daemon(settings, announce=say, load=load))
"""


@dataclass
class Daemon:
    """A daemon in a process of its own."""

    process: forked_daemon.Daemon
    client: DraftdClient

    def stop(self) -> float:
        """Seconds from SIGTERM until it was gone; it must go in order."""
        began = time.monotonic()
        self.process.child.terminate()
        assert self.process.wait(DRAIN + FLUSH + SLACK) == 0, self.process.lines
        return time.monotonic() - began


@contextmanager
def daemon(tmp_path: Path, environ: dict[str, str]) -> Iterator[Daemon]:
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), **environ}
    with (
        forked_daemon.daemon(forked_daemon.program, DAEMON, environ=environment) as process,
        DraftdClient(process.address) as client,
    ):
        until(client.serving, 60)
        yield Daemon(process, client)


@dataclass(frozen=True)
class Answer:
    """What one client got: how it ended, and how many tokens it was sent. How they were drafted may differ."""

    ended: str
    tokens: int
    drafted: int = field(default=0, compare=False)


def ask(client: DraftdClient, number: int) -> Answer:
    """One of several kinds of request, chosen by its number; kind 3 leaves in the middle."""
    mode = MODES[number % 4]
    workload = list(WorkloadClass)[number % len(WorkloadClass)]
    tokens = chunks = 0
    answer = Answer("nothing", 0)
    leaves = number % 4 == 3
    responses = client.generate(
        f"request {number % 8}", max_tokens=3000 if leaves else 40, mode=mode, workload=workload, timeout=60
    )
    for response in responses:
        if response.HasField("chunk"):
            tokens += len(response.chunk.token_ids)
            chunks += 1
            if leaves and chunks == 3:
                responses.close()  # type: ignore[attr-defined]
                return Answer("left", 0)
        if response.HasField("finished"):
            finished = response.finished
            assert finished.usage.output_tokens == tokens
            answer = Answer(pb.FinishReason.Name(finished.reason), tokens, finished.counts.drafted_tokens)
    return answer


def load(client: DraftdClient, requests: int = 16) -> list[Answer]:
    with ThreadPoolExecutor(6) as threads:
        return list(threads.map(lambda number: ask(client, number), range(requests)))


def settled(client: DraftdClient) -> None:
    """Waits until the engine has ended what clients left."""
    deadline = time.monotonic() + 60
    while (status := client.status()).active_requests or status.queued_requests:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def traced(receiver: OtlpReceiver, address: str) -> None:
    """One trace leads from the caller to decode."""
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with DraftdClient(address) as client:
        client._metadata = (("traceparent", f"00-{trace}-{parent}-01"),)
        answer = ask(client, 1)
    rpc_name = "draftd.v1.InferenceService/Generate"

    def spans() -> dict[str, SpanRecord]:
        return {span.name: span for span in receiver.spans() if span.trace_id == trace}

    assert receiver.wait_for(lambda: rpc_name in spans() and bool(receiver.events("feature_flag.evaluation")))
    found = spans()
    rpc, request = found[rpc_name], found["text_completion scripted"]
    assert rpc.parent_id == parent
    assert request.parent_id == rpc.span_id
    assert {found[name].parent_id for name in ("queue", "prefill", "decode")} == {request.span_id}
    assert request.attributes["gen_ai.usage.output_tokens"] == answer.tokens
    assert request.attributes["draftd.spec_decode.draft_tokens"] == answer.drafted
    assert request.attributes["draftd.mode"] == "speculative"
    (event,) = receiver.events("feature_flag.evaluation")
    assert event.trace_id == trace
    assert event.span_id == request.span_id
    assert event.attributes["feature_flag.key"] == "speculative-decoding"


def test_otlp_collector_outage_changes_no_answer_and_no_exported_counter_total(tmp_path: Path) -> None:
    with OtlpReceiver() as receiver, daemon(tmp_path, receiver.environ(OTEL_EXPORTER_OTLP_TIMEOUT="1")) as running:
        client = running.client
        traced(receiver, client.target)
        before = load(client)

        # Killed while requests run, not between them.
        killer = threading.Timer(0.05, receiver.kill)
        killer.start()
        during = load(client)
        killer.join()
        still = load(client)
        receiver.start()
        receiver.refuse = grpc.StatusCode.RESOURCE_EXHAUSTED
        refused = load(client)
        receiver.refuse = None
        after = load(client)

        loads = [before, during, still, refused, after]
        assert all(one == before for one in loads), "the same answers, ended the same way"
        assert Counter(answer.ended == "left" for answer in before) == {False: 12, True: 4}
        assert all(answer.tokens for answer in before if answer.ended != "left")

        settled(client)
        status = client.status()
        running.stop()

        # The engine's own counts, through an outage, at a collector that missed the middle.
        counts = status.counts
        assert receiver.total("draftd.spec_decode.drafts") == counts.drafts
        assert receiver.total("draftd.spec_decode.draft_tokens") == counts.drafted_tokens
        assert receiver.total("draftd.spec_decode.accepted_tokens") == counts.accepted_tokens
        assert receiver.total("draftd.spec_decode.rollbacks") == counts.rollbacks
        assert receiver.total("draftd.spec_decode.draft_forwards") == counts.draft_forwards
        assert receiver.total("draftd.spec_decode.target_forwards") == counts.target_forwards
        assert receiver.total("draftd.tokens", {"gen_ai.token.type": "output"}) == status.output_tokens
        assert receiver.by("draftd.requests", "draftd.outcome") == dict(status.finished_requests)
        assert receiver.total("draftd.requests") == len(loads) * 16 + 1
        assert receiver.total("draftd.telemetry.errors") == 0
        rpcs = receiver.points("rpc.server.call.duration", {"rpc.method": "draftd.v1.InferenceService/Generate"})
        assert {point.attributes["rpc.response.status_code"]: point.count for point in rpcs} == {
            "OK": len(loads) * 12 + 1,
            "CANCELLED": len(loads) * 4,
        }
    warnings = [line for line in running.process.lines if " draftd: warning: " in line and "collector" in line]
    lost = len([line for line in warnings if "does not reach" in line])
    # On a busy machine an export may take too long as well: as many outages as there were.
    assert lost >= 1
    assert lost - (len(warnings) - lost) in (0, 1), "told when it begins and when it ends, not once per export"


def test_hanging_otlp_collector_delays_neither_answers_nor_shutdown(tmp_path: Path) -> None:
    with OtlpReceiver() as receiver, daemon(tmp_path, receiver.environ()) as running:
        before = load(running.client, 8)
        receiver.delay = 60.0
        assert load(running.client, 8) == before
        settled(running.client)
        assert running.stop() < FLUSH + SLACK, "nothing was in hand: only the last export took time"


def test_last_metric_export_of_a_stopping_daemon_says_draining(tmp_path: Path) -> None:
    with OtlpReceiver(metric_interval=60_000) as receiver:  # none but the last comes

        def states() -> set[Value]:
            return {state for state, on in receiver.by(STATE.name, DAEMON_STATE.name).items() if on}

        with daemon(tmp_path, receiver.environ()) as running:
            assert states() == set()
            running.stop()
        assert states() == {"draining"}
