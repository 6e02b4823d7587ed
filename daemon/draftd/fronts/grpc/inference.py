"""InferenceService: a message's fields to the service's request, the service's events to messages.

Fields are read here, and checked by the service. What has no meaning there, such as a number that names no member of an
enumeration, is the request's problem.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from draftd.core import RequestStats
from draftd.errors import InvalidRequest
from draftd.fronts.grpc import reply
from draftd.fronts.grpc.chat import chat_of, delta_of
from draftd.fronts.grpc.interceptors import Context
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
    def __init__(self, service: InferenceService) -> None:
        self._service = service

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        return reply.model(self._service.model())

    async def Route(self, request: pb.RouteRequest, context: Context) -> pb.RouteResponse:
        return reply.route(await self._service.route(request_of(request.request, client=context.peer())))

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:
        # A client that leaves cancels this task. The cancellation must leave here, too: gRPC leaks a call whose
        # handler returns instead.
        left = context.time_remaining()
        deadline = None if left is None else time.monotonic() + left
        asked = request_of(request, deadline, context.peer())
        await self._service.generate(asked, lambda event: context.write(message_of(event)))


def request_of(given: pb.GenerateRequest, deadline: float | None = None, client: str = "") -> Request:
    """`deadline` is on the monotonic clock, `client` names the connection. What cannot be expressed is the request's
    `problem`, the first of them."""
    problems: list[InvalidRequest] = []
    if given.WhichOneof("input") is None:
        problems.append(InvalidRequest("input", "nothing", "one of prompt, chat, tokens"))

    def read(known: Mapping[Any, V], kind: Any, field: str) -> V:
        """What the number means; for one that means nothing, a problem, and what an unset field means."""
        try:
            return member(known, getattr(given, field), field, kind.keys())
        except InvalidRequest as problem:
            problems.append(problem)
            return next(iter(known.values()))

    mode, depth_mode = read(MODES, pb.DecodeMode, "mode"), read(DEPTH_MODES, pb.DepthMode, "depth_mode")
    strategy, quality = read(STRATEGIES, pb.Strategy, "strategy"), read(QUALITIES, pb.QualityClass, "quality")
    workload = read(WORKLOADS, pb.WorkloadClass, "workload")
    prompt: Prompt = RawText(given.prompt)
    if given.HasField("chat"):
        try:
            prompt = chat_of(given.chat)
        except InvalidRequest as problem:
            problems.append(problem)
            prompt = Chat(())
    elif given.HasField("tokens"):
        prompt = TokenIds(tuple(given.tokens.ids))
    cap = given.max_draft_tokens if given.HasField("max_draft_tokens") else None
    return Request(
        prompt=prompt,
        max_tokens=given.max_tokens if given.HasField("max_tokens") else None,
        sampling=sampling_of(given.sampling),
        stop=tuple(given.stop),
        wish=RequestedPlan(
            mode,
            cap,
            given.drafter or None,
            depth_mode,
            strategy=strategy,
            quality=quality,
            max_seconds=given.max_seconds if given.HasField("max_seconds") else None,
            max_cost=given.max_cost if given.HasField("max_cost") else None,
        ),
        workload=workload,
        caller=given.caller,
        deadline=deadline,
        client=client,
        logprobs=given.logprobs if given.HasField("logprobs") else None,
        prompt_logprobs=given.prompt_logprobs if given.HasField("prompt_logprobs") else None,
        min_tokens=given.min_tokens,
        ignore_eos=given.ignore_eos,
        stop_token_ids=tuple(given.stop_token_ids),
        include_stop=given.include_stop,
        special_tokens=given.special_tokens,
        n=given.n if given.HasField("n") else 1,
        echo=given.echo,
        priority=given.priority,
        return_progress=given.return_progress,
        skip_prefix_cache=given.skip_prefix_cache,
        problem=problems[0] if problems else None,
        response_format=_format(given.response_format),
    )


def _format(given: pb.ResponseFormat) -> ResponseFormat | None:
    kind = given.WhichOneof("format")
    if kind is None or (kind == "json_object" and not given.json_object):
        return None
    if kind == "choices":
        return ResponseFormat(FormatKind.CHOICE, json.dumps(list(given.choices.texts)))
    return ResponseFormat(FormatKind(kind), "" if kind == "json_object" else getattr(given, kind))


def message_of(told: Event) -> pb.GenerateResponse:
    if isinstance(told, Chunk):
        return pb.GenerateResponse(
            chunk=pb.Chunk(
                text=told.text,
                token_ids=told.emission.tokens,
                from_draft=told.emission.from_draft,
                text_lengths=map(len, told.pieces),
                deltas=map(delta_of, told.deltas),
                logprobs=[logprobs_message(one) for one in told.emission.logprobs],
                choice=told.choice,
                verifier=number(pb.Verifier, told.emission.verifier),
                prompt_ids=told.prompt,
                prompt_logprobs=[logprobs_message(one) for one in told.emission.prompt or ()],
            )
        )
    if isinstance(told, RequestStarted):
        return pb.GenerateResponse(started=_started(told))
    if isinstance(told, LoadProgress):
        return pb.GenerateResponse(loading=pb.Loading(progress=told.progress))
    if isinstance(told, PromptProgress):
        return pb.GenerateResponse(prompt_progress=reply.prompt_progress(told))
    return pb.GenerateResponse(finished=_finished(told))


def _started(told: RequestStarted) -> pb.Started:
    return reply.filled(
        pb.Started,
        told,
        model=told.model.model,
        draft_model=told.model.draft_model,
        plan=reply.plan(told.plan, told.quality),
    )


def _finished(told: ChoiceFinished) -> pb.Finished:
    outcome, stats = told.outcome, told.outcome.stats
    return pb.Finished(
        reason=number(pb.FinishReason, outcome.reason),
        usage=pb.Usage(
            input_tokens=stats.prompt_tokens,
            output_tokens=stats.counts.emitted,
            cache_read_tokens=stats.cached_tokens,
            reasoning_tokens=told.reasoning_tokens,
        ),
        timings=_timings(stats),
        counts=reply.counts(stats.counts),
        stop=told.stop,
        degraded=outcome.degraded,
        mode=number(pb.DecodeMode, told.plan.mode),
        choice=told.choice,
        stop_token_id=told.stop_token_id,
        tool_calls=told.tool_calls > 0,
        warning=told.warning,
        cost=told.worth.cost,
        currency=told.worth.currency if told.worth.cost is not None else "",
        quality=number(pb.QualityClass, told.worth.quality),
        remote=reply.remote_counts(stats.remote),
        failed_over=outcome.failed_over,
    )


def quantile(ordered: Sequence[float], q: float) -> float | None:
    """Nearest rank: a value that occurred. None of nothing."""
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
