"""The same prompts both ways, in turn: A B A B, so that whatever else the machine does befalls both.

A quick look, of the acceptance harness's own captures and figures; `draftd sweep` is the thorough one.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftd.acceptance import figures
from draftd.acceptance.arms import AUTOREGRESSIVE
from draftd.acceptance.ticks import Place, Stage, Tick
from draftd.client.asking import Answer, Ask
from draftd.core import ModePreference

if TYPE_CHECKING:
    from draftd.client.client import DraftdClient

_ANSWER_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt, answered both ways. `answer` is the speculative one, for people."""

    name: str
    group: str
    greedy: bool
    autoregressive: Tick
    speculative: Tick
    answer: Answer

    @property
    def identical(self) -> bool | None:
        """Whether the token ids are the same; None where sampling makes no such promise."""
        return self.autoregressive.digest == self.speculative.digest if self.greedy else None

    @property
    def speedup(self) -> float | None:
        slow, fast = map(figures.decode_tokens_per_second, (self.autoregressive, self.speculative))
        return fast / slow if slow and fast else None


@dataclass(frozen=True, slots=True)
class Summary:
    """Several pairs as one line. Rates and times are medians, acceptance is over all tokens."""

    pairs: int
    autoregressive_tokens_per_second: float | None
    speculative_tokens_per_second: float | None
    speedup: float | None
    autoregressive_time_to_first_token: float | None
    speculative_time_to_first_token: float | None
    autoregressive_inter_chunk_p95: float | None
    speculative_inter_chunk_p95: float | None
    acceptance: float | None
    mean_accepted_length: float | None
    identical: int
    comparable: int


def run_pair(client: DraftdClient, ask: Ask, name: str, group: str) -> Pair:
    """Autoregressive, then speculative, which is demanded: where it cannot be had, CallError is raised."""
    from draftd.acceptance.capture import Capture, capture

    def taken(mode: ModePreference) -> Capture:
        found = capture(client, dataclasses.replace(ask, mode=mode), timeout=_ANSWER_SECONDS)
        if found.failure is not None:
            raise found.failure
        return found

    began = time.perf_counter()
    slow, fast = taken(ModePreference.AUTOREGRESSIVE), taken(ModePreference.SPECULATIVE)
    answer = fast.answer()
    arms = AUTOREGRESSIVE.id, f"k{answer.started.plan.max_draft_tokens}"
    places = [Place(Stage.SWEEP, 0, arm, 0, name, group, ask.workload) for arm in arms]
    return Pair(name, group, ask.sampling.greedy, slow.tick(places[0], began), fast.tick(places[1], began), answer)


def warm_up(client: DraftdClient, ask: Ask) -> None:
    """The first pass through each path pays for things that later ones do not."""
    run_pair(client, dataclasses.replace(ask, max_tokens=8), "", "")


def summarise(pairs: Sequence[Pair]) -> Summary:
    from draftd.acceptance.summary import counted

    slow, fast = [p.autoregressive for p in pairs], [p.speculative for p in pairs]
    counts = counted(fast)
    return Summary(
        pairs=len(pairs),
        autoregressive_tokens_per_second=_median(map(figures.decode_tokens_per_second, slow)),
        speculative_tokens_per_second=_median(map(figures.decode_tokens_per_second, fast)),
        speedup=_median(p.speedup for p in pairs),
        autoregressive_time_to_first_token=_median(map(figures.time_to_first_token, slow)),
        speculative_time_to_first_token=_median(map(figures.time_to_first_token, fast)),
        autoregressive_inter_chunk_p95=_median(map(_inter_chunk_p95, slow)),
        speculative_inter_chunk_p95=_median(map(_inter_chunk_p95, fast)),
        acceptance=counts.acceptance,
        mean_accepted_length=counts.mean_accepted_length,
        identical=sum(p.identical is True for p in pairs),
        comparable=sum(p.identical is not None for p in pairs),
    )


def rounded(summary: Summary) -> dict[str, object]:
    """For JSON: four significant digits are more than such figures hold."""
    return {
        key: float(f"{value:.4g}") if isinstance(value, float) else value
        for key, value in dataclasses.asdict(summary).items()
    }


def by_group(pairs: Iterable[Pair]) -> dict[str, list[Pair]]:
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.group, []).append(pair)
    return groups


def _inter_chunk_p95(tick: Tick) -> float | None:
    from draftd.acceptance.statistics import quantile

    return quantile(figures.inter_chunk(tick), 0.95)


def _median(values: Iterable[float | None]) -> float | None:
    from draftd.acceptance.statistics import quantile

    return quantile([value for value in values if value is not None], 0.5)
