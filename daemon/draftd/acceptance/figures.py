"""The figures of one request, from its tick. Seconds; None, or nothing, where there is nothing to measure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from draftd.acceptance.ticks import Tick
from draftd.core import FinishReason


def usable(tick: Tick) -> bool:
    """Whether it counts: answered to its end, and not to warm up."""
    ended = tick.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    return ended and not tick.error and not tick.place.warm_up


def time_to_first_token(tick: Tick) -> float | None:
    """From asking to the first chunk with a token, as it arrives."""
    return tick.chunks[0].at if tick.chunks else None


def queue(tick: Tick) -> float | None:
    """In the daemon, from its arrival until it was scheduled."""
    return tick.served.queue if tick.served is not None else None


def prefill(tick: Tick) -> float | None:
    """In the daemon, from when it was scheduled until the prompt was in the cache."""
    return tick.served.prefill if tick.served is not None else None


def network(tick: Tick) -> float | None:
    """What the way there and back adds to the time to the first token, over the daemon's own."""
    here, there = time_to_first_token(tick), tick.served.time_to_first_token if tick.served is not None else None
    return here - there if here is not None and there is not None else None


def decode_tokens_per_second(tick: Tick) -> float | None:
    """Tokens after the first chunk, over the time since it; None with a single chunk."""
    if len(tick.chunks) < 2 or tick.chunks[-1].at <= tick.chunks[0].at:
        return None
    return sum(chunk.tokens for chunk in tick.chunks[1:]) / (tick.chunks[-1].at - tick.chunks[0].at)


def inter_token(tick: Tick) -> tuple[float, ...]:
    """For each token after the first chunk: a chunk of n tokens, g seconds after the one before, is n times g/n.

    SGLang's serving benchmark does so; without it several tokens that come together would be one slow token."""
    return tuple(gap / tokens for gap, tokens in _gaps(tick) for _ in range(tokens))


def inter_chunk(tick: Tick) -> tuple[float, ...]:
    """Between successive chunks: what one who reads along sees."""
    return tuple(gap for gap, _ in _gaps(tick))


def _gaps(tick: Tick) -> Iterator[tuple[float, int]]:
    return ((later.at - earlier.at, later.tokens) for earlier, later in pairwise(tick.chunks))


def time_per_output_token(tick: Tick) -> float | None:
    """(duration - TTFT) / (output tokens - 1), as the GenAI conventions define it; None below two tokens."""
    first = time_to_first_token(tick)
    return (tick.ended - first) / (tick.output_tokens - 1) if first is not None and tick.output_tokens > 1 else None


def output_tokens_per_second(tick: Tick) -> float | None:
    """All tokens over the whole time, the wait for the first included."""
    return tick.output_tokens / tick.ended if tick.output_tokens and tick.ended > 0 else None


def acceptance(tick: Tick) -> float | None:
    """accepted / drafted. Falls as blocks grow at constant quality."""
    return tick.counts.acceptance


def acceptance_at(tick: Tick, position: int) -> float | None:
    """Of the tokens drafted at this position of a block, from 0, the share that was accepted."""
    drafted, accepted = tick.counts.drafted_per_position, tick.counts.accepted_per_position
    if position >= len(drafted) or not drafted[position]:
        return None
    return (accepted[position] if position < len(accepted) else 0) / drafted[position]


def mean_accepted_length(tick: Tick) -> float | None:
    """Tokens that a draft yields: those accepted and the target's own."""
    return tick.counts.mean_accepted_length
