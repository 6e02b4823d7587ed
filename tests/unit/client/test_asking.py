"""What is asked is what is sent."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from draftd.client.asking import Ask, connect, send
from draftd.core import PROMPT_LOOKUP, DepthMode, ModePreference, SamplingParams, WorkloadClass
from draftd.errors import ConfigError


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


@pytest.mark.parametrize("target", ["127.0.0.1:65536", "[::1]:70000", "localhost:0"])
def test_a_port_that_there_is_not_is_refused(target: str) -> None:
    with pytest.raises(ConfigError, match="--target: got .*a port from 1 to 65535"):
        connect(target, None, None)


@pytest.mark.parametrize("target", ["127.0.0.1:65535", "[::1]:1", "unix:/run/draftd.sock"])
def test_every_other_target_is_left_to_grpc(target: str) -> None:
    connect(target, None, None).close()
