"""The commands of the ladder against a real service over a controller whose answers the test sets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from draftd.cli import ladder
from draftd.cli.commands.fallback import follow_transitions
from draftd.client.client import CallError
from draftd.core import DRAFT_MODEL, FallbackLevel
from draftd.errors import ModelLoadError, NotNow
from draftd.fallback.ladder import Cause, Hold, Signal
from draftd.fallback.probes import CanaryOutcome, CanaryReport, Divergence, ProbeReport, ProbeVerdict
from draftd.fronts.grpc import reply
from draftd.journal import Subject
from draftd.v1 import control_pb2 as pb
from tests.fake_fallback import LADDER, LEASE, NOW, FakeController, fallback_state
from tests.in_process_daemon import Served, serving
from tests.scripted import scripted_models
from tests.unit.cli.conftest import Ran, in_process
from tests.wait_until import until

Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def controller() -> FakeController:
    return FakeController()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, controller: FakeController) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), lambda: scripted_models(0.7), controller=controller) as served:
        yield served


@pytest.fixture
def run(
    served: Served, controller: FakeController, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    def draftd(*arguments: str) -> Ran:
        with monkeypatch.context() as patch:
            patch.setenv("DRAFTD_TARGET", served.target)
            return in_process(arguments, patch, capsys)

    controller.now, controller.refusal = fallback_state(), None
    return draftd


def ending(kept: list[Any], outcome: object) -> None:
    """Ends the controller's next future with this outcome, in the background."""
    before = len(kept)

    def end() -> None:
        until(lambda: len(kept) > before, 20)
        if isinstance(outcome, Exception):
            kept[-1].set_exception(outcome)
        else:
            kept[-1].set_result(outcome)

    threading.Thread(target=end, daemon=True).start()


def rows(out: str) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in out.splitlines() if not line.startswith(" "))


@pytest.mark.parametrize("command", [("level",), ("level", "get")])
def test_level_command_prints_level_cause_active_signals_alert_leases_and_next_step(
    run: Run, controller: FakeController, command: tuple[str, ...]
) -> None:
    controller.now = fallback_state(
        position=1,
        signal=Signal(Cause.ACCEPTANCE_FLOOR, FallbackLevel.SHORT_BLOCK, "31 % in 5 min"),
        signals=(Signal(Cause.MEMORY, FallbackLevel.AUTOREGRESSIVE, "critical for 12 s", hard=True),),
        leases=(LEASE,),
    )
    ran = run(*command)
    assert ran.code == 0, ran.err
    fields = rows(ran.out)
    assert fields["level"] == "short_block 3 (1 of 4 down)"
    assert fields["since"].endswith("ago: acceptance_floor: 31 % in 5 min")
    assert fields["asked"] == "memory asks for autoregressive at once: critical for 12 s"
    assert fields["alerts"].startswith("DraftdAcceptanceDrift asks for short_block, until ")
    assert fields["next"] == "stepping down to autoregressive: asked for by memory"
    assert "▸ short_block 3             up to 3 tokens a step from draft_model" in ran.out
    assert ran.out.count("▸") == 1
    assert "\x1b" not in ran.out


def test_level_command_names_absent_drafters_with_the_reason(run: Run, controller: FakeController) -> None:
    assert "absent" not in rows(run("level").out)
    controller.now = fallback_state(missing={DRAFT_MODEL: "no draft model is loaded"})
    assert rows(run("level").out)["absent"] == "draft_model: no draft model is loaded"
    document = json.loads(run("level", "--json").out)
    assert document["absent_drafters"] == {"draft_model": "no draft model is loaded"}


def test_level_json_includes_whole_ladder_and_hold(run: Run) -> None:
    for command in (("level", "--json"), ("level", "get", "--json")):
        state = json.loads(run(*command).out)
        assert [level["level"] for level in state["ladder"]][-1] == "autoregressive"
        assert state["hold"] is None


def test_level_hold_and_release_commands_set_and_clear_the_hold(run: Run, controller: FakeController) -> None:
    ran = run("level", "hold", "light_draft", "--for", "30m")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("light_draft prompt_lookup, held until ")
    assert controller.now.hold == Hold(3, NOW + 1800)
    assert run("level", "hold", "full").out == "full, held until it is released\n"
    assert controller.now.hold == Hold(0, None)
    assert "\nheld        until it is released\n" in run("level").out
    assert run("level", "release").out == "released: the level is full\n"
    assert run("level", "release").out == "no level was held: the level is full\n"


