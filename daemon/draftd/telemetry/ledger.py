"""The ledger: what the engine's rounds add up to, by label set.

The engine thread writes it, a microsecond or two a round; counters read it when metrics are collected. Nothing is
sampled and nothing is lost: what a collector receives last is the engine's own count.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace

from draftd.core import DecodeRequest, DraftCounts, RoundResult
from draftd.telemetry.labels import Labels, Naming


@dataclass(slots=True)
class Entry:
    """The sums of one label set."""

    labels: Labels
    counts: DraftCounts = field(default_factory=DraftCounts)
    input_tokens: int = 0
    drafter_errors: int = 0
    verifier_errors: int = 0


class Ledger:
    """Sums over rounds. Written on the engine thread, read on the exporter's."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        self._lock = threading.Lock()
        self._entries: dict[tuple[str | None, ...], Entry] = {}
        self._page: tuple[Entry, ...] = ()
        self._readers: set[str] = set()

    def entry(self, request: DecodeRequest) -> Entry:
        """The entry that a request counts under. Its labels are the caller's to read, not to change."""
        plan = request.plan
        key = (plan.mode, plan.drafter, plan.level.name, request.workload, request.tier)
        found = self._entries.get(key)
        if found is None:
            found = Entry(self._naming.labels(plan, request.workload, request.tier))
            with self._lock:
                self._entries[key] = found
        return found

    def add_round(self, entry: Entry, result: RoundResult) -> None:
        with self._lock:
            entry.counts.add(result)

    def add_drafter_error(self, entry: Entry) -> None:
        with self._lock:
            entry.drafter_errors += 1

    def add_verifier_error(self, entry: Entry) -> None:
        with self._lock:
            entry.verifier_errors += 1

    def add_input(self, entry: Entry, tokens: int) -> None:
        with self._lock:
            entry.input_tokens += tokens

    def read(self, reader: str) -> tuple[Entry, ...]:
        """A copy of the sums. All readers of one collection see the same: a page is turned by the first that has
        read it already. So `drafted = accepted + rolled back` holds in every export, not only in the last."""
        with self._lock:
            if reader in self._readers or not self._readers:
                self._page = tuple(_copy(entry) for entry in self._entries.values())
                self._readers.clear()
            self._readers.add(reader)
            return self._page


def _copy(entry: Entry) -> Entry:
    counts = entry.counts
    return replace(
        entry,
        counts=replace(
            counts,
            drafted_per_position=list(counts.drafted_per_position),
            accepted_per_position=list(counts.accepted_per_position),
        ),
    )
