"""Converts the service's events of one choice for the protocols: parts, log-probabilities, usage and figures of
drafting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any

from draftd.core import FinishReason
from draftd.counts import DraftCounts, total
from draftd.outcome import Emission, RequestStats
from draftd.service.messages import ToolCall
from draftd.service.request import ChoiceFinished, Chunk, Delta, ReasoningDelta, TextDelta, ToolCallEnded

_LEAST = -9999.0  # OpenAI's value for the logarithm of 0, which JSON cannot express

TokenBytes = Callable[[int], bytes]


def deltas_of(chunk: Chunk) -> Sequence[Delta]:
    """The chunk's deltas; without any, its text as one delta."""
    if chunk.deltas:
        return chunk.deltas
    return (TextDelta(text),) if (text := chunk.text) else ()


def is_success(end: ChoiceFinished) -> bool:
    """Whether the choice ended well. Otherwise an error follows."""
    return end.outcome.reason in (FinishReason.STOP, FinishReason.LENGTH)


@dataclass(slots=True)
class CollectedChoice:
    """One choice, collected from its events."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    prompt: dict[str, Any] = field(default_factory=dict)  # the answer's fields about the prompt
    finished: ChoiceFinished | None = None

    def add(self, delta: Delta) -> None:
        if isinstance(delta, TextDelta):
            self.texts.append(delta.text)
        elif isinstance(delta, ReasoningDelta):
            self.thoughts.append(delta.text)
        elif isinstance(delta, ToolCallEnded):
            self.calls.append(delta.call)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def reasoning(self) -> str:
        return "".join(self.thoughts)

    @property
    def end(self) -> ChoiceFinished:
        assert self.finished is not None
        return self.finished


def token_logprobs(emission: Emission, token_bytes: TokenBytes) -> Iterator[dict[str, Any]]:
    """OpenAI's log-probability entry for each token of a chat."""
    for token, logprobs in zip(emission.tokens, emission.logprobs, strict=False):
        top = [_entry(token_bytes(token_id), logprob) for token_id, logprob in logprobs.top]
        yield {**_entry(token_bytes(token), logprobs.logprob), "top_logprobs": top}


def _entry(data: bytes, logprob: float) -> dict[str, Any]:
    return {"token": data.decode(errors="replace"), "logprob": bound_logprob(logprob), "bytes": list(data)}


def prompt_logprobs(chunk: Chunk, token_bytes: TokenBytes, most: int | None = None) -> list[dict[str, Any] | None]:
    """vLLM's log-probabilities of the prompt. For each token: a dict by token id with the token itself, then the
    likeliest, at most `most` of them. None for the first token."""

    def entry(token: int, logprob: float, rank: int) -> dict[str, Any]:
        text = token_bytes(token).decode(errors="replace")
        return {"logprob": bound_logprob(logprob), "rank": rank, "decoded_token": text}

    entries: list[dict[str, Any] | None] = [None]
    for token, logprobs in zip(chunk.prompt[1:], chunk.emission.prompt or (), strict=True):
        likeliest = {
            str(token_id): entry(token_id, logprob, i) for i, (token_id, logprob) in enumerate(logprobs.top[:most], 1)
        }
        entries.append({str(token): entry(token, logprobs.logprob, logprobs.rank)} | likeliest)
    return entries


def bound_logprob(logprob: float) -> float:
    return max(_LEAST, logprob)


def usage(finished: Sequence[ChoiceFinished]) -> dict[str, Any]:
    """OpenAI's usage of the choices of one prompt. Drafted tokens do not appear in it: `accepted_prediction_tokens`
    means something else."""
    stats = finished[0].outcome.stats
    output = sum(one.outcome.stats.counts.emitted for one in finished)
    return {
        "prompt_tokens": stats.prompt_tokens,
        "completion_tokens": output,
        "total_tokens": stats.prompt_tokens + output,
        "prompt_tokens_details": {"cached_tokens": stats.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": sum(one.reasoning_tokens for one in finished)},
    }


def sum_usages(usages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Adds up the usages of several prompts."""
    total = dict(usages[0])
    for usage in usages[1:]:
        for key, value in usage.items():
            total[key] = sum_usages([total[key], value]) if isinstance(value, dict) else total[key] + value
    return total


def metrics(finished: Sequence[ChoiceFinished]) -> dict[str, Any]:
    """The figures of an answer in vLLM's shape (`include_metrics`): the times if there is one choice, and the counts of
    drafts. The fields `…_per_position` and `draftd` are draftd's own."""
    counts = total(one.outcome.stats.counts for one in finished)
    times = _times(finished[0].outcome.stats) if len(finished) == 1 else {}
    return {**times, "speculative_decoding": _speculative(counts), "draftd": _route_figures(finished)}


def _route_figures(finished: Sequence[ChoiceFinished]) -> dict[str, Any]:
    """Returns the answer's strategy, its cost, and the quality class of the model that wrote it. For several choices:
    the lowest class (draft is the lowest), and the sum of the costs."""
    costs = [one.price.cost for one in finished if one.price.cost is not None]
    classes = [one.price.quality for one in finished if one.price.quality is not None]
    remote = [counts for one in finished if (counts := one.outcome.stats.remote) is not None]
    return {
        "strategy": finished[0].plan.strategy.value,
        "quality": min(classes).label if classes else None,
        "cost": sum(costs) if costs else None,
        "currency": finished[0].price.currency if costs else None,
        "failed_over": next((one.outcome.failed_over for one in finished if one.outcome.failed_over), None),
        "reason": finished[0].plan.reason,
        "generic_tools": finished[0].plan.generic_tools,
        "remote": asdict(reduce(lambda a, b: a.combine(b, add), remote)) if remote else None,
    }


def _times(stats: RequestStats) -> dict[str, Any]:
    def milliseconds(seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds * 1e3, 3)

    generating = None
    if stats.first_token is not None and stats.last_token is not None:
        generating = stats.last_token - stats.first_token
    return {
        "time_to_first_token_ms": milliseconds(stats.time_to_first_token),
        "generation_time_ms": milliseconds(generating),
        "queue_time_ms": milliseconds(stats.queue_seconds),
        "mean_itl_ms": milliseconds(stats.time_per_output_token),
        "tokens_per_second": stats.decode_tokens_per_second,
    }


def _speculative(counts: DraftCounts) -> dict[str, Any] | None:
    """vLLM's counts of drafting, or None if nothing was drafted. `acceptance_histogram[j]`: drafting steps with exactly
    j accepted tokens."""
    if not counts.drafts:
        return None
    # at_least[j]: steps that accepted at least j tokens.
    at_least = [counts.drafts, *counts.accepted_per_position, 0]
    return {
        "mean_acceptance_length": counts.mean_accepted_length,
        "draft_acceptance_rate": counts.acceptance,
        "acceptance_histogram": [more - fewer for more, fewer in pairwise(at_least)],
        "num_spec_steps": counts.drafts,
        "num_accepted_draft_tokens": counts.accepted,
        "num_draft_tokens": counts.drafted,
        "num_spec_tokens": len(counts.drafted_per_position),
        "accepted_per_position": counts.accepted_per_position,
        "drafted_per_position": counts.drafted_per_position,
    }
