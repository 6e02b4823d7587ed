"""The live screen, driven through a fake client: what it shows at every size, what keys do, and a lost daemon."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from datetime import timedelta
from html import unescape
from typing import Any, cast

import pytest
from rich.console import Console
from rich.text import Text
from textual.pilot import Pilot

from draftd.cli.top import rows
from draftd.cli.top.app import ClippedLine, TopApp, pause, spark
from draftd.client.client import DraftdClient
from draftd.core import FallbackLevel
from draftd.errors import FlagReadOnly, NotServing
from draftd.fallback.ladder import Cause, Signal
from draftd.fronts.grpc import reply
from draftd.v1 import control_pb2 as pb
from tests.fake_fallback import fallback_state
from tests.unit.cli.top.snapshots import NOON, counts, history, status, transition

_CELL = 12.2  # width of a character in Textual's pictures


class FakeClient:
    """A client that repeats its answers to `status`; with `hang` it answers only once it is closed."""

    def __init__(self, *answers: pb.GetStatusResponse | Exception) -> None:
        self.answers, self.variants, self.asked = list(answers), list[str](), 0
        self.closed, self.hang = threading.Event(), False
        self.refusal: Exception | None = None

    def status(self, *, timeout: float) -> pb.GetStatusResponse:
        self.asked += 1
        if self.hang:
            self.closed.wait()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def set_flag(self, variant: str) -> pb.SetFlagResponse:
        if self.refusal is not None:
            raise self.refusal
        self.variants.append(variant)
        self.answers = [status(flag_variant=variant)]
        return pb.SetFlagResponse(flag=pb.FlagState(default_variant=variant), previous_variant="on")

    def close(self) -> None:
        self.closed.set()


def live(client: FakeClient | None, *statuses: pb.GetStatusResponse, interval: float = 0.05) -> TopApp:
    seconds = 10.0
    begun = time.monotonic() - seconds * (len(statuses) - 1)
    seen = history(*statuses, seconds=seconds, begin=begun)
    return TopApp(cast(DraftdClient | None, client), seen, interval)


def shown(app: TopApp) -> list[str]:
    """Returns the screen, line by line."""
    lines: dict[float, dict[int, str]] = defaultdict(dict)
    for x, y, text in re.findall(r'<text class="[^"]*" x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</text>', _svg(app)):
        lines[float(y)] |= {round(float(x) / _CELL) + i: one for i, one in enumerate(unescape(text))}
    return [
        "".join(cells.get(i, " ") for i in range(max(cells) + 1)).replace("\xa0", " ").rstrip()
        for _, cells in sorted(lines.items())
    ]


def _svg(app: TopApp) -> str:
    return app.export_screenshot().split('-matrix">', 1)[1]


async def until(pilot: Pilot[None], *words: str, seconds: float = 20.0) -> None:
    """Waits until all the words are on the screen."""
    deadline = time.monotonic() + seconds
    while not all(word in "\n".join(shown(cast(TopApp, pilot.app))) for word in words):
        assert time.monotonic() < deadline, f"{words} not in\n" + "\n".join(shown(cast(TopApp, pilot.app)))
        await pilot.pause(0.02)


async def drawn(*statuses: pb.GetStatusResponse, size: tuple[int, int] = (140, 45)) -> str:
    """Returns the screen one frame after these statuses."""
    app = live(None, *statuses)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        return "\n".join(shown(app))


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
SIGNAL = Signal(Cause.MEMORY, FallbackLevel.AUTOREGRESSIVE, "critical", hard=True)
BEFORE = counts(100, 400, 200, break_even=150.0, per_position=[(90, 100), (60, 100), (30, 100), (20, 100)])
AFTER = counts(
    200, 760, 440, plain=25, parked=20, break_even=250.0, per_position=[(180, 200), (130, 200), (80, 180), (50, 180)]
)  # fmt: skip


def busy(**fields: Any) -> tuple[pb.GetStatusResponse, pb.GetStatusResponse]:
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
    return status(1_000, BEFORE), status(2_000, AFTER, **whole)


FIGURES = (
    "100 tokens/s",  # 1000 of them in ten seconds
    "67%",  # accepted of the minute: 240 of 360
    "3.40",  # tokens per draft
    "1.70×",  # (100 + 240) over (100 + 100)
    "depth, of 4",
    "3.6",  # drafted a draft
    "80%",  # steps drafted
    "16%",  # and parked
    "90%", "70%", "62%", "38%",  # by position
    "short_block",
    "3 running, 5 of 64 waiting",
    "42",  # finished
    "2, 2 in 10 s",
    "7, 7 in 10 s",
    "on (an OTEL",
    "−1.5 GB, floor 10.0 GB of 24.0 GB",
    "warn, swapped in 12 MB",
    "5.0 GB, cache 300 MB, peak 6.1 GB",
    "5.2 GB, KV cache 42 MB",
    "83% busy, 7.0 GB",
    "heavy, 2 throttles, 72 °C",
    "battery, low-power mode, 22 W",
    "full → short_block",
)  # fmt: skip


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (119, 40), (140, 45), (200, 60)])
async def test_top_screen_shows_every_figure_at_sizes_from_80_by_24(size: tuple[int, int]) -> None:
    screen = await drawn(*busy(), size=size)
    assert [figure for figure in FIGURES if figure not in screen] == []
    bars = [line.count("█") for line in screen.splitlines() for n in "1234" if f"  {n} █" in line]
    assert len(bars) == 4
    assert bars == sorted(bars, reverse=True)


ESSENTIAL = (
    "100 tokens/s", "67% in 10 s, 58% in all", "1.70×", "short_block", "3 running, 5 of 64 waiting", "2, 2 in 10 s",
    "7, 7 in 10 s", "−1.5 GB, floor 10.0 GB of 24.0 GB", "warn, swapped in 12 MB", "heavy, 2 throttles, 72 °C",
)  # fmt: skip


@pytest.mark.parametrize("size", [(60, 20), (79, 41), (80, 20), (119, 23)])
async def test_top_screen_on_small_terminals_shows_the_essential_figures(size: tuple[int, int]) -> None:
    state = reply.fallback(fallback_state(position=1, since=NOON.timestamp() - 60, signals=[SIGNAL]))
    screen = await drawn(*busy(fallback=state), size=size)
    assert "at a glance" in screen
    assert [figure for figure in (*ESSENTIAL, "asked", "next") if figure not in screen] == []


@pytest.mark.parametrize("size", [(60, 20), (60, 50), (80, 24), (87, 24), (120, 36)])
async def test_top_screen_cuts_no_number_at_any_width(size: tuple[int, int]) -> None:
    large = pb.Hardware(
        memory_headroom_bytes=98_200_000_000,
        memory_floor_bytes=101_300_000_000,
        memory_limit_bytes=512_000_000_000,
        mlx_active_bytes=123_400_000_000,
        mlx_cache_bytes=123_400_000_000,
        mlx_peak_bytes=123_400_000_000,
    )
    cause = "acceptance at position 0 was 0.312 of 0.624 in 12345 drafts of 1234567 tokens in the last 3600 seconds"
    screen = await drawn(*busy(hardware=large, level_cause=cause, drafter_errors=123456, verifier_errors=7), size=size)
    assert "98.2 GB, floor 101.3 GB" in screen
    assert re.findall(r".*[\d.,−×%]…", screen) == []


def test_top_screen_line_is_cut_between_words_and_never_before_a_unit() -> None:
    whole = "98.2 GB, floor 101.3 GB of 512.0 GB"
    for width in range(8, len(whole) + 1):
        console = Console(width=width)
        with console.capture() as captured:
            console.print(ClippedLine(Text(whole)))
        shown = captured.get().rstrip("\n")
        assert len(shown) <= width
        assert shown == whole or (shown[-1] == "…" and shown[:-1].endswith(("floor", "GB", "of"))) or width == 8


async def test_top_screen_of_minimal_size_scrolls_to_every_figure() -> None:
    app = live(None, *busy())
    async with app.run_test(size=(60, 20)) as pilot:
        await pilot.pause()
        seen = "\n".join(shown(app))
        for _ in range(4):
            await pilot.press("pagedown")
            await pilot.pause(0.3)
            seen += "\n".join(shown(app))
    assert [figure for figure in FIGURES if figure not in seen] == []


@pytest.mark.parametrize("size", [(59, 30), (100, 19), (30, 8)])
async def test_top_screen_on_too_small_terminal_prints_the_required_size(size: tuple[int, int]) -> None:
    lines = [line for line in (await drawn(*busy(), size=size)).splitlines() if line]
    said = " ".join(line.strip() for line in lines)
    assert said == f"this terminal is {size[0]} × {size[1]}; draftd top needs 60 × 20"
    assert len(lines) == (1 if size[0] > 50 else 2)


async def test_top_screen_fills_a_terminal_that_is_enlarged() -> None:
    app = live(None, *busy())
    async with app.run_test(size=(50, 15)) as pilot:
        await until(pilot, "60 × 20")
        await pilot.resize_terminal(140, 45)
        await until(pilot, "depth, of 4", "100 tokens/s")
        assert len(shown(app)) == 45


async def test_top_throughput_chart_is_higher_where_throughput_is_higher() -> None:
    lines = (await drawn(*(status(n * n * 20) for n in range(12)), size=(100, 30))).splitlines()
    heights = [sum(line[n : n + 1] not in ("", " ") for line in lines[2:9]) for n in range(60, 97)]
    assert heights[-20] < heights[-1]
    assert "█" in lines[2]


@pytest.mark.parametrize("size", [(60, 20), (100, 30)])
async def test_top_screen_f_key_toggles_the_speculation_flag_after_confirmation(size: tuple[int, int]) -> None:
    client = FakeClient(status(flag_variant="on"))
    async with live(client, status(), interval=30.0).run_test(size=size) as pilot:
        await pilot.press("y")  # nothing was asked
        await until(pilot, " on", "turn the flag off")
        await pilot.press("f")
        await until(pilot, "Turn the flag off at 127.0.0.1:50551?", "the next request", "without", "yes, turn it off")
        assert client.variants == []
        await pilot.press("y")
        await until(pilot, "flag      off" if size[0] > 60 else "flag     off", "flag off (was on)", "turn the flag on")
        await pilot.press("y", "f")
        await until(pilot, "Turn the flag on at 127.0.0.1:50551?", "the next request may", "yes, turn it on")
    assert client.variants == ["off"]


@pytest.mark.parametrize("key", ["n", "escape"])
async def test_top_screen_leaves_the_flag_unchanged_when_confirmation_is_declined(key: str) -> None:
    client = FakeClient(status())
    async with live(client, status(), interval=30.0).run_test(size=(100, 30)) as pilot:
        await pilot.press("f", key)
        await until(pilot, "the flag was left as it is", "turn the flag off")
        await pilot.press("y")
        await pilot.pause(0.1)
    assert client.variants == []


async def test_top_screen_ignores_y_key_after_a_resize_hid_the_flag_confirmation() -> None:
    client = FakeClient(status())
    async with live(client, status(), interval=30.0).run_test(size=(100, 30)) as pilot:
        await pilot.press("f")
        await until(pilot, "Turn the flag off")
        await pilot.resize_terminal(50, 15)
        await until(pilot, "60 × 20")
        await pilot.press("y", "f", "y")
        await pilot.resize_terminal(100, 30)
        await until(pilot, "turn the flag off")
    assert client.variants == []


async def test_top_screen_shows_why_the_flag_could_not_be_changed() -> None:
    client = FakeClient(status())
    client.refusal = FlagReadOnly("flags.yaml cannot be rewritten")
    async with live(client, status(), interval=30.0).run_test(size=(100, 30)) as pilot:
        await pilot.press("f", "y")
        await until(pilot, "the flag could not be turned off: flags.yaml cannot be rewritten")


async def test_top_screen_does_not_change_the_flag_while_the_daemon_does_not_answer() -> None:
    client = FakeClient(NotServing("no daemon answers"))
    async with live(client, status(1), status(2)).run_test(size=(100, 30)) as pilot:
        await until(pilot, "no answer for")
        await pilot.press("f")
        await until(pilot, "the flag cannot be changed while the daemon does not answer")
        await pilot.press("y")
        await pilot.pause(0.1)
    assert client.variants == []


async def test_top_screen_does_not_toggle_a_flag_variant_other_than_on_or_off() -> None:
    client = FakeClient(status(flag_variant="half"))
    async with live(client, status(flag_variant="half"), interval=30.0).run_test(size=(100, 30)) as pilot:
        await pilot.press("f")
        await until(pilot, "neither on nor off, but half")
    assert client.variants == []


async def test_top_screen_p_key_pauses_polling_until_pressed_again() -> None:
    client = FakeClient(status())
    app = live(client, status())
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("p")
        await until(pilot, "paused", "continue")
        await pilot.pause(0.1)  # the pending question ends
        client.answers, asked = [status(active_requests=9)], client.asked
        await pilot.pause(0.3)
        assert client.asked == asked
        await pilot.press("p")
        await until(pilot, "9 running")


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_top_screen_quit_exports_an_svg_screenshot_and_closes_the_client(key: str) -> None:
    client = FakeClient(status())
    app = live(client, status())
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press(key)
    assert app.return_code == 0
    assert "speculation" in app.picture
    assert client.closed.is_set()


async def test_top_screen_pause_and_quit_keys_respond_while_the_daemon_hangs() -> None:
    client = FakeClient(status())
    client.hang = True
    async with live(client, status()).run_test(size=(100, 30)) as pilot:
        while not client.asked:
            await pilot.pause(0.02)
        await pilot.press("p")
        await until(pilot, "paused")
        await pilot.press("q")
    assert client.closed.is_set()


async def test_top_screen_reports_a_lost_daemon_and_resumes_when_it_answers() -> None:
    client = FakeClient(NotServing("no daemon answers"))
    app = live(client, status(1), status(2))
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, "no answer for", "no daemon answers", "– tokens/s")
        client.answers = [status(3)]
        await until(pilot, "it answers again", "serving for")
        assert "no answer" not in "\n".join(shown(app))


async def test_top_screen_exits_1_on_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    app = live(None, status())

    async def run() -> None:
        async with app.run_test() as pilot:
            monkeypatch.setattr(rows, "state", lambda seen: 1 / 0)
            app.set_timer(0.01, app.draw)
            await pilot.pause(1.0)

    with pytest.raises(ZeroDivisionError):
        await run()
    assert app.return_code == 1


@pytest.mark.parametrize(
    ("failures", "interval", "seconds"),
    [(1, 1.0, 1.0), (3, 1.0, 4.0), (5, 1.0, 10.0), (10_000, 1.0, 10.0), (1, 60.0, 60.0), (9, 60.0, 60.0)],
)
def test_top_retry_pause_doubles_up_to_ten_seconds_or_a_longer_poll_interval(
    failures: int, interval: float, seconds: float
) -> None:
    assert pause(failures, interval) == seconds


def test_sparkline_leaves_columns_of_unknown_values_empty() -> None:
    assert spark([0.0, 1.0, 8.0, None, 16.0], 2, 16.0) == ["    █", "▁▁█ █"]
    assert spark([0.0, 0.0], 2, 0.0) == ["  ", "▁▁"]


async def test_top_screen_shows_remote_panel_only_for_a_daemon_with_a_remote() -> None:
    link = pb.RemoteStatus(up=True, target="gpu:50551", model="large")
    peers = pb.VerificationStatus(open_sequences=2, total=pb.PeerCounts(tokens=90, verdicts=30))
    both = await drawn(status(remote=link, verification=peers))
    for word in ("remote", "up, gpu:50551 serves large", "chosen there", "0 connected, 2 open sequences"):
        assert word in both
    assert "chosen there" not in await drawn(status())
