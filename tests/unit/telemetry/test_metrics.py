"""The collector receives the engine's own counts, under labels of few values."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from draftd.core import (
    DRAFT_HEAD,
    DRAFT_MODEL,
    PROMPT_LOOKUP,
    ContextTier,
    DecodeMode,
    DecodePlan,
    DecodeRequest,
    DrafterName,
    FallbackLevel,
    FinishReason,
    WorkloadClass,
)
from draftd.errors import QueueFull
from draftd.fallback.ladder import Cause, Signal
from draftd.fallback.probes import CanaryOutcome, CanaryReport, Divergence, ProbeReport, ProbeVerdict
from draftd.journal import Journal, Subject
from draftd.telemetry import catalog
from draftd.telemetry.fallback import observed_decisions
from draftd.telemetry.metrics import Ledger
from draftd.telemetry.recording import ModelNames
from tests.fake_fallback import LADDER
from tests.live_check import findings, violations
from tests.otlp import OtlpReceiver
from tests.unit.telemetry.scene import (
    ADDRESS,
    AUTOMATIC,
    AUTOREGRESSIVE,
    CAPPED_STEP,
    CUT_STEP,
    INFO,
    LADDER_STATE,
    PARKED_STEP,
    SAVE_ERRORS,
    SPECULATIVE,
    SPECULATIVE_STEP,
    STATUS,
    Scene,
    across,
)

LOOKUP = DecodePlan(DecodeMode.SPECULATIVE, 4, PROMPT_LOOKUP, FallbackLevel.FULL, "on", "")


def test_exported_counters_equal_the_engine_counts(scene: Scene, receiver: OtlpReceiver) -> None:
    for workload in WorkloadClass:
        scene.serve(workload=workload, steps=7)
        scene.serve(workload=workload, plan=AUTOREGRESSIVE, steps=5)
    scene.serve(reason=FinishReason.CANCELLED, steps=2)
    scene.serve(plan=AUTOMATIC, steps=1, more=[PARKED_STEP, PARKED_STEP, CAPPED_STEP, CUT_STEP])
    assert scene.telemetry.shutdown(30.0)

    counts = scene.engine
    assert receiver.total("draftd.spec_decode.drafts") == counts.drafts
    assert receiver.total("draftd.spec_decode.draft_tokens") == counts.drafted
    assert receiver.total("draftd.spec_decode.accepted_tokens") == counts.accepted
    assert receiver.total("draftd.spec_decode.cut_tokens") == counts.cut == 3
    assert counts.emitted == counts.accepted + counts.target_forwards - counts.cut
    assert receiver.total("draftd.spec_decode.rollbacks") == counts.rollbacks
    assert receiver.total("draftd.spec_decode.rolled_back_tokens") == counts.rolled_back
    assert receiver.total("draftd.spec_decode.draft_forwards") == counts.draft_forwards
    assert receiver.total("draftd.spec_decode.target_forwards") == counts.target_forwards
    assert receiver.total("draftd.spec_decode.draft.time") == pytest.approx(counts.draft_seconds)
    assert receiver.total("draftd.spec_decode.verify.time") == pytest.approx(counts.verify_seconds)
    assert receiver.total("draftd.spec_decode.break_even_tokens") == pytest.approx(counts.break_even_tokens)
    assert counts.break_even_tokens > 0
    assert receiver.total("draftd.spec_decode.unpriced_drafts") == counts.unpriced_drafts == 0
    assert receiver.total("draftd.spec_decode.parked_steps") == counts.parked_steps == 2
    assert receiver.total("draftd.spec_decode.capped_steps") == counts.capped_steps == 1
    assert counts.drafts + counts.parked_steps < counts.target_forwards
    assert receiver.by("draftd.spec_decode.accepted_tokens_per_pos", "draftd.position") == dict(
        enumerate(counts.accepted_per_position)
    )
    assert receiver.by("draftd.spec_decode.draft_tokens_per_pos", "draftd.position") == dict(
        enumerate(counts.drafted_per_position)
    )
    assert receiver.by("draftd.tokens", "gen_ai.token.type") == {"output": counts.emitted, "input": 5 * scene.served}
    assert receiver.total("draftd.requests") == scene.served
    assert receiver.count("draftd.inter_chunk.duration") == counts.steps - scene.served


def test_exported_metrics_have_unit_buckets_and_attributes_of_the_catalog(scene: Scene, receiver: OtlpReceiver) -> None:
    scene.serve()
    across(scene)
    scene.telemetry._on.guard.caught("test", ValueError("on purpose"))
    fall_back(scene)
    scene.telemetry.shutdown(30.0)
    servers = {catalog.RPC_DURATION.name, catalog.HTTP_DURATION.name}  # shown with one
    assert {name for name in receiver.metric_names() if not name.startswith("otel.sdk.")} == {
        metric.name for metric in catalog.METRICS
    } - servers
    for metric in catalog.METRICS:
        for point in receiver.points(metric.name):
            assert point.unit == metric.unit
            assert point.bounds == metric.buckets
            assert set(point.attributes) <= {attribute.name for attribute in metric.attributes}
    assert violations(receiver) == []
    assert not [one for one in findings(receiver) if one.id == "recommended_attribute_not_present"]


def fall_back(scene: Scene) -> None:
    """Records everything that the fallback can."""
    recorder = scene.telemetry.fallback_recorder
    journal = Journal()
    journal.listen(recorder.log)
    journal.record(Subject.LEVEL, LADDER[0].label, LADDER[1].label, "acceptance_drift")
    journal.record(Subject.LEVEL, LADDER[1].label, LADDER[1].label, "hold")  # no step
    journal.record(Subject.REMOTE, "speculative", "streaming", "remote_round_trip")
    journal.record(Subject.FLAG, "on", "off", "control API")
    recorder.notification("accepted")
    recorder.poll("ok")
    recorder.annotation("sent")
    recorder.probe(ProbeReport(LADDER[0], ProbeVerdict.GOOD, "", 0.7, 1.5, 0.25))
    diverged = CanaryOutcome("one", True, True, Divergence(3, None))
    recorder.canaries(FallbackLevel.FULL, CanaryReport(ProbeVerdict.BAD, "", (diverged, diverged), 1.5))


def test_state_save_errors_are_exported_by_file_before_the_model_is_loaded(
    open_scene: Callable[..., Scene], receiver: OtlpReceiver
) -> None:
    open_scene(receiver.environ(), info=None).telemetry.shutdown(30.0)
    assert receiver.by("draftd.state.save.errors", "draftd.state.file") == SAVE_ERRORS


def test_ladder_moves_probes_and_canaries_are_exported_as_metrics(scene: Scene, receiver: OtlpReceiver) -> None:
    fall_back(scene)
    scene.telemetry.shutdown(30.0)
    (step,) = receiver.points("draftd.fallback.transitions")
    assert step.attributes == {
        "gen_ai.request.model": "nano",
        "draftd.transition.from": "full",
        "draftd.transition.to": "short_block 3",
        "draftd.signal": "acceptance_drift",
    }
    assert receiver.by("draftd.probe.runs", "draftd.result") == {"good": 1}
    assert receiver.total("draftd.canary.divergences") == 2
    assert receiver.by("draftd.canary.score", "draftd.mode") == {"autoregressive": 1.0, "speculative": 0.5}
    assert receiver.by("draftd.fallback.demand", "draftd.signal") == {"acceptance_drift": 2}
    assert receiver.by("draftd.drift.sum", "draftd.workload") == {"code": 1.25}
    assert (receiver.total("draftd.fallback.position"), receiver.total("draftd.fallback.hold")) == (1, 1)
    assert receiver.total("draftd.requests") == 0, "no request is counted for it"


def test_ended_fallback_demand_is_exported_as_level_full() -> None:
    now = replace(LADDER_STATE)
    observe = observed_decisions(lambda: now, lambda: None, ModelNames(lambda: INFO))["draftd.fallback.demand"]
    assert [point.value for point in observe()] == [2]
    now = replace(LADDER_STATE, signals=(Signal(Cause.MEMORY, FallbackLevel.AUTOREGRESSIVE),))
    assert {str((p.attributes or {})["draftd.signal"]): p.value for p in observe()} == {
        "acceptance_drift": 3,
        "memory": 0,
    }


def test_probe_and_canary_runs_are_exported_as_spans(scene: Scene, receiver: OtlpReceiver) -> None:
    fall_back(scene)
    scene.telemetry.shutdown(30.0)
    probe, canaries = sorted(receiver.spans(), key=lambda span: str(span.attributes["draftd.origin"]), reverse=True)
    assert (probe.name, probe.attributes["draftd.origin"], probe.attributes["draftd.result"]) == (
        "probe full",
        "probe",
        "good",
    )
    assert canaries.attributes["draftd.origin"] == "canary"
    assert probe.end - probe.start == pytest.approx(0.25e9, rel=0.01)


def test_request_metrics_are_labelled_by_model_workload_mode_and_drafter(scene: Scene, receiver: OtlpReceiver) -> None:
    scene.serve(workload=WorkloadClass.PROSE)
    scene.serve(workload=WorkloadClass.PROSE, plan=AUTOREGRESSIVE)
    scene.serve(workload=WorkloadClass.PROSE, plan=LOOKUP)
    scene.telemetry.shutdown(30.0)
    labels = [point.attributes for point in receiver.points("draftd.spec_decode.drafts")]
    shared = {
        "gen_ai.request.model": "nano",
        "draftd.workload": "prose",
        "draftd.context_tier": "short",
        "draftd.plan.level": "full",
        "draftd.strategy": "local",
    }
    assert {**shared, "draftd.draft_model": "nano-draft", "draftd.mode": "speculative"} in labels
    assert {**shared, "draftd.draft_model": "nano-draft", "draftd.mode": "autoregressive"} in labels
    assert {**shared, "draftd.draft_model": "prompt_lookup", "draftd.mode": "speculative"} in labels
    assert len(labels) == 3


def test_each_request_outcome_is_counted_and_timed_with_its_error_type(scene: Scene, receiver: OtlpReceiver) -> None:
    for reason in FinishReason:
        scene.serve(reason=reason)
    scene.telemetry.shutdown(30.0)
    errors = {"cancelled": "Cancelled", "deadline": "DeadlineExceeded", "error": "EngineFailure"}
    counted = {
        p.attributes["draftd.outcome"]: (p.value, p.attributes.get("error.type"))
        for p in receiver.points("draftd.requests")
    }
    assert counted == {reason.value: (1, errors.get(reason.value)) for reason in FinishReason}
    durations = {
        point.attributes.get("error.type"): point for point in receiver.points("gen_ai.server.request.duration")
    }
    assert {kind: point.count for kind, point in durations.items()} == {None: 2, **dict.fromkeys(errors.values(), 1)}
    for point in durations.values():
        assert point.value == pytest.approx(0.1 * point.count)
        assert point.attributes["gen_ai.operation.name"] == "chat"
        assert point.attributes["gen_ai.provider.name"] == "draftd"
        assert point.attributes["gen_ai.response.model"] == "nano"
        assert (point.attributes["server.address"], point.attributes["server.port"]) == ADDRESS
    for name, times in (("time_to_first_token", 2), ("time_per_output_token", 2)):  # successes only
        assert receiver.count(f"gen_ai.server.{name}") == times
    assert receiver.count("draftd.queue.duration") == receiver.count("draftd.prefill.duration") == 5


def test_time_per_output_token_leaves_out_the_first_token(scene: Scene, receiver: OtlpReceiver) -> None:
    outcome = scene.serve(steps=3)
    scene.telemetry.shutdown(30.0)
    assert receiver.total("gen_ai.server.time_to_first_token") == pytest.approx(0.02)
    emitted = outcome.stats.counts.emitted
    assert receiver.total("gen_ai.server.time_per_output_token") == pytest.approx((0.1 - 0.02) / (emitted - 1))


def test_refused_request_is_counted_once_with_its_error_type(scene: Scene, receiver: OtlpReceiver) -> None:
    span = scene.telemetry.begin_inference(scene.start())
    span.refuse(QueueFull("64 requests wait", retry_after=1.0))
    span.refuse(QueueFull("told twice"))
    scene.telemetry.shutdown(30.0)
    (requests,) = receiver.points("draftd.requests")
    assert requests.value == 1
    assert requests.attributes["draftd.outcome"] == "refused"
    assert requests.attributes["error.type"] == "QueueFull"
    assert "draftd.mode" not in requests.attributes
    assert receiver.total("draftd.tokens") == 0


def test_engine_and_prefix_cache_gauges_export_the_engine_status(scene: Scene, receiver: OtlpReceiver) -> None:
    scene.telemetry.shutdown(30.0)
    assert receiver.total("draftd.engine.active_requests") == 3
    assert receiver.total("draftd.engine.queued_requests") == 2
    assert receiver.total("draftd.engine.queue_capacity") == 64
    assert receiver.total("draftd.engine.kv_cache") == 4096
    assert receiver.total("draftd.engine.weights") == 1200
    names = ("usage", "limit", "entries", "lookups", "hits", "read_tokens", "unfit")
    assert [receiver.total(f"draftd.prefix_cache.{name}") for name in names] == [2048, 8192, 3, 40, 30, 900, 7]


@pytest.mark.parametrize(("width", "independent"), [(13, 0), (None, 1)])
def test_exactness_gauges_export_independence_of_batch_and_expected_flips(
    open_scene: Callable[..., Scene], receiver: OtlpReceiver, width: int | None, independent: int
) -> None:
    assert STATUS.exactness is not None
    forward = replace(STATUS.exactness.forward, width=width)
    status = replace(STATUS, exactness=replace(STATUS.exactness, forward=forward, flips=0.25))
    open_scene(receiver.environ(), status=status).telemetry.shutdown(30.0)
    (point,) = receiver.points("draftd.exactness.independent")
    assert (point.value, receiver.total("draftd.exactness.flips")) == (independent, 0.25)


def test_exactness_gauges_are_absent_until_exactness_is_measured(
    open_scene: Callable[..., Scene], receiver: OtlpReceiver
) -> None:
    open_scene(receiver.environ(), status=replace(STATUS, exactness=None)).telemetry.shutdown(30.0)
    assert not {"draftd.exactness.independent", "draftd.exactness.flips"} & receiver.metric_names()


def test_drafter_error_is_counted_in_its_metric(scene: Scene, receiver: OtlpReceiver) -> None:
    request = DecodeRequest("r", (1,), 4, SPECULATIVE, 0.0)
    scene.telemetry.observer.on_drafter_error(request, request.plan.drafter, "on purpose")
    scene.telemetry.shutdown(30.0)
    assert receiver.total("draftd.drafter.errors") == 1


def test_request_duration_metric_has_the_request_span_as_exemplar(scene: Scene, receiver: OtlpReceiver) -> None:
    scene.serve()
    scene.telemetry.shutdown(30.0)
    assert receiver.points("gen_ai.server.request.duration")[0].exemplars == 1


def test_metric_collection_reads_counters_that_are_consistent() -> None:
    ledger = Ledger(ModelNames(lambda: INFO))
    request = DecodeRequest("r", (1,), 4, SPECULATIVE, 0.0)
    entry = ledger.entry_of(request)
    over = threading.Event()

    def steps() -> None:
        while not over.is_set():
            for step in (SPECULATIVE_STEP, CUT_STEP):
                with ledger.lock:
                    entry.counts.add(step)

    thread = threading.Thread(target=steps)
    thread.start()
    try:
        seen = []
        for _ in range(200):
            (drafted,) = ledger.read("drafted")
            (accepted,) = ledger.read("accepted")
            (rolled_back,) = ledger.read("rolled back")
            (cut,), (output,) = ledger.read("cut"), ledger.read("output")
            assert drafted.counts.drafted == accepted.counts.accepted + rolled_back.counts.rolled_back
            assert output.counts.emitted == accepted.counts.accepted + output.counts.steps - cut.counts.cut
            seen.append(drafted.counts.drafted)
    finally:
        over.set()
        thread.join()
    (last,) = ledger.read("drafted")
    assert last.counts.drafted == entry.counts.drafted, "the last collection is up to date"
    assert seen == sorted(seen)


def test_metric_series_do_not_grow_with_the_number_of_requests(
    open_scene: Callable[..., Scene], receiver: OtlpReceiver
) -> None:
    scene = open_scene(receiver.environ())
    for number in range(300):
        scene.serve(request_id=f"id-{number}", max_tokens=number, steps=1)
    scene.telemetry.shutdown(30.0)
    assert all(len(receiver.points(metric.name)) <= 5 for metric in catalog.METRICS)


def test_model_label_is_unknown_until_the_model_is_loaded() -> None:
    answers = [None, INFO]
    naming = ModelNames(lambda: answers.pop(0))
    plan = SPECULATIVE
    assert naming.labels(plan, WorkloadClass.CODE, ContextTier.LONG)["gen_ai.request.model"] == "unknown"
    assert naming.labels(plan, WorkloadClass.CODE, ContextTier.LONG)["gen_ai.request.model"] == "nano"
    assert naming.labels(plan, WorkloadClass.CODE, ContextTier.LONG)["draftd.context_tier"] == "long"


@pytest.mark.parametrize(
    ("draft_model", "drafters", "speculative", "autoregressive"),
    [
        (None, (DRAFT_HEAD, PROMPT_LOOKUP), DRAFT_HEAD, DRAFT_HEAD),
        ("nano-draft", (DRAFT_MODEL, DRAFT_HEAD), DRAFT_HEAD, "nano-draft"),
        ("refused-draft", (DRAFT_HEAD,), DRAFT_HEAD, DRAFT_HEAD),
    ],
)
def test_draft_label_names_the_draft_head_also_for_autoregressive_requests_without_a_draft_model(
    draft_model: str | None, drafters: tuple[DrafterName, ...], speculative: str, autoregressive: str
) -> None:
    naming = ModelNames(lambda: replace(INFO, draft_model=draft_model, drafters=drafters))
    assert naming.draft(replace(SPECULATIVE, drafter=DRAFT_HEAD)) == speculative
    assert naming.draft(AUTOREGRESSIVE) == naming.draft(None) == autoregressive


def test_observer_errors_caught_by_the_engine_are_counted(
    open_scene: Callable[..., Scene], receiver: OtlpReceiver
) -> None:
    scene = open_scene(receiver.environ(), status=replace(STATUS, observer_errors=5))
    scene.telemetry.observer.on_drafter_error(None, None, "")  # type: ignore[arg-type]
    scene.telemetry.shutdown(30.0)
    assert receiver.by("draftd.telemetry.errors", "draftd.telemetry.part") == {"observer": 6}
