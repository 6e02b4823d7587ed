"""The log events: `feature_flag.evaluation` from real evaluations through OpenFeature, and `draftd.transition`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from openfeature import api
from openfeature.client import OpenFeatureClient
from openfeature.contrib.provider.flagd import FlagdProvider
from openfeature.contrib.provider.flagd.config import ResolverType
from openfeature.evaluation_context import EvaluationContext

from draftd.errors import QueueFull
from draftd.journal import Journal, Subject
from draftd.telemetry import catalog_spans
from tests.otlp import OtlpReceiver
from tests.unit.telemetry.scene import Scene, errors_of

KEY = "speculative-decoding"
FLAGS = {
    "flags": {
        KEY: {
            "state": "ENABLED",
            "variants": {"on": True, "off": False},
            "defaultVariant": "on",
            "targeting": {"if": [{"==": [{"var": "workload"}, "prose"]}, "off"]},
        }
    }
}
DOMAIN = "telemetry-test"


@pytest.fixture
def client(tmp_path: Path, scene: Scene) -> Iterator[OpenFeatureClient]:
    path = tmp_path / "flags.json"
    path.write_text(json.dumps(FLAGS))
    provider = FlagdProvider(resolver_type=ResolverType.FILE, offline_flag_source_path=str(path))
    api.set_provider_and_wait(provider, DOMAIN)
    client = api.get_client(DOMAIN)
    client.add_hooks([scene.telemetry.flag_hook])
    yield client
    provider.shutdown()


def evaluated(scene: Scene, receiver: OtlpReceiver) -> dict[str, object]:
    scene.telemetry.shutdown(30.0)
    (event,) = receiver.events("feature_flag.evaluation")
    assert set(event.attributes) <= {attribute.name for attribute in catalog_spans.FLAG_EVALUATION.attributes}
    return event.attributes


def test_targeted_flag_evaluation_is_logged_with_its_rule(
    client: OpenFeatureClient, scene: Scene, receiver: OtlpReceiver
) -> None:
    context = EvaluationContext("caller-7", {"workload": "prose"})
    assert client.get_boolean_value(KEY, True, context) is False
    assert evaluated(scene, receiver) == {
        "feature_flag.key": KEY,
        "feature_flag.result.variant": "off",
        "feature_flag.result.reason": "targeting_match",
        "feature_flag.provider.name": "FlagdProvider",
        "feature_flag.context.id": "caller-7",
    }


def test_flag_evaluation_without_a_caller_has_no_context_id(
    client: OpenFeatureClient, scene: Scene, receiver: OtlpReceiver
) -> None:
    assert client.get_boolean_value(KEY, False) is True
    attributes = evaluated(scene, receiver)
    assert attributes["feature_flag.result.variant"] == "on"
    assert attributes["feature_flag.result.reason"] == "default"
    assert "feature_flag.context.id" not in attributes


def test_failed_flag_evaluation_is_logged_with_its_error(
    client: OpenFeatureClient, scene: Scene, receiver: OtlpReceiver
) -> None:
    assert client.get_boolean_value("no-such-flag", True) is True
    attributes = evaluated(scene, receiver)
    assert attributes["feature_flag.key"] == "no-such-flag"
    assert attributes["feature_flag.result.reason"] == "error"
    assert attributes["error.type"] == "flag_not_found"
    assert attributes["feature_flag.result.value"] is True, "no variant: the value stands in"


def test_flag_evaluation_event_is_logged_in_the_trace_of_its_request(
    client: OpenFeatureClient, scene: Scene, receiver: OtlpReceiver
) -> None:
    span = scene.telemetry.begin_inference(scene.start())
    client.get_boolean_value(KEY, True)
    span.refuse(QueueFull("full"))
    scene.telemetry.shutdown(30.0)
    (event,) = receiver.events("feature_flag.evaluation")
    (request,) = receiver.spans("chat nano")
    assert (event.trace_id, event.span_id) == (request.trace_id, request.span_id)
    assert event.severity == 9
    assert event.resource["service.name"] == "draftd"


def test_flag_hook_without_an_otlp_endpoint_leaves_evaluations_unchanged(open_scene: Callable[..., Scene]) -> None:
    client = api.get_client("nobody")
    client.add_hooks([open_scene({}).telemetry.flag_hook])
    assert client.get_boolean_value(KEY, True) is True


def test_ladder_transition_is_exported_as_a_log_event_with_its_cause(scene: Scene, receiver: OtlpReceiver) -> None:
    journal = Journal()
    journal.listen(scene.telemetry.fallback_recorder.log)
    journal.record(Subject.LEVEL, "full", "autoregressive", "acceptance below its floor", "0.31, 2 windows")
    scene.telemetry.shutdown(30.0)
    (event,) = receiver.events("draftd.transition")
    assert event.attributes == {
        "draftd.transition.subject": "level",
        "draftd.transition.from": "full",
        "draftd.transition.to": "autoregressive",
        "draftd.transition.cause": "acceptance below its floor",
        "draftd.transition.evidence": "0.31, 2 windows",
    }
    assert set(event.attributes) == {attribute.name for attribute in catalog_spans.TRANSITION.attributes}


def test_invalid_transition_is_counted_as_a_telemetry_error_and_not_raised(scene: Scene) -> None:
    scene.telemetry.fallback_recorder.log(None)  # type: ignore[arg-type]
    assert errors_of(scene.telemetry) == {"transition": 1}
