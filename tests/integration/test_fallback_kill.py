"""Killed with SIGKILL at random moments while its level is changed, a real daemon comes back as it was, or one step
safer, and with its history whole."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from draftd.client.child import clean_environ
from draftd.client.client import CallError, DraftdClient
from draftd.core import FallbackLevel
from draftd.v1 import control_pb2 as pb
from tests import forked_daemon
from tests.stack import scripted_pair
from tests.wait_until import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]

KILLS = 5
SEED = 20_260_107
LEVELS = {FallbackLevel.FULL: 0, FallbackLevel.SHORT_BLOCK: 1, FallbackLevel.LIGHT_DRAFT: 3}


@dataclass
class Asked:
    """What an operator has asked for: `sure` was answered, `open` perhaps not. Positions on the ladder."""

    sure: int = 0
    open: int = 0


@contextlib.contextmanager
def daemon(folder: Path) -> Iterator[tuple[forked_daemon.Child, DraftdClient]]:
    """A daemon on a scripted pair that answers, though it may still load. It is killed at the end, if not before."""
    (folder / "acceptance").write_text("0.9")
    settings = {
        **clean_environ(str(folder / "flags.json")),
        "OTEL_SDK_DISABLED": "true",
        "DRAFTD_FALLBACK__STATE_DIR": str(folder / "state"),
        "DRAFTD_WEBHOOK__PORT": "0",
    }
    file = str(folder / "acceptance")
    with (
        forked_daemon.daemon(scripted_pair.main, file, environ=settings, until="listening") as running,
        DraftdClient(running.address) as client,
    ):
        yield running.child, client


def change_until_killed(client: DraftdClient, asked: Asked, dice: random.Random) -> None:
    """Holds one level after the other, without a pause."""
    with contextlib.suppress(CallError):
        while True:
            level = dice.choice([one for one, level in LEVELS.items() if level != asked.sure])
            asked.open = LEVELS[level]
            client.hold_level(level)
            until(lambda: client.level().position == asked.open, 30, "the level that was asked for")
            asked.sure = asked.open


def whole(history: list[pb.Transition]) -> bool:
    """Each number once and in order; each step begins where the last one ended."""
    steps = [one for one in history if one.subject == "level"]
    numbers = [one.number for one in history]
    return numbers == list(range(numbers[0], numbers[0] + len(numbers))) and all(
        later.previous == earlier.current for earlier, later in itertools.pairwise(steps)
    )


def test_killed_daemon_restores_its_last_ladder_level_and_history(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    asked, seen = Asked(), 0
    for kill in range(KILLS):
        with daemon(tmp_path) as (process, client):
            state = client.level()
            history = list(client.transitions(1000))
            said = f"kill {kill}: {state.position} after {asked}, {state.cause}"
            assert state.position in (asked.sure, asked.open), said
            if kill:
                assert state.HasField("hold"), said
                assert len(history) >= seen > 0, "what was told once is kept"
                assert whole(history), history
                assert history[-1].current.split()[0] == state.ladder[state.position].level, said
            assert not list((tmp_path / "state").glob(".*")), "nothing half written is left"
            until(client.serving, 120)
            client.hold_level(FallbackLevel.FULL)
            until(lambda: client.level().position == 0, 60)
            asked = Asked()
            changing = threading.Thread(target=change_until_killed, args=(client, asked, dice))
            changing.start()
            time.sleep(0.2 + dice.random() * 1.5)
            with contextlib.suppress(CallError):
                seen = len(client.transitions(1000))
            time.sleep(dice.random() * 0.1)
            process.kill()
            changing.join(60)
            assert not changing.is_alive()