def test_level_hold_on_a_level_missing_from_the_ladder_holds_a_lower_level_and_warns(
    run: Run, controller: FakeController
) -> None:
    controller.now = fallback_state(ladder=(LADDER[0], LADDER[-1]))
    ran = run("level", "hold", "short_block")
    assert ran.code == 0
    assert ran.out.startswith("autoregressive, held")
    assert "has no short_block" in ran.err


def test_level_hold_above_current_level_reports_current_level_until_weights_are_loaded(
    run: Run, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(level: FallbackLevel, expires_in: float | None) -> None:
        controller.now = fallback_state(position=4, hold=Hold(0))

    monkeypatch.setattr(controller, "hold", load)
    ran = run("level", "hold", "full")
    assert ran.out == "full, held until it is released; autoregressive until its weights are loaded\n"
    assert ran.err == ""
    assert "moving to full, where it is held" in run("level").out


@pytest.mark.parametrize("time", ["", "0", "0s", "soon", "-5m", "30", "1.5h", "31d", "9999999999999y", "30m later"])
def test_level_hold_refuses_malformed_or_out_of_range_duration(run: Run, controller: FakeController, time: str) -> None:
    ran = run("level", "hold", "full", f"--for={time}")
    assert ran.code == 2
    assert ran.err == f"draftd: --for: got {time!r}; allowed: a time such as 30s, 30m, 2h or 1d, at most 30d\n"
    assert controller.now.hold is None


@pytest.mark.parametrize(("time", "seconds"), [("30s", 30), ("30m", 1800), ("1h30m", 5400), ("1d", 86400)])
def test_level_hold_accepts_durations_with_unit_suffixes_such_as_1h30m(
    run: Run, controller: FakeController, time: str, seconds: float
) -> None:
    assert run("level", "hold", "full", "--for", time).code == 0
    assert controller.now.hold == Hold(0, NOW + seconds)


def test_level_hold_with_unknown_level_exits_2_and_lists_the_levels(run: Run) -> None:
    ran = run("level", "hold", "fast")
    assert ran.code == 2
    for name in ("full", "short_block", "light_draft", "autoregressive"):
        assert name in ran.err


def test_level_option_given_before_its_subcommand_is_refused(run: Run, controller: FakeController) -> None:
    ran = run("level", "--target", "127.0.0.1:1", "hold", "full")
    assert ran.code == 2
    assert "give --target after" in ran.err
    assert controller.now.hold is None


def test_events_command_lists_transitions_with_number_cause_and_evidence(run: Run, served: Served) -> None:
    for number in range(3):
        served.journal.record(Subject.LEVEL, "full", f"short_block {number}", "acceptance_floor", "31 % in 5 min")
    last = served.journal.latest(1)[0].number
    lines = run("events", "--limit", "2").out.splitlines()
    assert len(lines) == 2
    assert lines[-1].split()[0] == str(last)
    assert "level   full → short_block 2  acceptance_floor (31 % in 5 min)" in lines[-1]
    assert run("events", "--since", str(last)).out == ""
    documents = [json.loads(line) for line in run("events", "--since", str(last - 2), "--json").out.splitlines()]
    assert [one["number"] for one in documents] == [last - 1, last]
    assert documents[0]["evidence"] == "31 % in 5 min"


def test_events_command_prints_no_arrow_for_an_event_that_did_not_change_the_level(run: Run, served: Served) -> None:
    served.journal.record(Subject.LEVEL, "full", "full", "released", "an operator's word")
    assert run("events", "--limit", "1").out.rstrip().endswith("level   full  released (an operator's word)")


def test_events_since_a_future_event_number_exits_2(run: Run) -> None:
    ran = run("events", "--since", "1000000")
    assert ran.code == 2
    assert "after_number" in ran.err


def test_events_follow_prints_past_then_new_events_until_the_daemon_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path, lambda: scripted_models(0.7)) as other:

        def record(count: int) -> None:
            for _ in range(count):
                other.journal.record(Subject.LEVEL, "full", "short_block 3", "drift")

        def happen() -> None:
            until(lambda: bool(other.journal._listeners), 30)
            record(2)
            other.stop()

        record(4)
        happening = threading.Thread(target=happen)
        happening.start()
        monkeypatch.setenv("DRAFTD_TARGET", other.target)
        ran = in_process(("events", "--follow", "--since", "1", "--limit", "2"), monkeypatch, capsys)
        happening.join()
    assert [line.split()[0] for line in ran.out.splitlines()] == ["3", "4", "5", "6"]
    assert (ran.code, ran.err) == (1, "draftd: the daemon is stopping\n")


