"""Replies about the model, the machine, and what the engine has learnt of drafting."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from draftd.core import BUILT_IN_DRAFTERS, DRAFT_HEAD, DRAFT_MODEL, PROMPT_LOOKUP, DepthMode, WorkloadClass
from draftd.engine.depth.costs import DEEPEST, CalibratedCosts, CostSource
from draftd.engine.depth.saved import LearntCosts
from draftd.errors import NotServing
from draftd.exactness import Exactness, OperationExactness, OperationKind
from draftd.fronts.grpc import reply
from draftd.fronts.grpc.reply import hardware
from draftd.hardware.state import HardwareSample, HardwareState, HardwareView, MemoryPressure, ThermalLevel
from draftd.model_info import HeadInfo, ModelInfo
from draftd.protocol import DEPTH_MODES, WORKLOADS, exactness_of
from draftd.service.request import ServedModel
from draftd.v1 import control_pb2 as pb

DRAFT, LOOKUP = DRAFT_MODEL, PROMPT_LOOKUP
PRICES = CalibratedCosts(
    {1: 0.010, 4: 0.020},
    {
        DRAFT: {(1, 1): 0.012, (1, 4): 0.015, (4, 1): 0.03, (4, 4): 0.06},
        LOOKUP: {(1, 1): 0.011, (1, 4): 0.012, (4, 1): 0.025, (4, 4): 0.04},
    },
    {},
    64,
)
MANY = (400.0,) * DEEPEST


def stood(share: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return MANY, tuple(share * tried for tried in MANY)


LEARNT = LearntCosts(
    PRICES,
    {
        (DRAFT, False, False, None): stood(0.5),
        (DRAFT, False, False, WorkloadClass.CODE): stood(0.9),
        (DRAFT, False, False, WorkloadClass.PROSE): stood(0.02),
        (LOOKUP, True, True, WorkloadClass.UNSPECIFIED): stood(0.6),
    },
    sources={(DRAFT, 1): CostSource.LEARNT, (DRAFT, 4): CostSource.MEASURED},
)


def test_depth_reply_marks_each_step_cost_as_measured_learnt_or_guessed() -> None:
    sources = {(one.drafter, one.batch): one.source for one in reply.depth(LEARNT, 4).costs}
    assert sources == {(DRAFT, 1): "learnt", (DRAFT, 4): "measured", (LOOKUP, 1): "guessed", (LOOKUP, 4): "guessed"}


def test_depth_reply_scales_step_costs_by_the_current_machine_speed() -> None:
    (first, *_) = reply.depth(replace(LEARNT, speed=math.log(0.75)), 4).costs
    assert first.plain.ToNanoseconds() == pytest.approx(7_500_000)
    assert list(first.ratios) == pytest.approx([1.2, 1.3, 1.4, 1.5])


def test_depth_reply_gives_draft_costs_as_ratios_to_a_plain_step() -> None:
    response = reply.depth(LEARNT, 4)
    assert [(one.drafter, one.batch) for one in response.costs] == [
        (DRAFT, 1), (DRAFT, 4), (LOOKUP, 1), (LOOKUP, 4),
    ]  # fmt: skip
    first, together = response.costs[0], response.costs[1]
    assert first.plain.ToNanoseconds() == pytest.approx(10_000_000)
    assert list(first.ratios) == pytest.approx([1.2, 1.3, 1.4, 1.5])
    assert list(together.ratios) == pytest.approx([1.5, 2.0, 2.5, 3.0])


def test_depth_reply_lists_acceptance_and_depth_per_drafter_and_workload() -> None:
    yields = {(one.drafter, WORKLOADS[one.workload]): one for one in reply.depth(LEARNT, 4).yields}
    assert set(yields) == {
        (DRAFT, WorkloadClass.CODE), (DRAFT, WorkloadClass.PROSE), (LOOKUP, WorkloadClass.UNSPECIFIED),
    }  # fmt: skip
    code, prose = yields[DRAFT, WorkloadClass.CODE], yields[DRAFT, WorkloadClass.PROSE]
    assert list(code.acceptance) == pytest.approx([0.9] * 4, abs=0.02)
    assert list(code.tried) == [400.0] * 4
    assert (code.depth, prose.depth) == (4, 0)
    assert (code.sampled, code.seeded) == (False, False)
    sampled = yields[LOOKUP, WorkloadClass.UNSPECIFIED]
    assert (sampled.sampled, sampled.seeded) == (True, True)


def test_depth_reply_lists_no_depth_beyond_the_draft_limit() -> None:
    response = reply.depth(LEARNT, 2)
    assert {len(one.ratios) for one in response.costs} == {2}
    assert {len(one.acceptance) for one in response.yields} == {2}
    assert max(one.depth for one in response.yields) == 2


def test_depth_reply_has_no_plain_step_cost_before_a_plain_step_was_measured() -> None:
    (guess,) = reply.depth(
        LearntCosts(CalibratedCosts(), {(DRAFT, False, False, WorkloadClass.CODE): stood(0.9)}), 4
    ).costs
    assert (guess.HasField("plain"), guess.source) == (False, "guessed")
    learnt = LearntCosts(CalibratedCosts(), {(DRAFT, False, False, WorkloadClass.CODE): stood(0.9)}, measured=True)
    assert reply.depth(learnt, 4).costs[0].HasField("plain"), "steps of requests have said it"


def test_depth_reply_is_refused_before_any_drafting_cost_is_measured() -> None:
    with pytest.raises(NotServing, match="the gain of drafting cannot be estimated yet"):
        reply.depth(None, 4)


def test_model_reply_carries_every_drafter_and_depth_mode() -> None:
    info = ModelInfo(
        "m",
        "d",
        100,
        50,
        BUILT_IN_DRAFTERS,
        9,
        3,
        "cpu",
        batched=False,
        batched_reason="why",
        light_draft_model="l",
    )
    for mode in DepthMode:
        response = reply.model(ServedModel(info, 1, 1, mode, chat_template=False))
        assert DEPTH_MODES[response.depth_mode] is mode
    assert tuple(response.drafters) == BUILT_IN_DRAFTERS
    assert (response.light_draft_model, response.light_draft_reason) == ("l", "")
    assert (response.batched, response.batched_reason) == (False, "why")


def test_model_reply_carries_the_draft_head_with_its_trial() -> None:
    head = HeadInfo("mtp", "MTP head", ("mtp.safetensors",), 90, 80, "embedding, hidden", 0.5, 0.1, 255)
    info = ModelInfo("m", None, 100, 50, (DRAFT_HEAD,), 9, 0, "cpu", head=head)
    info = replace(info, refused_drafters={DRAFT_MODEL: "no draft model is loaded"})
    response = reply.model(ServedModel(info, 1, 1, DepthMode.AUTOMATIC, chat_template=False))
    assert response.speculation_reason == ""
    message = response.draft_head
    assert (message.kind, message.family, list(message.files)) == ("mtp", "MTP head", ["mtp.safetensors"])
    assert (message.file_bytes, message.weight_bytes, message.form) == (90, 80, "embedding, hidden")
    assert (message.accepted, message.chance, message.positions, message.refusal) == (0.5, 0.1, 255, "")


def test_model_reply_gives_the_reason_of_a_refused_draft_model_beside_a_draft_head() -> None:
    info = ModelInfo("m", "d", 100, 50, (DRAFT_HEAD,), 9, 0, "cpu", refused_drafters={DRAFT_MODEL: "other tokens"})
    response = reply.model(ServedModel(info, 1, 1, DepthMode.AUTOMATIC, chat_template=False))
    assert response.speculation_reason == "other tokens"
    assert not response.HasField("draft_head")


def test_hardware_reply_is_absent_before_the_first_sample() -> None:
    assert hardware(HardwareView(), 5.0) is None


def test_hardware_reply_leaves_unknown_values_unset() -> None:
    message = hardware(HardwareView(HardwareState(HardwareSample(), at=3.0)), 5.0)
    assert message is not None
    assert [field.name for field, _ in message.ListFields()] == ["age"]
    assert message.age.seconds == 2


def test_hardware_reply_sets_values_that_are_zero_or_false() -> None:
    calm = HardwareSample(
        memory_pressure=MemoryPressure.NORMAL, swap_used=0, mlx_active=0, gpu_utilization=0.0, low_power=False,
        plugged_in=False,
    )  # fmt: skip
    message = hardware(
        HardwareView(HardwareState(calm, 3.0, headroom=0, critical_seconds=0.0, throttles=0, swap_ins=0)), 5.0
    )
    assert message is not None
    names = {field.name for field, _ in message.ListFields()}
    assert names == {
        "age", "memory_pressure", "memory_headroom_bytes", "critical_pressure", "swap_used_bytes", "swap_in_bytes",
        "mlx_active_bytes", "gpu_utilization", "throttles", "low_power", "on_mains",
    }  # fmt: skip


def test_hardware_reply_carries_every_value_in_its_field() -> None:
    sample = HardwareSample(
        memory_pressure=MemoryPressure.CRITICAL,
        swap_used=7,
        process_resident=10,
        mlx_active=11,
        mlx_cache=12,
        mlx_peak=13,
        mlx_working_set=14,
        gpu_memory=15,
        gpu_utilization=0.5,
        low_power=True,
        plugged_in=True,
        temperatures={"cpu": 40.0},
        fans={"fan0": 900.0},
        power={"gpu": 3.0},
        thermal_level=ThermalLevel.HEAVY,
    )
    state = HardwareState(
        sample, 3.0, limit=1, available=2, floor=3, headroom=-1, critical_seconds=4.5,
        throttles=6, swap_ins=8,
    )  # fmt: skip
    message = hardware(HardwareView(state, errors={"macmon": 2}), 3.5)
    expected = pb.Hardware(
        memory_pressure=pb.MEMORY_PRESSURE_CRITICAL,
        memory_headroom_bytes=-1,
        memory_floor_bytes=3,
        memory_available_bytes=2,
        memory_limit_bytes=1,
        swap_used_bytes=7,
        swap_in_bytes=8,
        process_resident_bytes=10,
        mlx_active_bytes=11,
        mlx_cache_bytes=12,
        mlx_peak_bytes=13,
        mlx_working_set_bytes=14,
        gpu_memory_bytes=15,
        gpu_utilization=0.5,
        thermal_level=pb.THERMAL_LEVEL_HEAVY,
        throttles=6,
        low_power=True,
        on_mains=True,
        temperatures={"cpu": 40.0},
        fans={"fan0": 900.0},
        power={"gpu": 3.0},
        errors={"macmon": 2},
    )
    expected.age.nanos = 500_000_000
    expected.critical_pressure.FromMilliseconds(4_500)
    assert message == expected


@pytest.mark.parametrize("level", ThermalLevel)
def test_every_thermal_level_has_its_internal_name_in_the_grpc_contract(level: ThermalLevel) -> None:
    message = hardware(HardwareView(HardwareState(HardwareSample(thermal_level=level), 3.0)), 5.0)
    assert message is not None
    assert pb.ThermalLevel.Name(message.thermal_level) == f"THERMAL_LEVEL_{level.name}"


@pytest.mark.parametrize("pressure", MemoryPressure)
def test_every_memory_pressure_level_has_its_internal_name_in_the_grpc_contract(pressure: MemoryPressure) -> None:
    message = hardware(HardwareView(HardwareState(HardwareSample(memory_pressure=pressure), 3.0)), 5.0)
    assert message is not None
    assert pb.MemoryPressure.Name(message.memory_pressure) == f"MEMORY_PRESSURE_{pressure.name}"


FORWARD = OperationExactness("whole forward", OperationKind.FORWARD, width=13, padding=True, difference=2e-6)
PROJECTION = OperationExactness("layers.0.q_proj", OperationKind.LINEAR, batch=2, slice_width=64, difference=1e-6)
EXACTNESS = Exactness(True, True, FORWARD, (PROJECTION,), measured=9, flips=0.25, positions=640, seconds=1.5)


def test_exactness_reply_converts_back_to_what_was_measured() -> None:
    message = reply.exactness(EXACTNESS)
    assert message is not None
    assert exactness_of(message) == EXACTNESS
    assert message.differs
    assert not message.forward.HasField("batch")


def test_exactness_reply_is_absent_until_it_is_measured() -> None:
    assert reply.exactness(None) is None


def test_exactness_of_newer_daemon_with_unknown_kind_of_operation_is_still_readable() -> None:
    message = reply.exactness(EXACTNESS)
    assert message is not None
    message.operations[0].kind = "spectral"
    assert exactness_of(message).named == "layers.0.q_proj"
