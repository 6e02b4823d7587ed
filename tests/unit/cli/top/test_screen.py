"""What the screen shows, drawn without a terminal: every figure at every size, and a dash for what is not known."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from draftd.cli.top.screen import screen
from draftd.cli.top.view import Lost, View
from draftd.core import FallbackLevel
from draftd.fallback.ladder import Demand, Hold, Signal
from draftd.fronts.grpc import fallback
from draftd.v1 import control_pb2 as pb
from draftd.v1 import inference_pb2 as inference
from tests.fallback import standing
from tests.unit.cli.top.snapshots import NOON, SECOND_RUN, counts, status, transition, view

SIZES = [(80, 24), (100, 30), (119, 40), (140, 45), (200, 60)]
MAC = pb.Hardware(
    memory_pressure=pb.MEMORY_PRESSURE_WARN,
    memory_headroom_bytes=-1_500_000_000,
    memory_floor_bytes=10_000_000_000,
    memory_available_bytes=8_500_000_000,
    memory_limit_bytes=24_000_000_000,
    swap_in_bytes=12_000_000,
    mlx_active_bytes=5_000_000_000,
    mlx_cache_bytes=300_000_000,
    mlx_peak_bytes=6_100_000_000,
    gpu_memory_bytes=7_000_000_000,
    gpu_utilization=0.83,
    thermal_level=pb.THERMAL_LEVEL_HEAVY,
    throttles=2,
    low_power=True,
    on_mains=False,
    temperatures={"cpu": 61.2, "gpu": 71.6},
    power={"cpu": 3.0, "system": 22.4},
)
BEFORE = counts(100, 400, 200, break_even=150.0, per_position=[(90, 100), (60, 100), (30, 100), (20, 100)])
AFTER = counts(
    200, 760, 440, plain=25, parked=20, break_even=250.0, per_position=[(180, 200), (130, 200), (80, 180), (50, 180)]
)  # fmt: skip


def busy(**fields: Any) -> View:
    whole = {
        "active_requests": 3,
        "queued_requests": 5,
        "finished_requests": {"stop": 40, "error": 2},
        "refused_requests": 7,
        "weight_bytes": 5_200_000_000,
        "kv_cache_bytes": 42_000_000,
        "hardware": MAC,
        "transitions": [
            transition(NOON - timedelta(days=2), "flag", "on", "off", "its file was edited"),
            transition(NOON - timedelta(minutes=3), "level", "full", "short_block", "acceptance fell"),
        ],
        "level": "short_block",
        "level_cause": "acceptance fell",
        "telemetry_exporting": True,
        **fields,
    }
    return view(status(1_000, BEFORE), status(2_000, AFTER, **whole))


def drawn(shown: View, width: int = 80, height: int = 24) -> list[str]:
    console = Console(
        file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None, highlight=False
    )
    with console.capture() as capture:
        console.print(screen(shown, width, height, NOON), height=height, end="")
    return capture.get().rstrip("\n").split("\n")


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_frame_fills_the_terminal_and_no_more(width: int, height: int) -> None:
    lines = drawn(busy(), width, height)
    assert len(lines) == height
    assert {cell_len(line) for line in lines} == {width}
    corners = [sum(line.count(corner) for line in lines) for corner in "╭╮╰╯"]
    assert len(set(corners)) == 1
    assert corners[0] >= 5


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize(
    "figure",
    [
        "100 tokens/s",  # 1000 of them in ten seconds
        "67%",  # accepted of the minute: 240 of 360
        "3.40",  # tokens a draft
        "1.70×",  # (100 + 240) over (100 + 100)
        "depth, of 4",
        "3.6",  # drafted a draft
        "80%",  # rounds drafted
        "16%",  # and parked
        "90%", "70%", "62%", "38%",  # by position
        "short block",
        "3 active, 5 of 64 queued",
        "42",  # finished
        "2, 2 in 10 s",
        "7, 7 in 10 s",
        "exporting",
        "−1.5 GB, floor 10.0 GB of 24.0 GB",
        "warn, swapped in 12 MB",
        "5.0 GB, cache 300 MB, peak 6.1 GB",
        "5.2 GB, KV cache 42 MB",
        "83% busy, 7.0 GB",
        "heavy, 2 throttles, 72 °C",
        "battery, low-power mode, 22 W",
        "full → short_block",
        "11:57",
    ],
)  # fmt: skip
def test_every_figure_is_on_every_screen(width: int, height: int, figure: str) -> None:
    assert figure in "\n".join(drawn(busy(), width, height))


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_every_position_has_a_bar_that_is_as_long_as_its_share(width: int, height: int) -> None:
    bars = [line.count("█") for line in drawn(busy(), width, height) for n in "1234" if f"  {n} █" in line]
    assert len(bars) == 4
    assert bars == sorted(bars, reverse=True)


def test_more_positions_than_lines_are_numbers_in_one() -> None:
    many = [(16 - n, 16) for n in range(16)]
    shown = view(status(), status(10, counts(16, 256, 136, per_position=many), max_draft_tokens=16))
    assert any("by position 100% 94% 88%" in line for line in drawn(shown, 80, 24))
    assert "by position" not in "\n".join(drawn(shown, 80, 45))


def test_older_transitions_have_an_age_and_the_latest_comes_first() -> None:
    lines = drawn(busy(), 140, 45)
    (latest,) = (n for n, line in enumerate(lines) if "level full → short_block · acceptance fell" in line)
    assert "2 d      flag on → off · its file was edited" in lines[latest + 1]


def test_of_a_daemon_that_has_done_nothing_nothing_is_claimed() -> None:
    lines = drawn(view(status()))
    shown = "\n".join(lines)
    assert "– tokens/s" in shown
    assert "nothing drafted yet" in shown
    assert "none yet" in shown
    for name in ("headroom", "MLX", "GPU", "thermal", "accepted", "tokens a draft", "speed-up"):
        (line,) = (line for line in lines if f"│ {name} " in line)
        after = line.split(f"│ {name} ")[1].split("│")[0]
        assert "–" in after
        assert not any(digit in after for digit in "123456789")


def test_what_this_machine_does_not_tell_is_a_dash_and_zero_is_zero() -> None:
    calm = pb.Hardware(memory_pressure=pb.MEMORY_PRESSURE_NORMAL, swap_in_bytes=0, throttles=0, low_power=False)
    shown = "\n".join(drawn(view(status(hardware=calm)), 100, 30))
    assert "normal, swapped in 0 B" in shown
    assert "–, 0 throttles" in shown
    assert "normal mode" in shown
    assert "mains" not in shown
    assert "battery" not in shown
    assert "°C" not in shown


@pytest.mark.parametrize(
    ("hardware", "said"),
    [
        (pb.Hardware(gpu_utilization=0.5), "50% busy, –"),
        (pb.Hardware(gpu_memory_bytes=7), "– busy, 7 B"),
        (pb.Hardware(mlx_active_bytes=7), "7 B, cache –, peak –"),
        (pb.Hardware(memory_headroom_bytes=7), "7 B, floor – of –"),
        (pb.Hardware(memory_pressure=pb.MEMORY_PRESSURE_NORMAL), "normal, swapped in –"),
        (pb.Hardware(swap_in_bytes=7), "–, swapped in 7 B"),
        (pb.Hardware(on_mains=True), "│ power    mains  "),
    ],
)
def test_a_figure_of_which_half_is_known_shows_that_half(hardware: pb.Hardware, said: str) -> None:
    assert said in "\n".join(drawn(view(status(hardware=hardware)), 100, 30))


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.2, "over 0.2 s"), (1.0, "over 1 s"), (54.0, "over 54 s"), (60.0, "over a minute")]
)
def test_it_says_how_much_was_seen_while_that_is_less_than_a_minute(seconds: float, said: str) -> None:
    assert f"– {said}" not in "\n".join(drawn(view(status(), status(), seconds=seconds)))
    assert said in "\n".join(drawn(view(status(), status(), seconds=seconds)))


def test_while_the_model_is_loading_its_size_is_not_known() -> None:
    loading = status(state=pb.DAEMON_STATE_LOADING, model=inference.GetModelResponse())
    lines = drawn(view(loading))
    assert any("│ model    –  " in line for line in lines)
    assert "loading for" in lines[0]


def test_after_a_restart_the_present_is_unknown_and_not_negative() -> None:
    shown = "\n".join(drawn(view(status(1_000, BEFORE), status(10, run=SECOND_RUN))))
    assert "– tokens/s" in shown
    assert "-" not in shown.replace("short_block", "").replace("low-power", "").replace("speed-up", "")


@pytest.mark.parametrize(("retry", "said"), [(3.2, "next try in 3 s"), (None, "asking again")])
def test_a_daemon_that_is_away_is_said_in_the_first_line(retry: float | None, said: str) -> None:
    shown = view(status(1), status(2), lost=Lost("no daemon answers", 12.0, retry))
    first, *rest = drawn(shown, 100, 30)
    assert first.rstrip() == f"no answer for 12 s, {said}: no daemon answers"
    assert "accepted" in "\n".join(rest)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"flag_variant": "off"}, "turn the flag on"),
        ({"flag_variant": "on"}, "turn the flag off"),
        ({"flag_variant": "half"}, "f  flag"),
        ({"flag": pb.FlagState(error="not valid JSON")}, "on · not valid JSON"),
        ({"state": pb.DAEMON_STATE_DRAINING}, "draining for"),
        ({"telemetry_exporting": False}, "not exporting"),
        ({"drafter_errors": 3, "verifier_errors": 1}, "0, errors: 3 drafter, 1 verifier"),
        (
            {"model": inference.GetModelResponse(model="m", speculation_reason="no rollback")},
            "unavailable: no rollback",
        ),
    ],
)
def test_what_is_out_of_the_ordinary_is_said(fields: dict[str, Any], said: str) -> None:
    assert said in "\n".join(drawn(view(status(**fields)), 140, 45))


def test_while_it_is_paused_and_what_the_last_key_did_stand_below() -> None:
    last = drawn(view(status(), paused=True, notice="flag off (was on)"))[-1]
    assert "go on" in last
    assert last.rstrip().endswith("paused  flag off (was on)")


def test_the_curve_rises_with_throughput() -> None:
    lines = drawn(view(*(status(n * n * 20) for n in range(12))), 100, 30)
    heights = [sum(line[n] != " " for line in lines[2:9]) for n in range(60, 97)]
    assert heights[-20] < heights[-1]
    assert "█" in lines[2]


@pytest.mark.parametrize(("width", "height"), [(20, 8), (40, 12), (79, 23), (130, 16), (300, 10)])
def test_a_terminal_that_is_too_small_is_filled_all_the_same(width: int, height: int) -> None:
    assert len(drawn(busy(), width, height)) == height


def styles(shown: View, words: str) -> set[str]:
    """How a stretch of the screen is drawn, letter by letter."""
    console = Console(file=io.StringIO(), width=140, height=45, force_terminal=True, color_system="truecolor")
    lines = console.render_lines(screen(shown, 140, 45, NOON), console.options.update_height(45))
    for line in lines:
        text = "".join(segment.text for segment in line)
        if (at := text.find(words)) >= 0:
            letters = [str(segment.style) for segment in line for _ in segment.text]
            return set(letters[at : at + len(words)])
    raise AssertionError(f"{words} is not on the screen")


@pytest.mark.parametrize(
    ("fields", "words", "style"),
    [
        ({"hardware": MAC}, "heavy", "bold red"),
        ({"hardware": MAC}, "−1.5 GB", "bold red"),
        ({"hardware": MAC}, "warn", "yellow"),
        ({"hardware": MAC}, ", swapped in", "none"),
        ({"hardware": MAC}, "battery", "yellow"),
        ({"level": "light_draft"}, "light draft", "yellow"),
        ({"level": "full"}, "full", "green"),
        ({"flag_variant": "off"}, "off", "yellow"),
        ({"queued_requests": 64}, "64 of 64 queued", "bold red"),
        ({"hardware": pb.Hardware(memory_pressure=pb.MEMORY_PRESSURE_CRITICAL)}, "critical", "bold red"),
        ({"hardware": pb.Hardware(thermal_level=pb.THERMAL_LEVEL_NOMINAL)}, "nominal", "green"),
        ({"hardware": pb.Hardware(thermal_level=pb.THERMAL_LEVEL_MODERATE)}, "moderate", "yellow"),
    ],
)
def test_what_matters_stands_out(fields: dict[str, Any], words: str, style: str) -> None:
    assert styles(view(status(**fields)), words) == {style}


def test_a_speed_up_below_one_is_bad_and_above_it_is_good() -> None:
    slow = counts(100, 400, 100, break_even=300.0)
    assert styles(view(status(), status(1, slow)), "0.50×") == {"bold red"}
    assert styles(busy(), "1.70×") == {"green"}


def test_a_refusal_of_this_minute_is_bad_and_an_old_one_is_not() -> None:
    old, new = status(refused_requests=2), status(refused_requests=3)
    assert styles(view(old, old), "2      ") == {"yellow", "none"}
    assert styles(view(old, new), "3, 1") == {"bold red", "dim"}


def stepped_down(**fields: Any) -> View:
    found = fallback.state(standing(rung=1, since=NOON.timestamp() - 60, **fields))
    return busy(fallback=found)


DEMANDS = (
    Demand(Signal.ALERT, FallbackLevel.SHORT_BLOCK, "DraftdAcceptanceDrift"),
    Demand(Signal.MEMORY, FallbackLevel.AUTOREGRESSIVE, "critical", hard=True),
)


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_who_holds_and_who_asks_is_shown_at_every_size_and_nothing_makes_room_for_it(width: int, height: int) -> None:
    asked = "\n".join(drawn(stepped_down(demands=DEMANDS), width, height))
    held = "\n".join(drawn(stepped_down(hold=Hold(1)), width, height))
    for shown in (asked, held):
        assert "short block 3" in shown
        for row in ("flag", "telemetry", "headroom", "power", "transitions", "refused"):
            assert row in shown, row
    if height > 24:
        assert "memory → autoregressive, 1 more" in asked
        assert "on its way down to autoreg" in asked
        assert "held      until it is released" in held
    else:
        assert "asked by memory" in asked
        assert "held" in held


def test_the_way_up_is_shown_where_nothing_asks() -> None:
    assert "up in 4 min, once a probe" in "\n".join(drawn(stepped_down(), 140, 45))


def test_at_the_top_with_nothing_asked_the_ladder_takes_no_room() -> None:
    shown = busy(level="full", level_cause="", fallback=fallback.state(standing()))
    assert "\n".join(drawn(shown, 100, 30)) == "\n".join(drawn(busy(level="full", level_cause=""), 100, 30))