def test_events_follow_resumes_after_the_last_transition_seen_when_the_stream_breaks() -> None:
    class Behind(CallError):
        def __init__(self, code: grpc.StatusCode) -> None:
            self.code, self.details = code, ""

    class Client:
        """A client whose watch ends after two transitions each time: behind at first, then unavailable."""

        def __init__(self) -> None:
            self.asked: list[int] = []

        def watch(self, after: int) -> Iterator[pb.Transition]:
            self.asked.append(after)
            yield from (pb.Transition(number=after + 1), pb.Transition(number=after + 2))
            raise Behind(grpc.StatusCode.ABORTED if len(self.asked) < 3 else grpc.StatusCode.UNAVAILABLE)

    client, found = Client(), list[int]()
    with pytest.raises(CallError):
        found.extend(one.number for one in follow_transitions(client, 7))  # type: ignore[arg-type]
    assert client.asked == [7, 9, 11]


def test_probe_command_exits_0_on_a_good_verdict_and_1_on_any_other(run: Run, controller: FakeController) -> None:
    ending(controller.probes, ProbeReport(LADDER[1], ProbeVerdict.GOOD, "as its baseline", 0.71, 1.42, 1.25))
    ran = run("probe")
    assert ran.code == 0, ran.err
    fields = rows(ran.out)
    assert (fields["tried"], fields["verdict"], fields["because"]) == ("short_block 3", "good", "as its baseline")
    assert (fields["acceptance"], fields["speed-up"], fields["took"]) == ("71%", "1.42×", "1.2 s")
    for verdict in (ProbeVerdict.BAD, ProbeVerdict.FAILED, ProbeVerdict.TOO_FEW_SAMPLES):
        ending(controller.probes, ProbeReport(LADDER[1], verdict, "no"))
        ran = run("probe", "--json")
        assert ran.code == 1
        assert json.loads(ran.out)["verdict"] == verdict.value
        assert json.loads(ran.out)["speedup"] is None


def test_canary_run_prints_a_table_of_canaries_and_a_verdict_line(run: Run, controller: FakeController) -> None:
    outcomes = (
        CanaryOutcome("json-1", True, True),
        CanaryOutcome("tool-1", True, False, Divergence(7, 0.25), "no such tool: get_wether"),
    )
    ending(controller.runs, CanaryReport(ProbeVerdict.BAD, "50 % below 100 %", outcomes, 2.0))
    ran = run("canary", "run")
    assert ran.code == 1
    lines = ran.out.splitlines()
    assert lines[0].split() == ["canary", "autoregressive", "speculative", "texts"]
    assert lines[1].split() == ["json-1", "passed", "passed", "identical"]
    assert lines[2].split(maxsplit=3) == ["tool-1", "passed", "failed", "differ at 7, gap 0.25"]
    assert lines[3] == "tool-1: no such tool: get_wether"
    assert lines[-1].startswith("bad: 50 % below 100 % (2 canaries, 100% autoregressive, 50% speculative, 1 differ")
    ending(controller.runs, CanaryReport(ProbeVerdict.GOOD, "none worse", outcomes[:1], 2.0))
    assert run("canary", "run", "--json").code == 0
    ending(controller.runs, CanaryReport(ProbeVerdict.FAILED, "the engine stopped"))
    ran = run("canary", "run")
    assert (ran.code, ran.out) == (1, "failed: the engine stopped (0.0 s)\n")


def test_draft_reload_command_prints_loaded_model_size_or_the_load_error(run: Run, controller: FakeController) -> None:
    ending(controller.reloads, 1_400_000)
    ran = run("draft", "reload")
    assert (ran.code, ran.out) == (0, "scripted-draft: read again (1 MB)\n")
    ending(controller.reloads, 1_400_000)
    ran = run("draft", "reload", "--new")
    said = "scripted-draft: read again (1 MB); what was learnt from the old one is forgotten\n"
    assert (ran.code, ran.out) == (0, said)
    assert controller.forgets[-2:] == [False, True]
    ending(controller.reloads, ModelLoadError("/models/draft: no model.safetensors"))
    ran = run("draft", "reload")
    assert ran.code == 1
    assert ran.err == "draftd: /models/draft: no model.safetensors\n"


