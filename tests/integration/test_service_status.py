"""What the daemon says of itself: status, flag, telemetry; over a real gRPC connection and the real engine."""

from __future__ import annotations

import time
from pathlib import Path

import grpc
import pytest

from draftd.client.client import CallError
from draftd.core import DRAFT_MODEL, FallbackLevel, ModePreference, WorkloadClass
from draftd.engine.pair import LoadedModels
from draftd.fallback.ladder import Cause, Signal
from draftd.hardware.state import HardwareSample, HardwareState, HardwareView
from draftd.v1 import control_pb2
from draftd.v1 import inference_pb2 as pb
from tests.fake_fallback import fallback_state
from tests.in_process_daemon import collect, models, serving
from tests.scripted import scripted_models
from tests.wait_until import until


def test_status_counts_answered_tokens_and_refused_requests(tmp_path: Path) -> None:
    with serving(tmp_path, models) as served:
        answers = [collect(served.client.generate("x", max_tokens=n)) for n in (3, 10, 30)]
        with pytest.raises(CallError):
            collect(served.client.generate(""))
        status = served.client.status()
        assert status.state == control_pb2.DAEMON_STATE_SERVING
        assert status.output_tokens == sum(len(a.tokens) for a in answers) == 43
        assert dict(status.finished_requests) == {"length": 3}
        assert status.refused_requests == 1
        finished = [a.finished for a in answers if a.finished is not None]
        assert status.counts.drafted_tokens == sum(f.counts.drafted_tokens for f in finished)
        assert (status.flag_variant, status.level, status.telemetry_exporting) == ("on", "full", False)
        assert (status.active_requests, status.queued_requests, status.queue_capacity) == (0, 0, 64)


def test_status_shows_flag_level_and_transitions_with_causes(tmp_path: Path) -> None:
    with serving(tmp_path, models) as served:
        before = served.client.status()
        assert (before.level, before.level_cause, before.max_draft_tokens) == ("full", "", 4)
        assert (list(before.transitions), before.flag.provider, before.flag.error) == ([], "flagd (file)", "")
        served.client.set_flag("off")
        signal = Signal(Cause.ACCEPTANCE_FLOOR, FallbackLevel.SHORT_BLOCK, "0.31")
        served.ladder.move(2, signal)
        served.controller.now = fallback_state(position=2, signal=signal)
        after = served.client.status()
        assert (after.flag_variant, after.level, after.level_cause) == ("off", "short_block", "acceptance_floor")
        assert after.max_draft_tokens == 2
        assert [(t.subject, t.previous, t.current, t.cause) for t in after.transitions] == [
            ("flag", "on", "off", "set over gRPC"),
            ("level", "full", "short_block 2", "acceptance_floor"),
        ]
        assert before.started == after.started
        times = [t.at.ToNanoseconds() for t in after.transitions]
        assert after.started.ToNanoseconds() < times[0] < times[1] <= time.time_ns()
        (tmp_path / "flags.json").write_text("broken")
        until(lambda: "JSON" in served.client.status().flag.error)


def test_status_shows_hardware_only_after_the_first_sample(tmp_path: Path) -> None:
    with serving(tmp_path, models) as served:
        assert not served.client.status().HasField("hardware")
    view = HardwareView(HardwareState(HardwareSample(memory_total=24), time.monotonic(), limit=24))
    with serving(tmp_path, models, hardware=view) as served:
        hardware = served.client.status().hardware
        assert hardware.memory_limit_bytes == 24
        assert not hardware.HasField("memory_available_bytes")


def test_flag_change_affects_new_requests_and_not_a_running_one(tmp_path: Path) -> None:
    slow = lambda: scripted_models(0.7, step_seconds=0.01)  # noqa: E731
    with serving(tmp_path, slow) as served:
        running = served.client.generate("long", max_tokens=300)
        assert next(running).started.plan.mode == pb.DECODE_MODE_SPECULATIVE
        for variant, mode in (("off", pb.DECODE_MODE_AUTOREGRESSIVE), ("on", pb.DECODE_MODE_SPECULATIVE)):
            reply = served.client.set_flag(variant)
            assert reply.flag.default_variant == variant
            assert reply.previous_variant != variant
            started = collect(served.client.generate("x", max_tokens=2)).started
            assert (started.plan.mode, started.plan.variant) == (mode, variant)
            if variant == "off":
                with pytest.raises(CallError, match=r"flag: off \(") as caught:
                    collect(served.client.generate("x", mode=ModePreference.SPECULATIVE))
                assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
                assert caught.value.reason == "SPECULATION_UNAVAILABLE"
        *_, last = running
        assert last.finished.mode == pb.DECODE_MODE_SPECULATIVE
        assert last.finished.counts.drafts > 0
        assert last.finished.degraded == ""


def test_flag_targeting_rule_decides_the_plan_by_workload(tmp_path: Path) -> None:
    with serving(tmp_path, models) as served:
        path = served.settings.flag.file
        rule = '{"if":[{"in":[{"var":"workload"},["prose","edit"]]},"off",null]}'
        text = path.read_text().replace('"defaultVariant"', f'"targeting": {rule},\n "defaultVariant"')
        path.write_text(text)
        until(lambda: served.client.get_flag(workload=WorkloadClass.PROSE).evaluation.variant == "off")
        assert served.client.get_flag(workload=WorkloadClass.CODE).evaluation.variant == "on"
        assert served.client.get_flag(workload=WorkloadClass.EDIT).evaluation.variant == "off"
        prose = collect(served.client.generate("x", max_tokens=2, workload=WorkloadClass.PROSE)).started
        assert prose.plan.reason == "flag: off (targeting rule)"
        code = collect(served.client.generate("x", max_tokens=2, workload=WorkloadClass.CODE)).started
        assert code.plan.mode == pb.DECODE_MODE_SPECULATIVE


def test_model_without_speculation_refuses_demanded_speculation_with_reason(tmp_path: Path) -> None:
    def bare() -> LoadedModels:
        from dataclasses import replace

        loaded = scripted_models(0.7, with_draft=False)
        refused = {DRAFT_MODEL: "its cache cannot be trimmed"}
        return replace(loaded, info=replace(loaded.info, drafters=(), refused_drafters=refused))

    with serving(tmp_path, bare) as served:
        started = collect(served.client.generate("x", max_tokens=3)).started
        assert started.plan.reason == "model: its cache cannot be trimmed"
        assert served.client.model().speculation_reason == "its cache cannot be trimmed"
        with pytest.raises(CallError, match="its cache cannot be trimmed") as caught:
            collect(served.client.generate("x", mode=ModePreference.SPECULATIVE))
        assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
