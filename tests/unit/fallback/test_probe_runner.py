"""Probes and canaries on an engine with scripted answers: requests, verdicts and failures."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from draftd.core import (
    DRAFT_MODEL,
    PROMPT_LOOKUP,
    DecodeMode,
    DecodeRequest,
    DepthMode,
    FallbackLevel,
    FinishReason,
    LadderLevel,
    Origin,
    WorkloadClass,
)
from draftd.errors import ModelLoadError, NotNow, NotServing, QueueFull
from draftd.fallback.probe_runner import ProbeLimits, ProbeRunner
from draftd.fallback.probes import CanaryOutcome, Divergence, ProbeReport, ProbeVerdict
from draftd.outcome import Outcome, RequestStats, TokenSink
from draftd.settings import FallbackSettings
from tests.fake_engine import Answering, Told, counted
from tests.unit.fallback.probing import (
    FULL,
    LIGHT,
    PLAIN,
    SHORT,
    SOON,
    at,
    canaries_run,
    probe_runner,
    probed,
    prompts,
)
from tests.wait_until import until

# the requests of a probe


def test_probe_runs_each_prompt_autoregressively_and_speculatively_with_probe_origin() -> None:
    engine = Answering()
    report = probed(engine, SHORT)
    plain, drafted = engine.asked[:3], engine.asked[3:]
    assert [request.plan.mode for request in plain] == [DecodeMode.AUTOREGRESSIVE] * 3
    assert [request.prompt for request in plain] == [request.prompt for request in drafted]
    assert len({request.id for request in engine.asked}) == 6
    for request in engine.asked:
        assert (request.origin, request.max_tokens, request.workload) == (Origin.PROBE, 8, WorkloadClass.CHAT)
        assert request.deadline is not None
        assert request.deadline - request.arrival == pytest.approx(5.0)
        assert request.sampling.greedy
    for request in drafted:
        plan = request.plan
        assert (plan.max_draft_tokens, plan.drafter, plan.level) == (2, DRAFT_MODEL, SHORT.kind)
        assert (plan.variant, plan.reason) == ("probe", "probe of short_block 2")
        assert (plan.depth_mode, plan.alternatives) == (DepthMode.FIXED, frozenset())
    assert (report.verdict, report.level) == (ProbeVerdict.GOOD, SHORT)
    assert report.acceptance == pytest.approx(90 / 96)
    assert report.speedup == pytest.approx(120 / 60)


def test_probe_borrows_drafter_weights_only_for_its_speculative_requests() -> None:
    engine = Answering()
    while_asked = []

    def look(request: DecodeRequest) -> None:
        while_asked.append((request.plan.mode, list(engine.borrowed)))

    engine.says = look
    probed(engine, LIGHT)
    assert while_asked == [(DecodeMode.AUTOREGRESSIVE, [])] * 3 + [(DecodeMode.SPECULATIVE, [PROMPT_LOOKUP])] * 3
    assert engine.lent == [PROMPT_LOOKUP]


def test_probe_reuses_its_autoregressive_reference_answers_until_the_target_changes() -> None:
    engine = Answering()
    with probe_runner(engine) as (runner, _):
        for _ in range(2):
            assert runner.probe(FULL).result(SOON).verdict is ProbeVerdict.GOOD
        assert len(engine.asked) == 3 + 2 * 3
        assert runner.canaries().result(SOON).verdict is ProbeVerdict.GOOD
        assert len(engine.asked) == 3 + 3 * 3  # the same prompts here
        engine.info = replace(engine.info, model="another")
        assert runner.probe(FULL).result(SOON).verdict is ProbeVerdict.GOOD
    assert len(engine.asked) == 3 + 3 * 3 + 2 * 3


# the verdict on a probe


@pytest.mark.parametrize(
    ("counts", "verdict", "reason"),
    [
        (counted(accepted=5, rollbacks=10), ProbeVerdict.BAD, "acceptance 0.33, floor 0.40"),
        (counted(break_even=40.0), ProbeVerdict.BAD, "speed-up 0.80, minimum 1"),
        (counted(accepted=4, rollbacks=1), ProbeVerdict.TOO_FEW_SAMPLES, "15 drafted tokens reached in 3 prompts"),
        (counted(drafts=0, accepted=0, rollbacks=0), ProbeVerdict.TOO_FEW_SAMPLES, "0 drafted tokens reached"),
    ],
)
def test_probe_verdict_follows_measured_acceptance_speedup_and_sample_size(
    counts: Any, verdict: ProbeVerdict, reason: str
) -> None:
    report = probed(Answering(counts=counts))
    assert report.verdict is verdict
    assert reason in report.reason


def test_probe_speedup_ignores_a_stall_during_one_prompt() -> None:
    engine, stalls = Answering(), iter((10.0, 5000.0, 10.0))

    def stall(request: DecodeRequest) -> None:
        if request.plan.mode is DecodeMode.SPECULATIVE:
            engine.counts = counted(break_even=next(stalls))

    engine.says = stall
    report = probed(engine)
    assert (report.verdict, report.speedup) == (ProbeVerdict.GOOD, pytest.approx(2.0))


def test_probe_with_diverging_speculative_text_is_bad_and_names_token_and_logit_gap() -> None:
    engine = Answering(text="The sky is blue.", drafted="The sky is grey.")
    report = probed(engine)
    assert report.verdict is ProbeVerdict.BAD
    assert report.reason.startswith("p0 leaves the autoregressive text at token 11, logit gap 3.25")
    before, chosen, other = engine.gaps[0]
    assert (before, chr(chosen), chr(other)) == (engine.asked[0].prompt + tuple(b"The sky is "), "b", "g")


def test_probe_on_metal_tolerates_divergence_only_at_near_tied_logits() -> None:
    metal = replace(Answering().info, backend="metal")
    near = Answering(drafted="yet", info=metal, gap=0.125)
    assert probed(near).verdict is ProbeVerdict.GOOD
    assert probed(Answering(drafted="yet", info=metal, gap=-3.0)).verdict is ProbeVerdict.BAD
    assert probed(Answering(drafted="yet", gap=0.125)).verdict is ProbeVerdict.BAD


def test_probe_acceptance_below_its_measured_baseline_is_bad() -> None:
    engine = Answering(counts=counted(accepted=90, rollbacks=10))
    with probe_runner(engine) as (runner, _):
        assert runner.probe(FULL).result(SOON).verdict is ProbeVerdict.GOOD
        assert not runner.baselines.drafters.get(FULL.drafter)
        assert runner.probe(FULL, learn=True).result(SOON).verdict is ProbeVerdict.GOOD
        assert runner.baselines.drafters.get(SHORT.drafter)
        assert not runner.baselines.drafters.get(LIGHT.drafter)
        engine.counts = counted(accepted=50, rollbacks=50)
        report = runner.probe(SHORT).result(SOON)
        assert (report.verdict, report.acceptance) == (ProbeVerdict.BAD, 0.5)
        assert "baseline 0.90" in report.reason
        engine.counts = counted(accepted=89, rollbacks=11)
        assert runner.probe(FULL).result(SOON).verdict is ProbeVerdict.GOOD


def test_bad_probe_sets_no_acceptance_baseline() -> None:
    engine = Answering(counts=counted(accepted=5, rollbacks=10))
    with probe_runner(engine) as (runner, _):
        assert runner.probe(FULL, learn=True).result(SOON).verdict is ProbeVerdict.BAD
        assert not runner.baselines.drafters.get(FULL.drafter)


# canaries


def test_canaries_run_in_both_decode_modes_and_their_answers_are_checked() -> None:
    engine = Answering()
    report = canaries_run(engine)
    assert {request.origin for request in engine.asked} == {Origin.CANARY}
    assert report.outcomes == tuple(CanaryOutcome(f"p{n}", True, True) for n in range(3))
    assert (report.verdict, report.score_autoregressive, report.score_speculative) == (ProbeVerdict.GOOD, 1.0, 1.0)


def test_canaries_failing_in_both_decode_modes_give_a_good_verdict() -> None:
    report = canaries_run(Answering(text="no"))
    assert report.outcomes[0] == CanaryOutcome("p0", False, False, None, "mentions none of yes")
    assert (report.verdict, report.score_autoregressive) == (ProbeVerdict.GOOD, 0.0)


def test_canaries_failing_only_speculatively_are_bad_and_name_the_decode_mode() -> None:
    metal = replace(Answering().info, backend="metal")
    report = canaries_run(Answering(drafted="not", info=metal, gap=0.1))
    assert report.outcomes[0] == CanaryOutcome(
        "p0", True, False, Divergence(0, 0.1), "speculative: mentions none of yes"
    )
    assert report.verdict is ProbeVerdict.BAD


def test_passing_canaries_with_diverging_text_are_bad_except_at_near_ties_on_metal() -> None:
    strict = canaries_run(Answering(text="yes or no", drafted="yes oh no", gap=0.1))
    assert strict.outcomes[0] == CanaryOutcome("p0", True, True, Divergence(5, 0.1))
    assert strict.verdict is ProbeVerdict.BAD
    assert strict.reason.startswith(
        "3 of 3 texts are not the target's own: p0 leaves the autoregressive text at token 5, logit gap 0.1"
    )
    metal = replace(Answering().info, backend="metal")
    near = canaries_run(Answering(text="yes or no", drafted="yes oh no", gap=0.1, info=metal))
    assert (near.verdict, near.divergences) == (ProbeVerdict.GOOD, 3)
    assert "3 diverged" in near.reason
    far = canaries_run(Answering(text="yes or no", drafted="yes oh no", gap=4.0, info=metal))
    assert (far.verdict, far.divergences) == (ProbeVerdict.BAD, 3)


@pytest.mark.parametrize(("drafted", "at"), [("yes or", 6), ("yes or no way", 9)])
def test_canary_text_of_different_length_is_a_divergence_without_logit_gap(drafted: str, at: int) -> None:
    engine = Answering(text="yes or no", drafted=drafted)
    assert canaries_run(engine).outcomes[0].divergence == Divergence(at, None)
    assert not engine.gaps


@pytest.mark.parametrize("error", [NotServing("the engine ended"), QueueFull("too much"), RuntimeError("no")])
def test_canary_divergence_is_reported_even_if_its_logit_gap_cannot_be_measured(error: Exception) -> None:
    assert canaries_run(Answering(drafted="yet", gap=error)).outcomes[0].divergence == Divergence(2, None)


@pytest.mark.parametrize(("level", "runs_at"), [(FULL, FULL), (SHORT, SHORT), (LIGHT, LIGHT), (PLAIN, LIGHT)])
def test_canaries_run_at_current_level_or_the_lowest_level_that_drafts(
    level: LadderLevel, runs_at: LadderLevel
) -> None:
    engine = Answering()
    with probe_runner(engine, ladder=at(level)) as (runner, told):
        assert runner.canaries().result(SOON).verdict is ProbeVerdict.GOOD
    assert told.runs == [(runs_at.kind, "good", 0)]
    assert engine.lent == [runs_at.drafter]
    assert {request.plan.max_draft_tokens for request in engine.asked[3:]} == {runs_at.max_draft_tokens}


# failures


def ended(reason: FinishReason = FinishReason.STOP, **more: str) -> Outcome:
    return Outcome(reason, RequestStats(1, 0.0, counts=counted()), **more)


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        (Answering(refusal=QueueFull("64 requests are waiting")), "p0 was refused: 64 requests are waiting"),
        (Answering(refusal=NotServing("the model is still loading")), "p0 was refused: the model is still loading"),
        (Answering(refusal=RuntimeError("broken")), "RuntimeError: broken"),
        (Answering(outcome=ended(FinishReason.ERROR, error="no memory")), "p0 failed: no memory"),
        (Answering(outcome=ended(FinishReason.DEADLINE)), "p0 had no answer within 5 s"),
        (Answering(outcome=ended(FinishReason.CANCELLED)), "p0 was cancelled"),
        (
            Answering(outcome=ended(degraded="the drafter failed: broken")),
            "p0 went on autoregressively: the drafter failed: broken",
        ),
        (
            Answering(outcome=ended(lowered="memory is critical")),
            "the probe's prompt p0 was moved to a lower level: memory is critical",
        ),
        (
            Answering(unlendable=ModelLoadError("model: /d: no *.safetensors")),
            "the weights of draft_model cannot be loaded: model: /d: no *.safetensors",
        ),
        (Answering(unlendable=TimeoutError()), "the weights of draft_model cannot be loaded: TimeoutError"),
        (Answering(queued=[3]), "it gave way to 3 waiting requests"),
    ],
)
def test_probe_and_canaries_that_could_not_run_report_failed_with_the_reason(engine: Answering, reason: str) -> None:
    limits = ProbeLimits(answer=5.0, patience=0.0)
    report = probed(engine, limits=limits)
    assert (report.verdict, report.reason, report.acceptance) == (ProbeVerdict.FAILED, reason, None)
    run = canaries_run(replace(engine), limits=limits)
    assert (run.verdict, run.reason, run.outcomes) == (ProbeVerdict.FAILED, reason, ())


def test_probe_without_an_engine_answer_times_out_and_cancels_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftd.fallback.probe_requests._GRACE_SECONDS", 0.0)
    engine = Answering(silent=True)
    report = probed(engine, limits=ProbeLimits(answer=0.05))
    assert (report.verdict, report.reason) == (ProbeVerdict.FAILED, "p0 had no answer within 0.05 s")
    assert engine.cancelled == [engine.asked[0].id]


def test_probe_exceeding_its_time_limit_fails_without_sending_a_prompt() -> None:
    engine = Answering(counts=counted(accepted=3, rollbacks=1))
    report = probed(engine, limits=ProbeLimits(probe=0.0))
    assert (report.verdict, report.reason) == (ProbeVerdict.FAILED, "it took longer than 0 s")
    assert not engine.asked


def test_probe_interrupted_by_waiting_requests_is_judged_on_its_completed_prompts() -> None:
    idle = [0] * 5  # three answers to compare with, two drafted ones, and then a caller
    few = probed(Answering(queued=[*idle, 2, 1], counts=counted(accepted=3, rollbacks=1)))
    assert few.verdict is ProbeVerdict.TOO_FEW_SAMPLES
    assert few.reason == "8 drafted tokens reached in 2 prompts, 40 needed; it gave way to 1 waiting request"
    enough = probed(Answering(queued=[*idle, 2, 1]))
    assert enough.verdict is ProbeVerdict.GOOD
    assert enough.reason.endswith("in 2 prompts; it gave way to 1 waiting request")


def test_probe_continues_when_queued_client_requests_clear_between_prompts() -> None:
    assert probed(Answering(queued=[0, 1, 0, 1, 0])).verdict is ProbeVerdict.GOOD


def test_canaries_wait_for_queued_client_requests_and_are_never_good_when_cut_short() -> None:
    assert canaries_run(Answering(queued=[0, *[2] * 7, 0])).verdict is ProbeVerdict.GOOD
    impatient = canaries_run(Answering(queued=[0, 2]), limits=ProbeLimits(patience=0.1))
    assert (impatient.verdict, impatient.reason) == (ProbeVerdict.FAILED, "it gave way to 2 waiting requests")
    limits = ProbeLimits(patience=0.0)
    report = canaries_run(Answering(queued=[0, 0, 0, 0, 2, 2]), limits=limits)
    assert (report.verdict, len(report.outcomes)) == (ProbeVerdict.FAILED, 1)
    assert report.reason.startswith("it gave way to 2 waiting requests; 1 of 1 canaries passed")
    worse = canaries_run(Answering(queued=[0, 0, 0, 0, 2, 2], drafted="not"), limits=limits)
    assert (worse.verdict, len(worse.outcomes)) == (ProbeVerdict.BAD, 1)


def test_probe_runner_completes_a_probe_after_a_failed_probe() -> None:
    engine = Answering(refusal=RuntimeError("broken"))
    with probe_runner(engine) as (runner, _):
        assert runner.probe(FULL).result(SOON).verdict is ProbeVerdict.FAILED
        engine.refusal = None
        assert runner.probe(FULL).result(SOON).verdict is ProbeVerdict.GOOD


# one at a time


class Held(Answering):
    """An engine that answers once it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go = threading.Event(), threading.Event()

    def submit(self, request: DecodeRequest, sink: TokenSink) -> None:
        self.reached.set()
        threading.Thread(target=self._later, args=(request, sink), daemon=True).start()

    def _later(self, request: DecodeRequest, sink: TokenSink) -> None:
        self.go.wait(SOON)
        super().submit(request, sink)


