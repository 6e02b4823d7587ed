"""Computes a run's figures from its ticks: by arm, and of one arm against another, each with its interval."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from types import MappingProxyType

from draftd.client import timing
from draftd.counts import DraftCounts, total
from draftd_acceptance import ticks as figures
from draftd_acceptance.statistics import Interval, Statistic, bootstrap, ratio
from draftd_acceptance.ticks import MachineSample, Tick

_PromptKey = tuple[str, str]  # Place.key


@dataclass(frozen=True, slots=True)
class MetricDef:
    """A figure of one request, and the statistic that stands for many."""

    unit: str  # s, tokens/s, tokens, or 1 for a share
    description: str
    figure: Callable[[Tick], float | Sequence[float] | None]
    statistic: Statistic = 0.5

    def values(self, tick: Tick) -> Sequence[float]:
        figures = self.figure(tick)
        return figures if isinstance(figures, Sequence) else () if figures is None else (figures,)


_SHARED = "% of tokens take no longer; the tokens of one chunk share its time."
_GAPS = "% of gaps between chunks are no longer."
METRICS: Mapping[str, MetricDef] = MappingProxyType(
    {
        "decode_tokens_per_second": MetricDef(
            "tokens/s",
            "The tokens after the first chunk, divided by the time since that chunk.",
            timing.decode_tokens_per_second,
        ),
        "output_tokens_per_second": MetricDef(
            "tokens/s",
            "All tokens of an answer, divided by the time of the whole answer.",
            figures.output_tokens_per_second,
        ),
        "time_to_first_token": MetricDef("s", "The time from asking to the first token.", timing.time_to_first_token),
        "queue": MetricDef(
            "s",
            "The time in the daemon from arrival until the request is scheduled.",
            lambda tick: tick.served.queue if tick.served else None,
        ),
        "prefill": MetricDef(
            "s",
            "The time in the daemon until the whole prompt is in the cache.",
            lambda tick: tick.served.prefill if tick.served else None,
        ),
        "network": MetricDef("s", "The time that the network adds to the first token, both ways.", figures.network),
        "time_per_output_token": MetricDef(
            "s", "The time after the first token, divided by the tokens after it.", figures.time_per_output_token
        ),
        **{f"inter_token_p{q}": MetricDef("s", f"{q} {_SHARED}", timing.inter_token, q / 100) for q in (50, 95, 99)},
        **{f"inter_chunk_p{q}": MetricDef("s", f"{q} {_GAPS}", timing.inter_chunk, q / 100) for q in (50, 95, 99)},
        "end_to_end": MetricDef("s", "The time from asking to the end of the answer.", lambda tick: tick.ended),
        "acceptance": MetricDef(
            "1", "The share of drafted tokens that the target accepts, by request.", lambda tick: tick.counts.acceptance
        ),
        "acceptance_at_position_0": MetricDef(
            "1",
            "The share of first tokens of a block that the target accepts; it can be compared between block lengths.",
            lambda tick: next(iter(per_position(tick.counts)), None),
        ),
        "mean_accepted_length": MetricDef(
            "tokens",
            "The tokens that a draft yields; the target's own token is one of them.",
            lambda tick: tick.counts.mean_accepted_length,
        ),
    }
)


def select(ticks: Iterable[Tick], *, arm: str | None = None, group: str | None = None) -> list[Tick]:
    """Returns the usable ticks (of complete answers, no warm-up), only those of `arm` and `group` if given."""
    return [
        tick
        for tick in ticks
        if figures.usable(tick)
        and (arm is None or tick.place.arm == arm)
        and (group is None or tick.place.group == group)
    ]


def measure(ticks: Iterable[Tick], metric: str) -> Interval | None:
    """Returns a metric over the usable ticks, clustered by prompt. `samples` are requests. None if nothing was
    measured."""
    by_prompt = _by_prompt(ticks, METRICS[metric])
    interval = bootstrap(
        [list(chain(*values_of_prompt)) for values_of_prompt in by_prompt.values()], METRICS[metric].statistic
    )
    return None if interval is None else replace(interval, samples=sum(map(len, by_prompt.values())))


def against(
    ticks: Iterable[Tick], arm: str, base: str, metric: str, others: Iterable[Tick] | None = None
) -> Interval | None:
    """Returns the ratio of `arm` to `base` on the prompts that both answered. `base` is in the same run, or in
    `others`, another run's ticks. `samples` are requests, of the smaller side."""
    definition, ticks = METRICS[metric], list(ticks)
    ours = _by_prompt(select(ticks, arm=arm), definition)
    theirs = _by_prompt(select(ticks if others is None else others, arm=base), definition)
    above, below = ({key: list(chain(*one)) for key, one in side.items()} for side in (ours, theirs))
    interval = ratio(above, below, definition.statistic)
    if interval is None:
        return None
    shared = ours.keys() & theirs.keys()
    return replace(interval, samples=min(sum(len(side[key]) for key in shared) for side in (ours, theirs)))


