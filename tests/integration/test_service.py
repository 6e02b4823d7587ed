"""What requests are answered, over a real gRPC connection and the real engine."""

from __future__ import annotations

from pathlib import Path

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, DepthMode, ModePreference
from draftd.v1 import inference_pb2 as pb
from tests.in_process_daemon import Answer, Served, collect, models, serving
from tests.scripted import scripted_models


def check_counts(answer: Answer) -> None:
    """What the chunks say and what `finished` says are the same numbers."""
    assert answer.finished is not None
    counts = answer.finished.counts
    drafted = [flag for chunk in answer.chunks for flag in chunk.from_draft]
    assert len(drafted) == len(answer.tokens) == answer.finished.usage.output_tokens
    assert len(drafted) == counts.accepted_tokens + counts.steps - counts.cut_tokens
    assert sum(drafted) == counts.accepted_tokens - max(0, counts.cut_tokens - 1)
    assert counts.drafted_tokens == counts.accepted_tokens + counts.rolled_back_tokens
    assert counts.accepted_tokens == sum(counts.accepted_per_position)
    for chunk in answer.chunks:
        assert len(chunk.text_lengths) == len(chunk.token_ids)
        assert sum(chunk.text_lengths) <= len(chunk.text)


def test_cached_prompt_tokens_agree_in_answers_and_status(tmp_path: Path) -> None:
    with serving(tmp_path, models, engine={"prefix_cache_bytes": 1 << 20}) as served:
        text, read = "a prompt that goes on and on", []
        for _ in range(3):
            answer = collect(served.client.generate(text, max_tokens=20, mode=ModePreference.SPECULATIVE))
            assert answer.finished is not None
            read.append(answer.finished.usage.cache_read_tokens)
            text += " and on"
        assert read == [0, 28, 35]
        told = served.client.status().prefix_cache
        assert (told.lookups, told.hits, told.read_tokens) == (3, 2, sum(read))
        assert 0 < told.bytes <= told.limit_bytes == 1 << 20
        assert told.entries > 0
        each = served.client.model().position_bytes
        assert (told.limit_tokens, told.unfit, told.warning) == ((1 << 20) // each, 0, "")
        assert f"prefix cache: 1 MB, room for {told.limit_tokens:,} tokens" in served.lines
    with serving(tmp_path, models) as plain:
        again = collect(plain.client.generate(text.removesuffix(" and on"), max_tokens=20))
        assert again.tokens == answer.tokens


def test_grpc_decode_modes_give_the_same_text_and_report_their_plan(served: Served) -> None:
    spec = collect(served.client.generate("hello", max_tokens=60, mode=ModePreference.SPECULATIVE))
    auto = collect(served.client.generate("hello", max_tokens=60, mode=ModePreference.AUTOREGRESSIVE))
    assert spec.tokens == auto.tokens
    assert spec.text == auto.text
    for answer in (spec, auto):
        check_counts(answer)
        assert answer.finished is not None
        assert answer.finished.reason == pb.FINISH_REASON_LENGTH
        assert answer.started.prompt_tokens == answer.finished.usage.input_tokens == 5
    assert spec.started.plan.mode == pb.DECODE_MODE_SPECULATIVE
    assert spec.started.plan.max_draft_tokens == 4
    assert spec.started.plan.drafter == DRAFT_MODEL
    assert spec.finished is not None
    assert spec.finished.counts.accepted_tokens > 0
    assert auto.started.plan.reason == "request: autoregressive"
    assert auto.finished is not None
    assert auto.finished.counts.drafted_tokens == 0


def test_grpc_answer_timings_are_positive_and_ordered(served: Served) -> None:
    answer = collect(served.client.generate("hello", max_tokens=40))
    assert answer.finished is not None
    t = answer.finished.timings
    first, total = t.time_to_first_token.ToNanoseconds(), t.total.ToNanoseconds()
    assert 0 < t.queue.ToNanoseconds() + t.prefill.ToNanoseconds() <= first <= total
    assert t.decode_tokens_per_second > 0
    p50, p95, p99 = (d.ToNanoseconds() for d in (t.inter_chunk_p50, t.inter_chunk_p95, t.inter_chunk_p99))
    assert 0 < p50 <= p95 <= p99


def test_get_model_reports_the_loaded_model_and_its_limits(served: Served) -> None:
    model = served.client.model()
    assert (model.model, model.draft_model, model.context_length) == ("scripted", "scripted-draft", 4096)
    assert model.speculation_available
    assert list(model.drafters) == [DRAFT_MODEL, PROMPT_LOOKUP]
    assert (model.max_draft_tokens, model.default_max_tokens) == (4, 4096)
    assert model.depth_mode == pb.DEPTH_MODE_FIXED
    assert model.chat_template
    assert (dict(model.layers), dict(model.end_tokens)) == ({"full attention": 1}, {255: "<end>"})
    assert (model.position_bytes, model.sequence_bytes, model.largest_context) == (2 * 2 * 4, 0, 4096)
    assert (model.partial_prefixes, model.tools, model.thinking) == (True, False, False)


def test_request_depth_mode_defaults_to_the_daemon_setting(tmp_path: Path) -> None:
    with serving(tmp_path, models, engine={"depth_mode": "automatic"}) as served:
        assert served.client.model().depth_mode == pb.DEPTH_MODE_AUTOMATIC
        plan = collect(served.client.generate("x", max_tokens=4)).started.plan
        assert (plan.depth_mode, plan.max_draft_tokens) == (pb.DEPTH_MODE_AUTOMATIC, 4)
        assert list(plan.alternatives) == [PROMPT_LOOKUP]
        plan = collect(served.client.generate("x", max_tokens=4, depth_mode=DepthMode.FIXED)).started.plan
        assert (plan.depth_mode, list(plan.alternatives)) == (pb.DEPTH_MODE_FIXED, [])
        plan = collect(served.client.generate("x", max_tokens=4, max_draft_tokens=0)).started.plan
        assert plan.depth_mode == pb.DEPTH_MODE_UNSPECIFIED


def test_useless_draft_is_parked_and_parked_steps_are_counted_in_status(tmp_path: Path) -> None:
    with serving(tmp_path, lambda: scripted_models(0.0), engine={"depth_mode": "automatic"}) as served:
        wrong = [collect(served.client.generate("x", max_tokens=200, drafter=DRAFT_MODEL)) for _ in range(2)]
        plain = collect(served.client.generate("x", max_tokens=200, mode=ModePreference.AUTOREGRESSIVE))
        told = [answer.finished.counts for answer in wrong]
        assert [answer.tokens for answer in wrong] == [plain.tokens] * 2
        assert told[-1].parked_steps > 100 > told[-1].drafts
        assert all(one.drafts + one.parked_steps <= one.steps for one in told)
        assert plain.finished.counts.parked_steps == 0
        assert served.client.status().counts.parked_steps == sum(one.parked_steps for one in told)
