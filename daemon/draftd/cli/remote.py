"""Two daemons in words: the link to the one that verifies for this one, and the edges that this one verifies for."""

from __future__ import annotations

from rich.text import Text

from draftd.cli import figures
from draftd.cli.figures import NOTHING, milliseconds, percent, size
from draftd.protocol import enum_name
from draftd.strategies import RemoteLevel
from draftd.v1 import control_pb2 as pb
from draftd.v1 import inference_pb2 as inference

GOOD, WARN, BAD, DIM = "green", "yellow", "bold red", "dim"
_MOST_PEERS = 4  # lines

Row = tuple[str, Text]


def rows(status: pb.GetStatusResponse, lately: str = "") -> list[Row]:
    """Name and value of what there is to say: nothing of a daemon that is alone. An empty name belongs to the one
    above. `lately`: what goes with the share of round trips that were hidden."""
    made: list[Row] = []
    if status.HasField("remote"):
        made += _edge(status, lately)
    if status.HasField("verification"):
        made += _verifier(status.verification)
    return made


def _edge(status: pb.GetStatusResponse, lately: str) -> list[Row]:
    remote, counts = status.remote, status.remote.counts
    state, why = ("up", GOOD) if remote.up else ("down", BAD), f" · {remote.why}" if remote.why else ""
    made = [("remote", Text.assemble(state, f", {remote.target}{_serves(remote)}", (why, DIM)))]
    if remote.level and remote.level != RemoteLevel.SPECULATIVE.label:
        made.append(("", Text(f"the fallback allows {remote.level}", WARN)))
    hidden = percent(_over(counts.hidden_round_trips, counts.verdicts))
    trip = milliseconds(_seconds(remote, "round_trip"))
    made.append(("round trip", Text(f"{trip}{_pays(_seconds(remote, 'break_even'))}, {hidden} hidden{lately}")))
    wasted = _over(counts.wasted_tokens, counts.proposed_tokens)
    traffic = _over(remote.bytes_sent + remote.bytes_received, counts.tokens)
    each = NOTHING if traffic is None else f"{traffic:.0f} B"
    chosen = f"{counts.tokens} tokens in answers that have ended; {percent(wasted)} wasted, {each} a token"
    made.append(("chosen there", Text(chosen)))
    faults = (
        (remote.failed_over, "failed over"),
        (counts.reopened, "resumed"),
        (counts.late_verdicts, "late verdicts"),
        (remote.errors, f"errors{_reasons(remote)}"),
    )
    told = ", ".join(f"{count} {what}" for count, what in faults if count)
    load = percent(remote.load if remote.HasField("load") else None)
    busy = f"{remote.open_sequences} open, {remote.steps_in_flight} in flight, load {load}"
    made.append(("sequences", Text.assemble(busy, (f"; {told}" if told else "", WARN))))
    return made


def _reasons(remote: pb.RemoteStatus) -> str:
    """Why they were, the most frequent reason first."""
    counts = sorted(remote.failures.items(), key=lambda one: (-one[1], one[0]))
    return f" ({', '.join(f'{count} {reason}' for reason, count in counts)})" if counts else ""


def _serves(remote: pb.RemoteStatus) -> str:
    quality = f" ({enum_name(inference.QualityClass.DESCRIPTOR, remote.quality)})" if remote.quality else ""
    verb = "serves" if remote.up else "served"
    return f" {verb} {remote.model}{quality}" if remote.model else ""


def _pays(break_even: float | None) -> str:
    if break_even is None:
        return ""
    return f", drafting pays below {milliseconds(break_even)}" if break_even > 0 else ", drafting does not pay"


def _verifier(found: pb.VerificationStatus) -> list[Row]:
    total = found.total
    made = [("edges", Text(f"{len(found.peers)} connected, {found.open_sequences} open sequences"))]
    if total.verdicts:
        rate = figures.rate(_over(total.tokens, _time(total.target_time)))
        accepted = percent(_over(total.accepted_tokens, total.drafted_tokens))
        stale = percent(_over(total.stale, total.steps))
        told = f"{total.tokens} tokens, {rate} per second of the target, {accepted} accepted, {stale} stale"
        made.append(("verified", Text(told)))
    if total.refused:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(found.refusals.items()))
        made.append(("", Text(f"{total.refused} refused: {reasons}", WARN)))
    for peer in sorted(found.peers, key=lambda one: -_time(one.counts.target_time))[:_MOST_PEERS]:
        c = peer.counts
        moved = size(c.bytes_received + c.bytes_sent)
        address = peer.address.removeprefix("ipv4:")
        told = f"{address}: {c.tokens} tokens, {_time(c.target_time):.1f} s of the target, {moved}"
        made.append(("", Text(told, DIM)))
    if len(found.peers) > _MOST_PEERS:
        made.append(("", Text(f"and {len(found.peers) - _MOST_PEERS} more", DIM)))
    return made


def _seconds(remote: pb.RemoteStatus, field: str) -> float | None:
    return _time(getattr(remote, field)) if remote.HasField(field) else None


def _time(given: object) -> float:
    return float(given.ToTimedelta().total_seconds())  # type: ignore[attr-defined]


def _over(part: float, whole: float) -> float | None:
    return part / whole if whole else None