def total_counts(ticks: Iterable[Tick]) -> DraftCounts:
    """Returns the sums of the counts of all usable ticks."""
    return total(tick.counts for tick in select(ticks))


def per_position(counts: DraftCounts) -> tuple[float | None, ...]:
    """Returns the accepted share of the tokens drafted at each position of a block."""
    pairs = zip_longest(counts.accepted_per_position, counts.drafted_per_position, fillvalue=0)
    return tuple(accepted / drafted if drafted else None for accepted, drafted in pairs)


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """A run's figures of one arm. `figures` has every metric by name, None if nothing was measured. Peaks are bytes,
    over samples taken while the arm ran; watts and joules cover all measured power."""

    arm: str
    requests: int
    errors: int
    output_tokens: int
    figures: Mapping[str, Interval | None]
    acceptance_per_position: tuple[float | None, ...]
    target_forwards_per_token: float | None
    draft_forwards_per_token: float | None
    peak_resident: int | None
    peak_mlx: int | None  # in use by models and caches, without what MLX keeps for reuse
    watts: float | None
    joules_per_token: float | None
    total_tokens_per_second: Interval | None


def summarise(
    ticks: Iterable[Tick], samples: Iterable[MachineSample], arm: str, metrics: Iterable[str] = METRICS
) -> ArmSummary:
    """Returns an arm's summary. `samples` are from the ticks' stage; `metrics` are the names to compute."""
    mine = [tick for tick in ticks if tick.place.arm == arm and not tick.place.warm_up]
    usable = select(mine)
    counts = total_counts(usable)
    beside = [sample for sample in samples if sample.arm == arm]
    tokens = sum(tick.output_tokens for tick in usable)
    power = [sample.watts for sample in beside if sample.watts is not None]
    watts = sum(power) / len(power) if power else None
    return ArmSummary(
        arm=arm,
        requests=len(usable),
        errors=sum(bool(tick.error) for tick in mine),
        output_tokens=tokens,
        figures={name: measure(usable, name) for name in metrics},
        acceptance_per_position=per_position(counts),
        target_forwards_per_token=counts.target_forwards / tokens if tokens else None,
        draft_forwards_per_token=counts.draft_forwards / tokens if tokens else None,
        peak_resident=max((s.resident for s in beside if s.resident is not None), default=None),
        peak_mlx=max((s.mlx_active for s in beside if s.mlx_active is not None), default=None),
        watts=watts,
        joules_per_token=watts * sum(map(_wall, _together(usable))) / tokens if watts is not None and tokens else None,
        total_tokens_per_second=total_throughput(mine, arm),
    )


def total_throughput(ticks: Iterable[Tick], arm: str) -> Interval | None:
    """Returns the tokens a second of concurrent requests, together: all their tokens over the time from the first
    request to the last end. A group with a request that does not count is left out. `samples` are groups."""
    clusters: dict[tuple[_PromptKey, ...], list[float]] = {}
    for together in _together(tick for tick in ticks if tick.place.arm == arm and not tick.place.warm_up):
        wall = _wall(together)
        if wall > 0 and all(figures.usable(tick) for tick in together):
            key = tuple(sorted(tick.place.key for tick in together))
            clusters.setdefault(key, []).append(sum(tick.output_tokens for tick in together) / wall)
    return bootstrap(list(clusters.values()))


def _by_prompt(ticks: Iterable[Tick], metric: MetricDef) -> dict[_PromptKey, list[Sequence[float]]]:
    """Returns each request's values by prompt, without requests that have none."""
    by_prompt: dict[_PromptKey, list[Sequence[float]]] = {}
    for tick in select(ticks):
        if values := metric.values(tick):
            by_prompt.setdefault(tick.place.key, []).append(values)
    return by_prompt


def _together(ticks: Iterable[Tick]) -> Iterable[list[Tick]]:
    """Yields groups of requests that overlapped in time."""
    together: list[Tick] = []
    until = 0, 0.0  # the session, and the last end of the running requests
    for tick in sorted(ticks, key=lambda tick: (tick.place.session, tick.elapsed)):
        if together and (tick.place.session, tick.elapsed) >= until:
            yield together
            together = []
        until = max(until, (tick.place.session, tick.elapsed + tick.ended))
        together.append(tick)
    if together:
        yield together


def _wall(together: Sequence[Tick]) -> float:
    """Returns the seconds from the first request to the last end."""
    return max(tick.elapsed + tick.ended for tick in together) - min(tick.elapsed for tick in together)
