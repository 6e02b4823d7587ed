"""Converts the messages between edge and verifier about a sequence, to and from those of `verification.proto`."""

from __future__ import annotations

from typing import Any

from draftd.core import TokenLogprobs
from draftd.engine.remote.verifier_link import (
    CloseSequence,
    FromVerifier,
    OpenSequence,
    Proposal,
    SequenceClosed,
    SequenceOpened,
    ToVerifier,
    Verdict,
)
from draftd.engine.targets.base import SequenceOptions
from draftd.errors import InvalidRequest
from draftd.protocol import REASONS, logprobs_message, number, sampling_message, sampling_of
from draftd.v1 import inference_pb2 as inference
from draftd.v1 import verification_pb2 as pb

VERSION = 2
"""Version of the protocol."""

_MICRO = 1e-6
_MOST_TRACE = 64  # characters; W3C's has 55


def to_verifier(message: ToVerifier) -> pb.VerifyRequest:
    if isinstance(message, Proposal):
        return pb.VerifyRequest(
            step=pb.ProposeStep(known=message.length, **_fields(message, "sequence", "last", "proposed", "run"))
        )
    if isinstance(message, CloseSequence):
        return pb.VerifyRequest(close=pb.CloseSequence(sequence=message.sequence, known=message.length))
    options = message.options
    opened = pb.OpenSequence(
        **_fields(message, "sequence", "tokens", "max_tokens", "skip_prefix_cache"),
        **_fields(options, "min_tokens", "logprobs", "grammar"),
        prompt_tokens=options.prompt,
        sampling=sampling_message(options.sampling),
        end_tokens=options.ends,
        model_fingerprint=message.fingerprint,
        traceparent=message.trace,
    )
    return pb.VerifyRequest(open=opened)


def from_edge(message: pb.VerifyRequest) -> ToVerifier | None:
    """Returns the message; None for a greeting and a ping. Raises InvalidRequest for an opening whose `prompt_tokens`
    is 0 or more than the tokens that it sends."""
    kind = message.WhichOneof("message")
    if kind == "step":
        step = message.step
        return Proposal(step.sequence, step.known, step.last, tuple(step.proposed), step.run)
    if kind == "close":
        return CloseSequence(message.close.sequence, message.close.known)
    if kind != "open":
        return None
    opening = message.open
    if not 0 < opening.prompt_tokens <= len(opening.tokens):
        raise InvalidRequest(
            "open.prompt_tokens", opening.prompt_tokens, f"1 to {len(opening.tokens)}, the tokens given"
        )
    options = SequenceOptions(
        prompt=opening.prompt_tokens,
        length=len(opening.tokens),
        sampling=sampling_of(opening.sampling),
        ends=tuple(opening.end_tokens),
        min_tokens=opening.min_tokens,
        logprobs=opening.logprobs if opening.HasField("logprobs") else None,
        grammar=opening.grammar,
    )
    return OpenSequence(
        opening.sequence,
        tuple(opening.tokens),
        options,
        opening.max_tokens,
        opening.traceparent if len(opening.traceparent) <= _MOST_TRACE else "",
        opening.skip_prefix_cache,
        opening.model_fingerprint,
    )


def to_edge(message: FromVerifier) -> pb.VerifyResponse:
    if isinstance(message, SequenceOpened):
        return pb.VerifyResponse(opened=pb.SequenceOpened(sequence=message.sequence, cached_tokens=message.cached))
    if isinstance(message, SequenceClosed):
        retry = message.retry_after
        return pb.VerifyResponse(
            closed=pb.SequenceClosed(sequence=message.sequence, error=message.error, retry_after_seconds=retry)
        )
    verdict = pb.StepVerdict(
        known=message.length,
        **_fields(message, "sequence", "tokens", "accepted", "drafted", "own_drafted"),
        queue_micros=_micros(message.queue_seconds),
        verify_micros=_micros(message.verify_seconds),
        share_micros=_micros(message.share_seconds),
        load_percent=min(round(100 * message.load), 2**31),
        finished=number(inference.FinishReason, message.finished),
        logprobs=map(logprobs_message, message.logprobs),
    )
    return pb.VerifyResponse(verdict=verdict)


def from_verifier(message: pb.VerifyResponse) -> FromVerifier | None:
    """Returns None for a greeting and a pong."""
    kind = message.WhichOneof("message")
    if kind == "opened":
        return SequenceOpened(message.opened.sequence, message.opened.cached_tokens)
    if kind == "closed":
        closed = message.closed
        retry = closed.retry_after_seconds if closed.HasField("retry_after_seconds") else None
        return SequenceClosed(closed.sequence, closed.error, retry)
    if kind != "verdict":
        return None
    verdict = message.verdict
    return Verdict(
        verdict.sequence,
        verdict.known,
        tuple(verdict.tokens),
        verdict.accepted,
        verdict.drafted,
        REASONS.get(verdict.finished),
        verdict.queue_micros * _MICRO,
        verdict.verify_micros * _MICRO,
        verdict.share_micros * _MICRO,
        verdict.load_percent / 100,
        tuple(
            TokenLogprobs(entry.logprob, tuple(zip(entry.top_ids, entry.top_logprobs, strict=True)))
            for entry in verdict.logprobs
        ),
        verdict.own_drafted,
    )


def _fields(message: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(message, name) for name in names}


def _micros(seconds: float) -> int:
    return max(0, min(round(seconds / _MICRO), 2**32 - 1))
