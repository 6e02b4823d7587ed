"""The same prompts both ways, in turn: A B A B, so that whatever else the machine does befalls both."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftd.cli.asking import Answer, Ask, gather, send
from draftd.core import ModePreference

if TYPE_CHECKING:
    from draftd.server.client import DraftdClient


@dataclass(frozen=True, slots=True)
class Pair:
    """One prompt's two answers."""

    name: str
    group: str
    greedy: bool
    autoregressive: Answer
    speculative: Answer

    @property
    def identical(self) -> bool | None:
        """Whether the token ids are the same; None where sampling makes no such promise."""
        return self.autoregressive.tokens == self.speculative.tokens if self.greedy else None

    @property
    def speedup(self) -> float | None:
        slow, fast = self.autoregressive.tokens_per_second, self.speculative.tokens_per_second
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
    autoregressive_inter_token_p95: float | None
    speculative_inter_token_p95: float | None
    acceptance: float | None
    mean_accepted_length: float | None
    identical: int
    comparable: int


def run_pair(client: DraftdClient, ask: Ask, name: str, group: str) -> Pair:
    """Autoregressive, then speculative, which is demanded: where it cannot be had, that is an error."""
    slow = gather(send(client, dataclasses.replace(ask, mode=ModePreference.AUTOREGRESSIVE)))
    fast = gather(send(client, dataclasses.replace(ask, mode=ModePreference.SPECULATIVE)))
    return Pair(name, group, ask.sampling.greedy, slow, fast)


def warm_up(client: DraftdClient, ask: Ask) -> None:
    """The first pass through each path pays for things that later ones do not."""
    run_pair(client, dataclasses.replace(ask, max_tokens=8), "", "")


def summarise(pairs: Sequence[Pair]) -> Summary:
    slow, fast = [p.autoregressive for p in pairs], [p.speculative for p in pairs]
    counts = [answer.finished.counts for answer in fast]
    drafted = sum(c.drafted_tokens for c in counts)
    accepted = sum(c.accepted_tokens for c in counts)
    drafts = sum(c.drafts for c in counts)
    return Summary(
        pairs=len(pairs),
        autoregressive_tokens_per_second=_median(a.tokens_per_second for a in slow),
        speculative_tokens_per_second=_median(a.tokens_per_second for a in fast),
        speedup=_median(p.speedup for p in pairs),
        autoregressive_time_to_first_token=_median(a.time_to_first_token for a in slow),
        speculative_time_to_first_token=_median(a.time_to_first_token for a in fast),
        autoregressive_inter_token_p95=_median(a.inter_token_p95 for a in slow),
        speculative_inter_token_p95=_median(a.inter_token_p95 for a in fast),
        acceptance=accepted / drafted if drafted else None,
        mean_accepted_length=1 + accepted / drafts if drafts else None,
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


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
