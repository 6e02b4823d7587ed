"""The rows on a daemon: every figure, a dash for an unknown one, and a colour for what matters."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from rich.text import Text

from draftd.cli.commands.top import fields
from draftd.cli.top import rows
from draftd.cli.top.rates import StatusHistory
from draftd.core import DRAFT_HEAD, DRAFT_MODEL, FallbackLevel
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


def test_top_rows_of_an_idle_daemon_show_dashes() -> None:
    lines = said(history(status()))
    assert lines["tokens/s"].startswith("–")
    for name in ("headroom", "MLX", "GPU", "thermal", "accepted", "tokens per draft", "speed-up"):
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
def test_top_rows_show_known_hardware_values_beside_dashes_for_unknown_values(
    hardware: pb.Hardware, row: str, text: str
) -> None:
    assert said(history(status(hardware=hardware)))[row] == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 over 0.2 s"), (1.0, "0 over 1 s"), (54.0, "0 over 54 s"), (60.0, "0 over a minute")]
)
def test_top_throughput_row_states_the_length_of_its_averaging_window(seconds: float, text: str) -> None:
    assert said(history(status(), status(), seconds=seconds))["tokens/s"] == text


def test_top_rows_show_dash_for_weights_and_loading_progress_while_the_model_loads() -> None:
    loading = status(state=pb.DAEMON_STATE_LOADING, model=inference.GetModelResponse(), progress="reading: 30 %")
    lines = said(history(loading))
    assert lines["weights"] == "–"
    assert "loading for" in lines[""]
    assert "reading: 30 %" in lines[""]


def test_top_throughput_row_shows_a_dash_after_a_daemon_restart() -> None:
    step_counts = counts(100, 400, 200, break_even=150.0)
    lines = said(history(status(1_000, step_counts), status(10, run=SECOND_RUN)))
    assert lines["tokens/s"].startswith("–")


@pytest.mark.parametrize(("retry", "text"), [(3.2, "next try in 3 s"), (None, "asking again")])
def test_top_message_for_a_lost_daemon_gives_reason_and_time_to_next_retry(retry: float | None, text: str) -> None:
    assert rows.lost("no daemon answers", 12.0, retry).plain == f"no answer for 12 s, {text}: no daemon answers"


@pytest.mark.parametrize(
    ("fields", "row", "text"),
    [
        ({"flag": pb.FlagState(error="not valid JSON")}, "flag", "on · not valid JSON"),
        ({"telemetry_exporting": False}, "telemetry", "off (no OTEL endpoint)"),
        ({"drafter_errors": 3, "verifier_errors": 1}, "failed", "0, errors: 3 drafter, 1 verifier"),
    ],
)
def test_top_rows_show_flag_errors_missing_telemetry_and_decode_errors(
    fields: dict[str, Any], row: str, text: str
) -> None:
    assert said(history(status(**fields)))[row] == text


def test_top_speculation_panel_gives_the_reason_speculation_is_unavailable() -> None:
    shown = history(status(model=inference.GetModelResponse(model="m", speculation_reason="no rollback")))
    assert str(rows.unavailable(shown)) == "unavailable: no rollback"


def test_top_header_names_the_drafts_that_draft() -> None:
    both = inference.GetModelResponse(model="m", draft_model="d", drafters=[DRAFT_MODEL, DRAFT_HEAD])
    assert "  m + d + its draft head" in said(history(status(model=both)))[""]
    head = inference.GetModelResponse(model="m", draft_model="refused", drafters=[DRAFT_HEAD])
    assert "  m + its draft head" in said(history(status(model=head)))[""]


def test_top_transitions_list_latest_first_with_time_or_age_in_days() -> None:
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


def test_top_rows_show_ladder_level_operator_hold_active_signals_and_next_step() -> None:
    lines = said(stepped_down(signals=SIGNALS))
    assert lines["level"].startswith("short_block 3, 1 of 4 down")
    assert lines["asked"] == "memory → autoregressive, 1 more · critical"
    assert lines["next"].startswith("stepping down to autoregressive")
    assert said(stepped_down(hold=Hold(1)))["held"] == "until it is released"
    assert said(stepped_down())["next"].startswith("up in 4 min, once a probe")


def test_top_shows_no_ladder_rows_while_the_ladder_is_at_its_top_level() -> None:
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
def test_top_rows_colour_hardware_level_flag_and_queue_figures_by_severity(
    fields: dict[str, Any], words: str, wanted: str
) -> None:
    assert style(history(status(**fields)), words) == wanted


def test_top_speedup_row_is_red_below_one_and_green_above_one() -> None:
    for break_even, wanted in ((300.0, "bold red"), (50.0, "green")):
        made = rows.speculation(history(status(), status(1, counts(100, 400, 100, break_even=break_even))))
        assert next(row for row in made if row.name == "speed-up").style == wanted


def test_top_refused_requests_row_is_red_for_recent_refusals_and_yellow_for_old_refusals() -> None:
    old, new = status(refused_requests=2), status(refused_requests=3)
    for after, wanted in ((old, "yellow"), (new, "bold red")):
        refused = dict(rows.serving(history(old, after), NOON))["refused"]
        assert str(refused.spans[0].style) == wanted
