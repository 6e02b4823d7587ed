"""A soak, window by window: what an average over ten minutes would hide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from draftd.acceptance.samples import Sample
from draftd.acceptance.statistics import quantile
from draftd.acceptance.ticks import Tick
from draftd.core import DraftCounts

WINDOW_SECONDS = 60.0
FEWEST_DRAFTS = 50


@dataclass(frozen=True, slots=True)
class Part:
    """One session's share of a soak, from `began` to `ended` on the session's clock; ticks and samples in time."""

    session: int
    began: float
    ended: float
    ticks: tuple[Tick, ...]
    samples: tuple[Sample, ...]

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass(frozen=True, slots=True)
class Window:
    """`start` is in seconds of soaking, what came between two sessions left out. A request's drafts count where it
    ended, its tokens where they came. None where there is nothing to measure."""

    session: int
    start: float
    seconds: float
    requests: int
    errors: int
    drafts: int
    acceptance: float | None  # accepted / drafted
    alpha: float | None  # accepted / (accepted + rollbacks): the same at every block length
    tokens_per_second: float | None
    inter_token_p50: float | None
    inter_token_p95: float | None

    @property
    def enough(self) -> bool:
        """Whether its acceptance rests on drafts enough."""
        return self.drafts >= FEWEST_DRAFTS


def windows(parts: Sequence[Part], seconds: float) -> tuple[Window, ...]:
    """In order. A session's last one, where it is shorter than half, belongs to the one before."""
    made: list[Window] = []
    before = 0.0
    for part in parts:
        edges = _edges(part, seconds)
        for earlier, later in pairwise(edges):
            made.append(_window(part, earlier, later, before + earlier - part.began, later == edges[-1]))
        before += part.seconds
    return tuple(made)


def _edges(part: Part, seconds: float) -> list[float]:
    whole = max(1, int(part.seconds / seconds + 0.5))
    return [*(part.began + number * seconds for number in range(whole)), part.ended]


def _window(part: Part, earlier: float, later: float, start: float, last: bool) -> Window:
    def within(at: float) -> bool:
        return earlier <= at < later or (last and at == later)

    ended = [tick for tick in part.ticks if within(tick.elapsed + tick.ended)]
    counts = DraftCounts()
    for tick in ended:
        counts.drafts += tick.counts.drafts
        counts.drafted += tick.counts.drafted
        counts.accepted += tick.counts.accepted
        counts.rollbacks += tick.counts.rollbacks
    judged = counts.accepted + counts.rollbacks
    came = [(tokens, gap) for tick in part.ticks for at, tokens, gap in _arrivals(tick) if within(tick.elapsed + at)]
    gaps = [gap / tokens for tokens, gap in came if gap is not None for _ in range(tokens)]
    return Window(
        session=part.session,
        start=start,
        seconds=later - earlier,
        requests=len(ended),
        errors=sum(bool(tick.error) for tick in ended),
        drafts=counts.drafts,
        acceptance=counts.acceptance,
        alpha=counts.accepted / judged if judged else None,
        tokens_per_second=sum(tokens for tokens, _ in came) / (later - earlier) if later > earlier else None,
        inter_token_p50=quantile(gaps, 0.5),
        inter_token_p95=quantile(gaps, 0.95),
    )


def _arrivals(tick: Tick) -> Iterator[tuple[float, int, float | None]]:
    """When a chunk came, its tokens, and how long after the one before."""
    earlier: float | None = None
    for chunk in tick.chunks:
        yield chunk.at, chunk.tokens, None if earlier is None else chunk.at - earlier
        earlier = chunk.at
