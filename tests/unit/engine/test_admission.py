"""Requests begin where there is memory for them, in a fair order, and those that never would are refused."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.core import FinishReason
from draftd.engine import prefill_order
from draftd.engine.admission import Admission, Layout, default_limit, default_prefix_limit
from draftd.engine.cache.layouts import cache_bytes
from draftd.engine.cache.prefix_store import PrefixCache
from draftd.engine.limits import Limits
from draftd.errors import InvalidRequest, NoMemory
from draftd.model_info import prefix_room
from tests.rig import Rig, autoregressive, pair, request, speculative, tiny_llama
from tests.scripted import scripted_models

MODELS = pair(tiny_llama(1), tiny_llama(2))
EACH = cache_bytes(MODELS.target).position + cache_bytes(MODELS.draft).position


def layout(each: int = EACH, context: int = 4096) -> Layout:
    return Layout(each, context)


def rig(limit: int, models=MODELS, each: int = EACH, **options) -> Rig:
    return Rig(models, admission=Admission(layout(each=each), limit, **options))


def positions(n: int) -> int:
    return n * EACH


def test_kv_bytes_per_position_are_measured_from_model_cache():
    assert EACH == 2 * (2 * 2 * 2 * 8 * 4)  # models of layers, keys and values, heads, dim, fp32
    of_a_layer = 2 * 2 * 8 * 4
    assert cache_bytes(tiny_llama(4, sliding=16)) == (of_a_layer, (15 + 16 + 64) * of_a_layer), "one layer of each kind"


def test_kv_reservation_of_a_row_is_its_maximum_length_plus_a_quarter():
    assert layout(each=1).needed_bytes([100, 100, 600]) == 125 + 125 + 750 + 3 * 64
    assert layout(each=1).needed_bytes([]) == 0
    windows = Layout(1, 4096, window_bytes=1000)
    assert windows.needed_bytes([100, 100, 600]) == layout(each=1).needed_bytes([100, 100, 600]) + 3 * 1000
    assert windows.longest(750 + 64 + 1000) == 600


def test_request_without_kv_memory_waits_until_another_ends(caplog):
    caplog.set_level(logging.INFO)
    limit = layout().needed_bytes([43, 42])
    one = rig(limit)
    first = one.add(request([1, 2, 3], speculative(2), max_tokens=40))
    one.scheduler.step()
    second = one.add(request([4, 5], autoregressive(), max_tokens=40))
    one.scheduler.step()
    third = one.add(request([6], autoregressive(), max_tokens=40))
    one.scheduler.step()
    local = one.scheduler.local
    assert (local.active, len(local.not_begun), local.prefilling.held_back) == (2, 1, 1)
    while third.outcome is None:
        assert one.scheduler.local.active <= 2
        one.scheduler.step()
    assert first.finishes == second.finishes == 1
    assert one.scheduler.local.prefilling.held_back == 0
    told = [record.getMessage() for record in caplog.records if "memory" in record.getMessage()]
    assert told == ["requests wait for memory", "no request waits for memory any more"]


def test_request_waiting_for_memory_is_overtaken_a_bounded_number_of_times(monkeypatch):
    monkeypatch.setattr(prefill_order, "MOST_OVERTAKEN", 3)
    one = rig(layout().needed_bytes([110]))
    one.add(request([1] * 10, autoregressive(), max_tokens=20))
    one.scheduler.step()
    big = one.add(request([2] * 10, autoregressive(), max_tokens=100))
    others = [one.add(request([3] * 5, autoregressive(), max_tokens=3)) for _ in range(9)]
    while not big.tokens:
        one.scheduler.step()
    assert sum(bool(other.tokens) for other in others) == 3
    one.drain()
    assert all(other.done.reason is FinishReason.LENGTH for other in others)


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_kv_caches_stay_within_limit_and_batched_texts_equal_those_decoded_alone(data):
    limit = positions(data.draw(st.sampled_from([128, 400, 800, 2000, 9000])))
    one, sinks = rig(limit), []
    admission = Admission(layout(), limit)
    for i in range(data.draw(st.integers(1, 8))):
        length = data.draw(st.sampled_from([1, 3, 20, 90, 230, 300]))
        plan = data.draw(st.sampled_from([autoregressive(), speculative(2)]))
        asked = request([(i + 3 * j) % 31 for j in range(length)], plan, max_tokens=data.draw(st.integers(1, 40)))
        try:
            admission.check(asked)
        except InvalidRequest:
            continue
        sinks.append((asked, one.add(asked)))
        for _ in range(data.draw(st.integers(0, 6))):
            one.scheduler.step()
            assert one.scheduler.local.kv_cache_bytes <= limit
        if data.draw(st.integers(0, 4)) == 0:
            one.scheduler.end({data.draw(st.sampled_from(sinks))[0].id: FinishReason.CANCELLED})
    while not one.scheduler.idle:
        one.scheduler.step()
        assert one.scheduler.local.kv_cache_bytes <= limit
    for asked, sink in sinks:
        alone = Rig(MODELS).run([request(asked.prompt, autoregressive(), max_tokens=asked.max_tokens)])[0].tokens
        assert sink.tokens == (alone if sink.done.reason is FinishReason.LENGTH else alone[: len(sink.tokens)])
    assert one.scheduler.local.kv_cache_bytes == 0


@pytest.mark.parametrize("prompt", [10, 300, 2000])
def test_admission_refusal_states_largest_prompt_or_max_tokens_that_would_fit(prompt):
    admission = Admission(layout(), positions(8 * 256))
    with pytest.raises(InvalidRequest) as refused:
        admission.check(request([1] * prompt, autoregressive(), max_tokens=4000))
    if prompt == 2000:
        assert refused.value.field == "prompt"
        assert refused.value.value == "2000 tokens"
        most = int(refused.value.allowed.split()[2])
        admission.check(request([1] * most, autoregressive(), max_tokens=1))
        with pytest.raises(InvalidRequest, match="prompt"):
            admission.check(request([1] * (most + 1), autoregressive(), max_tokens=1))
        return
    assert refused.value.field == "max_tokens"
    assert f"{positions(8 * 256)} bytes (engine.kv_cache_bytes)" in refused.value.allowed
    most = int(refused.value.allowed.split()[2])
    admission.check(request([1] * prompt, autoregressive(), max_tokens=most))
    with pytest.raises(InvalidRequest, match="max_tokens"):
        admission.check(request([1] * prompt, autoregressive(), max_tokens=most + 1))


def test_kv_limit_refusal_states_bytes_needed_and_bytes_allowed():
    limit = positions(8 * 256)
    admission, longest = Admission(layout(), limit), layout().longest(limit)
    admission.check(request([1] * (longest - 1), autoregressive(), max_tokens=1))
    need = layout().needed_bytes([longest + 1])
    with pytest.raises(InvalidRequest, match=f"it needs {need} bytes, and .* may take {limit} bytes"):
        admission.check(request([1] * longest, autoregressive(), max_tokens=1))
    assert layout(context=400).longest(limit) == layout(context=400).longest(0) == 400
    assert layout().longest(1) == 0


def test_request_beyond_free_memory_is_refused_with_resource_exhausted_and_retry_after():
    asked = request([1] * 300, autoregressive(), max_tokens=100)
    need = layout().needed_bytes([400])
    for free, held in ((None, 0), (need, 0), (0, need)):  # others end, and give back what they hold
        Admission(layout(), 0, Limits(available=answering(free))).check(asked, held)
    with pytest.raises(
        NoMemory, match=f"400 tokens, .* needs {need} bytes .* has {need - 1} bytes of memory left"
    ) as refused:
        Admission(layout(), 0, Limits(available=answering(need - 10))).check(asked, 9)
    assert refused.value.grpc_status == "RESOURCE_EXHAUSTED"
    assert refused.value.retry_after


def test_max_tokens_beyond_context_length_reserve_no_kv_memory():
    admission = Admission(layout(context=400), positions(4 * 256))
    admission.check(request([1] * 10, autoregressive(), max_tokens=100_000))


def answering(value: int | None) -> Callable[[], int | None]:
    return lambda: value


@pytest.mark.parametrize(("headroom", "together"), [(None, True), (10**9, True), (1, False), (0, False), (-5, False)])
def test_memory_headroom_limits_concurrent_requests_but_never_a_lone_request(headroom, together):
    one = rig(0, limits=Limits(headroom=answering(headroom)))
    sinks = [one.add(request([i, 2, 3], autoregressive(), max_tokens=20)) for i in range(2)]
    most = 0
    while not one.scheduler.idle:
        one.scheduler.step()
        most = max(most, one.scheduler.local.active)
    assert (most == 2) is together
    assert all(sink.done.reason is FinishReason.LENGTH for sink in sinks)


def test_cached_prefixes_are_dropped_to_free_memory_before_request_waits():
    asked = []

    class Kept(PrefixCache):
        def shed(self, to_bytes: int) -> int:
            asked.append(self.bytes - to_bytes)
            return asked[-1]

    kept = Kept()
    kept.bytes = 10**9
    one = rig(0, limits=Limits(headroom=answering(EACH)), prefix=kept)
    one.add(request([1, 2, 3], autoregressive(), max_tokens=20))
    one.scheduler.step()
    one.add(request([4, 2, 3], autoregressive(), max_tokens=20))
    one.scheduler.step()
    assert one.scheduler.local.active == 2
    assert len(asked) == 1
    assert asked[0] > EACH


def test_default_kv_limit_follows_from_headroom_or_total_memory():
    assert default_limit(layout(each=1, context=100), 4_000_000, 10**9) == 3_000_000
    assert default_limit(layout(each=1, context=100), None, 8_000_000) == 1_000_000
    one = layout(each=1).needed_bytes([4096])
    assert default_limit(layout(each=1), 0, 10**9) == one, "a text as long as the context fits all the same"
    assert default_limit(layout(each=1), 0, 8000) == 1000, "unless that is too much for the machine"


def test_engine_worker_enforces_and_reports_kv_cache_limit(running):
    engine = running(lambda: scripted_models(0.8), kv_cache_bytes=8 * 256 * 16, max_batch=4)
    assert engine.worker.status().kv_cache_limit_bytes == 8 * 256 * 16
    with pytest.raises(InvalidRequest, match="max_tokens: got 3000; allowed: at most"):
        engine.ask(request([1, 2, 3], speculative(2), max_tokens=3000))
    texts = engine.answer(*[request([1, 2, i], speculative(2), max_tokens=200) for i in range(6)])
    assert [len(text) for text in texts] == [200] * 6
    with pytest.raises(NoMemory):  # and neither queued nor prefilled
        running(lambda: scripted_models(0.8), available=answering(1)).ask(request([1, 2, 3], autoregressive()))
    derived_limit = running(lambda: scripted_models(0.8)).worker.status().kv_cache_limit_bytes
    assert derived_limit > 0


GIB = 2**30


@pytest.mark.parametrize(
    ("headroom", "memory", "limit", "texts", "expected"),
    [
        (8 * GIB, 24 * GIB, 6 * GIB, 8, 2 * GIB),  # what the limit of running requests leaves
        (8 * GIB, 24 * GIB, 7 * GIB, 8, GIB),  # they were given more
        (8 * GIB, 24 * GIB, GIB, 8, 2 * GIB),  # or less
        (8 * GIB, 12 * GIB, 6 * GIB, 8, 12 * GIB // 8),
        (400 * GIB, 512 * GIB, 300 * GIB, 2, 2 * (5 * 8192 // 4 + 64) * 150_000),
        (0, 24 * GIB, GIB, 8, GIB // 4),
        (0, 4 * GIB, GIB, 8, GIB // 8),
        (None, 24 * GIB, GIB, 8, GIB // 4),
    ],
)
def test_default_prefix_cache_limit_is_a_share_of_free_memory(headroom, memory, limit, texts, expected):
    model = Layout(150_000, 8192)
    assert default_prefix_limit(model, limit, headroom, memory, texts) == expected


def test_prefix_cache_capacity_is_described_in_tokens_or_texts():
    assert Layout(46_080, 8192).longest_cached(256 * 2**20) == 5825
    windows, states = Layout(1000, 8192, window_bytes=50_000), Layout(0, 8192, window_bytes=50_000)
    assert (windows.longest_cached(60_000), windows.longest_cached(49_999)) == (10, 0)
    assert (states.longest_cached(50_000), states.longest_cached(49_999)) == (8192, 0)
    assert windows.cached_bytes(windows.longest_cached(60_000)) == 60_000
    assert prefix_room(256 * 2**20, 46_080, 0) == "5,825 tokens"
    assert prefix_room(2_100_000, 1000, 50_000) == "2 texts of 1,000 tokens"
    assert prefix_room(2_100_000, 0, 50_000) == "42 texts"
