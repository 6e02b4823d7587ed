"""`draftd status`, `draftd top` and `draftd level` on two daemons."""

from __future__ import annotations

from datetime import UTC, datetime

from google.protobuf.duration_pb2 import Duration

from draftd.cli import ladder, remote
from draftd.counts import DraftCounts
from draftd.engine.observer import EngineStatus, RemoteStatus
from draftd.engine.remote.verifier_link import LinkState, RemoteModel
from draftd.fallback.ladder import Cause, LadderState, Signal
from draftd.fallback.remote_guard import RemoteState
from draftd.fronts.grpc import reply
from draftd.strategies import LinkFailure, PeerCounts, QualityClass, RemoteCounts, RemoteLevel, VerificationStatus
from draftd.v1 import control_pb2 as pb
from tests.fake_fallback import NOW, fallback_state

MODEL = RemoteModel("large", "f", 4096, 1000, 8, True, quality=QualityClass.PROFESSIONAL)
LINK = LinkState(
    True,
    model=MODEL,
    round_trip=0.0152,
    bytes_sent=9000,
    bytes_received=4000,
    failures={LinkFailure.LATE: 2, LinkFailure.REFUSED: 3},
)
COUNTS = RemoteCounts(steps=50, proposed=200, verdicts=100, tokens=260, wasted=50, hidden=31, reopened=1, failed_over=3)
ENGINE = EngineStatus(DraftCounts(), {}, remote=RemoteStatus(COUNTS, open_sequences=1, in_flight=2, break_even=0.0175))
SIGNAL = Signal(Cause.REMOTE_ROUND_TRIP, RemoteLevel.STREAMING, "round trip 800 ms")
LOWERED = RemoteState(LadderState(1, NOW - 60, SIGNAL), (SIGNAL,), 600.0)


def said(status: pb.GetStatusResponse) -> str:
    return "\n".join(f"{name}: {text.plain}" for name, text in remote.rows(status))


def test_status_has_no_remote_rows_for_a_daemon_without_a_remote() -> None:
    assert remote.rows(pb.GetStatusResponse()) == []


def test_status_of_edge_daemon_shows_link_round_trip_and_remotely_chosen_tokens() -> None:
    response = reply.remote("gpu:50551", LINK, ENGINE, LOWERED)
    assert said(pb.GetStatusResponse(remote=response, output_tokens=400)).splitlines() == [
        "remote: up, gpu:50551 serves large (professional)",
        ": the fallback allows streaming",
        "round trip: 15.2 ms, drafting pays below 17.5 ms, 31% hidden",
        "chosen there: 260 tokens in answers that have ended; 25% wasted, 50 B a token",
        "sequences: 1 open, 2 in flight, load –; 3 failed over, 1 resumed, 5 errors (3 refused, 2 late)",
    ]
    never = reply.remote("gpu:50551", LinkState(why="no route to host"), EngineStatus(DraftCounts(), {}), None)
    assert said(pb.GetStatusResponse(remote=never)).startswith(
        "remote: down, gpu:50551 · no route to host\nround trip: –,"
    )


def test_status_of_verifier_daemon_lists_edges_by_descending_target_time() -> None:
    peers = {f"10.0.0.{i}:1": PeerCounts(tokens=10 * i, target_seconds=float(i)) for i in range(1, 7)}
    total = PeerCounts(
        steps=50, stale=5, verdicts=40, drafted=80, accepted=60, tokens=210, refused=3, target_seconds=21.0
    )
    lines = said(
        pb.GetStatusResponse(
            verification=reply.verification(
                VerificationStatus(peers, total, 9, {"too_many_peers": 1, "unauthenticated": 2, "not_enabled": 0})
            )
        )
    ).splitlines()
    assert lines[:3] == [
        "edges: 6 connected, 9 open sequences",
        "verified: 210 tokens, 10 per second of the target, 75% accepted, 10% stale",
        ": 3 refused: 1 too_many_peers, 2 unauthenticated",
    ]
    assert lines[3] == ": 10.0.0.6:1: 60 tokens, 6.0 s of the target, 0 B"
    assert lines[-1] == ": and 2 more"


def test_level_command_prints_remote_level_on_lines_after_the_local_level() -> None:
    now = datetime.fromtimestamp(NOW, UTC)
    state = reply.fallback(fallback_state(remote=LOWERED))
    assert ladder.fields(state, now) == [
        ("level", "full (the top of the ladder)"),
        ("remote", "streaming (1 of 2 down)"),
        ("", "since 1 min ago: remote_round_trip: round trip 800 ms"),
        ("", "asked remote_round_trip asks for streaming: round trip 800 ms"),
        ("", "next no step up while asked for by remote_round_trip"),
    ]
    well = reply.fallback(fallback_state(remote=RemoteState(LadderState(), (), 600.0)))
    assert ladder.fields(well, now) == [("level", "full (the top of the ladder)")]
    assert ("remote", "speculative (the top of the ladder)") in ladder.fields(well, now, whole=True)
    state.remote.demands.pop()
    assert ladder.fields(state, now)[-1] == (
        "",
        "next up in 9 min, once the link is up, its round trip short, and no error came",
    )
    assert state.remote.wait == Duration(seconds=600)