@pytest.mark.parametrize("command", [("probe",), ("canary", "run"), ("draft", "reload")])
def test_probe_canary_and_reload_commands_print_refusal_or_timeout_in_one_line(
    run: Run, controller: FakeController, command: tuple[str, ...]
) -> None:
    ran = run(*command, "--timeout", "0.3")
    assert ran.code == 1
    assert ran.err.startswith("draftd: deadline exceeded")
    controller.refusal = NotNow("a probe is already running")
    ran = run(*command)
    assert (ran.code, ran.err) == (1, "draftd: a probe is already running\n")


AT = datetime.fromtimestamp(NOW, UTC)


def state(**fields: Any) -> pb.FallbackState:
    return reply.fallback(fallback_state(**{"since": NOW - 100, "wait": 300.0, **fields}))


def signal(level: FallbackLevel, *, hard: bool = False, cause: Cause = Cause.ACCEPTANCE_FLOOR) -> Signal:
    return Signal(cause, level, "31 %", hard=hard)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ""),
        ({"position": 2}, "up in 3 min, once a probe of a level above is good"),
        ({"position": 2, "wait": 130.0}, "up in 30 s, once a probe of a level above is good"),
        ({"position": 1, "wait": 60.0}, "up once a probe of a level above is good"),
        ({"position": 4}, "up in 3 min, once a probe of a level above is good"),
        ({"signals": (signal(FallbackLevel.SHORT_BLOCK),)},
         "stepping down to short_block 2 within one cooldown: asked for by acceptance_floor"),
        (
            {"position": 1, "signals": (signal(FallbackLevel.SHORT_BLOCK), signal(FallbackLevel.AUTOREGRESSIVE,
             hard=True, cause=Cause.MEMORY))},
            "stepping down to autoregressive: asked for by memory",
        ),
        (
            {"position": 2, "signals": (signal(FallbackLevel.SHORT_BLOCK),)},
            "no step up while asked for by acceptance_floor",
        ),
        (
            {"position": 4, "signals": (signal(FallbackLevel.SHORT_BLOCK),)},
            "up in 3 min, once a probe of a level above is good",
        ),
        ({"position": 2, "hold": Hold(2)}, "stays: it is held"),
        ({"position": 2, "hold": Hold(0)}, "moving to full, where it is held"),
        ({"position": 2, "hold": Hold(2, NOW)}, "the hold is over; the level moves when its drafters are ready"),
        (
            {"position": 2, "missing": {DRAFT_MODEL: "no draft model is loaded"}},
            "up in 3 min: its drafter is not there, so there is nothing to probe",
        ),
        (
            {"position": 2, "wait": 60.0, "missing": {DRAFT_MODEL: "no draft model is loaded"}},
            "up now: its drafter is not there, so there is nothing to probe",
        ),
        (
            {"position": 4, "missing": {DRAFT_MODEL: "no draft model is loaded"}},
            "up in 3 min, once a probe of a level above is good",
        ),
        ({"position": 1, "since": NOW + 5}, "up in 5 min, once a probe of a level above is good"),
    ],
)  # fmt: skip
def test_level_command_describes_the_next_ladder_step_and_its_condition(fields: dict[str, Any], said: str) -> None:
    assert ladder.what_next(state(**fields), AT) == said


def test_hold_text_gives_end_time_and_time_left_or_until_released() -> None:
    assert ladder.hold_end(state(), AT) == ""
    assert ladder.hold_end(state(hold=Hold(0)), AT) == "until it is released"
    assert (
        ladder.hold_end(state(hold=Hold(0, NOW + 1800)), AT)
        == f"until {AT + timedelta(minutes=30):%H:%M:%S} UTC (30 min left)"
    )
    far = AT + timedelta(days=3)
    assert ladder.hold_end(state(hold=Hold(0, far.timestamp())), AT) == f"until {far:%Y-%m-%d %H:%M:%S} UTC (3 d left)"
    assert ladder.hold_end(state(hold=Hold(0, NOW - 5)), AT).endswith("(0 s left)")


def test_ladder_position_text_counts_levels_down_from_the_top() -> None:
    assert ladder.fields(state(), AT)[0][1].endswith(" (the top of the ladder)")
    assert ladder.fields(state(position=4), AT)[0][1].endswith(" (4 of 4 down)")
    assert ladder.current(state(position=3)) == "light_draft prompt_lookup"


def test_level_name_is_empty_for_a_daemon_without_a_ladder() -> None:
    assert ladder.current(pb.FallbackState()) == ""
