"""ControlService: what an operator asks of a running daemon."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

from draftd.engine.loop import EngineState, EngineWorker
from draftd.errors import InvalidRequest, NotServing
from draftd.fallback.journal import Journal
from draftd.fronts.grpc import convert, depth, fallback, machine, reply
from draftd.fronts.grpc.fallback_service import FallbackServicer
from draftd.fronts.grpc.manifest import Manifests
from draftd.fronts.grpc.seams import FallbackControl, ServerTelemetry
from draftd.fronts.grpc.types import Context
from draftd.hardware.state import HardwareView
from draftd.planning.flag import FlagService, FlagState
from draftd.planning.plan import FlagContext
from draftd.planning.planner import Planner
from draftd.protocol import duration
from draftd.service.calls import Calls
from draftd.v1 import control_pb2 as pb
from draftd.v1.inference_pb2 import GetModelResponse

_STATES = {
    EngineState.LOADING: pb.DAEMON_STATE_LOADING,
    EngineState.READY: pb.DAEMON_STATE_SERVING,
    EngineState.FAILED: pb.DAEMON_STATE_FAILED,
    EngineState.STOPPED: pb.DAEMON_STATE_DRAINING,
}

_TRANSITIONS = 20  # as many as a status carries


class ControlServicer(FallbackServicer):
    """The whole service: status and flag here, the ladder and what it does where it comes from."""

    def __init__(
        self,
        worker: EngineWorker,
        planner: Planner,
        flags: FlagService,
        telemetry: ServerTelemetry,
        calls: Calls,
        describe: Callable[[], GetModelResponse],
        journal: Journal,
        hardware: HardwareView,
        controller: FallbackControl | None,
        ending: asyncio.Event,
        manifests: Manifests,
        *,
        version: str,
        write_stall_seconds: float | None,
    ) -> None:
        super().__init__(controller, journal, ending, describe, write_stall_seconds=write_stall_seconds)
        self._worker, self._planner, self._flags = worker, planner, flags
        self._telemetry, self._calls = telemetry, calls
        self._journal, self._hardware = journal, hardware
        self._manifests, self._version = manifests, version
        self._began, self._started = time.monotonic(), reply.timestamp(datetime.now(UTC))

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:  # noqa: N802
        flag = await asyncio.to_thread(self._flags.state)
        engine, standing = self._worker.status(), self._planner.standing
        try:
            model, backend = self._describe(), self._worker.info.backend
        except NotServing:
            model, backend = None, ""
        state = pb.DAEMON_STATE_DRAINING if self._calls.draining else _STATES[self._worker.state]
        return pb.GetStatusResponse(
            version=self._version,
            state=state,
            uptime=duration(time.monotonic() - self._began),
            model=model,
            active_requests=engine.active,
            queued_requests=engine.queued,
            queue_capacity=engine.queue_capacity,
            kv_cache_bytes=engine.kv_cache_bytes,
            kv_cache_limit_bytes=engine.kv_cache_limit_bytes,
            weight_bytes=engine.weight_bytes,
            finished_requests={reason.value: n for reason, n in engine.finished.items()},
            counts=reply.counts(engine.counts),
            output_tokens=engine.counts.emitted,
            flag_variant=flag.default_variant,
            level=self._planner.level.label,
            telemetry_exporting=self._telemetry.exporting,
            backend=backend,
            refused_requests=self._calls.refused,
            drafter_errors=engine.drafter_errors,
            hardware=machine.hardware(self._hardware, time.monotonic()),
            transitions=map(fallback.transition, self._journal.latest(_TRANSITIONS)),
            max_draft_tokens=self._planner.ceiling.depth,
            level_cause=standing.cause,
            flag=_flag(flag),
            started=self._started,
            verifier_errors=engine.verifier_errors,
            prefix_cache=pb.PrefixCache(
                bytes=engine.prefix.bytes,
                limit_bytes=engine.prefix.limit_bytes,
                entries=engine.prefix.entries,
                lookups=engine.prefix.lookups,
                hits=engine.prefix.hits,
                read_tokens=engine.prefix.read_tokens,
            ),
            fallback=None if self._fallback is None else fallback.state(self._fallback.state()),
        )

    async def GetManifest(  # noqa: N802
        self, request: pb.GetManifestRequest, context: Context
    ) -> pb.GetManifestResponse:
        return await self._unless_ending(self._manifests.take())

    async def GetDepth(self, request: pb.GetDepthRequest, context: Context) -> pb.GetDepthResponse:  # noqa: N802
        return depth.told(self._worker.learnt(), self._planner.max_draft_tokens)

    async def GetFlag(self, request: pb.GetFlagRequest, context: Context) -> pb.GetFlagResponse:  # noqa: N802
        workload = convert.workload(request.workload)
        caller = convert.caller(request.caller)
        try:
            model = self._worker.info.model
        except NotServing:
            model = ""
        state = await asyncio.to_thread(self._flags.state)
        said = self._flags.evaluate(FlagContext(model, workload, caller))
        reason = f"{said.reason} ({said.error})" if said.error else said.reason
        return pb.GetFlagResponse(
            flag=_flag(state), evaluation=pb.FlagEvaluation(variant=said.variant, value=said.value, reason=reason)
        )

    async def SetFlag(self, request: pb.SetFlagRequest, context: Context) -> pb.SetFlagResponse:  # noqa: N802
        if not request.variant:
            raise InvalidRequest("variant", "", "on, off")
        # Not given up when the caller goes: half a change is no change.
        previous = await asyncio.to_thread(self._flags.set_variant, request.variant)
        return pb.SetFlagResponse(flag=_flag(await asyncio.to_thread(self._flags.state)), previous_variant=previous)


def _flag(state: FlagState) -> pb.FlagState:
    return pb.FlagState(
        key=state.key,
        default_variant=state.default_variant,
        variants=state.variants,
        provider=state.provider,
        writable=state.writable,
        source=state.source,
        error=state.error,
    )
