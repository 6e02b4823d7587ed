"""Apple's calls, where there is no Apple: each fails alone, and a command has a time limit."""

from __future__ import annotations

import sys
import time

import pytest

from draftd.hardware import apple as apple_module
from draftd.hardware.apple import SystemApple
from draftd.hardware.darwin import darwin_readings
from draftd.hardware.probe import ReadingsProbe
from draftd.hardware.sample import HardwareSample


@pytest.mark.skipif(sys.platform == "darwin", reason="Apple's libraries are here")
def test_without_apples_libraries_every_reading_fails_alone() -> None:
    readings = darwin_readings(SystemApple(), "/nowhere/macmon")
    probe = ReadingsProbe(readings)
    assert probe.sample() == HardwareSample()
    assert probe.errors == {reading.name: 1 for reading in readings}


def test_a_command_says_what_it_prints() -> None:
    assert SystemApple().run((sys.executable, "-c", "print('4 %')")) == "4 %\n"


def test_a_command_that_fails_is_an_error() -> None:
    with pytest.raises(OSError, match="status 3"):
        SystemApple().run((sys.executable, "-c", "raise SystemExit(3)"))


def test_a_command_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apple_module, "_COMMAND_SECONDS", 0.2)
    began = time.monotonic()
    with pytest.raises(OSError, match="timed out"):
        SystemApple().run((sys.executable, "-c", "import time; time.sleep(60)"))
    assert time.monotonic() - began < 10
