"""Telemetry without a daemon: it receives requests as from the engine and the server."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from unittest import mock

from draftd.core import (
    DRAFT_MODEL,
    PROMPT_LOOKUP,
    ContextTier,
    DaemonState,
    DecodeMode,
    DecodePlan,
    DecodeRequest,
    DepthMode,
    FallbackLevel,
    FinishReason,
    SamplingParams,
    WorkloadClass,
)
from draftd.counts import DraftCounts, StepCounts
from draftd.engine.observer import EngineStatus, PrefixStatus, RemoteStatus
from draftd.engine.remote.verifier_link import LinkState
from draftd.exactness import Exactness, OperationExactness, OperationKind
from draftd.fallback.ladder import Cause, Hold, LadderState, Signal
from draftd.fallback.probes import CanaryOutcome, CanaryReport, ProbeReport, ProbeVerdict
from draftd.fallback.remote_guard import RemoteState
from draftd.group import GroupState, GroupStatus, Loss, RankStatus
from draftd.hardware.state import HardwareSample, HardwareState, HardwareView, MemoryPressure, ThermalLevel
from draftd.model_info import ModelInfo
from draftd.outcome import Outcome, RequestStats
from draftd.settings import TelemetrySettings
from draftd.strategies import (
    LinkFailure,
    PeerCounts,
    QualityClass,
    RemoteCounts,
    Strategy,
    VerificationStatus,
    Verifier,
)
from draftd.telemetry.setup import Sources, Telemetry
from draftd.telemetry.spans import InferenceStart
from tests.fake_fallback import LADDER, LEASE, fallback_state

INFO = ModelInfo("nano", "nano-draft", 2048, 2048, (DRAFT_MODEL,), 1000, 200, "cpu (openblas)")
ADDRESS = ("127.0.0.1", 50551)
SAVE_ERRORS = {"ladder": 2, "events": 0}
LADDER_STATE = fallback_state(
    position=1,
    hold=Hold(1),
    signals=(Signal(Cause.ACCEPTANCE_DRIFT, FallbackLevel.SHORT_BLOCK),),
    leases=(LEASE, LEASE),
    drift={"code": 1.25},
    probe=ProbeReport(LADDER[0], ProbeVerdict.GOOD, "", 0.7, 1.5),
    canaries=CanaryReport(ProbeVerdict.BAD, "", (CanaryOutcome("one", True, True), CanaryOutcome("two", True, False))),
    remote=RemoteState(LadderState(1), (), 300.0, 0.95),
)
REMOTE_COUNTS = RemoteCounts(9, 40, 10, 30, 6, 7, 1, 2, 3, 8, 0.16, 0.02, 0.05)
RANKS = (
    RankStatus(0, "studio.local", 4_000, 16_000, 812, 0, 1.25, 0.1),
    RankStatus(1, "mini.local", 3_900, 0, 810, 2, 1.25, 0.8),
)
GROUP = GroupStatus(
    "1f3a90c2b7d4", GroupState.SERVING, "ring", "tensor", RANKS, {Loss.DIED: 2, Loss.STALLED: 1},
    "rank 1 died", None, 812, 40_600, 4,
)  # fmt: skip
STATUS = EngineStatus(
    DraftCounts(),
    {},
    3,
    2,
    64,
    4096,
    1200,
    prefix=PrefixStatus(2048, 8192, 3, 40, 30, 900, unfit=7),
    remote=RemoteStatus(REMOTE_COUNTS, open_sequences=1, in_flight=2, break_even=0.03),
    group=GROUP,
    exactness=Exactness(False, False, OperationExactness("forward", OperationKind.FORWARD, width=13), flips=0.25),
)
LINK = LinkState(
    up=True,
    round_trip=0.02,
    bytes_sent=900,
    bytes_received=400,
    connections=2,
    errors=5,
    failures={LinkFailure.LATE: 4, LinkFailure.CONNECTION_LOST: 1},
)
PEER = PeerCounts(2, 8, 1, 50, 4, 48, 90, 60, 108, 5, 3, 700, 600, 0.25, 0.5)
VERIFICATION = VerificationStatus({"10.0.0.7:40312": PEER}, PEER, 1, {"too_many_peers": 1})
SPECULATIVE = DecodePlan(DecodeMode.SPECULATIVE, 4, DRAFT_MODEL, FallbackLevel.FULL, "on", "flag: on (targeting rule)")
AUTOMATIC = replace(SPECULATIVE, depth_mode=DepthMode.AUTOMATIC, alternatives=frozenset({PROMPT_LOOKUP}))
VERIFIED = replace(SPECULATIVE, strategy=Strategy.SPECULATIVE)
AUTOREGRESSIVE = DecodePlan(DecodeMode.AUTOREGRESSIVE, 0, None, FallbackLevel.FULL, "off", "request: autoregressive")
SPECULATIVE_STEP = StepCounts(4, 2, 3, 4, 0.001, 0.002, 0.5)
PARKED_STEP = StepCounts(0, 0, 1, 0, 0.0, 0.002, parked=True)
CAPPED_STEP = StepCounts(4, 4, 5, 4, 0.001, 0.002, 0.5, capped=True)
CUT_STEP = StepCounts(4, 4, 2, 4, 0.001, 0.002, 0.5)  # the text ended with the second of five tokens
PLAIN_STEP = StepCounts(0, 0, 1, 0, 0.0, 0.002)
# A machine with every reading.
HARDWARE = HardwareView(
    HardwareState(
        HardwareSample(
            memory_total=24_000,
            memory_available=13_000,
            memory_states={"free": 6_000, "wired": 18_000},
            memory_pressure=MemoryPressure.WARN,
            swap_used=700,
            swap_free=0,
            swap_in_pages=33,
            process_resident=900,
            mlx_active=500,
            mlx_cache=0,
            mlx_peak=600,
            mlx_working_set=17_000,
            gpu_memory=1_000,
            gpu_utilization=0.25,
            memory_free_share=0.37,
            low_power=False,
            plugged_in=True,
            thermal_level=ThermalLevel.HEAVY,
            temperatures={"cpu": 43.5, "gpu": 36.5},
            fans={"fan0": 999.0},
            power={"cpu": 3.5, "gpu": 0.0, "ram": 0.5, "system": 9.5},
        ),
        at=100.0,
        floor=10_000,
        headroom=3_000,
        critical_seconds=2.5,
        throttles=4,
        swap_ins=4_096,
    ),
    errors={"macmon": 2},
)


@dataclass
class Scene:
    """Telemetry, and a way to feed it requests as the engine and the server do."""

    telemetry: Telemetry
    engine: DraftCounts = field(default_factory=DraftCounts)  # the engine's own sums
    served: int = 0

    def start(self, **changes: object) -> InferenceStart:
        self.served += 1
        values: dict[str, object] = {
            "operation": "chat",
            "request_id": f"request-{self.served}",
            "arrival": time.monotonic(),
            "sampling": SamplingParams(),
            "max_tokens": 64,
            "workload": WorkloadClass.CODE,
            "prompt_tokens": 5,
        }
        return InferenceStart(**(values | changes))  # type: ignore[arg-type]

    def serve(
        self,
        *,
        plan: DecodePlan = SPECULATIVE,
        reason: FinishReason = FinishReason.STOP,
        steps: int = 3,
        more: Sequence[StepCounts] = (),
        degraded: str = "",
        error: str = "",
        stats: Callable[[RequestStats], None] = lambda stats: None,
        **start: object,
    ) -> Outcome:
        """Feeds one whole request and returns the engine's outcome. `more` adds steps of other kinds at its end."""
        begin = self.start(**start)
        span = self.telemetry.begin_inference(begin)
        span.set_plan(plan, ContextTier.SHORT)
        request = DecodeRequest(begin.request_id, (1, 2, 3, 4, 5), 64, plan, begin.arrival, workload=begin.workload)
        at = begin.arrival
        stats_of_request = RequestStats(5, at, 0, at + 0.001, at + 0.01, at + 0.02, 3, at + 0.1, at + 0.1)
        observer = self.telemetry.observer
        step = SPECULATIVE_STEP if plan.mode is DecodeMode.SPECULATIVE else PLAIN_STEP
        for number, one in enumerate([*[step] * steps, *more]):
            counted = one._replace(drafter=request.plan.drafter, strategy=request.plan.strategy)
            observer.on_step(request, counted, 0.004 if number else None)
            stats_of_request.counts.add(one)
            self.engine.add(one)
        stats(stats_of_request)
        outcome = Outcome(reason, stats_of_request, degraded, error)
        observer.on_finish(request, outcome)
        span.finish(outcome)
        return outcome


