"""One request, from its arrival to its last event, whichever front it came through.

    1. check it, tokenise the prompt          InvalidRequest names the field
    2. ask for a plan                         SpeculationUnavailable where speculation was demanded in vain
    3. submit it to the engine                QueueFull says when to retry
    4. started; one chunk per step; finished

A refusal is an exception and no event. After `RequestStarted` the events end with `Finished` whenever the client can
still be reached; where the reason is neither STOP nor LENGTH an exception follows, so that no client takes half an
answer for a whole one.

Each of several choices is a request to the engine, with a span of its own: what clients, spans, metrics and the engine
count are choices. They are submitted together, or refused together as one request. Each has its `Finished`; the
exception follows the last of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from draftd.core import (
    ContextTier,
    DecodeRequest,
    Emission,
    FinishReason,
    Outcome,
    SamplingParams,
)
from draftd.engine.handle import EngineHandle, EngineState
from draftd.errors import (
    ClientStalled,
    DeadlineExceeded,
    DraftdError,
    EngineFailure,
    NotServing,
    QueueFull,
    RemoteDown,
)
from draftd.planning.planner import FlagContext, Planner
from draftd.service import prefixes
from draftd.service.answer import AnswerStream, reading_options, stop_matcher
from draftd.service.call import Choice, EngineCall, next_choice, stays_silent
from draftd.service.chat_template import ChatRenderer
from draftd.service.endings import error_of, reason_to_leave
from draftd.service.formats import constraint_of
from draftd.service.messages import Chat, message_parts, text_part
from draftd.service.request import (
    Chunk,
    LoadProgress,
    Prompt,
    PromptProgress,
    RawText,
    Request,
    RequestStarted,
    RouteAnswer,
    Send,
    ServedModel,
    default_max_tokens,
    validate_request,
)
from draftd.service.stream import Mailbox, TokenStream, Write, stall_guard
from draftd.service.text import StopConditions, TextForm, echoed_prompt, tokenise
from draftd.service.text_relay import Events, RelayStarted, RemoteAnswers, TextRelay, begin_relay, local_plan
from draftd.settings import Settings
from draftd.telemetry.spans import InferenceSpan, InferenceStart, ToldMessage

_NEWS_SECONDS = 1.0  # between two words to a client whose request waits for the weights, or for its prompt
_GRAMMAR_SECONDS = 1.0  # after the model is loaded: the first request may be there already
_SPARE_CALLS = 256  # requests that the engine does not hold: being tokenised, or done and not yet read

log = logging.getLogger(__name__)


class InferenceService:
    """All requests of a daemon. Made and used on one event loop.

    `limit` bounds the requests in hand: those from their arrival until both their front and the engine are done with
    them, or the client has gone. The engine's queue bounds only those that wait for it; this bounds also those that are
    being tokenised, or whose clients read slowly.
    """

    def __init__(
        self,
        worker: EngineHandle,
        planner: Planner,
        begin_span: Callable[[InferenceStart], InferenceSpan],
        settings: Settings,
        remote: RemoteAnswers | None = None,
    ) -> None:
        """`remote`: the daemon that answers in text, where its token ids are not this one's."""
        self._worker, self._planner, self._begin_span = worker, planner, begin_span
        self._remote = remote
        self._default_max_tokens = settings.engine.default_max_tokens
        self._generic_tools = settings.model.generic_tools
        self._stall = settings.server.write_stall_seconds or None
        self.limit = settings.engine.queue_capacity + settings.engine.max_batch + _SPARE_CALLS
        self.refused = 0
        self.ended_before_engine: Counter[FinishReason] = Counter()  # requests that ended and the engine never had
        self._relays = set[TextRelay]()  # requests that another daemon answers in text, now
        self.draining = False
        self._open: set[str] = set()
        # Of these, whose clients have gone: the choices whose ends the engine has yet to tell.
        self._abandoned: dict[str, dict[str, InferenceSpan]] = {}
        self._none_open = asyncio.Event()
        self._none_open.set()
        self._mailbox = Mailbox(asyncio.get_running_loop())
        self._tokenising = ThreadPoolExecutor(max_workers=1, thread_name_prefix="draftd-tokenise")
        self._compiling = ThreadPoolExecutor(max_workers=1, thread_name_prefix="draftd-grammar")
        self._chats = ChatRenderer()
        self._grammars_ahead: asyncio.TimerHandle | None = None

    @property
    def open_requests(self) -> int:
        return len(self._open)

    @property
    def load_progress(self) -> str:
        """How far the model is loaded, for people."""
        return self._worker.progress

    def start(self) -> None:
        """The model is about to be loaded: begins what can be done beside that."""
        self._chats.start()

    def prepare(self) -> None:
        """The model is loaded: has ready what the first chat would wait for, and a little later what the first grammar
        would, which stops all else in this process for up to a second. A tokenizer that has no grammars is told of when
        one is asked for."""
        if (template := self._worker.tokenizer.template) is not None:
            self._chats.prepare(template)
        else:
            self._chats.stop()
        if (grammars := self._worker.grammars) is not None:
            later = asyncio.get_running_loop().call_later
            self._grammars_ahead = later(_GRAMMAR_SECONDS, self._compiling.submit, grammars.prepare)

    async def wait_idle(self, seconds: float) -> bool:
        """Waits until no request is in hand. False when some still were after so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._none_open.wait()
        except TimeoutError:
            return False
        return True

    @property
    def relaying(self) -> bool:
        """Whether another daemon answers requests in text, of which the engine knows nothing."""
        return bool(self._relays)

    def end_relays(self) -> None:
        """Ends them: the drain is over."""
        for relay in list(self._relays):
            relay.stop()

    def close(self) -> None:
        """What the engine still says is dropped."""
        self._mailbox.close()
        self._chats.close()
        if self._grammars_ahead is not None:
            self._grammars_ahead.cancel()
        for executor in (self._tokenising, self._compiling):
            executor.shutdown(wait=False, cancel_futures=True)

    def model(self) -> ServedModel:
        """Raises NotServing while nothing is loaded."""
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
        """The tokens that all texts have which begin with the request's prompt. Raises as for a request."""
        model, tokenizer = self._require_serving(), self._worker.tokenizer
        valid = validate_request(request, model)

        async def encode(prompt: Prompt) -> tuple[int, ...]:
            return await tokenise(prompt, tokenizer, model, self._tokenising, self._chats, valid.client)

        return await prefixes.common_prefix(valid.prompt, encode)

    async def count(self, request: Request) -> int:
        """Tokens of its prompt. Raises DraftdError where the request would be refused."""
        model = self._require_serving()
        prompt, client = validate_request(request, model).prompt, request.client
        return len(await tokenise(prompt, self._worker.tokenizer, model, self._tokenising, self._chats, client))

    async def route(self, request: Request) -> RouteAnswer:
        """Which way it would go now. Raises as for a request that is refused for other reasons than its way."""
        model, tokenizer = self._require_serving(), self._worker.tokenizer
        valid, planner = validate_request(request, model), self._planner
        ids = await tokenise(valid.prompt, tokenizer, model, self._tokenising, self._chats, valid.client)
        most = default_max_tokens(len(ids), model) if request.max_tokens is None else valid.max_tokens
        route = planner.route(valid.wish, _context(valid, model, ids), most)
        expected = planner.router.expected_tokens(valid.workload, most)
        return RouteAnswer(route, len(ids), round(expected), planner.router.prices.currency)

    def token_bytes(self, token: int) -> bytes:
        """What a token is written as; of one that no text has, what it is called."""
        return self._worker.tokenizer.token_bytes(token)

    async def generate(self, request: Request, send: Send) -> None:
        """Sends the request's events, one after the other, each when the last was taken. To cancel the request, cancel
        the task that this runs in. Raises DraftdError where the request is refused, or ends before its answer does."""
        arrival, request_id = time.monotonic(), uuid.uuid4().hex
        self._open.add(request_id)
        self._none_open.clear()
        try:
            call = await self._admit(request, request_id, arrival)
        except BaseException:
            self._forget(request_id)
            raise
        try:
            await self._send_events(call, send)
        except ClientStalled as error:
            log.warning("request %s: %s", request_id, error.message)
            raise
        finally:
            self._release(call)

    async def _admit(self, request: Request, request_id: str, arrival: float) -> EngineCall:
        """Submits the request to the engine. Raises what it is refused with, after telemetry was told what was known of
        it by then."""
        operation = "chat" if isinstance(request.prompt, Chat) else "text_completion"
        start = InferenceStart(operation, request_id, arrival, workload=request.workload)
        span: InferenceSpan | None = None
        try:
            model, tokenizer = self._require_serving(), self._worker.tokenizer
            valid = validate_request(request, model)
            chat_messages = _messages(valid.prompt)
            start = replace(
                start, sampling=valid.sampling, max_tokens=valid.max_tokens, stop=valid.stop, messages=chat_messages
            )
            ids = await tokenise(valid.prompt, tokenizer, model, self._tokenising, self._chats, valid.client)
            if request.max_tokens is None:
                valid = replace(valid, max_tokens=default_max_tokens(len(ids), model))
            reading = reading_options(valid.prompt, tokenizer, ids)
            constraint = await constraint_of(valid, reading, self._worker.grammars, self._compiling)
            start = replace(start, prompt_tokens=len(ids), max_tokens=valid.max_tokens, choices=valid.n)
            span = self._begin_span(start)
            context = _context(valid, model, ids)
            wish = replace(valid.wish, constrained=bool(constraint.grammar))
            plan = self._planner.plan(wish, context, model.info, valid.max_tokens)
            generic_tools = model.generic_tools and reading is not None and bool(reading.tools)
            plan = replace(plan, generic_tools=generic_tools)
            span.planned(plan, ContextTier.of(len(ids)))
            if constraint.grammar:
                span.constrained(constraint.kind, constraint.seconds)
            remote_answer: tuple[Events, RelayStarted] | None = None
            if self._planner.router.relays_text(plan.strategy) and self._remote is not None:
                try:
                    # The default of max_tokens is the other daemon's own.
                    relayed = replace(valid, max_tokens=request.max_tokens)
                    remote_answer = await begin_relay(self._remote, relayed, span.trace)
                except RemoteDown as down:
                    if not self._planner.local_allowed(wish):
                        raise
                    plan = local_plan(plan, down.message)
                    span.planned(plan, ContextTier.of(len(ids)))
            if valid.deadline is not None and valid.deadline <= time.monotonic():
                raise DeadlineExceeded("the deadline passed before the request reached the engine")
            assert valid.max_tokens is not None
            decode = DecodeRequest(
                id=request_id,
                prompt=ids,
                max_tokens=valid.max_tokens,
                plan=plan,
                arrival=arrival,
                sampling=valid.sampling,
                deadline=valid.deadline,
                workload=valid.workload,
                client=valid.client,
                priority=valid.priority,
                min_tokens=valid.min_tokens,
                ignore_eos=valid.ignore_eos,
                stop_ids=frozenset(valid.stop_token_ids),
                logprobs=valid.logprobs,
                grammar=constraint.grammar,
                local_allowed=self._planner.local_allowed(wish),
                trace=span.trace,
                skip_prefix_cache=valid.skip_prefix_cache,
            )
            echo = await echoed_prompt(valid, ids, tokenizer, self._tokenising)
            ends, form = _ends(valid), replace(_form(valid), before=len(echo[0]))
            choices, arrived = [], asyncio.Event()
            for i in range(valid.n):
                name = request_id if valid.n == 1 else f"{request_id}-{i}"
                stream = TokenStream(self._mailbox, partial(self._finish_abandoned, request_id, name), arrived)
                stop = stop_matcher(tokenizer, ends, reading, form)
                prompt_logprobs = None if i else valid.prompt_top_logprobs  # one is told for all
                sampling = _sampling(valid.sampling, i)
                own = replace(decode, id=name, sampling=sampling, stop=stop, prompt_logprobs=prompt_logprobs)
                choices.append(Choice(i, own, stream, AnswerStream(tokenizer, ends, reading, i, form), span))
            if remote_answer is None:
                self._worker.submit_choices([(admitted.decode, admitted.stream) for admitted in choices])
        except asyncio.CancelledError:
            reason = reason_to_leave(request)
            self.ended_before_engine[reason] += 1
            (span or self._begin_span(start)).left(reason)
            raise
        except Exception as error:
            # What is no DraftdError is a bug: its request is counted as any other that is refused.
            refusal = error if isinstance(error, DraftdError) else EngineFailure(f"{type(error).__name__}: {error}")
            self.refused += 1
            (span or self._begin_span(start)).refused(refusal)
            raise
        for admitted in choices[1:]:
            admitted.span = self._begin_span(replace(start, choice=admitted.index, sampling=admitted.decode.sampling))
            admitted.span.planned(plan, ContextTier.of(len(ids)))
        router = self._planner.router
        prompt_tokens = len(ids) if remote_answer is None else remote_answer[1].prompt_tokens
        started = RequestStarted(request_id, model.info, prompt_tokens, plan, router.quality_of(plan.strategy))
        if remote_answer is None:
            return EngineCall(valid, constraint, started, choices, arrived=arrived, echo=echo)
        spans = [admitted.span for admitted in choices]
        relay = TextRelay(remote_answer[0], started, valid, arrival, spans, router, self._count_relayed)
        return EngineCall(valid, constraint, started, arrived=arrived, relay=relay, local_choice=choices[0])

    def _continue_locally(self, call: EngineCall, text: str, tokens: int, why: str) -> None:
        """With this daemon's own model, after `text`, of so many tokens of the other's. Raises DraftdError where that
        may not be, or cannot."""
        choice, request = call.local_choice, call.request
        assert choice is not None
        decode, left = choice.decode, choice.decode.max_tokens - tokens
        if not decode.local_allowed or decode.grammar or request.n > 1 or request.echo or left < 1:
            raise RemoteDown(why)
        tokenizer, ends, form = self._worker.tokenizer, _ends(request), _form(request)
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
        if self.open_requests - len(self._abandoned) > self.limit:
            raise QueueFull(f"{self.limit} requests are active, which is the limit", retry_after=1.0)
        if self._worker.state is EngineState.FAILED:
            raise NotServing(f"the engine failed: {self._worker.error}")
        return self.model()

    async def _send_events(self, call: EngineCall, send: Send) -> None:
        """Sends what the engine says until it has said all."""
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
                # Before the client learns of the end: whoever looks then finds it counted.
                choice.span.priced(price.quality, price.costs, price.currency)
                choice.span.finished(outcome, answer.parts())
                await write(send(replace(answer.finished_event(outcome, started.plan), price=price)))
                error = error or error_of(outcome)
        if error is not None:
            raise error

    async def _send_start(self, call: EngineCall, send: Send, write: Write) -> None:
        """What is said before the engine says anything."""
        await write(send(call.started))
        first, processed, pause = call.choices[0].stream, 0, 0.0 if self._worker.unloaded else _NEWS_SECONDS
        while await stays_silent(call.choices, call.arrived, pause):
            if self._worker.unloaded:
                await write(send(LoadProgress(self._worker.progress)))
            elif (progress := self._prompt_progress(call)) is not None and progress.processed_tokens > processed:
                await write(send(progress))
                processed = progress.processed_tokens
            pause = _NEWS_SECONDS
        emission, (text, offsets), prompt = Emission((), ()), call.echo, tuple[int, ...]()
        if call.request.prompt_top_logprobs is not None:
            emission_of_prompt = await first.take()
            if emission_of_prompt is None:  # it ended before
                return
            emission, prompt = emission_of_prompt, call.choices[0].decode.prompt
        if text or prompt:
            for choice in call.choices:
                await write(send(Chunk(emission, (), text, choice=choice.index, offsets=offsets, prompt=prompt)))

    def _prompt_progress(self, call: EngineCall) -> PromptProgress | None:
        """Of the choice whose prompt is furthest; None where none has begun, and where it is not asked for."""
        if not call.request.return_progress:
            return None
        ids = {one.decode.id for one in call.choices}
        prompts = [one for one in self._worker.status().prompts if one.request in ids]
        return max(prompts, key=lambda one: one.processed_tokens, default=None)

    def _release(self, call: EngineCall) -> None:
        """The front is done, perhaps before the engine is: then `_finish_abandoned` is called later."""
        request_id, unfinished = call.started.request_id, dict[str, InferenceSpan]()
        for choice in call.choices:
            if choice.stream.outcome is not None:
                choice.span.finished(choice.stream.outcome)  # a second time is ignored
                continue
            choice.stream.abandon()
            unfinished[choice.decode.id] = choice.span
            self._worker.cancel(choice.decode.id, reason_to_leave(call.request))
        if unfinished:
            self._abandoned[request_id] = unfinished
        else:
            self._forget(request_id)

    def _count_relayed(self, outcome: Outcome) -> None:
        """The engine never had it."""
        self.ended_before_engine[outcome.reason] += 1

    def _finish_abandoned(self, request_id: str, choice: str, outcome: Outcome) -> None:
        """Of a choice that its front has left."""
        unfinished = self._abandoned[request_id]
        unfinished.pop(choice).finished(outcome)
        if not unfinished:
            self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        self._open.discard(request_id)
        self._abandoned.pop(request_id, None)
        if not self._open:
            self._none_open.set()


def _sampling(params: SamplingParams, choice: int) -> SamplingParams:
    """Each choice has a seed of its own, where there is one."""
    return params if params.seed is None else replace(params, seed=(params.seed + choice) % 2**64)


def _ends(request: Request) -> StopConditions:
    return StopConditions(request.stop, request.stop_token_ids, request.include_stop)


def _form(request: Request) -> TextForm:
    """Only a chat's answer is a text of its own, unless it continues a message."""
    prompt = request.prompt
    return TextForm(continues=not isinstance(prompt, Chat) or prompt.continues, special=request.special_tokens)


def _context(request: Request, model: ServedModel, ids: Sequence[int]) -> FlagContext:
    return FlagContext(model.info.model, request.workload, request.caller, len(ids))


def _messages(prompt: Prompt) -> tuple[ToldMessage, ...]:
    """As telemetry takes them; none of token ids."""
    if isinstance(prompt, Chat):
        return tuple(map(message_parts, prompt.messages))
    return (("user", (text_part(prompt.text),)),) if isinstance(prompt, RawText) else ()
