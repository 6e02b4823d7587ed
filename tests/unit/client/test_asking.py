"""What is asked is what is sent."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from draftd.client.asking import Ask, send
from draftd.core import PROMPT_LOOKUP, DepthMode, ModePreference, SamplingParams, WorkloadClass


def test_every_field_of_a_question_is_sent() -> None:
    asked = Ask(
        messages=(("user", "hello"),),
        prompt="hello",
        tokens=(1, 2, 3),
        max_tokens=7,
        sampling=SamplingParams(temperature=0.5, seed=3),
        stop=("end",),
        mode=ModePreference.SPECULATIVE,
        max_draft_tokens=3,
        drafter=PROMPT_LOOKUP,
        depth_mode=DepthMode.FIXED,
        workload=WorkloadClass.CODE,
        caller="me",
    )
    assert all(getattr(asked, field.name) != getattr(Ask(), field.name) for field in fields(Ask))
    heard: dict[str, Any] = {}

    def generate(prompt: str | None, **options: Any) -> list[object]:
        heard.update(options, prompt=prompt)
        return []

    assert send(SimpleNamespace(generate=generate), asked, timeout=5.0) == []  # type: ignore[arg-type,comparison-overlap]
    assert heard == {field.name: getattr(asked, field.name) for field in fields(Ask)} | {"timeout": 5.0}