def across(scene: Scene) -> None:
    """Feeds one request that was drafted here and verified elsewhere, with its price."""
    begin = scene.start()
    span = scene.telemetry.begin_inference(begin)
    span.set_plan(VERIFIED, ContextTier.SHORT)
    request = DecodeRequest(begin.request_id, (1, 2, 3, 4, 5), 64, VERIFIED, begin.arrival, workload=begin.workload)
    scene.telemetry.observer.on_round_trip(request, 0.016)
    at = begin.arrival
    stats_of_request = RequestStats(
        5, at, 0, at + 0.001, at + 0.01, at + 0.02, 3, at + 0.1, at + 0.1, remote=REMOTE_COUNTS
    )
    span.set_price(QualityClass.STANDARD, {Verifier.LOCAL: 0.0, Verifier.REMOTE: 0.25}, "$")
    span.finish(Outcome(FinishReason.STOP, stats_of_request, failed_over="the remote does not answer"))


def telemetry(
    environ: Mapping[str, str],
    *,
    capture_content: bool = False,
    hardware: HardwareView = HARDWARE,
    status: EngineStatus = STATUS,
    info: ModelInfo | None = INFO,
    scraped: bool = False,
    group: str = "",
    port: int | None = None,
) -> Telemetry:
    link, verification = (lambda: LINK, lambda: VERIFICATION) if status is STATUS else (lambda: None, lambda: None)
    sources = Sources(
        lambda: info, lambda: status, lambda: LADDER_STATE, lambda: True, link, verification,
        state=lambda: DaemonState.SERVING,
        certificates=lambda: {"server.tls_cert": 1_800_000_000.0},
        save_errors=lambda: SAVE_ERRORS,
    )  # fmt: skip
    with mock.patch.dict(os.environ, environ):
        settings = TelemetrySettings(capture_content=capture_content)
        started = Telemetry.start(settings, hardware, scraped=scraped, group=group, port=port)
    started.observe(sources)
    started.listens(*ADDRESS)
    return started


def errors_of(telemetry: Telemetry) -> Mapping[str, int]:
    """Returns the failures of telemetry itself so far, by part."""
    return telemetry._on.guard.counts()
