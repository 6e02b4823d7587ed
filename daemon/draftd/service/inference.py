"""Handles one request from its arrival to its last event, for every front.

    1. check it, tokenise the prompt          InvalidRequest names the field
    2. ask for a plan                         SpeculationUnavailable if speculation was demanded and is not available
    3. submit it to the engine                QueueFull says when to retry
    4. started; one chunk per step; finished

A refused request gets an exception and no event. After `RequestStarted`, the last event is `ChoiceFinished` if the
client can still be reached. If its reason is neither STOP nor LENGTH an exception follows, so that no client takes half
an answer for a whole one.

Each choice of a request is a request of its own to the engine, with its own span. Clients, spans, metrics and the
engine all count choices. The choices are submitted together, or refused together as one request. Each has its own
`ChoiceFinished`; an exception follows the last of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from draftd.core import DecodePlan, FinishReason
from draftd.engine.handle import EngineHandle, EngineState
from draftd.errors import (
    ClientStalled,
    DraftdError,
    EngineFailure,
    NotServing,
    QueueFull,
    RemoteDown,
)
from draftd.outcome import Emission, Outcome
from draftd.planning.planner import Planner
from draftd.service import prefixes
from draftd.service.admission import (
    EarlySpan,
    PreparedRequest,
    flag_context,
    span_messages,
    stop_conditions,
    text_form,
)
from draftd.service.answer import AnswerStream, reading_options, stop_matcher
from draftd.service.call import EngineCall, next_choice, stays_silent
from draftd.service.endings import error_of, reason_to_leave
from draftd.service.messages import Chat
from draftd.service.open_requests import OpenRequests
from draftd.service.prompt_reader import PromptReader
from draftd.service.request import (
    Chunk,
    LoadProgress,
    Prompt,
    Request,
    RequestStarted,
    RouteAnswer,
    Send,
    ServedModel,
    default_max_tokens,
    validate_request,
)
from draftd.service.stream import Mailbox, TokenStream, Write, stall_guard
from draftd.service.text_relay import Events, RelayStarted, RemoteAnswers, TextRelay, begin_relay, local_plan
from draftd.settings import Settings
from draftd.telemetry.spans import InferenceSpan, InferenceStart

_PROGRESS_SECONDS = 1.0  # between two progress events, while weights load or the prompt is prefilled
_SPARE_CALLS = 256  # requests outside the engine: being tokenised, or finished but not yet read

log = logging.getLogger(__name__)


class InferenceService:
    """All requests of a daemon. Created and used on one event loop.

    `limit` bounds the open requests: from arrival until both the front and the engine are done with them, or the client
    has gone. Unlike the engine's queue, it also counts requests that are being tokenised, or whose clients read slowly.
    """

    def __init__(
        self,
        worker: EngineHandle,
        planner: Planner,
        begin_span: Callable[[InferenceStart], InferenceSpan],
        settings: Settings,
        remote: RemoteAnswers | None = None,
    ) -> None:
        """`remote`: answers requests in text, for a remote daemon whose token ids differ from this one's."""
        self._worker, self._planner, self._begin_span = worker, planner, begin_span
        self._remote = remote
        self._default_max_tokens = settings.engine.default_max_tokens
        self._generic_tools = settings.model.generic_tools
        self._stall = settings.server.write_stall_seconds or None
        self.limit = settings.engine.queue_capacity + settings.engine.max_batch + _SPARE_CALLS
        self.refused = 0
        self.ended_without_engine: Counter[FinishReason] = Counter()  # requests that the engine never had
        self._relays = set[TextRelay]()  # requests that another daemon is answering in text
        self.draining = False
        self._open = OpenRequests()
        self._mailbox = Mailbox(asyncio.get_running_loop())
        self._prompts = PromptReader(worker)

    @property
    def open_requests(self) -> int:
        return len(self._open)

    @property
    def load_progress(self) -> str:
        """How far the model is loaded, as text for people."""
        return self._worker.progress

    def start(self) -> None:
        """Starts what needs no loaded model."""
        self._prompts.start()

    def prepare(self) -> None:
        """Prepares for the first request, once the model is loaded."""
        self._prompts.prepare()

    async def wait_idle(self, seconds: float) -> bool:
        """Waits until no request is open. Returns False if some still are after `seconds`."""
        return await self._open.wait_idle(seconds)

    @property
    def relaying(self) -> bool:
        """Whether another daemon is answering requests in text. The engine does not know of these."""
        return bool(self._relays)

    def end_relays(self) -> None:
        """Ends the requests that another daemon answers in text, when the drain is over."""
        for relay in list(self._relays):
            relay.stop()

    def close(self) -> None:
        """Frees what the service has. What the engine sends afterwards is dropped."""
        self._mailbox.close()
        self._prompts.close()

    def model(self) -> ServedModel:
        """Returns the served model. Raises NotServing while none is loaded."""
        return ServedModel(
            self._worker.info,
            default_max_tokens=self._default_max_tokens,
            max_draft_tokens=self._planner.max_draft_tokens,
            depth_mode=self._planner.depth_mode,
            chat_template=self._worker.tokenizer.has_chat_template,
            quality=self._planner.router.quality,
            generic_tools=self._generic_tools and self._worker.tokenizer.generic_tools,
        )

    async def common_prefix(self, request: Request) -> tuple[int, ...]:
        """Returns the tokens that begin every text that begins with the request's prompt. Raises DraftdError if the
        request would be refused."""
        model, tokenizer = self._require_serving(), self._worker.tokenizer
        valid = validate_request(request, model)

        async def encode(prompt: Prompt) -> tuple[int, ...]:
            return await self._prompts.tokenise(prompt, tokenizer, model, valid.client)

        return await prefixes.common_prefix(valid.prompt, encode)

    async def count(self, request: Request) -> int:
        """Counts the prompt's tokens. Raises DraftdError if the request would be refused."""
        model = self._require_serving()
        prompt, client = validate_request(request, model).prompt, request.client
        return len(await self._prompts.tokenise(prompt, self._worker.tokenizer, model, client))

    async def route(self, request: Request) -> RouteAnswer:
        """Returns the route that the request would get now. Raises DraftdError if it would be refused for any other
        reason than its route."""
        model, tokenizer = self._require_serving(), self._worker.tokenizer
        valid, planner = validate_request(request, model), self._planner
        ids = await self._prompts.tokenise(valid.prompt, tokenizer, model, valid.client)
        most = default_max_tokens(len(ids), model) if request.max_tokens is None else valid.max_tokens
        route = planner.route(valid.wish, flag_context(valid, model, len(ids)), most)
        expected = planner.router.expected_tokens(valid.workload, most)
        return RouteAnswer(route, len(ids), round(expected), planner.router.prices.currency)

    def token_bytes(self, token: int) -> bytes:
        """Returns the bytes that a token adds to a text."""
        return self._worker.tokenizer.token_bytes(token)

    async def generate(self, request: Request, send: Send) -> None:
        """Sends the request's events one after the other, each after the client took the last one. To cancel the
        request, cancel the task that runs this. Raises DraftdError if the request is refused, or ends before its answer
        is complete."""
        arrival, request_id = time.monotonic(), uuid.uuid4().hex
        self._open.add(request_id)
        try:
            call = await self._admit(request, request_id, arrival)
        except BaseException:
            self._open.close(request_id)
            raise
        try:
            await self._send_events(call, send)
        except ClientStalled as error:
            log.warning("request %s: %s", request_id, error.message)
            raise
        finally:
            self._release(call)

    async def _admit(self, request: Request, request_id: str, arrival: float) -> EngineCall:
        """Submits the request to the engine. Raises the error of a refusal, after recording it in telemetry."""
        operation = "chat" if isinstance(request.prompt, Chat) else "text_completion"
        start = InferenceStart(operation, request_id, arrival, workload=request.workload)
        early = EarlySpan(self._begin_span, start)
        try:
            prepared = await self._prepare_request(request, early)
            span, arrived = early.get(), asyncio.Event()
            plan, remote_answer = await self._plan_request(prepared, request.max_tokens, span)
            prepared.check_deadline()
            local_allowed = self._planner.local_allowed(prepared.wish)
            decode = prepared.decode_request(request_id, arrival, plan, span.trace, local_allowed=local_allowed)
            echo = await self._prompts.echo(prepared.request, prepared.ids, prepared.tokenizer)
            choices = prepared.choices(decode, echo[0], span, partial(self._new_stream, request_id, arrived))
            if remote_answer is None:
                self._worker.submit_choices([(choice.decode, choice.stream) for choice in choices])
        except asyncio.CancelledError:
            reason = reason_to_leave(request)
            self.ended_without_engine[reason] += 1
            early.get().leave(reason)
            raise
        except Exception as error:
            # Any other exception is a bug, and counts as a refusal too.
            refusal = error if isinstance(error, DraftdError) else EngineFailure(f"{type(error).__name__}: {error}")
            self.refused += 1
            early.get().refuse(refusal)
            raise
        for choice in choices[1:]:
            early.begin_choice(choice)
        valid, constraint, router = prepared.request, prepared.constraint, self._planner.router
        prompt_tokens = len(prepared.ids) if remote_answer is None else remote_answer[1].prompt_tokens
        quality = router.quality_of(plan.strategy)
        started = RequestStarted(request_id, prepared.model.info, prompt_tokens, plan, quality)
        if remote_answer is None:
            return EngineCall(valid, constraint, started, choices, arrived=arrived, echo=echo)
        spans = [choice.span for choice in choices]
        relay = TextRelay(remote_answer[0], started, valid, arrival, spans, router, self._count_relayed)
        return EngineCall(valid, constraint, started, arrived=arrived, relay=relay, local_choice=choices[0])

    async def _prepare_request(self, request: Request, early: EarlySpan) -> PreparedRequest:
        """Checks and tokenises the request, and compiles its grammar. Raises DraftdError."""
        model, tokenizer = self._require_serving(), self._worker.tokenizer
        valid = validate_request(request, model)
        early.update(
            sampling=valid.sampling,
            max_tokens=valid.max_tokens,
            stop=valid.stop,
            messages=span_messages(valid.prompt),
        )
        ids = await self._prompts.tokenise(valid.prompt, tokenizer, model, valid.client)
        if request.max_tokens is None:
            valid = replace(valid, max_tokens=default_max_tokens(len(ids), model))
        reading = reading_options(valid.prompt, tokenizer, ids)
        constraint = await self._prompts.constraint(valid, reading)
        early.update(prompt_tokens=len(ids), max_tokens=valid.max_tokens, choices=valid.n)
        return PreparedRequest(valid, model, tokenizer, ids, reading, constraint)

    async def _plan_request(
        self, prepared: PreparedRequest, max_tokens: int | None, span: InferenceSpan
    ) -> tuple[DecodePlan, tuple[Events, RelayStarted] | None]:
        """Returns the plan. If another daemon answers in text, also returns its events and its `RelayStarted`;
        otherwise None. `max_tokens`: the client's own, before this daemon's default. Raises DraftdError."""
        request, constraint, wish = prepared.request, prepared.constraint, prepared.wish
        context = flag_context(request, prepared.model, len(prepared.ids))
        plan = self._planner.plan(wish, context, prepared.model.info, request.max_tokens)
        plan = replace(plan, generic_tools=prepared.generic_tools)
        span.set_plan(plan, prepared.tier)
        if constraint.grammar:
            span.set_constraint(constraint.kind, constraint.seconds)
        if not self._planner.router.relays_text(plan.strategy) or self._remote is None:
            return plan, None
        try:
            # Without max_tokens, the other daemon's default applies.
            return plan, await begin_relay(self._remote, replace(request, max_tokens=max_tokens), span.trace)
        except RemoteDown as down:
            if not self._planner.local_allowed(wish):
                raise
            plan = local_plan(plan, down.message)
            span.set_plan(plan, prepared.tier)
            return plan, None

    def _new_stream(self, request_id: str, arrived: asyncio.Event, choice: str) -> TokenStream:
        return TokenStream(self._mailbox, partial(self._open.finish_abandoned, request_id, choice), arrived)

    def _continue_locally(self, call: EngineCall, text: str, tokens: int, why: str) -> None:
        """Continues the answer with this daemon's own model. `text`: the answer so far, which the other daemon decoded
        as `tokens` tokens of its model. `why`: its failure. Raises DraftdError if the request may not, or cannot, be
        continued here."""
        choice, request = call.local_choice, call.request
        assert choice is not None
        decode, left = choice.decode, choice.decode.max_tokens - tokens
        if not decode.local_allowed or decode.grammar or request.n > 1 or request.echo or left < 1:
            raise RemoteDown(why)
        tokenizer, ends, form = self._worker.tokenizer, stop_conditions(request), text_form(request)
        prompt = (*decode.prompt, *tokenizer.encode_rendered(text))
        least, plan = max(0, decode.min_tokens - tokens), local_plan(decode.plan, why)
        if text:
            reading, form = reading_options(request.prompt, tokenizer, decode.prompt), replace(form, continues=True)
            decode = replace(decode, stop=stop_matcher(tokenizer, ends, reading, form))
            choice.answer = AnswerStream(tokenizer, ends, reading, choice.index, form)
        choice.decode = replace(decode, prompt=prompt, max_tokens=left, min_tokens=least, plan=plan)
        self._worker.submit(choice.decode, choice.stream)
        call.choices.append(choice)

    def _require_serving(self) -> ServedModel:
        if self.draining:
            raise NotServing("the daemon is draining and takes no new requests", retry_after=1.0)
        if self._open.with_client > self.limit:
            raise QueueFull(f"{self.limit} requests are active, which is the limit", retry_after=1.0)
        if self._worker.state is EngineState.FAILED:
            raise NotServing(f"the engine failed: {self._worker.error}")
        return self.model()

    async def _send_events(self, call: EngineCall, send: Send) -> None:
        """Sends all events of the request. Raises the error that ended it, if any."""
        started, error = call.started, None
        async with stall_guard(self._stall) as write:
            if call.relay is not None:
                self._relays.add(call.relay)
                try:
                    await call.relay.run(send, write, partial(self._continue_locally, call))
                finally:
                    self._relays.discard(call.relay)
            else:
                await self._send_start(call, send, write)
            open_choices = list(call.choices)
            while open_choices:
                choice = await next_choice(open_choices, call.arrived)
                stream, answer = choice.stream, choice.answer
                emission = await stream.take()
                if emission is not None:
                    await write(send(answer.add(emission, stream.outcome if stream.exhausted else None)))
                    continue
                open_choices.remove(choice)
                outcome = stream.outcome
                assert outcome is not None
                if call.relay is not None:
                    outcome = call.relay.merge_outcome(outcome)
                if (rest := answer.finish(outcome)) is not None:
                    await write(send(rest))
                price = self._planner.router.learn_answer(started.plan, call.request.workload, outcome)
                # Before the client sees the end, so that a client that then reads the metrics finds it counted.
                choice.span.set_price(price.quality, price.costs, price.currency)
                choice.span.finish(outcome, answer.parts())
                await write(send(replace(answer.finished_event(outcome, started.plan), price=price)))
                error = error or error_of(outcome)
        if error is not None:
            raise error

    async def _send_start(self, call: EngineCall, send: Send, write: Write) -> None:
        """Sends the events before the first token: start, progress, and what the request asks about its prompt."""
        await write(send(call.started))
        first, processed, pause = call.choices[0].stream, 0, 0.0 if self._worker.unloaded else _PROGRESS_SECONDS
        while await stays_silent(call.choices, call.arrived, pause):
            if self._worker.unloaded:
                await write(send(LoadProgress(self._worker.progress)))
            elif (progress := call.prompt_progress(self._worker.status)) and progress.processed_tokens > processed:
                await write(send(progress))
                processed = progress.processed_tokens
            pause = _PROGRESS_SECONDS
        emission, (text, offsets), prompt = Emission((), ()), call.echo, tuple[int, ...]()
        if call.request.prompt_top_logprobs is not None:
            emission_of_prompt = await first.take()
            if emission_of_prompt is None:  # the request ended before
                return
            emission, prompt = emission_of_prompt, call.choices[0].decode.prompt
        if text or prompt:
            for choice in call.choices:
                await write(send(Chunk(emission, (), text, choice=choice.index, offsets=offsets, prompt=prompt)))

    def _release(self, call: EngineCall) -> None:
        """Closes the request when its front is done. Choices that the engine has not finished are cancelled there;
        `OpenRequests.finish_abandoned` ends them later."""
        request_id, unfinished = call.started.request_id, dict[str, InferenceSpan]()
        for choice in call.choices:
            if choice.stream.outcome is not None:
                choice.span.finish(choice.stream.outcome)  # a second time is ignored
                continue
            choice.stream.abandon()
            unfinished[choice.decode.id] = choice.span
            self._worker.cancel(choice.decode.id, reason_to_leave(call.request))
        if unfinished:
            self._open.abandon(request_id, unfinished)
        else:
            self._open.close(request_id)

    def _count_relayed(self, outcome: Outcome) -> None:
        """Counts a choice that another daemon answered: the engine never had it."""
        self.ended_without_engine[outcome.reason] += 1
