"""The inference span records the request, its decoding, its result and its times."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from draftd.core import FinishReason, SamplingParams
from draftd.errors import InvalidRequest, NotServing, QueueFull, SpeculationUnavailable
from draftd.outcome import Outcome, RequestStats
from draftd.service.messages import text_part
from draftd.telemetry import catalog_spans
from tests.otlp import OtlpReceiver, SpanRecord
from tests.unit.telemetry.scene import (
    AUTOMATIC,
    AUTOREGRESSIVE,
    CAPPED_STEP,
    CUT_STEP,
    PARKED_STEP,
    SPECULATIVE_STEP,
    Scene,
    errors_of,
)


def only(receiver: OtlpReceiver, name: str = "chat nano") -> SpanRecord:
    (span,) = receiver.spans(name)
    return span


def test_inference_span_records_depth_mode_alternative_drafters_and_steps_left_undrafted(
    scene: Scene, receiver: OtlpReceiver
) -> None:
    scene.serve(plan=AUTOMATIC, steps=1, more=[PARKED_STEP, PARKED_STEP, CAPPED_STEP], request_id="automatic")
    scene.serve(request_id="fixed")
    scene.serve(plan=AUTOREGRESSIVE, request_id="plain")
    scene.telemetry.shutdown(30.0)
    values = {
        str(span.attributes["gen_ai.response.id"]): [
            span.attributes.get(f"draftd.{name}")
            for name in (
                "plan.depth_mode",
                "plan.alternatives",
                "spec_decode.parked_steps",
                "spec_decode.capped_steps",
            )
        ]
        for span in receiver.spans("chat nano")
    }
    assert values == {
        "automatic": ["automatic", ["prompt_lookup"], 2, 1],
        "fixed": ["fixed", None, 0, 0],
        "plain": ["none", None, 0, 0],
    }


def test_inference_span_has_the_genai_convention_attributes(scene: Scene, receiver: OtlpReceiver) -> None:
    scene.serve(
        sampling=SamplingParams(temperature=0.8, top_p=0.9, top_k=40, min_p=0.05, seed=7),
        stop=("\n\n",),
        request_id="r-1",
    )
    scene.telemetry.shutdown(30.0)
    span = only(receiver)
    assert span.kind == "INTERNAL"
    assert span.status == "UNSET"
    wanted = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "draftd",
        "gen_ai.request.model": "nano",
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.temperature": 0.8,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 40,
        "draftd.request.min_p": 0.05,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stop_sequences": ["\n\n"],
        "gen_ai.request.stream": True,
        "gen_ai.response.id": "r-1",
        "gen_ai.response.model": "nano",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 9,
        "draftd.draft_model": "nano-draft",
        "draftd.mode": "speculative",
        "draftd.strategy": "local",
        "draftd.workload": "code",
        "draftd.context_tier": "short",
        "draftd.outcome": "stop",
        "draftd.plan.reason": "flag: on (targeting rule)",
        "draftd.plan.level": "full",
        "draftd.plan.variant": "on",
        "draftd.plan.drafter": "draft_model",
        "draftd.plan.max_draft_tokens": 4,
        "draftd.plan.depth_mode": "fixed",
        "draftd.spec_decode.parked_steps": 0,
        "draftd.spec_decode.capped_steps": 0,
        "draftd.steps": 3,
        "draftd.spec_decode.drafts": 3,
        "draftd.spec_decode.draft_tokens": 12,
        "draftd.spec_decode.accepted_tokens": 6,
        "draftd.spec_decode.cut_tokens": 0,
        "draftd.spec_decode.accepted_tokens_per_pos": [3, 3, 0, 0],
        "draftd.spec_decode.draft_tokens_per_pos": [3, 3, 3, 3],
        "draftd.spec_decode.unpriced_drafts": 0,
        "draftd.spec_decode.rollbacks": 3,
        "draftd.spec_decode.rolled_back_tokens": 6,
        "draftd.spec_decode.draft_forwards": 12,
        "draftd.spec_decode.target_forwards": 3,
        "draftd.spec_decode.acceptance": 0.5,
        "draftd.spec_decode.mean_accepted_length": 3.0,
        "draftd.memory.pressure": 1,
        "draftd.memory.headroom": 3_000,
        "draftd.thermal.level": 2,
    }
    assert {key: span.attributes.get(key) for key in wanted} == wanted
    times = {
        "gen_ai.response.time_to_first_chunk": 0.02,
        "draftd.time_to_first_token": 0.02,
        "draftd.queue.duration": 0.001,
        "draftd.prefill.duration": 0.009,
        "draftd.tokens_per_second": 6 / 0.08,
        "draftd.spec_decode.draft.time": 0.003,
        "draftd.spec_decode.verify.time": 0.006,
        "draftd.spec_decode.break_even_tokens": 1.5,
        "draftd.spec_decode.speedup": (3 + 6) / (3 + 1.5),
    }
    for key, value in times.items():
        assert span.attributes[key] == pytest.approx(value)
    assert set(span.attributes) == set(wanted) | set(times)
    assert set(span.attributes) <= {attribute.name for attribute in catalog_spans.INFERENCE_SPAN.attributes}


def test_span_counts_accepted_tokens_past_the_end_as_cut_not_rolled_back(scene: Scene, receiver: OtlpReceiver) -> None:
    scene.serve(steps=0, more=[CUT_STEP])
    scene.telemetry.shutdown(30.0)
    attributes = only(receiver).attributes
    names = ("accepted_tokens", "cut_tokens", "rollbacks", "rolled_back_tokens", "acceptance", "speedup")
    assert [attributes[f"draftd.spec_decode.{name}"] for name in names] == [4, 3, 0, 0, 1.0, (1 + 4 - 3) / (1 + 0.5)]
    assert attributes["gen_ai.usage.output_tokens"] == 4 + 1 - 3


def test_inference_span_with_unpriced_drafts_has_no_speedup(scene: Scene, receiver: OtlpReceiver) -> None:
    scene.serve(steps=0, more=[SPECULATIVE_STEP._replace(break_even=None)] * 2)
    scene.telemetry.shutdown(30.0)
    span = only(receiver).attributes
    assert span["draftd.spec_decode.unpriced_drafts"] == span["draftd.spec_decode.drafts"] == 2
    assert not {"draftd.spec_decode.speedup", "draftd.spec_decode.break_even_tokens"} & set(span)


def test_autoregressive_span_lacks_only_acceptance_length_and_speedup(scene: Scene, receiver: OtlpReceiver) -> None:
    scene.serve()
    scene.serve(plan=AUTOREGRESSIVE)
    scene.telemetry.shutdown(30.0)
    speculative, plain = receiver.spans("chat nano")
    undefined = {f"draftd.spec_decode.{name}" for name in ("acceptance", "mean_accepted_length", "speedup")}  # 0 / 0
    assert set(speculative.attributes) - set(plain.attributes) == undefined
    assert set(plain.attributes) <= set(speculative.attributes)
    assert plain.attributes["draftd.spec_decode.draft_tokens"] == 0
    assert plain.attributes["draftd.spec_decode.target_forwards"] == 3
    assert plain.attributes["draftd.plan.drafter"] == "none"


def test_queue_prefill_and_decode_spans_follow_without_gaps(scene: Scene, receiver: OtlpReceiver) -> None:
    scene.serve()
    scene.telemetry.shutdown(30.0)
    whole = only(receiver)
    queue, prefill, decode = only(receiver, "queue"), only(receiver, "prefill"), only(receiver, "decode")
    assert {s.parent_id for s in (queue, prefill, decode)} == {whole.span_id}
    assert {s.trace_id for s in (queue, prefill, decode)} == {whole.trace_id}
    assert whole.start == queue.start
    assert queue.end == prefill.start
    assert prefill.end == decode.start
    assert decode.end == whole.end
    assert (queue.end - queue.start) / 1e9 == pytest.approx(0.001, abs=1e-5)
    assert (prefill.end - prefill.start) / 1e9 == pytest.approx(0.009, abs=1e-5)
    assert decode.attributes == {"gen_ai.usage.output_tokens": 9, "draftd.steps": 3}


def never_scheduled(stats: RequestStats) -> None:
    stats.scheduled = stats.prefilled = stats.first_token = stats.last_token = None


def never_prefilled(stats: RequestStats) -> None:
    stats.prefilled = stats.first_token = stats.last_token = None


@pytest.mark.parametrize(
    ("stats", "children"),
    [(never_scheduled, {"queue"}), (never_prefilled, {"queue", "prefill"})],
)
def test_cancelled_request_has_spans_only_for_the_phases_it_reached(
    scene: Scene, receiver: OtlpReceiver, stats: Callable[[RequestStats], None], children: set[str]
) -> None:
    scene.serve(reason=FinishReason.CANCELLED, steps=0, stats=stats)
    scene.telemetry.shutdown(30.0)
    whole = only(receiver)
    found = {span.name: span for span in receiver.spans() if span.parent_id == whole.span_id}
    assert set(found) == children
    assert max(span.end for span in found.values()) == whole.end
    assert "draftd.time_to_first_token" not in whole.attributes


def test_inference_span_status_and_error_type_match_each_outcome(scene: Scene, receiver: OtlpReceiver) -> None:
    for reason in FinishReason:
        scene.serve(reason=reason, error="the cache is gone" if reason is FinishReason.ERROR else "")
    scene.telemetry.shutdown(30.0)
    spans_by_outcome = {span.attributes["draftd.outcome"]: span for span in receiver.spans("chat nano")}
    assert {
        outcome: (span.status, span.attributes.get("error.type")) for outcome, span in spans_by_outcome.items()
    } == {
        "stop": ("UNSET", None),
        "length": ("UNSET", None),
        "cancelled": ("UNSET", "Cancelled"),
        "deadline": ("ERROR", "DeadlineExceeded"),
        "error": ("ERROR", "EngineFailure"),
    }
    assert spans_by_outcome["error"].message == "the cache is gone"
    for outcome, span in spans_by_outcome.items():
        assert span.attributes["gen_ai.response.finish_reasons"] == [outcome]
        assert span.attributes["draftd.spec_decode.draft_tokens"] == 12, "the counts are there however it ended"


def test_refused_request_span_is_an_error_with_its_error_type(scene: Scene, receiver: OtlpReceiver) -> None:
    errors = (
        QueueFull("64 requests wait", retry_after=1.0),
        NotServing("draining"),
        SpeculationUnavailable("the cache cannot be trimmed"),
        InvalidRequest("max_tokens", 0, "1 or more"),
    )
    for error in errors:
        scene.telemetry.begin_inference(scene.start()).refuse(error)
    scene.telemetry.shutdown(30.0)
    spans = receiver.spans()
    assert len(spans) == len(errors), "no children: it never reached the engine"
    for span, error in zip(spans, errors, strict=True):
        assert (span.status, span.message) == ("ERROR", error.message)
        assert span.attributes["error.type"] == type(error).__name__
        assert span.attributes["draftd.outcome"] == "refused"


def test_request_cancelled_or_expired_before_the_engine_has_a_span_and_is_counted(
    scene: Scene, receiver: OtlpReceiver
) -> None:
    reasons = {FinishReason.CANCELLED: "UNSET", FinishReason.DEADLINE: "ERROR"}
    for reason in reasons:
        scene.telemetry.begin_inference(scene.start()).leave(reason)
    scene.telemetry.shutdown(30.0)
    status_by_outcome = {span.attributes["draftd.outcome"]: span.status for span in receiver.spans()}
    assert status_by_outcome == {reason.value: status for reason, status in reasons.items()}
    counted = {point.attributes["draftd.outcome"]: point.value for point in receiver.points("draftd.requests")}
    assert counted == {reason.value: 1 for reason in reasons}


def test_inference_span_records_the_degradation_reason(scene: Scene, receiver: OtlpReceiver) -> None:
    scene.serve(degraded="the ring cache is full")
    scene.telemetry.shutdown(30.0)
    assert only(receiver).attributes["draftd.degraded_reason"] == "the ring cache is full"


def test_unsigned_64_bit_seed_is_exported_as_a_signed_number(scene: Scene, receiver: OtlpReceiver) -> None:
    scene.serve(sampling=SamplingParams(seed=2**64 - 1))
    scene.serve(sampling=SamplingParams(seed=2**63))
    scene.serve(sampling=SamplingParams(seed=2**63 - 1))
    scene.telemetry.shutdown(30.0)
    seeds = [span.attributes["gen_ai.request.seed"] for span in receiver.spans("chat nano")]
    assert seeds == [-1, -(2**63), 2**63 - 1]


@pytest.mark.parametrize("opted_in", [False, True])
def test_span_contains_prompt_and_answer_text_only_if_enabled(
    open_scene: Callable[..., Scene], receiver: OtlpReceiver, opted_in: bool
) -> None:
    scene = open_scene(receiver.environ(), capture_content=opted_in)
    span = scene.telemetry.begin_inference(scene.start(messages=(("user", (text_part("the secret word"),)),)))
    span.finish(Outcome(FinishReason.STOP, RequestStats(5, 0.0)), [text_part("the secret answer")])
    scene.telemetry.shutdown(30.0)
    attributes = only(receiver).attributes
    assert ("secret" in json.dumps(attributes)) is opted_in
    if opted_in:
        said = json.loads(attributes["gen_ai.input.messages"])
        assert said == [{"role": "user", "parts": [{"type": "text", "content": "the secret word"}]}]
        answered = json.loads(attributes["gen_ai.output.messages"])
        assert answered[0]["parts"] == [{"type": "text", "content": "the secret answer"}]
        assert answered[0]["finish_reason"] == "stop"


def test_prompt_and_answer_text_in_a_span_is_bounded(open_scene: Callable[..., Scene], receiver: OtlpReceiver) -> None:
    scene = open_scene(receiver.environ(), capture_content=True)
    texts = (("system", "s" * 10_000), ("user", "u" * 10_000), ("user", "v"))
    messages = tuple((role, (text_part(text),)) for role, text in texts)
    span = scene.telemetry.begin_inference(scene.start(messages=messages))
    span.finish(Outcome(FinishReason.STOP, RequestStats(5, 0.0)), [text_part("a" * 1_000_000)])
    scene.telemetry.shutdown(30.0)
    attributes = only(receiver).attributes
    said = [message["parts"][0]["content"] for message in json.loads(attributes["gen_ai.input.messages"])]
    assert [len(text) for text in said] == [10_000, 6_384, 0]
    assert len(json.loads(attributes["gen_ai.output.messages"])[0]["parts"][0]["content"]) == 16_384


def test_span_of_a_request_refused_before_model_load_has_no_model_attribute(
    open_scene: Callable[..., Scene], receiver: OtlpReceiver
) -> None:
    scene = open_scene(receiver.environ(), info=None)
    scene.telemetry.begin_inference(scene.start()).refuse(NotServing("loading"))
    scene.telemetry.shutdown(30.0)
    attributes = only(receiver, "chat").attributes
    assert "gen_ai.request.model" not in attributes
    assert attributes["error.type"] == "NotServing"


def test_telemetry_counts_and_never_raises_on_invalid_values(
    scene: Scene, receiver: OtlpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    broken: object = None
    span = scene.telemetry.begin_inference(scene.start())
    span.set_plan(broken, broken)  # type: ignore[arg-type]
    span.finish(broken)  # type: ignore[arg-type]
    for _ in range(3):
        scene.telemetry.observer.on_step(broken, broken, 0.1)  # type: ignore[arg-type]
        scene.telemetry.observer.on_finish(broken, broken)  # type: ignore[arg-type]
        scene.telemetry.observer.on_drafter_error(broken, None, "")  # type: ignore[arg-type]
    assert scene.telemetry.begin_inference(broken) is not None  # type: ignore[arg-type]
    assert errors_of(scene.telemetry) == {"span": 3, "observer": 9}
    assert len(caplog.records) == 2, "each part complains once"
    scene.telemetry.shutdown(30.0)
    assert receiver.by("draftd.telemetry.errors", "draftd.telemetry.part") == {"span": 3, "observer": 9}
