"""A request on its way to the engine: checked and tokenised, with its span, and as the engine's requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from draftd.core import ContextTier, DecodePlan, DecodeRequest, SamplingParams
from draftd.errors import DeadlineExceeded
from draftd.models.tokenizer import Tokenizer
from draftd.planning.planner import FlagContext, RequestedPlan
from draftd.service.answer import AnswerStream, ReadingOptions, stop_matcher
from draftd.service.call import Choice
from draftd.service.formats import Constraint
from draftd.service.messages import Chat, message_parts, text_part
from draftd.service.request import Prompt, RawText, Request, ServedModel
from draftd.service.stream import TokenStream
from draftd.service.text import StopConditions, TextForm
from draftd.telemetry.spans import InferenceSpan, InferenceStart, ToldMessage


class EarlySpan:
    """The span of a request that may yet be refused: it begins with what is known of the request by then."""

    def __init__(self, begin: Callable[[InferenceStart], InferenceSpan], start: InferenceStart) -> None:
        self._begin, self._start = begin, start
        self._span: InferenceSpan | None = None

    def update(self, **fields: Any) -> None:
        """Takes further fields of `InferenceStart`, before the span begins."""
        self._start = replace(self._start, **fields)

    def get(self) -> InferenceSpan:
        """Returns the span; begins it the first time."""
        if self._span is None:
            self._span = self._begin(self._start)
        return self._span

    def begin_choice(self, choice: Choice) -> None:
        """Begins a span for a further choice. The first choice uses the span of `get`."""
        decode = choice.decode
        choice.span = self._begin(replace(self._start, choice=choice.index, sampling=decode.sampling))
        choice.span.set_plan(decode.plan, decode.tier)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A checked request. `ids`: the prompt's tokens. `reading`: how to parse its answers. `constraint`: what these must
    follow."""

    request: Request
    model: ServedModel
    tokenizer: Tokenizer
    ids: tuple[int, ...]
    reading: ReadingOptions | None
    constraint: Constraint

    @property
    def wish(self) -> RequestedPlan:
        return replace(self.request.wish, constrained=bool(self.constraint.grammar))

    @property
    def tier(self) -> ContextTier:
        return ContextTier.of(len(self.ids))

    @property
    def generic_tools(self) -> bool:
        """Whether tools are offered as text, because the chat template takes none."""
        return self.model.generic_tools and self.reading is not None and bool(self.reading.tools)

    def check_deadline(self) -> None:
        deadline = self.request.deadline
        if deadline is not None and deadline <= time.monotonic():
            raise DeadlineExceeded("the deadline passed before the request reached the engine")

    def decode_request(
        self, request_id: str, arrival: float, plan: DecodePlan, trace: str, *, local_allowed: bool
    ) -> DecodeRequest:
        """Returns the request to the engine, without what differs by choice."""
        request = self.request
        assert request.max_tokens is not None
        return DecodeRequest(
            id=request_id,
            prompt=self.ids,
            max_tokens=request.max_tokens,
            plan=plan,
            arrival=arrival,
            sampling=request.sampling,
            deadline=request.deadline,
            workload=request.workload,
            client=request.client,
            identity=request.identity,
            priority=request.priority,
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            stop_ids=frozenset(request.stop_token_ids),
            logprobs=request.logprobs,
            grammar=self.constraint.grammar,
            local_allowed=local_allowed,
            trace=trace,
            skip_prefix_cache=request.skip_prefix_cache,
        )

    def choices(
        self, decode: DecodeRequest, echo: str, span: InferenceSpan, new_stream: Callable[[str], TokenStream]
    ) -> list[Choice]:
        """Returns the request's choices, all with the same span. `new_stream`: makes the stream of the choice with this
        id."""
        request, tokenizer, reading = self.request, self.tokenizer, self.reading
        ends, form = stop_conditions(request), replace(text_form(request), before=len(echo))
        choices = []
        for i in range(request.n):
            own = replace(
                decode,
                id=decode.id if request.n == 1 else f"{decode.id}-{i}",
                sampling=_sampling(request.sampling, i),
                stop=stop_matcher(tokenizer, ends, reading, form),
                prompt_logprobs=None if i else request.prompt_top_logprobs,  # reported once, with the first choice
            )
            answer = AnswerStream(tokenizer, ends, reading, i, form)
            choices.append(Choice(i, own, new_stream(own.id), answer, span))
        return choices


def flag_context(request: Request, model: ServedModel, prompt_tokens: int) -> FlagContext:
    return FlagContext(model.info.model, request.workload, request.caller, prompt_tokens)


def stop_conditions(request: Request) -> StopConditions:
    return StopConditions(request.stop, request.stop_token_ids, request.include_stop)


def text_form(request: Request) -> TextForm:
    """Returns how the answer's tokens become text. An answer to a raw prompt or token ids, or one that continues a
    chat's last message, keeps a space at its beginning."""
    prompt = request.prompt
    return TextForm(continues=not isinstance(prompt, Chat) or prompt.continues, special=request.special_tokens)


def span_messages(prompt: Prompt) -> tuple[ToldMessage, ...]:
    """Returns the prompt's messages for telemetry; none for token ids."""
    if isinstance(prompt, Chat):
        return tuple(map(message_parts, prompt.messages))
    return (("user", (text_part(prompt.text),)),) if isinstance(prompt, RawText) else ()


def _sampling(params: SamplingParams, choice: int) -> SamplingParams:
    """Returns the sampling of one choice: if the request has a seed, each choice gets its own."""
    return params if params.seed is None else replace(params, seed=(params.seed + choice) % 2**64)
