"""What is asked of a daemon for an arm, and whether it was done so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftd.acceptance.report.data import name, parse
from draftd.acceptance.session import ask_for, departure
from draftd.acceptance.ticks import AUTOREGRESSIVE, Arm, Granted, Place, Stage, Tick
from draftd.client.prompts import Prompt
from draftd.core import (
    DRAFT_MODEL,
    PROMPT_LOOKUP,
    DecodeMode,
    DepthMode,
    DrafterName,
    FinishReason,
    ModePreference,
    WorkloadClass,
)

LOOKUP = PROMPT_LOOKUP
PROMPT = Prompt("p", (("system", "Be brief."), ("user", "Hello")), WorkloadClass.CODE, 20)


def answered(granted: Granted | None, **changes: object) -> Tick:
    made = Tick(Place(Stage.SWEEP, 1, "", 1, "p", "g"), 0, 0, 1, (), finish_reason=FinishReason.STOP, granted=granted)
    return replace(made, **changes)  # type: ignore[arg-type]


def granted(
    length: int,
    drafter: DrafterName | None = DRAFT_MODEL,
    level: str = "full",
    depth: DepthMode = DepthMode.FIXED,
) -> Granted:
    mode = DecodeMode.SPECULATIVE if length else DecodeMode.AUTOREGRESSIVE
    return Granted(mode, length, drafter if length else None, level, "on", "why", depth)


@pytest.mark.parametrize(
    ("arm", "given", "said"),
    [
        (Arm(4), granted(4), ""),
        (Arm(4, LOOKUP), granted(4, LOOKUP), ""),
        (Arm(6, automatic=True), granted(6, depth=DepthMode.AUTOMATIC), ""),
        (Arm(6, automatic=True), granted(6, LOOKUP, depth=DepthMode.AUTOMATIC), ""),  # the daemon's own choice
        (Arm(6, automatic=True), granted(6), "asked for automatic depth, the daemon chose fixed: why"),
        (Arm(6), granted(6, depth=DepthMode.AUTOMATIC), "asked for fixed depth, the daemon chose automatic: why"),
        (Arm(2), granted(2, level="short_block"), ""),  # no less than was asked
        (AUTOREGRESSIVE, granted(0, level="autoregressive"), ""),
        (Arm(4), granted(2, level="short_block"), "asked for 4, the daemon allowed 2: level short_block (why)"),
        (Arm(4), granted(0), "asked for speculative, the daemon decoded autoregressive: why"),
        (AUTOREGRESSIVE, granted(4), "asked for autoregressive, the daemon decoded speculative: why"),
        (
            Arm(4),
            granted(4, LOOKUP, "light_draft"),
            "asked for draft_model, the daemon took prompt_lookup: level light_draft (why)",
        ),
    ],
)
def test_what_the_daemon_did_otherwise_is_said(arm: Arm, given: Granted, said: str) -> None:
    assert departure(answered(given), arm) == said


def test_what_was_lowered_on_its_way_is_not_of_the_arm() -> None:
    assert departure(answered(granted(4), degraded="ladder: swap"), Arm(4)) == "went on autoregressively: ladder: swap"
    assert departure(answered(granted(4), finish_reason=FinishReason.CANCELLED), Arm(4)).startswith("ended before")
    assert departure(answered(None, error="UNAVAILABLE"), Arm(4)) == ""  # it has its error


def test_an_arm_as_it_is_asked() -> None:
    ask = ask_for(PROMPT, Arm(4, LOOKUP), chat=True, seed=0, repetition=1)
    assert (ask.messages, ask.prompt, ask.max_tokens) == (PROMPT.messages, None, 20)
    assert (ask.mode, ask.max_draft_tokens, ask.drafter) == (ModePreference.SPECULATIVE, 4, LOOKUP)
    assert ask.depth_mode is DepthMode.FIXED
    assert ask.workload is WorkloadClass.CODE
    assert ask.sampling.greedy
    plain = ask_for(PROMPT, AUTOREGRESSIVE, chat=False, seed=0, repetition=1)
    assert (plain.messages, plain.prompt) == (None, "Hello")
    assert (plain.mode, plain.max_draft_tokens, plain.drafter) == (ModePreference.AUTOREGRESSIVE, None, None)


def test_automatic_depth_is_asked_for_as_users_do() -> None:
    ask = ask_for(PROMPT, Arm(6, automatic=True), chat=True, seed=0, repetition=1)
    assert (ask.mode, ask.max_draft_tokens, ask.drafter) == (ModePreference.SPECULATIVE, 6, None)
    assert ask.depth_mode is DepthMode.AUTOMATIC


def test_sampled_arms_are_given_the_same_luck() -> None:
    seeds = {
        ask_for(PROMPT, arm, chat=True, seed=3, repetition=2).sampling.seed
        for arm in (Arm(0, None, 0.8), Arm(4, temperature=0.8))
    }
    assert len(seeds) == 1
    assert None not in seeds


@pytest.mark.parametrize(
    "arm",
    [
        AUTOREGRESSIVE,
        Arm(4),
        Arm(12, LOOKUP),
        Arm(4, temperature=0.8, concurrency=16),
        Arm(3, temperature=1e-5),
        Arm(6, automatic=True),
        Arm(4, LOOKUP, automatic=True, concurrency=2),
    ],
)
def test_an_arm_is_known_by_its_id(arm: Arm) -> None:
    assert Arm.parse(arm.id) == arm
    assert parse(arm.id) == arm
    assert arm.baseline.baseline == arm.baseline


@pytest.mark.parametrize("name", ["", "k", "ar4", "k4x2", "K4", "auto", "auto0"])
def test_what_is_no_arm_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="arm's id"):
        Arm.parse(name)


def test_an_automatic_arm_is_named_for_what_it_is() -> None:
    assert name("auto6") == "Automatic, up to 6 a step"
    assert name("auto6-x2") == "Automatic, up to 6 a step, 2 at a time"