def test_probe_runner_refuses_probes_and_canaries_while_a_probe_is_running() -> None:
    engine = Held()
    with probe_runner(engine) as (runner, _):
        first = runner.probe(FULL)
        for other in (runner.canaries, lambda: runner.probe(SHORT), lambda: runner.probe(FULL, learn=True)):
            with pytest.raises(NotNow, match="is already active"):
                other()
        engine.go.set()
        assert first.result(SOON).verdict is ProbeVerdict.GOOD
        assert runner.canaries().result(SOON).verdict is ProbeVerdict.GOOD


def test_probes_and_canaries_are_refused_while_model_weights_are_unloaded() -> None:
    engine = Answering(unloaded=True)
    with probe_runner(engine) as (runner, _):
        for begin in (lambda: runner.probe(FULL), runner.canaries):
            with pytest.raises(NotNow, match="until a client sends a request"):
                begin()
    assert not engine.asked


def test_probe_of_the_autoregressive_level_is_refused() -> None:
    with (
        probe_runner(Answering()) as (runner, _),
        pytest.raises(NotNow, match="no probe of the fallback level autoregressive: it decodes without drafts"),
    ):
        runner.probe(PLAIN)


def test_canaries_are_refused_on_a_ladder_that_never_drafts() -> None:
    only = at(LadderLevel(FallbackLevel.FULL, 0, None))
    with (
        probe_runner(Answering(), ladder=only) as (runner, _),
        pytest.raises(NotNow, match="level full: it decodes without drafts"),
    ):
        runner.canaries()


