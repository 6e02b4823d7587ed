"""The part of ControlService that is the fallback's: the ladder, its transitions, probes, canaries, the draft anew."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeVar

from draftd.errors import NotNow, NotServing
from draftd.fronts.grpc import fallback
from draftd.fronts.grpc.seams import FallbackControl, Transitions
from draftd.fronts.grpc.types import Context
from draftd.service.stall import StallGuard
from draftd.service.watching import Watchers, last_number
from draftd.v1 import control_pb2 as pb
from draftd.v1 import control_pb2_grpc
from draftd.v1.inference_pb2 import GetModelResponse

T = TypeVar("T")


class FallbackServicer(control_pb2_grpc.ControlServiceServicer):
    """`ending` is set when the daemon begins to stop: from then on nobody waits here. Without a controller the
    transitions are told all the same."""

    def __init__(
        self,
        controller: FallbackControl | None,
        transitions: Transitions,
        ending: asyncio.Event,
        describe: Callable[[], GetModelResponse],
        *,
        write_stall_seconds: float | None,
    ) -> None:
        self._fallback, self._transitions, self._ending = controller, transitions, ending
        self._describe, self._stall = describe, write_stall_seconds
        self._watchers = Watchers(transitions)

    async def GetLevel(self, request: pb.GetLevelRequest, context: Context) -> pb.GetLevelResponse:  # noqa: N802
        return pb.GetLevelResponse(fallback=fallback.state(self._controller.state()))

    async def HoldLevel(self, request: pb.HoldLevelRequest, context: Context) -> pb.HoldLevelResponse:  # noqa: N802
        controller, level = self._controller, fallback.level(request.level)
        seconds = fallback.expires_in(request.expires_in) if request.HasField("expires_in") else None
        # Not given up when the caller goes: half a hold is no hold.
        await asyncio.to_thread(controller.hold, level, seconds)
        return pb.HoldLevelResponse(fallback=fallback.state(controller.state()))

    async def ReleaseLevel(  # noqa: N802
        self, request: pb.ReleaseLevelRequest, context: Context
    ) -> pb.ReleaseLevelResponse:
        controller = self._controller
        held = await asyncio.to_thread(controller.release)
        return pb.ReleaseLevelResponse(fallback=fallback.state(controller.state()), was_held=held)

    async def ListTransitions(  # noqa: N802
        self, request: pb.ListTransitionsRequest, context: Context
    ) -> pb.ListTransitionsResponse:
        most = fallback.limit(request.limit)
        after = fallback.after(request.after_number, last_number(self._transitions))
        return fallback.listed(self._transitions.latest(fallback.MOST_LISTED), most, after)

    async def Watch(self, request: pb.WatchRequest, context: Context) -> None:  # noqa: N802
        after = None
        if request.HasField("after_number"):
            after = fallback.after(request.after_number, last_number(self._transitions))
        with self._watchers.feed(after) as feed:
            async with StallGuard(self._stall) as guard:
                guard.writing()
                await context.send_initial_metadata(())  # from here on the caller misses nothing, and may know it
                guard.written()
                while True:
                    transition = await self._unless_ending(feed.take())
                    guard.writing()
                    await context.write(pb.WatchResponse(transition=fallback.transition(transition)))
                    guard.written()

    async def RunProbe(self, request: pb.RunProbeRequest, context: Context) -> pb.RunProbeResponse:  # noqa: N802
        return fallback.probed(await self._end_of(self._controller.probe()))

    async def RunCanaries(  # noqa: N802
        self, request: pb.RunCanariesRequest, context: Context
    ) -> pb.RunCanariesResponse:
        return fallback.canaries(await self._end_of(self._controller.canaries()))

    async def ReloadDraft(  # noqa: N802
        self, request: pb.ReloadDraftRequest, context: Context
    ) -> pb.ReloadDraftResponse:
        held = await self._end_of(self._controller.reload_draft(forget=request.forget_baselines))
        return pb.ReloadDraftResponse(draft_model=self._describe().draft_model, draft_weight_bytes=held)

    @property
    def _controller(self) -> FallbackControl:
        if self._fallback is None:
            raise NotNow("this daemon runs no fallback ladder")
        return self._fallback

    async def _end_of(self, running: Future[T]) -> T:
        """What it ends with. A caller that goes, or whose time is up, leaves it running: half of it was paid for, and
        its verdict moves the ladder."""
        return await self._unless_ending(asyncio.shield(asyncio.wrap_future(running)))

    async def _unless_ending(self, wanted: Awaitable[T]) -> T:
        """Raises NotServing as soon as the daemon stops. What is not done by then is given up."""
        asked = asyncio.ensure_future(wanted)
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait((asked, ending), return_when=asyncio.FIRST_COMPLETED)
            if asked.done() and not asked.cancelled():
                return asked.result()
            raise NotServing("the daemon is stopping", retry_after=1.0)
        finally:
            asked.cancel()
            ending.cancel()
