"""InferenceService: one request, from its message to its last event.

    1. validate, tokenise                     InvalidRequest names the field
    2. ask for a plan                         SpeculationUnavailable where speculation was demanded in vain
    3. hand it to the engine                  QueueFull says when to come back
    4. started; one chunk per round; finished

A refusal is a status and no event. After `started` the stream ends with `finished` whenever the client can still hear
it; where the reason is neither STOP nor LENGTH an error status follows, so that nobody takes half an answer for whole.
"""

from __future__ import annotations

import logging
import time
import uuid
from concurrent.futures import Executor

from draftd.core import (
    ContextTier,
    DecodePlan,
    DecodeRequest,
    Emission,
    FinishReason,
    ModelInfo,
    Outcome,
    WorkloadClass,
)
from draftd.engine.loop import EngineState, EngineWorker
from draftd.errors import ClientStalled, DeadlineExceeded, DraftdError, EngineFailure, NotServing, QueueFull
from draftd.fronts.grpc import reply
from draftd.fronts.grpc.convert import Chat, Limits, Parsed, RawText, parse
from draftd.fronts.grpc.seams import ServerTelemetry
from draftd.fronts.grpc.types import Context
from draftd.models.tokenizer import Tokenizer
from draftd.planning.planner import PlanAsk, Planner
from draftd.protocol import WORKLOADS
from draftd.service.calls import Calls
from draftd.service.stall import StallGuard
from draftd.service.stream import Mailbox, TokenStream
from draftd.service.text import StopStrings, TextStream
from draftd.service.tokenise import tokenise
from draftd.telemetry.spans import InferenceSpan, InferenceStart
from draftd.v1 import inference_pb2 as pb
from draftd.v1 import inference_pb2_grpc

_DEADLINE_SLACK_SECONDS = 0.05

log = logging.getLogger(__name__)


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    """`write_stall_seconds` None waits for ever for a client that does not read."""

    def __init__(
        self,
        worker: EngineWorker,
        planner: Planner,
        telemetry: ServerTelemetry,
        calls: Calls,
        mailbox: Mailbox,
        tokenising: Executor,
        *,
        default_max_tokens: int,
        write_stall_seconds: float | None,
    ) -> None:
        self._worker, self._planner, self._telemetry = worker, planner, telemetry
        self._calls, self._mailbox, self._tokenising = calls, mailbox, tokenising
        self._default_max_tokens = default_max_tokens
        self._stall = write_stall_seconds

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:  # noqa: N802
        return self.describe()

    def describe(self) -> pb.GetModelResponse:
        """Raises NotServing while nothing is loaded."""
        return reply.model(
            self._worker.info,
            default_max_tokens=self._default_max_tokens,
            max_draft_tokens=self._planner.max_draft_tokens,
            depth_mode=self._planner.depth_mode,
            chat_template=self._worker.tokenizer.has_chat_template,
        )

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:  # noqa: N802
        arrival, request_id = time.monotonic(), uuid.uuid4().hex
        self._calls.enter(request_id)
        try:
            call = await self._admit(request, context, request_id, arrival)
        except BaseException:
            self._calls.leave(request_id)
            raise
        try:
            await self._relay(call, context)
        except ClientStalled as error:
            log.warning("request %s: %s", request_id, error.message)
            raise
        finally:
            call.leave(self._worker)

    async def _admit(self, request: pb.GenerateRequest, context: Context, request_id: str, arrival: float) -> _Call:
        """The request in the engine's hands. Raises what it is refused with, telemetry told."""
        info: ModelInfo | None = None
        parsed: Parsed | None = None
        try:
            info, tokenizer = self._ready()
            limits = Limits(
                info.context_length,
                info.vocab_size,
                self._default_max_tokens,
                tokenizer.has_chat_template,
                info.registered_drafters,
            )
            parsed = parse(request, limits)
            ids = await tokenise(parsed.prompt, tokenizer, limits, self._tokenising)
        except DraftdError as error:
            self._calls.refused += 1
            self._telemetry.begin_inference(_start(request, request_id, arrival, info, parsed, None)).refused(error)
            raise
        span = self._telemetry.begin_inference(_start(request, request_id, arrival, info, parsed, len(ids)))
        try:
            plan = self._planner.plan(PlanAsk(parsed.wish, parsed.workload, parsed.caller, len(ids)), info)
            span.planned(plan, ContextTier.of(len(ids)))
            call = _Call(request_id, info, plan, parsed, tokenizer, len(ids), span, self._calls, self._mailbox)
            remaining = context.time_remaining()
            if remaining is not None:
                call.deadline = time.monotonic() + remaining
                if remaining <= 0:
                    raise DeadlineExceeded("the deadline passed before the request reached the engine")
            decode = DecodeRequest(
                id=request_id,
                prompt=ids,
                max_tokens=parsed.max_tokens,
                plan=plan,
                arrival=arrival,
                sampling=parsed.sampling,
                stop=StopStrings(tokenizer, parsed.stop) if parsed.stop else None,
                deadline=call.deadline,
                workload=parsed.workload,
            )
            self._worker.submit(decode, call.stream)
        except DraftdError as error:
            self._calls.refused += 1
            span.refused(error)
            raise
        return call

    def _ready(self) -> tuple[ModelInfo, Tokenizer]:
        if self._calls.draining:
            raise NotServing("the daemon is draining and takes no new requests", retry_after=1.0)
        if self._calls.open > self._calls.limit:
            raise QueueFull(f"{self._calls.limit} requests are in hand, and no more may be", retry_after=1.0)
        if self._worker.state is EngineState.FAILED:
            raise NotServing(f"the engine failed: {self._worker.error}")
        return self._worker.info, self._worker.tokenizer

    async def _relay(self, call: _Call, context: Context) -> None:
        """Sends what the engine says until it has said all."""
        async with StallGuard(self._stall) as guard:

            async def write(message: pb.GenerateResponse) -> None:
                guard.writing()
                await context.write(message)
                guard.written()

            await write(reply.started(call.id, call.info, call.prompt_tokens, call.plan))
            text = TextStream(call.tokenizer, call.parsed.stop)
            answer: list[str] = []
            while (emission := await call.stream.take()) is not None:
                pieces = text.add(emission.tokens)
                rest = text.finish() if call.stream.exhausted else ""
                answer += [*pieces, rest]
                await write(reply.chunk(emission, pieces, rest))
            if rest := text.finish():
                answer.append(rest)
                await write(reply.chunk(Emission((), ()), (), rest))
            outcome = call.stream.outcome
            assert outcome is not None
            # Before the client hears of the end: whoever looks then finds it counted.
            call.span.captured("".join(answer))
            call.span.finished(outcome)
            await write(reply.finished(outcome, call.plan, text.stop))
        if (error := _error_of(outcome)) is not None:
            raise error


