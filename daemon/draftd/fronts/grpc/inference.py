"""InferenceService: converts messages to the service's requests, and the service's events to messages.

This module reads the fields, and the service checks them. A value that cannot be converted, such as an unknown
enumeration number, becomes the request's `problem`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from draftd.errors import InvalidRequest
from draftd.fronts.grpc import reply
from draftd.fronts.grpc.chat import chat_of, delta_of
from draftd.fronts.grpc.interceptors import Context
from draftd.outcome import RequestStats
from draftd.planning.planner import RequestedPlan
from draftd.protocol import (
    DEPTH_MODES,
    MODES,
    QUALITIES,
    STRATEGIES,
    WORKLOADS,
    duration,
    logprobs_message,
    member,
    number,
    sampling_of,
)
from draftd.service.inference import InferenceService
from draftd.service.messages import Chat
from draftd.service.request import (
    ChoiceFinished,
    Chunk,
    Event,
    FormatKind,
    LoadProgress,
    Prompt,
    PromptProgress,
    RawText,
    Request,
    RequestStarted,
    ResponseFormat,
    TokenIds,
)
from draftd.v1 import inference_pb2 as pb
from draftd.v1 import inference_pb2_grpc

V = TypeVar("V")


class InferenceServicer(inference_pb2_grpc.InferenceServiceServicer):
    def __init__(self, service: InferenceService, identity_of: Callable[[Context], str]) -> None:
        self._service, self._identity_of = service, identity_of

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        return reply.model(self._service.model())

    async def Route(self, request: pb.RouteRequest, context: Context) -> pb.RouteResponse:
        return reply.route(await self._service.route(request_of(request.request, client=context.peer())))

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:
        # A client that leaves cancels this task. The cancellation must leave here, too: gRPC leaks a call whose
        # handler returns instead.
        left = context.time_remaining()
        deadline = None if left is None else time.monotonic() + left
        parsed = replace(request_of(request, deadline, context.peer()), identity=self._identity_of(context))
        await self._service.generate(parsed, lambda event: context.write(message_of(event)))


def request_of(message: pb.GenerateRequest, deadline: float | None = None, client: str = "") -> Request:
    """Converts a message to a request. `deadline` is on the monotonic clock; `client` names the connection. The first
    value that cannot be converted, such as an unknown enumeration number, becomes the request's `problem`."""
    problems: list[InvalidRequest] = []
    if message.WhichOneof("input") is None:
        problems.append(InvalidRequest("input", "nothing", "one of prompt, chat, tokens"))

    def read(members: Mapping[Any, V], kind: Any, field: str) -> V:
        """Returns the member for the number that the message has in `field`. For an unknown number, notes a problem and
        returns the member for 0, which stands for an unset field."""
        try:
            return member(members, getattr(message, field), field, kind.keys())
        except InvalidRequest as problem:
            problems.append(problem)
            return next(iter(members.values()))

    wish = _wish(message, read)
    workload = read(WORKLOADS, pb.WorkloadClass, "workload")
    prompt = _prompt(message, problems)
    return Request(
        prompt=prompt,
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        sampling=sampling_of(message.sampling),
        stop=tuple(message.stop),
        wish=wish,
        workload=workload,
        caller=message.caller,
        deadline=deadline,
        client=client,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        prompt_logprobs=message.prompt_logprobs if message.HasField("prompt_logprobs") else None,
        min_tokens=message.min_tokens,
        ignore_eos=message.ignore_eos,
        stop_token_ids=tuple(message.stop_token_ids),
        include_stop=message.include_stop,
        special_tokens=message.special_tokens,
        n=message.n if message.HasField("n") else 1,
        echo=message.echo,
        priority=message.priority,
        return_progress=message.return_progress,
        skip_prefix_cache=message.skip_prefix_cache,
        problem=problems[0] if problems else None,
        response_format=_format(message.response_format),
    )


def _wish(message: pb.GenerateRequest, read: Callable[[Mapping[Any, Any], Any, str], Any]) -> RequestedPlan:
    """Returns the requested plan. `read(members, enumeration, field)` returns the member for the number in the
    field."""
    mode, depth_mode = read(MODES, pb.DecodeMode, "mode"), read(DEPTH_MODES, pb.DepthMode, "depth_mode")
    strategy, quality = read(STRATEGIES, pb.Strategy, "strategy"), read(QUALITIES, pb.QualityClass, "quality")
    return RequestedPlan(
        mode,
        message.max_draft_tokens if message.HasField("max_draft_tokens") else None,
        message.drafter or None,
        depth_mode,
        strategy=strategy,
        quality=quality,
        max_seconds=message.max_seconds if message.HasField("max_seconds") else None,
        max_cost=message.max_cost if message.HasField("max_cost") else None,
    )


