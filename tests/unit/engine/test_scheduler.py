"""Requests join, end and fail at step boundaries, and the counts are of what was really emitted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, FinishReason, SamplingParams
from draftd.counts import StepCounts
from draftd.engine.depth.acceptance_rates import Acceptance
from draftd.engine.drafters.base import Drafter
from draftd.engine.observer import EngineObserver
from draftd.engine.sequence import DecodeSequence
from tests.rig import Collected, Rig, automatic, autoregressive, pair, request, speculative, tiny_llama
from tests.scripted import ScriptedModel, scripted_models

PROMPT = [3, 1, 4, 1, 5]


class StopAfter:
    """Ends the text when `sequence` has been emitted."""

    def __init__(self, sequence: Sequence[int]) -> None:
        self._sequence, self._seen = list(sequence), []

    def feed(self, tokens: Sequence[int]) -> int | None:
        for i, token in enumerate(tokens):
            self._seen.append(token)
            if self._seen[-len(self._sequence) :] == self._sequence:
                return i + 1
        return None


def text(models, n: int = 40, prompt=PROMPT) -> list[int]:
    return Rig(models).run([request(prompt, autoregressive(), max_tokens=n)])[0].tokens


@settings(max_examples=30, deadline=None)
@given(
    acceptance=st.sampled_from([0.0, 0.3, 0.7, 0.95, 1.0]),
    depths=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    limit=st.integers(1, 30),
    eos_after=st.one_of(st.none(), st.integers(6, 30)),
    chunk=st.integers(1, 8),
    batch=st.integers(1, 4),
    chosen=st.booleans(),
)
def test_scheduler_emits_target_text_with_consistent_counts_for_any_request_mix(
    acceptance, depths, limit, eos_after, chunk, batch, chosen
):
    models = scripted_models(acceptance, eos_after=eos_after)
    prompts = [[(7 * i + j) % 200 for j in range(2 + 3 * i)] for i in range(len(depths))]
    plans = [(automatic if chosen else speculative)(d) if d else autoregressive() for d in depths]
    asked = [request(p, plan, max_tokens=limit) for p, plan in zip(prompts, plans, strict=True)]
    sinks = Rig(models, max_batch=batch, prefill_chunk=chunk).run(asked)
    for prompt, depth, sink in zip(prompts, depths, sinks, strict=True):
        assert sink.tokens == text(models, limit, prompt)
        c = sink.done.stats.counts
        assert sink.finishes == 1
        assert c.emitted == len(sink.tokens)
        assert c.steps == c.target_forwards == len(sink.chunks)
        assert c.drafted == c.accepted + c.rolled_back == sum(c.drafted_per_position)
        assert c.accepted == sum(c.accepted_per_position)
        assert sum(sink.from_draft) == c.accepted - max(0, c.cut - 1), "of what was cut, one was not drafted"
        assert c.rollbacks <= c.drafts <= c.steps
        assert c.emitted == c.accepted + c.steps - c.cut
        assert c.draft_forwards == c.drafted
        if acceptance == 1.0:
            assert c.rollbacks == c.rolled_back == 0
        if depth and acceptance == 0.0 and eos_after is None and not chosen:
            assert c.accepted == 0


def test_reported_acceptance_equals_the_scripted_models_acceptance():
    models = scripted_models(0.7)
    counts = Rig(models).run([request(PROMPT, speculative(1), max_tokens=3000)])[0].done.stats.counts
    assert counts.acceptance == pytest.approx(0.7, abs=0.03)


def test_end_of_text_inside_accepted_block_cuts_it_without_counting_a_rollback():
    models = scripted_models(1.0, eos_after=len(PROMPT) + 1)
    sink = Rig(models).run([request(PROMPT, speculative(6))])[0]
    c = sink.done.stats.counts
    assert sink.done.reason is FinishReason.STOP
    assert len(sink.tokens) == 3  # the token at position 5, and the end of text at 6, which follows two
    assert (c.drafted, c.accepted, c.rolled_back, c.rollbacks, c.cut, c.emitted) == (6, 6, 0, 0, 5, 3)
    assert (c.gained, c.speedup) == (2, None), "what the draft's step emitted; how long a plain one takes is not known"


class Heard(EngineObserver):
    def __init__(self) -> None:
        self.steps: list[StepCounts] = []

    def on_step(self, request, result, gap):
        self.steps.append(result)


def test_depth_control_evidence_equals_drafted_and_accepted_counts_of_reported_steps():
    heard = Heard()
    rig = Rig(scripted_models(0.7, eos_after=12), observer=heard)
    asked = [request([7 * i, i], speculative(6)) for i in range(12)]
    counts = [sink.done.stats.counts for sink in rig.run(asked)]
    assert sum(c.cut for c in counts) > 0, "no text ended within a block: nothing was proven"
    assert sum(c.rollbacks for c in counts) > 0
    learnt, sequence = Acceptance(), DecodeSequence.of(asked[0], Collected(), 100)
    for step in heard.steps:
        if step.drafted:
            learnt.learn(sequence, DRAFT_MODEL, step.drafted, step.accepted)
    known = rig.scheduler.local.depth.acceptance.evidence
    assert {key: (one.drafted, one.accepted) for key, one in known.items()} == {
        key: (one.drafted, one.accepted) for key, one in learnt.evidence.items()
    }


def test_draft_block_near_max_tokens_is_no_longer_than_tokens_left():
    sink = Rig(scripted_models(1.0)).run([request(PROMPT, speculative(4), max_tokens=7)])[0]
    assert sink.chunks == [1, 5, 1]
    assert sink.done.reason is FinishReason.LENGTH
    assert sink.done.stats.counts.drafted == 4


def test_stop_sequence_across_steps_ends_text_where_it_completes():
    models = scripted_models(1.0)
    whole = text(models)
    for end in range(2, 14):
        stop = whole[end - 2 : end]
        first = next(i for i in range(2, end + 1) if whole[i - 2 : i] == stop)
        sink = Rig(models).run([request(PROMPT, speculative(3), stop=StopAfter(stop))])[0]
        assert sink.tokens == whole[:first]
        assert sink.done.reason is FinishReason.STOP
        c = sink.done.stats.counts
        assert c.emitted == first == c.accepted + c.steps - c.cut
        assert c.rollbacks == c.rolled_back == 0, "all was accepted, wherever the text was cut"


def test_context_limit_ends_text_with_reason_length():
    models = scripted_models(0.8, context_length=24)
    sink = Rig(models).run([request(PROMPT, speculative(4), max_tokens=500)])[0]
    assert len(sink.tokens) == 24 - len(PROMPT)
    assert sink.done.reason is FinishReason.LENGTH


def test_cancelled_request_stops_at_once_and_its_neighbour_finishes():
    models = scripted_models(0.6)
    rig = Rig(models)
    gone, stays = request(PROMPT, speculative(3), max_tokens=60), request(PROMPT, autoregressive(), max_tokens=60)
    a, b = rig.add(gone), rig.add(stays)
    for _ in range(6):
        rig.scheduler.step()
    before = len(a.tokens)
    rig.scheduler.end({gone.id: FinishReason.CANCELLED, "unknown": FinishReason.CANCELLED})
    assert a.done.reason is FinishReason.CANCELLED
    assert len(a.tokens) == before
    rig.drain()
    assert b.tokens == text(models, 60)


def test_deadline_ends_waiting_and_running_requests():
    now = [0.0]
    rig = Rig(scripted_models(0.5), max_batch=1, clock=lambda: now[0])
    running = rig.add(request(PROMPT, speculative(2), max_tokens=1000, deadline=5.0))
    waiting = rig.add(request(PROMPT, autoregressive(), deadline=3.0))
    for _ in range(4):
        rig.scheduler.step()
    now[0] = 3.0
    rig.scheduler.step()
    assert waiting.done.reason is FinishReason.DEADLINE
    assert waiting.tokens == []
    assert running.outcome is None
    now[0] = 5.0
    rig.scheduler.step()
    assert running.done.reason is FinishReason.DEADLINE
    assert len(running.tokens) == running.done.stats.counts.emitted > 0


class FailingDrafter(Drafter):
    """Works for a while, then raises."""

    def __init__(self, inner, after: int) -> None:
        self._inner, self._left = inner, after

    def prefill(self, row, chunk):
        return self._inner.prefill(row, chunk)

    def propose(self, rows, depths, sampling):
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("draft weights are gone")
        return self._inner.propose(rows, depths, sampling)

    def leave(self, row):
        self._inner.leave(row)


def test_failing_drafter_degrades_requests_without_losing_tokens():
    from draftd.engine.drafters.draft_model import DraftModel

    models = scripted_models(0.8)
    failing = FailingDrafter(DraftModel(models.draft, models.info.vocab_size), after=4)
    rig = Rig(models, drafters={DRAFT_MODEL: failing})
    sinks = rig.run([request(PROMPT, speculative(3), max_tokens=40), request([9, 9], speculative(2), max_tokens=40)])
    assert [s.tokens for s in sinks] == [text(models, 40), text(models, 40, [9, 9])]
    assert all("draft weights are gone" in s.done.degraded for s in sinks)
    assert all(s.done.reason is FinishReason.LENGTH for s in sinks)


class VerifierErrors(EngineObserver):
    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def on_verifier_error(self, request, message):
        self.told.append((request.id, message))


def test_failing_sequence_ends_alone_and_its_neighbour_keeps_its_text():
    models = scripted_models(0.8)
    assert isinstance(models.target, ScriptedModel)
    good = text(models, 30)
    poison = next(t for t in text(models, 30, [9, 9])[8:] if t not in good and t not in PROMPT)
    models.target.fail_on_token = poison
    heard = VerifierErrors()
    requests = [request(PROMPT, speculative(3), max_tokens=30), request([9, 9], autoregressive())]
    rig = Rig(models, observer=heard)
    sinks = [rig.add(requests[0])]
    rig.scheduler.step()
    sinks.append(rig.add(requests[1]))
    rig.drain()
    assert {id for id, _ in heard.told} == {r.id for r in requests}
    assert all("scripted failure" in message for _, message in heard.told)
    assert sinks[0].tokens == good
    assert sinks[0].done.reason is FinishReason.LENGTH
    assert "a decode step failed" in sinks[0].done.degraded
    assert sinks[1].done.reason is FinishReason.ERROR
    assert "scripted failure" in sinks[1].done.error
    assert sinks[1].done.stats.counts.emitted == len(sinks[1].tokens) > 0


def test_seeded_text_is_independent_of_requests_in_same_batch():
    models = pair(tiny_llama(1), tiny_llama(2))

    def ask(seed: int, prompt: list[int], plan):
        return request(prompt, plan, max_tokens=24, sampling=SamplingParams(temperature=1.0, top_p=0.9, seed=seed))

    for plan in (autoregressive(), speculative(3), speculative(2, PROMPT_LOOKUP)):
        alone = Rig(models).run([ask(7, [1, 2, 3], plan)])[0].tokens
        others = [ask(s, [4] * (s + 1), speculative(4)) for s in range(3)]
        shared = Rig(models).run([others[0], ask(7, [1, 2, 3], plan), *others[1:]])[1].tokens
        assert shared == alone
