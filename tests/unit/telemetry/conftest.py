"""Fixtures: a receiver, and telemetry that exports to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.otlp import OtlpReceiver
from tests.unit.telemetry.scene import Scene, telemetry


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver(metric_interval=60_000) as otlp_receiver:
        yield otlp_receiver


@pytest.fixture
def open_scene() -> Iterator[Callable[..., Scene]]:
    """Makes scenes, and shuts down what a test left running."""
    scenes: list[Scene] = []

    def make(environ: Mapping[str, str], **how: Any) -> Scene:
        scenes.append(Scene(telemetry(environ, **how)))
        return scenes[-1]

    yield make
    for scene in scenes:
        scene.telemetry.shutdown(0.5)


@pytest.fixture
def scene(receiver: OtlpReceiver, open_scene: Callable[..., Scene]) -> Scene:
    return open_scene(receiver.environ())
