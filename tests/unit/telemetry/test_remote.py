"""One trace over two daemons, and the cost of a request to the remote."""

from __future__ import annotations

import os
from collections.abc import Callable
from unittest import mock

import pytest

from draftd.core import ContextTier
from draftd.engine.remote.verifier_link import LinkState
from draftd.settings import TelemetrySettings
from draftd.strategies import LinkFailure, PeerCounts
from draftd.telemetry import catalog_remote
from draftd.telemetry.setup import Sources, Telemetry
from tests.otlp import OtlpReceiver
from tests.unit.telemetry.scene import INFO, PEER, VERIFIED, Scene, across


def test_verify_span_is_a_child_of_the_edge_daemons_request_span(
    open_scene: Callable[..., Scene], receiver: OtlpReceiver
) -> None:
    edge, verifier = open_scene(receiver.environ()), open_scene(receiver.environ())
    request = edge.telemetry.begin_inference(edge.start())
    request.set_plan(VERIFIED, ContextTier.SHORT)
    assert request.trace
    verifier.telemetry.begin_verification(request.trace, 5).end(PEER, "closed")
    verifier.telemetry.begin_verification("00-nonsense", 5).end(PeerCounts(), "error", "the engine failed")
    edge.telemetry.shutdown(30.0)
    verifier.telemetry.shutdown(30.0)

    child, stray = sorted(receiver.spans("verify"), key=lambda span: str(span.attributes["draftd.verify.end"]))
    assert request.trace.startswith(f"00-{child.trace_id}-{child.parent_id}-")
    assert (child.kind, child.status) == ("SERVER", "UNSET")
    verify_counts = {
        key: child.attributes[f"draftd.verify.{key}"] for key in ("tokens", "accepted_tokens", "stale_steps")
    }
    assert verify_counts == {"tokens": PEER.tokens, "accepted_tokens": PEER.accepted, "stale_steps": PEER.stale}
    assert (stray.status, stray.parent_id) == ("ERROR", ""), "what is malformed begins a trace of its own"


def test_remote_request_span_records_cost_quality_and_round_trip_time(scene: Scene, receiver: OtlpReceiver) -> None:
    across(scene)
    scene.telemetry.shutdown(30.0)
    (remote,) = receiver.spans("remote")
    (request,) = receiver.spans("chat nano")
    assert remote.parent_id == request.span_id
    assert set(remote.attributes) == {attribute.name for attribute in catalog_remote.ON_SPAN}
    wanted = {
        "draftd.strategy": "speculative",
        "draftd.quality": "standard",
        "draftd.cost": 0.25,
        "draftd.currency": "$",
        "draftd.failed_over": "the remote does not answer",
        "draftd.remote.wasted_tokens": 6,
        "draftd.remote.round_trip.time": pytest.approx(0.16),
    }
    assert {key: request.attributes.get(key) for key in wanted} == wanted
    assert receiver.by("draftd.cost", "draftd.verifier") == {"local": 0.0, "remote": 0.25}
    (answer,) = receiver.points("draftd.answers")
    assert (answer.attributes["draftd.strategy"], answer.attributes["draftd.quality"]) == ("speculative", "standard")
    assert receiver.count("draftd.remote.round_trip") == 1


def test_remote_and_verifier_metrics_show_counts_without_peer_addresses(scene: Scene, receiver: OtlpReceiver) -> None:
    across(scene)
    scene.telemetry.shutdown(30.0)
    names = ("remote.tokens", "remote.failovers", "remote.up", "remote.level", "verify.tokens", "verify.peers")
    assert [receiver.total(f"draftd.{name}") for name in names] == [30, 3, 1, 1, 108, 1]
    assert receiver.by("draftd.remote.errors", "error.type") == {"late": 4, "connection_lost": 1}
    assert receiver.by("draftd.verify.refused", "error.type") == {"too_many_peers": 1}
    assert receiver.by("draftd.verify.io", "network.io.direction") == {"transmit": 600, "receive": 700}
    assert all("10.0.0.7" not in str(point.attributes) for point in receiver.points("draftd.verify.io"))


def test_remote_link_that_never_connected_is_exported_as_down(receiver: OtlpReceiver) -> None:
    never = LinkState(failures=dict.fromkeys(LinkFailure, 0) | {LinkFailure.UNAUTHENTICATED: 7})
    with mock.patch.dict(os.environ, receiver.environ()):
        telemetry = Telemetry.start(TelemetrySettings())
    telemetry.observe(Sources(lambda: INFO, link=lambda: never))
    telemetry.shutdown(30.0)
    (up,) = receiver.points("draftd.remote.up")
    assert (up.value, dict(up.attributes)) == (0, {"gen_ai.request.model": "nano"})
    errors = receiver.by("draftd.remote.errors", "error.type")
    assert errors["unauthenticated"] == 7
    assert set(errors) == {kind.value for kind in LinkFailure}, "each is there before its first"
