"""Remote decoding in words: the link to this daemon's verifier, and the edges that this daemon verifies for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from draftd.cli import figures
from draftd.cli.figures import NOTHING, milliseconds, percent, ratio, size
from draftd.cli.output import BAD, DIM, GOOD, WARN, Row
from draftd.protocol import plain
from draftd.strategies import RemoteLevel
from draftd.v1 import control_pb2 as pb

Message = Mapping[str, Any]  # as `plain` has it

_MOST_PEERS = 4  # lines


def rows(status: pb.GetStatusResponse, lately: str = "") -> list[Row]:
    """Returns names and values; none for a daemon without remote and edges. An empty name continues the line above.
    `lately`: text to append to the share of round trips that were hidden (not waited for)."""
    lines: list[Row] = []
    if status.HasField("remote"):
        lines += _edge(plain(status.remote), plain(status.remote.counts), lately)
    if status.HasField("verification"):
        lines += _verifier(status.verification)
    return lines


def _edge(remote: Message, counts: Message, lately: str) -> list[Row]:
    state, why = ("up", GOOD) if remote["up"] else ("down", BAD), f" · {remote['why']}" if remote["why"] else ""
    lines = [("remote", Text.assemble(state, f", {remote['target']}{_serves(remote)}", (why, DIM)))]
    if remote["level"] and remote["level"] != RemoteLevel.SPECULATIVE.label:
        lines.append(("", Text(f"the fallback allows {remote['level']}", WARN)))
    hidden = percent(ratio(counts["hidden_round_trips"], counts["verdicts"]))
    trip = milliseconds(remote["round_trip"])
    lines.append(("round trip", Text(f"{trip}{_pays(remote['break_even'])}, {hidden} hidden{lately}")))
    wasted = ratio(counts["wasted_tokens"], counts["proposed_tokens"])
    traffic = ratio(remote["bytes_sent"] + remote["bytes_received"], counts["tokens"])
    each = NOTHING if traffic is None else f"{traffic:.0f} B"
    chosen = f"{counts['tokens']} tokens in answers that have ended; {percent(wasted)} wasted, {each} a token"
    lines.append(("chosen there", Text(chosen)))
    faults = (
        (remote["failed_over"], "failed over"),
        (counts["reopened"], "resumed"),
        (counts["late_verdicts"], "late verdicts"),
        (remote["errors"], f"errors{_reasons(remote['failures'])}"),
    )
    faults_text = ", ".join(f"{count} {what}" for count, what in faults if count)
    busy = f"{remote['open_sequences']} open, {remote['steps_in_flight']} in flight, load {percent(remote['load'])}"
    lines.append(("sequences", Text.assemble(busy, (f"; {faults_text}" if faults_text else "", WARN))))
    return lines


def _reasons(failures: Mapping[str, int]) -> str:
    """Returns the failures' counts by reason, the most frequent first."""
    counts = sorted(failures.items(), key=lambda one: (-one[1], one[0]))
    return f" ({', '.join(f'{count} {reason}' for reason, count in counts)})" if counts else ""


def _serves(remote: Message) -> str:
    quality = f" ({remote['quality']})" if remote["quality"] != "unspecified" else ""
    verb = "serves" if remote["up"] else "served"
    return f" {verb} {remote['model']}{quality}" if remote["model"] else ""


def _pays(break_even: float | None) -> str:
    if break_even is None:
        return ""
    return f", drafting pays below {milliseconds(break_even)}" if break_even > 0 else ", drafting does not pay"


def _verifier(verification: pb.VerificationStatus) -> list[Row]:
    peers, total = verification.peers, plain(verification.total)
    lines = [("edges", Text(f"{len(peers)} connected, {verification.open_sequences} open sequences"))]
    if total["verdicts"]:
        rate = figures.rate(ratio(total["tokens"], total["target_time"] or 0.0))
        accepted = percent(ratio(total["accepted_tokens"], total["drafted_tokens"]))
        stale = percent(ratio(total["stale"], total["steps"]))
        text = f"{total['tokens']} tokens, {rate} per second of the target, {accepted} accepted, {stale} stale"
        lines.append(("verified", Text(text)))
    if total["refused"]:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(verification.refusals.items()))
        lines.append(("", Text(f"{total['refused']} refused: {reasons}", WARN)))
    for peer in sorted(peers, key=lambda one: -one.counts.target_time.ToNanoseconds())[:_MOST_PEERS]:
        counts = peer.counts
        moved = size(counts.bytes_received + counts.bytes_sent)
        seconds = counts.target_time.ToNanoseconds() / 1e9
        text = f"{peer.address.removeprefix('ipv4:')}: {counts.tokens} tokens, {seconds:.1f} s of the target, {moved}"
        lines.append(("", Text(text, DIM)))
    if len(peers) > _MOST_PEERS:
        lines.append(("", Text(f"and {len(peers) - _MOST_PEERS} more", DIM)))
    return lines
