"""The core's vocabulary to protobuf: what a client is told."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from draftd.core import DraftCounts
from draftd.engine.depth.acceptance_rates import emitted
from draftd.engine.depth.saved import Learnt
from draftd.errors import NotServing
from draftd.hardware.sample import MemoryPressure, ThermalLevel
from draftd.hardware.state import HardwareView
from draftd.protocol import DEPTH_MODES, WORKLOADS, duration
from draftd.service.request import ServedModel
from draftd.v1 import control_pb2
from draftd.v1 import inference_pb2 as pb

DEPTH_MODE_NUMBERS = {mode: number for number, mode in DEPTH_MODES.items()}
_WORKLOADS = {workload: number for number, workload in WORKLOADS.items()}
_PRESSURES = {
    None: None,
    MemoryPressure.NORMAL: control_pb2.MEMORY_PRESSURE_NORMAL,
    MemoryPressure.WARN: control_pb2.MEMORY_PRESSURE_WARN,
    MemoryPressure.CRITICAL: control_pb2.MEMORY_PRESSURE_CRITICAL,
}
_LEVELS = {
    None: None,
    ThermalLevel.NOMINAL: control_pb2.THERMAL_LEVEL_NOMINAL,
    ThermalLevel.MODERATE: control_pb2.THERMAL_LEVEL_MODERATE,
    ThermalLevel.HEAVY: control_pb2.THERMAL_LEVEL_HEAVY,
    ThermalLevel.TRAPPING: control_pb2.THERMAL_LEVEL_TRAPPING,
    ThermalLevel.SLEEPING: control_pb2.THERMAL_LEVEL_SLEEPING,
}


def counts(c: DraftCounts) -> pb.DraftCounts:
    return pb.DraftCounts(
        steps=c.steps,
        drafts=c.drafts,
        drafted_tokens=c.drafted,
        accepted_tokens=c.accepted,
        accepted_per_position=c.accepted_per_position,
        rollbacks=c.rollbacks,
        rolled_back_tokens=c.rolled_back,
        draft_forwards=c.draft_forwards,
        target_forwards=c.target_forwards,
        drafted_per_position=c.drafted_per_position,
        draft_time=duration(c.draft_seconds),
        verify_time=duration(c.verify_seconds),
        break_even_tokens=c.break_even_tokens,
        parked_steps=c.parked_steps,
        capped_steps=c.capped_steps,
    )


def model(told: ServedModel) -> pb.GetModelResponse:
    info = told.info
    return pb.GetModelResponse(
        model=info.model,
        draft_model=info.draft_model or "",
        context_length=info.context_length,
        vocab_size=info.vocab_size,
        speculation_available=info.speculation_available,
        speculation_reason=info.speculation_reason,
        drafters=info.drafters,
        default_max_tokens=told.default_max_tokens,
        max_draft_tokens=told.max_draft_tokens,
        weight_bytes=info.weight_bytes,
        draft_weight_bytes=info.draft_weight_bytes,
        chat_template=told.chat_template,
        light_draft_model=info.light_draft_model or "",
        light_draft_reason=info.light_draft_reason,
        depth_mode=DEPTH_MODE_NUMBERS[told.depth_mode],
    )


def timestamp(at: datetime) -> Timestamp:
    made = Timestamp()
    made.FromDatetime(at)
    return made


def hardware(view: HardwareView, now: float) -> control_pb2.Hardware | None:
    """The machine's state; what is not known is left unset. `now` is on the monotonic clock. None until the machine was
    first read."""
    state = view.state
    if state is None:
        return None
    sample = state.sample
    return control_pb2.Hardware(
        age=duration(now - state.at),
        memory_pressure=_PRESSURES[sample.memory_pressure],
        memory_headroom_bytes=state.headroom,
        memory_floor_bytes=state.floor,
        memory_available_bytes=state.available,
        memory_limit_bytes=state.limit,
        critical_pressure=duration(state.critical_seconds),
        swap_used_bytes=sample.swap_used,
        swap_in_bytes=state.swap_ins,
        process_resident_bytes=sample.process_resident,
        mlx_active_bytes=sample.mlx_active,
        mlx_cache_bytes=sample.mlx_cache,
        mlx_peak_bytes=sample.mlx_peak,
        mlx_working_set_bytes=sample.mlx_working_set,
        gpu_memory_bytes=sample.gpu_memory,
        gpu_utilization=sample.gpu_utilization,
        thermal_level=_LEVELS[state.thermal_level],
        throttles=state.throttles,
        low_power=sample.low_power,
        on_mains=sample.plugged_in,
        temperatures=sample.temperatures,
        fans=sample.fans,
        power=sample.power,
        errors=view.errors,
    )


def depth(learnt: Learnt | None, most: int) -> control_pb2.GetDepthResponse:
    """What the engine has learnt of drafting: prices, acceptance, and the depths that follow. `most`: tokens that a
    step may draft. Raises NotServing where nothing is known yet."""
    if learnt is None:
        raise NotServing(
            "nothing is known of drafting yet: the models are not loaded, or there is nothing to draft with"
        )
    prices, costs = learnt.prices, learnt.costs(None)
    acceptance = learnt.rates(max(1, most), share=1.0)
    drafters = sorted({*prices.drafted, *(key[0] for key in learnt.acceptance)})
    made = control_pb2.GetDepthResponse()
    ratios: dict[tuple[object, int], list[float]] = {}
    for drafter in drafters:
        for batch in sorted(prices.plain) or [1]:
            plain = costs.plain(batch, prices.context)
            seconds = costs.drafted(drafter, batch, most, prices.context)[1:]
            ratios[drafter, batch] = [one / plain for one in seconds]
            made.costs.add(drafter=drafter, batch=batch, plain=duration(plain), ratios=ratios[drafter, batch])
    alone = min(prices.plain, default=1)
    for key in sorted(learnt.acceptance, key=str):
        drafter, sampled, seeded, workload = key
        if workload is None:  # all texts together, which those little seen are judged by
            continue
        rates = acceptance.rates(key)[:most]
        made.yields.add(
            drafter=drafter,
            workload=_WORKLOADS[workload],
            sampled=sampled,
            seeded=seeded,
            acceptance=rates,
            tried=learnt.acceptance[key][0][:most],
            depth=best_depth(rates, ratios[drafter, alone]),
        )
    return made


def best_depth(rates: Sequence[float], ratios: Sequence[float]) -> int:
    """The depth with the most expected tokens over what a step takes, beside a plain one; the shortest of equals."""
    tokens = emitted(rates, 1.0, len(rates))
    worth = [1.0, *(tokens[depth] / ratio for depth, ratio in enumerate(ratios, 1))]
    return max(range(len(worth)), key=lambda depth: worth[depth])
