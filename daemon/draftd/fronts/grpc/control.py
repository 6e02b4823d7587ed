"""ControlService: the calls with which an operator inspects and controls a running daemon."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration

from draftd import __version__
from draftd.clocks import sleepless_seconds
from draftd.core import DRAFT_HEAD, FallbackLevel
from draftd.engine.cache.pins import check_name
from draftd.engine.handle import EngineHandle, EngineState
from draftd.engine.remote.verifier_link import LinkState
from draftd.errors import InvalidRequest, NotServing
from draftd.fallback.controller import Controller
from draftd.fronts.grpc import reply
from draftd.fronts.grpc.inference import request_of
from draftd.fronts.grpc.interceptors import Context
from draftd.fronts.grpc.manifest import Manifests
from draftd.fronts.grpc.reply import fill
from draftd.hardware.state import HardwareView
from draftd.journal import Journal
from draftd.planning.flag import FlagService
from draftd.planning.flag_file import FLAGS, SPECULATION, STRATEGY, Flag
from draftd.planning.planner import FlagContext, Planner
from draftd.protocol import WORKLOADS, duration, member
from draftd.service.inference import InferenceService
from draftd.service.request import check_caller
from draftd.service.transitions import Transitions, unless_set
from draftd.service.verification import VerificationService
from draftd.settings import Settings
from draftd.strategies import RemoteLevel
from draftd.telemetry.setup import Telemetry
from draftd.v1 import control_pb2 as pb
from draftd.v1 import control_pb2_grpc, inference_pb2

_STATES = {
    EngineState.LOADING: pb.DAEMON_STATE_LOADING,
    EngineState.READY: pb.DAEMON_STATE_SERVING,
    EngineState.FAILED: pb.DAEMON_STATE_FAILED,
    EngineState.STOPPED: pb.DAEMON_STATE_DRAINING,
}

_TRANSITIONS = 20  # in a status, at most

LONGEST_HOLD_DAYS = 30

_DAY = 86_400
_NANOS = 1_000_000_000
LEVELS: dict[str, FallbackLevel | RemoteLevel] = {
    **{level.label: level for level in sorted(FallbackLevel, reverse=True)},
    **{level.label: level for level in sorted(RemoteLevel, reverse=True)},
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DaemonParts:
    """The parts of a daemon."""

    settings: Settings
    worker: EngineHandle
    planner: Planner
    flags: FlagService
    telemetry: Telemetry
    journal: Journal
    hardware: HardwareView
    controller: Controller
    link: Callable[[], LinkState | None] = lambda: None  # the state of the link to this daemon's verifier


class ControlServicer(control_pb2_grpc.ControlServiceServicer):
    """Serves ControlService. `stopping` is set when the daemon begins to stop; then no call waits any longer."""

    def __init__(
        self,
        parts: DaemonParts,
        service: InferenceService,
        verification: VerificationService,
        manifests: Manifests,
        stopping: asyncio.Event,
    ) -> None:
        self._service, self._manifests, self._stopping = service, manifests, stopping
        self._worker, self._planner, self._flags = parts.worker, parts.planner, parts.flags
        self._journal, self._hardware, self._controller = parts.journal, parts.hardware, parts.controller
        self._parts = parts
        self._verification = verification
        self._exporting = parts.telemetry.sends
        stall = parts.settings.server.write_stall_seconds or None
        self._transitions = Transitions(parts.journal, stopping, stall)
        self._began, self._started = sleepless_seconds(), reply.timestamp(time.time())

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        flag = await asyncio.to_thread(self._flags.state)
        engine, ladder, fallback = self._worker.status(), self._planner.ladder, self._controller.state()
        finished = Counter(engine.finished) + self._service.ended_without_engine
        try:
            model, backend = reply.model(self._service.model()), self._worker.info.backend
        except NotServing:
            model, backend = None, ""
        learnt = self._worker.learnt()
        worth = None if learnt is None else learnt.best_worth(self._planner.max_draft_tokens)
        link, remote_target = self._parts.link(), self._parts.settings.remote.target or ""
        state = pb.DAEMON_STATE_DRAINING if self._service.draining else _STATES[self._worker.state]
        return fill(
            pb.GetStatusResponse,
            engine,
            version=__version__,
            state=state,
            uptime=duration(sleepless_seconds() - self._began),
            model=model,
            active_requests=engine.active,
            queued_requests=engine.queued,
            finished_requests={reason.value: n for reason, n in finished.items()},
            counts=reply.counts(engine.counts),
            output_tokens=engine.counts.emitted,
            flag_variant=flag.default_variant,
            level=ladder.level.kind.label,
            telemetry_exporting=self._exporting,
            backend=backend,
            refused_requests=self._service.refused,
            hardware=reply.hardware(self._hardware, time.monotonic()),
            transitions=map(reply.transition, self._journal.latest(_TRANSITIONS)),
            max_draft_tokens=ladder.level.max_draft_tokens,
            level_cause="" if fallback.signal is None else fallback.signal.cause,
            flag=fill(pb.FlagState, flag),
            started=self._started,
            prefix_cache=None if model is None else fill(pb.PrefixCache, engine.prefix),
            progress=self._worker.progress if self._worker.state is EngineState.LOADING else "",
            prompts=map(reply.prompt_progress, engine.prompts),
            draft_warning="" if worth is None else worth.warning,
            fallback=reply.fallback(fallback),
            remote=None if link is None else reply.remote(remote_target, link, engine, fallback.remote),
            verification=reply.verification(self._verification.status()) if self._verification.has_status else None,
            group=None if engine.group is None else reply.group(engine.group),
            exactness=reply.exactness(engine.exactness),
        )

    async def GetManifest(self, request: pb.GetManifestRequest, context: Context) -> pb.GetManifestResponse:
        return await unless_set(self._stopping, self._manifests.take())

    async def GetDepth(self, request: pb.GetDepthRequest, context: Context) -> pb.GetDepthResponse:
        return reply.depth(self._worker.learnt(), self._planner.max_draft_tokens)

    async def GetFlag(self, request: pb.GetFlagRequest, context: Context) -> pb.GetFlagResponse:
        workload = member(WORKLOADS, request.workload, "workload", inference_pb2.WorkloadClass.keys())
        check_caller(request.caller)
        flag = _flag(request.key)
        try:
            model = self._worker.info.model
        except NotServing:
            model = ""
        state = await asyncio.to_thread(self._flags.state, flag)
        flag_context = FlagContext(model, workload, request.caller, request.prompt_tokens)
        said = self._flags.strategy(flag_context) if flag is STRATEGY else self._flags.evaluate(flag_context)
        reason = f"{said.reason} ({said.error})" if said.error else said.reason
        return pb.GetFlagResponse(
            flag=fill(pb.FlagState, state),
            evaluation=pb.FlagEvaluation(
                variant=said.variant,
                value=said.value is True,
                reason=reason,
                strategy=said.value if isinstance(said.value, str) else "",
            ),
        )

    async def SetFlag(self, request: pb.SetFlagRequest, context: Context) -> pb.SetFlagResponse:
        flag = _flag(request.key)
        if not request.variant:
            raise InvalidRequest("variant", "", ", ".join(flag.variants))
        # Completes even if the caller leaves: a change must not be applied in part.
        previous = await asyncio.to_thread(self._flags.set_variant, request.variant, flag)
        state = await asyncio.to_thread(self._flags.state, flag)
        return pb.SetFlagResponse(flag=fill(pb.FlagState, state), previous_variant=previous)

    async def GetLevel(self, request: pb.GetLevelRequest, context: Context) -> pb.GetLevelResponse:
        return pb.GetLevelResponse(fallback=reply.fallback(self._controller.state()))

    async def HoldLevel(self, request: pb.HoldLevelRequest, context: Context) -> pb.HoldLevelResponse:
        level = member(LEVELS, request.level, "level", LEVELS)
        seconds = hold_seconds(request.expires_in) if request.HasField("expires_in") else None
        # Completes even if the caller leaves: a hold must not be applied in part.
        await asyncio.to_thread(self._controller.hold, level, seconds)
        return pb.HoldLevelResponse(fallback=reply.fallback(self._controller.state()))

    async def ReleaseLevel(self, request: pb.ReleaseLevelRequest, context: Context) -> pb.ReleaseLevelResponse:
        was_held = await asyncio.to_thread(self._controller.release)
        return pb.ReleaseLevelResponse(fallback=reply.fallback(self._controller.state()), was_held=was_held)

    async def ListTransitions(self, request: pb.ListTransitionsRequest, context: Context) -> pb.ListTransitionsResponse:
        transitions = self._transitions.latest(request.limit, request.after_number)
        return pb.ListTransitionsResponse(transitions=map(reply.transition, transitions))

    async def Watch(self, request: pb.WatchRequest, context: Context) -> None:
        await self._transitions.watch(
            request.after_number if request.HasField("after_number") else None,
            # The initial metadata tell the caller that it misses no transition from here on.
            begun=lambda: context.send_initial_metadata(()),
            send=lambda one: context.write(pb.WatchResponse(transition=reply.transition(one))),
        )

    async def RunProbe(self, request: pb.RunProbeRequest, context: Context) -> pb.RunProbeResponse:
        return reply.probe_result(await self._end_of(await asyncio.to_thread(self._controller.probe)))

    async def RunCanaries(self, request: pb.RunCanariesRequest, context: Context) -> pb.RunCanariesResponse:
        return reply.canaries(await self._end_of(await asyncio.to_thread(self._controller.canaries)))

    async def ReloadDraft(self, request: pb.ReloadDraftRequest, context: Context) -> pb.ReloadDraftResponse:
        weight_bytes = await self._end_of(self._controller.reload_draft(forget=request.forget_baselines))
        info = self._service.model().info
        draft = info.draft_model or (DRAFT_HEAD if DRAFT_HEAD in info.drafters else "")
        return pb.ReloadDraftResponse(draft_model=draft, draft_weight_bytes=weight_bytes)

    async def PinPrefix(self, request: pb.PinPrefixRequest, context: Context) -> pb.PinPrefixResponse:
        check_name(request.name)
        kind = request.WhichOneof("input")
        source = {} if kind is None else {kind: getattr(request, kind)}
        generate = request_of(inference_pb2.GenerateRequest(**source), client=context.peer())
        await self._end_of(self._worker.pin_prefix(request.name, await self._service.common_prefix(generate)))
        pin = next((prefix for prefix in self._prefixes() if prefix.name == request.name), None)
        return pb.PinPrefixResponse(prefix=pin)

    async def ListPrefixes(self, request: pb.ListPrefixesRequest, context: Context) -> pb.ListPrefixesResponse:
        return pb.ListPrefixesResponse(prefixes=self._prefixes())

    async def DropPrefix(self, request: pb.DropPrefixRequest, context: Context) -> pb.DropPrefixResponse:
        await self._end_of(self._worker.drop_prefix(request.name))
        return pb.DropPrefixResponse()

    def _prefixes(self) -> list[pb.PinnedPrefix]:
        return [
            pb.PinnedPrefix(
                name=pin.name,
                tokens=len(pin.tokens),
                bytes=size,
                created=reply.timestamp(pin.created),
                other_model=not served,
            )
            for pin, size, served in self._worker.pins()
        ]

    async def _end_of(self, running: Future[T]) -> T:
        """The result of `running`. The work continues if the caller leaves or its time is up: its result still moves
        the ladder."""
        end = asyncio.wrap_future(running)
        # Otherwise asyncio logs the error as never retrieved.
        end.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await unless_set(self._stopping, asyncio.shield(end))


def _flag(key: str) -> Flag:
    return member(FLAGS, key or SPECULATION.key, "key", FLAGS)


def hold_seconds(duration: Duration) -> float:
    """Converts a hold's duration. Raises InvalidRequest if it is not positive or is longer than LONGEST_HOLD_DAYS."""
    nanos = duration.ToNanoseconds()
    if not 0 < nanos <= LONGEST_HOLD_DAYS * _DAY * _NANOS:
        allowed = f"more than 0 s, at most {LONGEST_HOLD_DAYS * _DAY} s ({LONGEST_HOLD_DAYS} days); unset: no end"
        raise InvalidRequest("expires_in", f"{nanos / _NANOS:g} s", allowed)
    return nanos / _NANOS
