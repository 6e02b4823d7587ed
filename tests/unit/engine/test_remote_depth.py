"""What is proposed to another daemon's target, and whether: against made-up machines whose best is known."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from draftd.core import DRAFT_MODEL
from draftd.engine.remote.mode_control import RemoteTimes, estimate
from draftd.strategies import RemoteEstimate, RemoteMode, Strategy
from tests.rig import Rig, automatic, request
from tests.scripted import scripted_models
from tests.scripted_link import MODEL, Clock, Costly, Edge, ScriptedLink

STREAM, OVERLAPPED, STEPS = RemoteMode.STREAM, RemoteMode.OVERLAPPED, RemoteMode.STEPS
TOKENS, MOST = 400, 8
DICE = random.Random(3)
TEXT = [DICE.randrange(250) for _ in range(TOKENS + 40)]


def times(round_trip: float, *, slope: float = 0.1, draft: float = 0.001, load: float = 0.0) -> RemoteTimes:
    plain = 0.01
    return RemoteTimes(round_trip, plain, [plain * (1 + slope * k) for k in range(MOST + 1)], draft, load=load)


def expected(right: float) -> list[float]:
    return [sum(right**i for i in range(k + 1)) for k in range(MOST + 1)]


@pytest.mark.parametrize("right", [0.5, 0.8, 0.95])
def test_estimate_prefers_remote_drafting_to_streaming_only_below_break_even_round_trip(right):
    """R below E·t_AR - k·t_d - t_v."""
    for depth in range(1, MOST + 1):
        known, tokens = times(0.0), expected(right)[: depth + 1]
        limit = tokens[depth] * known.plain - depth * known.draft - known.verify[depth]
        for off, pays in ((-0.001, True), (0.001, False)):
            if limit + off < 0:
                continue
            found = estimate(replace(known, round_trip=limit + off), tokens, 1, fixed_depth=True)
            assert (found.rates[STEPS] > found.rates[STREAM]) == pays


def test_fully_loaded_verifier_is_sent_no_drafts_ahead_of_its_verdicts():
    for load, mode in ((0.5, OVERLAPPED), (1.0, STEPS)):
        assert estimate(times(0.015, load=load), expected(0.9), 4).mode is mode
    assert estimate(times(0.3, load=1.0), expected(0.5), 4).mode is STREAM


def test_remote_estimate_reports_target_and_draft_seconds_per_token():
    for load, right, mode in ((1.0, 0.9, STEPS), (0.5, 0.9, OVERLAPPED), (1.0, 0.1, STREAM)):
        found, tokens = estimate(times(0.015, load=load), expected(right), 4), expected(right)
        steps = times(0.0).verify[found.depth] / tokens[found.depth]
        busy = {STEPS: steps, OVERLAPPED: 1 / found.rate, STREAM: 0.01}[mode]
        assert (found.mode, found.target_seconds) == (mode, pytest.approx(busy))
        assert found.draft_seconds == pytest.approx(found.depth * 0.001 / tokens[found.depth])


class Machine:
    """Tokens a second of one text, by one way or by what was chosen."""

    def __init__(self, round_trip: float, right: float, slope: float, draft: float) -> None:
        self._round_trip, self._right, self._slope, self._draft = round_trip, right, slope, draft
        self._models = scripted_models(1.0)

    def rate(self, forced: tuple[RemoteMode, int] | None = None) -> float:
        clock = Clock()
        drafter = Costly(clock, lambda sequence: TEXT, self._right, self._draft)
        link = ScriptedLink(
            lambda opened: TEXT,
            clock,
            round_trip=self._round_trip,
            step=lambda drafted: 0.01 * (1 + self._slope * drafted),
            model=MODEL,
        )
        edge = Edge(Rig(self._models, drafters={DRAFT_MODEL: drafter}), link)
        if forced:
            found = RemoteEstimate(*forced, 4, {})
            edge.remote.control.decide = lambda *_: found  # type: ignore[method-assign]
        plan = replace(automatic(MOST), strategy=Strategy.SPECULATIVE)
        (sink,) = edge.run(request(TEXT[:3], plan, max_tokens=TOKENS))
        assert sink.tokens == TEXT[3 : TOKENS + 3]
        return TOKENS / clock.now


@pytest.mark.parametrize(
    ("round_trip", "right", "slope", "draft"),
    [
        (0.0, 0.5, 0.4, 0.001),
        (0.0, 0.9, 0.1, 0.001),
        (0.015, 0.8, 0.1, 0.001),
        (0.04, 0.96, 0.1, 0.003),
        (0.15, 0.6, 0.4, 0.001),
    ],
)
def test_automatic_remote_mode_rate_is_at_least_0_85_of_best_and_0_97_of_streaming(round_trip, right, slope, draft):
    machine = Machine(round_trip, right, slope, draft)
    stream, chosen = machine.rate((STREAM, 0)), machine.rate()
    best = max(machine.rate((mode, depth)) for mode in (STEPS, OVERLAPPED) for depth in (2, 6))
    assert chosen >= 0.97 * stream
    assert chosen >= 0.85 * best
