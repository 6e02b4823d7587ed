"""What a restart must not lose, as a JSON document: the ladder, the leases, the baselines, the canaries' word.

Times are the ladder's clock, which is the wall clock at start and what has passed since. A rung is saved as what it
allows, since a restart may come with another ladder. A document that cannot be read leads lower, never higher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from draftd.core import FallbackLevel, drafter_cost_rank
from draftd.fallback import baselines as written
from draftd.fallback.drift import Baseline
from draftd.fallback.fields import Fields, wrong
from draftd.fallback.ladder import Hold, Ladder, Rung, lowest
from draftd.fallback.leases import Lease, Leases, Notice
from draftd.fallback.signals import Kind

VERSION = 1
_LATEST = 253_402_300_799.0  # the year 9999, the last one that has a date
_RELAPSES = 1_000_000


@dataclass(frozen=True, slots=True)
class Saved:
    """`at` is when it was saved. `quality` as Guard has it."""

    at: float
    ladder: Ladder = field(default_factory=Ladder)
    leases: Leases = field(default_factory=Leases)
    baselines: Mapping[Kind, Baseline] = field(default_factory=dict)
    quality: str = ""

    def resumed(self, now: float) -> Saved:
        """As of `now`, after a restart. Where the clock has gone back no time has passed: everything moves with it."""
        back = self.at - now
        if back <= 0:
            return self
        state = self.ladder
        hold = state.hold
        if hold is not None and hold.until is not None:
            hold = replace(hold, until=hold.until - back)
        climbed = None if state.climbed is None else state.climbed - back
        forgave = None if state.forgave is None else state.forgave - back
        ladder = replace(state, since=state.since - back, climbed=climbed, forgave=forgave, hold=hold)
        held = {name: replace(lease, until=lease.until - back) for name, lease in self.leases.held.items()}
        return replace(self, at=now, ladder=ladder, leases=replace(self.leases, held=held))


def document(saved: Saved, ladder: Sequence[Rung]) -> dict[str, object]:
    """What json.dumps takes, and `parse` reads."""
    state, hold = saved.ladder, saved.ladder.hold
    return {
        "version": VERSION,
        "at": saved.at,
        "ladder": {
            "rung": _rung(ladder[state.rung]),
            "since": state.since,
            "cause": state.cause,
            "relapses": state.relapses,
            "climbed": state.climbed,
            "forgave": state.forgave,
            "hold": None if hold is None else {"rung": _rung(ladder[hold.rung]), "until": hold.until},
        },
        "leases": {name: _lease(lease) for name, lease in saved.leases.held.items()},
        "ended": {name: {"starts_at": began} for name, began in saved.leases.ended.items()},
        "baselines": written.entries(saved.baselines),
        "quality": saved.quality,
    }


def parse(document: object, ladder: Sequence[Rung]) -> Saved:
    """What was saved, for this ladder: a rung that it lacks is the nearest lower one. Raises ValueError, which names
    the field, its value and what is allowed."""
    fields = Fields(document)
    if fields.raw("version") != VERSION:
        raise wrong("version", fields.raw("version"), str(VERSION))
    entry = fields.fields("ladder")
    hold = entry.optional("hold")
    state = Ladder(
        _found(entry.fields("rung"), ladder),
        entry.number("since"),
        entry.text("cause"),
        entry.count("relapses", _RELAPSES),
        entry.optional_number("climbed"),
        None if hold is None else Hold(_found(hold.fields("rung"), ladder), hold.optional_number("until")),
        entry.optional_number("forgave"),
    )
    held = {name: _parsed_lease(name, lease) for name, lease in fields.items("leases")}
    ended = {name: end.number("starts_at", 0, _LATEST) for name, end in fields.items("ended")}
    return Saved(fields.number("at"), state, Leases(held, ended), written.section(fields), fields.text("quality"))


def safer(document: object, ladder: Sequence[Rung], now: float) -> Saved:
    """What to begin with where `parse` raises: the rung, if that can be read; else the last one of SHORT_BLOCK."""
    cause = "its saved state could not be read"
    try:
        rung = _found(Fields(document).fields("ladder").fields("rung"), ladder)
    except ValueError:
        rung = lowest(ladder, FallbackLevel.SHORT_BLOCK)
    return Saved(now, Ladder(rung, since=now, cause=cause))


def _rung(rung: Rung) -> dict[str, object]:
    return {"level": rung.level.label, "max_draft_tokens": rung.max_draft_tokens, "drafter": rung.drafter}


def _found(entry: Fields, ladder: Sequence[Rung]) -> int:
    """The same rung; else the highest of its level that allows no more; else the first one of a lower level. The top
    stays the top, whatever it allows now."""
    drafter = None if entry.raw("drafter") is None else entry.text("drafter")
    was = Rung(entry.level("level"), entry.count("max_draft_tokens", 10_000), drafter)
    if was.level is FallbackLevel.FULL:
        return 0
    if was in ladder:
        return ladder.index(was)
    return next((i for i, rung in enumerate(ladder) if _no_more(rung, was)), len(ladder) - 1)


def _no_more(rung: Rung, was: Rung) -> bool:
    if rung.level is not was.level:
        return rung.level < was.level
    if rung.drafter is not None and was.drafter is not None and rung.level is FallbackLevel.LIGHT_DRAFT:
        return drafter_cost_rank(rung.drafter) >= drafter_cost_rank(was.drafter)
    return rung.max_draft_tokens <= was.max_draft_tokens


def _lease(lease: Lease) -> dict[str, object]:
    notice = lease.notice
    return {
        "alert": notice.name,
        "starts_at": notice.starts_at,
        "level": notice.level.label,
        "hard": notice.hard,
        "until": lease.until,
        "polled": lease.polled,
    }


def _parsed_lease(fingerprint: str, entry: Fields) -> Lease:
    notice = Notice(
        entry.text("alert"),
        fingerprint,
        True,
        entry.number("starts_at", 0, _LATEST),
        entry.level("level"),
        entry.truth("hard"),
    )
    return Lease(notice, entry.number("until"), entry.truth("polled"))
