"""`draftd.transition`: what the journal records is told as a log event."""

from __future__ import annotations

from draftd.fallback.journal import Journal, Subject
from draftd.telemetry import catalog
from tests.otlp import OtlpReceiver
from tests.unit.telemetry.scene import Scene


def test_a_transition_is_an_event_with_its_cause(scene: Scene, receiver: OtlpReceiver) -> None:
    journal = Journal()
    journal.listen(scene.telemetry.transition_log())
    journal.record(Subject.LEVEL, "full", "autoregressive", "acceptance below its floor", "0.31, 2 windows")
    scene.telemetry.shutdown(5.0)
    (event,) = receiver.events("draftd.transition")
    assert event.attributes == {
        "draftd.transition.subject": "level",
        "draftd.transition.from": "full",
        "draftd.transition.to": "autoregressive",
        "draftd.transition.cause": "acceptance below its floor",
        "draftd.transition.evidence": "0.31, 2 windows",
    }
    assert set(event.attributes) == {attribute.name for attribute in catalog.TRANSITION.attributes}


def test_one_that_cannot_be_told_is_counted_and_hurts_nobody(scene: Scene) -> None:
    scene.telemetry.transition_log()(None)  # type: ignore[arg-type]
    assert scene.telemetry.errors == {"transition": 1}
