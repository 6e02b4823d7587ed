"""Who decodes in a step, and what comes before and after it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from draftd.engine.step import PlanEntry, StepPlan
from draftd.engine.turn import Wave, plan_turn, runs_ahead

NOW = 100.0


@dataclass
class Proposals:
    has_step: bool = True
    streams: bool = False

    def due(self, tokens: object) -> bool:
        return self.has_step


@dataclass
class Stats:
    last_token: float | None


@dataclass
class Running:
    """A running sequence, as a turn sees it: a client's, or a peer's with these proposals."""

    id: int
    of_peer: bool = False
    proposals: Proposals = field(default_factory=lambda: Proposals(streams=True))
    tokens: tuple[int, ...] = ()
    stats: Stats = field(default_factory=lambda: Stats(NOW))


def peers(number: int, *, step: bool = True, streams: bool = False, last_token: float = NOW) -> Any:
    return Running(number, True, Proposals(step, streams), stats=Stats(last_token))


CLIENT: Any = Running(1)


def ids(sequences: Any) -> list[int]:
    return [sequence.id for sequence in sequences]


@pytest.mark.parametrize(
    ("running", "options", "members", "hurried"),
    [
        pytest.param([CLIENT, peers(2)], {}, [1, 2], [1, 2], id="all that have a step"),
        pytest.param([CLIENT, peers(2, step=False)], {}, [1], [1, 2], id="a peer that rests since a moment"),
        pytest.param([CLIENT, peers(2, step=False, last_token=NOW - 2)], {}, [1], [1], id="a peer that rests for long"),
        pytest.param(
            [peers(1), peers(2, last_token=NOW - 3), peers(3, last_token=NOW - 2)],
            {"most": 2},
            [2, 3],
            [1, 2, 3],
            id="those that waited longest where not all have a place",
        ),
        pytest.param([CLIENT, peers(2)], {"held": {2}}, [1], [1], id="no peer that waits for clients"),
        pytest.param([CLIENT, peers(2)], {"begun": [2]}, [2], [1, 2], id="those of the step that is under way"),
        pytest.param([CLIENT, peers(2)], {"wave": True}, [1, 2], [], id="no one hurries prompts of a wave"),
    ],
)
def test_decode_step_leaves_out_peers_without_proposal_held_back_or_over_batch_limit(
    running: list[Any], options: dict[str, Any], members: list[int], hurried: list[int]
) -> None:
    held, wave = options.get("held", set()), options.get("wave", False)
    begun = None
    if "begun" in options:
        begun = StepPlan(1, [PlanEntry(number, 1) for number in options["begun"]])
    in_turn = [sequence for sequence in running if sequence.id not in held]
    turn = plan_turn(running, in_turn, begun, most=options.get("most", 4), now=NOW, wave=wave)
    assert (ids(turn.members), ids(turn.hurried)) == (members, hurried)
    assert turn.room == options.get("most", 4) - len(members)
    assert turn.decodes is not wave


@pytest.mark.parametrize(("running", "catches_up"), [([CLIENT], True), ([], False)])
def test_draft_model_prefill_of_missed_tokens_runs_only_in_steps_with_running_sequences(
    running: list[Any], catches_up: bool
) -> None:
    turn = plan_turn(running, running, None, most=4, now=NOW, may_catch_up=True)
    assert (turn.catches_up, turn.decodes) == (catches_up, bool(running))


@pytest.mark.parametrize(
    ("running", "options", "ahead"),
    [
        pytest.param([CLIENT], {}, True, id="clients alone"),
        pytest.param([CLIENT], {"prefilling": True}, False, id="a slice would wait"),
        pytest.param([CLIENT], {"masked": True}, False, id="a mask needs the token"),
        pytest.param([CLIENT, peers(2, streams=True)], {}, True, id="a peer's grant reaches that far"),
        pytest.param([CLIENT, peers(2)], {}, False, id="a peer's step has a proposal"),
        pytest.param([CLIENT, peers(2, step=False)], {}, True, id="a peer rests"),
    ],
)
def test_next_step_starts_early_only_without_prefill_slice_grammar_mask_or_peer_proposal(
    running: list[Any], options: dict[str, bool], ahead: bool
) -> None:
    turn = plan_turn(running, running, None, most=4, now=NOW)
    asked = {"prefilling": False, "masked": False} | options
    assert runs_ahead(turn, **asked) is ahead


def test_initial_prompt_wave_ends_when_most_have_joined_or_its_time_is_over() -> None:
    wave = Wave()
    assert wave.goes_on(0.0, running=0, short_prompts=5)
    assert wave.goes_on(0.2, running=2, short_prompts=3)
    assert not wave.goes_on(0.3, running=3, short_prompts=2), "more have joined than wait"
    assert not wave.goes_on(0.31, running=3, short_prompts=4), "another begins only where nothing runs"
    assert wave.goes_on(1.0, running=0, short_prompts=5)
    assert not wave.goes_on(1.6, running=1, short_prompts=5), "it was long enough"
