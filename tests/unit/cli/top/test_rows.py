"""The rows on a daemon: every figure, a dash for an unknown one, and a colour for what matters."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from rich.text import Text

from draftd.cli.commands.top import fields
from draftd.cli.top import rows
from draftd.cli.top.rates import StatusHistory
from draftd.core import FallbackLevel
from draftd.fallback.ladder import Cause, Hold, Signal
from draftd.fronts.grpc import reply
from draftd.v1 import control_pb2 as pb
from draftd.v1 import inference_pb2 as inference
from tests.fake_fallback import fallback_state
from tests.unit.cli.top.snapshots import NOON, SECOND_RUN, counts, history, status, transition

SIGNALS = (
    Signal(Cause.ALERT, FallbackLevel.SHORT_BLOCK, "DraftdAcceptanceDrift"),
    Signal(Cause.MEMORY, FallbackLevel.AUTOREGRESSIVE, "critical", hard=True),
)


def said(shown: StatusHistory) -> dict[str, str]:
    """Returns every line by its name; the header has none."""
    return {"": rows.state(shown).plain} | {name: str(value) for name, value in fields(shown, NOON)}


def stepped_down(**more: Any) -> StatusHistory:
    state = reply.fallback(fallback_state(position=1, since=NOON.timestamp() - 60, **more))
    return history(status(level="short_block", level_cause="acceptance fell", fallback=state))


def test_rows_of_an_idle_daemon_show_dashes() -> None:
    lines = said(history(status()))
    assert lines["tokens/s"].startswith("–")
    for name in ("headroom", "MLX", "GPU", "thermal", "accepted", "tokens a draft", "speed-up"):
        assert "–" in lines[name]
        assert not any(digit in lines[name] for digit in "123456789"), name


@pytest.mark.parametrize(
    ("hardware", "row", "text"),
    [
        (pb.Hardware(gpu_utilization=0.5), "GPU", "50% busy, –"),
        (pb.Hardware(gpu_memory_bytes=7), "GPU", "– busy, 7 B"),
        (pb.Hardware(mlx_active_bytes=7), "MLX", "7 B, cache –, peak –"),
        (pb.Hardware(memory_headroom_bytes=7), "headroom", "7 B, floor – of –"),
        (pb.Hardware(memory_pressure=pb.MEMORY_PRESSURE_NORMAL), "pressure", "normal, swapped in –"),
        (pb.Hardware(swap_in_bytes=7), "pressure", "–, swapped in 7 B"),
        (pb.Hardware(on_mains=True), "power", "mains"),
        (pb.Hardware(low_power=False), "power", "normal mode"),
        (pb.Hardware(throttles=0), "thermal", "–, 0 throttles"),
    ],
)
def test_a_figure_known_by_half_shows_that_half(hardware: pb.Hardware, row: str, text: str) -> None:
    assert said(history(status(hardware=hardware)))[row] == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 over 0.2 s"), (1.0, "0 over 1 s"), (54.0, "0 over 54 s"), (60.0, "0 over a minute")]
)
def test_a_window_shorter_than_a_minute_says_so(seconds: float, text: str) -> None:
    assert said(history(status(), status(), seconds=seconds))["tokens/s"] == text


def test_while_the_model_is_loading_its_size_is_unknown() -> None:
    loading = status(state=pb.DAEMON_STATE_LOADING, model=inference.GetModelResponse(), progress="reading: 30 %")
    lines = said(history(loading))
    assert lines["weights"] == "–"
    assert "loading for" in lines[""]
    assert "reading: 30 %" in lines[""]


def test_after_a_restart_the_present_is_unknown() -> None:
    step_counts = counts(100, 400, 200, break_even=150.0)
    lines = said(history(status(1_000, step_counts), status(10, run=SECOND_RUN)))
    assert lines["tokens/s"].startswith("–")


@pytest.mark.parametrize(("retry", "text"), [(3.2, "next try in 3 s"), (None, "asking again")])
def test_a_lost_daemon_is_said_with_what_is_done(retry: float | None, text: str) -> None:
    assert rows.lost("no daemon answers", 12.0, retry).plain == f"no answer for 12 s, {text}: no daemon answers"


@pytest.mark.parametrize(
    ("fields", "row", "text"),
    [
        ({"flag": pb.FlagState(error="not valid JSON")}, "flag", "on · not valid JSON"),
        ({"telemetry_exporting": False}, "telemetry", "not exporting (no OTEL endpoint)"),
        ({"drafter_errors": 3, "verifier_errors": 1}, "failed", "0, errors: 3 drafter, 1 verifier"),
    ],
)
def test_top_rows_say_what_is_out_of_the_ordinary(fields: dict[str, Any], row: str, text: str) -> None:
    assert said(history(status(**fields)))[row] == text


def test_why_there_is_no_speculation_is_said() -> None:
    shown = history(status(model=inference.GetModelResponse(model="m", speculation_reason="no rollback")))
    assert str(rows.unavailable(shown)) == "unavailable: no rollback"


def test_older_transitions_have_an_age_and_the_latest_is_first() -> None:
    changes = [
        transition(NOON - timedelta(days=2), "flag", "on", "off", "its file was edited"),
        transition(NOON - timedelta(minutes=3), "level", "full", "short_block", "acceptance fell"),
    ]
    latest, older = rows.transitions(history(status(transitions=changes)), NOON)
    assert (latest[0], latest[1].plain) == ("11:57:00 UTC", "level full → short_block · acceptance fell")
    assert (older[0], older[1].plain) == ("2 d", "flag on → off · its file was edited")
    down = transition(NOON - timedelta(minutes=3), "link", "up", "down", "connection_refused")
    ((_, short),) = rows.transitions(history(status(transitions=[down])), NOON, short=True)
    assert short.plain == "link up → down · connection_refused"


def test_a_hold_and_what_asks_are_shown() -> None:
    lines = said(stepped_down(signals=SIGNALS))
    assert lines["level"].startswith("short_block 3, 1 of 4 down")
    assert lines["asked"] == "memory → autoregressive, 1 more · critical"
    assert lines["next"].startswith("stepping down to autoregressive")
    assert said(stepped_down(hold=Hold(1)))["held"] == "until it is released"
    assert said(stepped_down())["next"].startswith("up in 4 min, once a probe")


def test_at_the_top_the_ladder_takes_no_room() -> None:
    plain = [name for name, _ in rows.serving(history(status()), NOON)]
    assert [name for name, _ in rows.serving(history(status(fallback=reply.fallback(fallback_state()))), NOON)] == plain


def style(shown: StatusHistory, words: str) -> str:
    """Returns the style of these words where they first appear."""
    values = [rows.state(shown), *(value for _, value in fields(shown, NOON) if isinstance(value, Text))]
    text = next(value for value in values if words in value.plain)
    at = text.plain.index(words)
    styles = [str(span.style) for span in text.spans if span.start <= at and at + len(words) <= span.end]
    return styles[-1] if styles else ""


@pytest.mark.parametrize(
    ("fields", "words", "wanted"),
    [
        ({"hardware": pb.Hardware(thermal_level=pb.THERMAL_LEVEL_HEAVY)}, "heavy", "bold red"),
        ({"hardware": pb.Hardware(thermal_level=pb.THERMAL_LEVEL_NOMINAL)}, "nominal", "green"),
        ({"hardware": pb.Hardware(thermal_level=pb.THERMAL_LEVEL_MODERATE)}, "moderate", "yellow"),
        ({"hardware": pb.Hardware(memory_headroom_bytes=-1_500_000_000)}, "−1.5 GB", "bold red"),
        ({"hardware": pb.Hardware(memory_pressure=pb.MEMORY_PRESSURE_WARN)}, "warn", "yellow"),
        ({"hardware": pb.Hardware(memory_pressure=pb.MEMORY_PRESSURE_CRITICAL)}, "critical", "bold red"),
        ({"hardware": pb.Hardware(memory_pressure=pb.MEMORY_PRESSURE_WARN)}, ", swapped in", ""),
        ({"hardware": pb.Hardware(on_mains=False)}, "battery", "yellow"),
        ({"level": "light_draft"}, "light_draft", "yellow"),
        ({"level": "full"}, "full", "green"),
        ({"flag_variant": "off"}, "off", "yellow"),
        ({"queued_requests": 64}, "64 of 64 waiting", "bold red"),
    ],
)
def test_top_rows_colour_the_figures_that_matter(fields: dict[str, Any], words: str, wanted: str) -> None:
    assert style(history(status(**fields)), words) == wanted


def test_a_speed_up_below_one_is_bad_and_above_it_is_good() -> None:
    for break_even, wanted in ((300.0, "bold red"), (50.0, "green")):
        made = rows.speculation(history(status(), status(1, counts(100, 400, 100, break_even=break_even))))
        assert next(row for row in made if row.name == "speed-up").style == wanted


def test_a_refusal_of_this_minute_is_bad_and_an_old_one_is_not() -> None:
    old, new = status(refused_requests=2), status(refused_requests=3)
    for after, wanted in ((old, "yellow"), (new, "bold red")):
        refused = dict(rows.serving(history(old, after), NOON))["refused"]
        assert str(refused.spans[0].style) == wanted