class _Call:
    """One request that the engine has taken, on the event loop."""

    def __init__(
        self,
        request_id: str,
        info: ModelInfo,
        plan: DecodePlan,
        parsed: Parsed,
        tokenizer: Tokenizer,
        prompt_tokens: int,
        span: InferenceSpan,
        calls: Calls,
        mailbox: Mailbox,
    ) -> None:
        self.id, self.info, self.plan, self.parsed = request_id, info, plan, parsed
        self.tokenizer, self.prompt_tokens, self.span = tokenizer, prompt_tokens, span
        self.deadline: float | None = None
        self._calls = calls
        self.stream = TokenStream(mailbox, self._ended)

    def leave(self, worker: EngineWorker) -> None:
        """The handler is going, perhaps before the engine has ended the request: then its end is heard later."""
        outcome = self.stream.outcome
        if outcome is not None:
            self._ended(outcome)
            return
        self.stream.abandon()
        # A client whose time is up leaves too, a little before this clock says so: its own began to run earlier.
        late = self.deadline is not None and time.monotonic() >= self.deadline - _DEADLINE_SLACK_SECONDS
        worker.cancel(self.id, FinishReason.DEADLINE if late else FinishReason.CANCELLED)

    def _ended(self, outcome: Outcome) -> None:
        self.span.finished(outcome)  # a second time is ignored
        self._calls.leave(self.id)


def _error_of(outcome: Outcome) -> DraftdError | None:
    if outcome.reason is FinishReason.ERROR:
        return EngineFailure(outcome.error or "decoding failed")
    if outcome.reason is FinishReason.DEADLINE:
        return DeadlineExceeded(f"the deadline passed after {outcome.stats.counts.emitted} tokens")
    if outcome.reason is FinishReason.CANCELLED:
        # The client did not cancel: its handler would be gone. The daemon is stopping.
        emitted = outcome.stats.counts.emitted
        return NotServing(f"the daemon is stopping; the answer ended after {emitted} tokens", retry_after=1.0)
    return None


def _start(
    request: pb.GenerateRequest,
    request_id: str,
    arrival: float,
    info: ModelInfo | None,
    parsed: Parsed | None,
    prompt_tokens: int | None,
) -> InferenceStart:
    """What telemetry is told: all that is known, which is little of a request that was turned away."""
    operation = "chat" if request.WhichOneof("input") == "chat" else "text_completion"
    model = "" if info is None else info.model
    draft_model = None if info is None else info.draft_model
    if parsed is None:
        workload = WORKLOADS.get(request.workload, WorkloadClass.UNSPECIFIED)
        return InferenceStart(operation, model, draft_model, request_id, arrival, workload=workload)
    messages: tuple[tuple[str, str], ...] = ()
    if isinstance(parsed.prompt, Chat):
        messages = parsed.prompt.messages
    elif isinstance(parsed.prompt, RawText):
        messages = (("user", parsed.prompt.text),)
    return InferenceStart(
        operation,
        model,
        draft_model,
        request_id,
        arrival,
        parsed.sampling,
        parsed.max_tokens,
        parsed.stop,
        parsed.workload,
        prompt_tokens,
        messages,
    )
