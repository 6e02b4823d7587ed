"""The simulation: short runs of all scenarios, that the same seed is the same run, and that it can tell a failure."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.simulate import __main__ as command
from benchmarks.simulate import curve
from benchmarks.simulate.daemon import LADDER, Settings, Step
from benchmarks.simulate.fault import Cause, Fault, quality
from benchmarks.simulate.outcome import Outcome, outcome
from benchmarks.simulate.scenario import Scenario, scenarios
from benchmarks.simulate.world import Run, World
from draftd.core import FallbackLevel
from draftd.fallback.drift import AcceptanceSample, Baseline, Cusum, CusumSettings
from draftd.fallback.ladder import Cause as LadderCause
from draftd.fallback.ladder import Signal

KNOWN = {scenario.name: scenario for scenario in scenarios()}
COOLDOWN = Settings().ladder.cooldown


def simulated(name: str, requests: int, seed: int = 1) -> tuple[Run, Outcome]:
    run = World(KNOWN[name], requests, seed).run()
    return run, outcome(run, COOLDOWN)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_simulated_scenario_answers_every_fault_without_flapping(name: str) -> None:
    requests = 7000 if name == "slow_drift" else 5000  # frozen prompts show a slow fall later than the traffic does
    run, found = simulated(name, requests)
    assert not found.failed
    assert found.flaps == 0
    assert found.requests == requests
    if run.faults:
        assert found.fall_back_seconds is not None
        assert found.steps > 0


def test_simulated_harder_texts_cause_no_fallback_step() -> None:
    assert simulated("harder_texts", 5000)[0].steps == ()


def test_simulated_repaired_draft_returns_ladder_to_top_level() -> None:
    run, found = simulated("broken_draft", 10_000)
    assert run.final == 0
    assert found.recover_seconds is not None
    assert max(step.current for step in run.steps) >= 3, "it went below the short blocks"


def test_simulation_is_deterministic_for_same_seed_and_differs_for_other_seed() -> None:
    runs = [simulated("webhooks_astray", 4000, seed)[0] for seed in (1, 1, 2)]
    assert runs[0].steps == runs[1].steps
    assert runs[0].steps != runs[2].steps


def test_simulate_command_ends_with_json_line_and_refuses_zero_requests(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--requests", "3000", "--scenario", "steady", "--scenario", "alert_storm"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["benchmark"] == "simulate"
    assert set(said["scenarios"]) == {"steady", "alert_storm"}
    assert said["scenarios"]["alert_storm"]["flaps"] == 0
    with pytest.raises(SystemExit):
        command.main(["--requests", "0"])
    assert "--requests: got 0; allowed: 1 or more" in capsys.readouterr().err


def made_up(*steps: Step, faults: tuple[Fault, ...] = (), recovers: float | None = 5000.0) -> Outcome:
    times = np.arange(0.0, 20_000.0, 1.0)
    final = steps[-1].current if steps else 0
    return outcome(Run(Scenario("x", "x", recovers=recovers), faults, steps, times, 20_000.0, final, 0.0), COOLDOWN)


def down(at: float) -> Step:
    return Step(0, 1, Signal(LadderCause.ACCEPTANCE_DRIFT, FallbackLevel.SHORT_BLOCK), at)


def up(at: float) -> Step:
    return Step(1, 0, Signal(LadderCause.RECOVERED, FallbackLevel.FULL), at)


FAULT = Fault(Cause.DRAFT, 1000.0, 3000.0, 0.5)


def test_simulation_fails_on_fault_without_timely_fallback_or_recovery() -> None:
    assert made_up(faults=(FAULT,)).unanswered == 1
    assert made_up(down(3001), faults=(FAULT,)).unanswered == 1, "too late"
    assert made_up(down(1100), faults=(FAULT,)).unrecovered == 1
    assert made_up(down(1100), up(4000), faults=(FAULT,)).failed is False
    assert made_up(faults=(FAULT,)).failed
    assert made_up(down(1100), faults=(FAULT,)).failed


def test_simulation_counts_down_up_down_within_two_cooldowns_as_flap() -> None:
    assert made_up(down(1100), up(1300), down(1699), faults=(FAULT,), recovers=None).flaps == 1
    assert made_up(down(1100), up(1300), down(1700), faults=(FAULT,), recovers=None).flaps == 0


def test_simulation_measures_fallback_and_recovery_times_and_counts_false_fallbacks() -> None:
    simulation = made_up(down(500), up(800), down(1100), up(4000), faults=(FAULT,))
    assert simulation.fall_back_seconds is not None
    assert simulation.recover_seconds is not None
    assert (simulation.fall_back_seconds.median, simulation.recover_seconds.longest) == (100.0, 1000.0)
    assert (simulation.false_fallbacks, simulation.false_fallbacks_per_10k) == (1, 0.5)


def test_simulated_fault_ramp_lowers_quality_linearly() -> None:
    slope = Fault(Cause.DRAFT, 100.0, 400.0, factor=0.5, ramp=200.0)
    assert quality([slope], np.array([0.0, 100.0, 200.0, 300.0, 399.0, 400.0])).tolist() == [1, 1, 0.75, 0.5, 0.5, 1]


def test_vectorized_cusum_alarms_at_same_sample_as_daemon_cusum() -> None:
    rng, settings = np.random.default_rng(1), CusumSettings()
    accepted, rollbacks = rng.integers(5, 40, 300), rng.integers(5, 20, 300)
    reached = (accepted + rollbacks).astype(float)[:, None]
    streams = curve.Streams(accepted[:, None] / reached, reached)
    norm = Baseline(0.75, 0.15)
    (first,) = curve.cusum_alarms(
        streams, np.array([norm.mean]), np.array([norm.spread]), settings.slack, [settings.limit]
    )
    state, alarm = Cusum(norm), 0
    while not state.exceeds_limit(settings):
        state = state.observe(AcceptanceSample(int(accepted[alarm]), int(rollbacks[alarm])), settings)
        alarm += 1
    assert first.tolist() == [alarm]


def test_detector_curve_picture_is_drawn_as_png(tmp_path_factory: pytest.TempPathFactory) -> None:
    from benchmarks.simulate import picture

    path = tmp_path_factory.mktemp("curve") / "detector.png"
    measured = curve.measure(1, streams=20, quiet=400, fallen=300)
    picture.draw(measured, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert measured.default.delays[1] is not None
    assert measured.default.delays[1] < 40


def test_simulated_ladder_has_all_four_kinds_of_level() -> None:
    assert len({level.kind for level in LADDER}) == 4