def test_probe_runner_close_cancels_the_running_probe_and_refuses_new_probes() -> None:
    engine = Held()
    with probe_runner(engine) as (runner, told):
        future: Future[ProbeReport] = runner.probe(FULL)
        assert engine.reached.wait(SOON)
        assert runner.close(SOON)
        report = future.result(0)
        assert (report.verdict, report.reason) == (ProbeVerdict.FAILED, "the daemon is stopping")
        assert len(engine.cancelled) == 1
        assert not engine.borrowed
        with pytest.raises(NotNow, match="the daemon is stopping"):
            runner.probe(FULL)
        until(lambda: told.probes == [(FallbackLevel.FULL, "failed", None, None)])


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_probe_runner_close_ends_the_probe_future_although_the_engine_hangs() -> None:
    engine = Answering()
    hanging, go = threading.Event(), threading.Event()

    def hang(request: DecodeRequest) -> None:
        hanging.set()
        go.wait(SOON)

    engine.says = hang
    runner = ProbeRunner(engine, engine.borrow, FallbackSettings(), Told(), ladder=at(), prompts=prompts(1))
    future = runner.probe(FULL)
    assert hanging.wait(SOON)
    assert not runner.close(0.05)
    assert future.result(0).reason == "the daemon is stopping"
    go.set()
    assert runner.close(SOON)