def _prompt(message: pb.GenerateRequest, problems: list[InvalidRequest]) -> Prompt:
    """The prompt. Adds an invalid chat to `problems`, and returns an empty one."""
    if message.HasField("chat"):
        try:
            return chat_of(message.chat)
        except InvalidRequest as problem:
            problems.append(problem)
            return Chat(())
    if message.HasField("tokens"):
        return TokenIds(tuple(message.tokens.ids))
    return RawText(message.prompt)


def _format(message: pb.ResponseFormat) -> ResponseFormat | None:
    kind = message.WhichOneof("format")
    if kind is None or (kind == "json_object" and not message.json_object):
        return None
    if kind == "choices":
        return ResponseFormat(FormatKind.CHOICE, json.dumps(list(message.choices.texts)))
    return ResponseFormat(FormatKind(kind), "" if kind == "json_object" else getattr(message, kind))


def message_of(event: Event) -> pb.GenerateResponse:
    if isinstance(event, Chunk):
        return pb.GenerateResponse(
            chunk=pb.Chunk(
                text=event.text,
                token_ids=event.emission.tokens,
                from_draft=event.emission.from_draft,
                text_lengths=map(len, event.pieces),
                deltas=map(delta_of, event.deltas),
                logprobs=[logprobs_message(one) for one in event.emission.logprobs],
                choice=event.choice,
                verifier=number(pb.Verifier, event.emission.verifier),
                prompt_ids=event.prompt,
                prompt_logprobs=[logprobs_message(one) for one in event.emission.prompt or ()],
            )
        )
    if isinstance(event, RequestStarted):
        return pb.GenerateResponse(started=_started_message(event))
    if isinstance(event, LoadProgress):
        return pb.GenerateResponse(loading=pb.Loading(progress=event.progress))
    if isinstance(event, PromptProgress):
        return pb.GenerateResponse(prompt_progress=reply.prompt_progress(event))
    return pb.GenerateResponse(finished=_finished_message(event))


def _started_message(event: RequestStarted) -> pb.Started:
    return reply.fill(
        pb.Started,
        event,
        model=event.model.model,
        draft_model=event.model.draft_model,
        plan=reply.plan(event.plan, event.quality),
    )


def _finished_message(event: ChoiceFinished) -> pb.Finished:
    outcome, stats = event.outcome, event.outcome.stats
    return pb.Finished(
        reason=number(pb.FinishReason, outcome.reason),
        usage=pb.Usage(
            input_tokens=stats.prompt_tokens,
            output_tokens=stats.counts.emitted,
            cache_read_tokens=stats.cached_tokens,
            reasoning_tokens=event.reasoning_tokens,
        ),
        timings=_timings(stats),
        counts=reply.counts(stats.counts),
        stop=event.stop,
        degraded=outcome.degraded,
        mode=number(pb.DecodeMode, event.plan.mode),
        choice=event.choice,
        stop_token_id=event.stop_token_id,
        tool_calls=event.tool_calls > 0,
        warning=event.warning,
        cost=event.price.cost,
        currency=event.price.currency if event.price.cost is not None else "",
        quality=number(pb.QualityClass, event.price.quality),
        remote=reply.remote_counts(stats.remote),
        failed_over=outcome.failed_over,
    )


def quantile(ordered: Sequence[float], q: float) -> float | None:
    """The nearest-rank quantile, which is one of the values; None without values."""
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else None


def _timings(stats: RequestStats) -> pb.Timings:
    gaps = sorted(stats.gaps)
    return pb.Timings(
        queue=duration(stats.queue_seconds),
        prefill=duration(stats.prefill_seconds),
        time_to_first_token=duration(stats.time_to_first_token),
        total=duration(None if stats.finished is None else stats.finished - stats.arrival),
        decode_tokens_per_second=stats.decode_tokens_per_second,
        inter_chunk_p50=duration(quantile(gaps, 0.50)),
        inter_chunk_p95=duration(quantile(gaps, 0.95)),
        inter_chunk_p99=duration(quantile(gaps, 0.99)),
    )
