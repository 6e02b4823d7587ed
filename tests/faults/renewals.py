"""Certificates and tokens that change while the daemon runs: faults that end with SIGHUP."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator

from tests.faults.credentials import SPOILT
from tests.faults.model import Invariant
from tests.faults.world import World


def hang_up(world: World, dice: random.Random) -> Iterator[None]:
    """With nothing to change: it reloads what it has, however often, and writes to a new log file if that was moved."""
    moved = dice.random() < 0.7
    if moved:
        world.daemon.move_log()
    world.reload()
    if moved:
        well = "SIGHUP: reloaded" in world.daemon.log
        world.model.expects(well, Invariant.LOG, f"after it was moved, the log file has {world.daemon.log[-500:]!r}")
    for _ in range(dice.randrange(3)):
        world.daemon.signal(signal.SIGHUP)
    yield


def certificate_renewed(world: World, dice: random.Random) -> Iterator[None]:
    """Of another authority: those who trust only the former one cannot connect any more."""
    with world.uncut(dice):
        world.daemon.credentials.renew()
        world.reload()
        world.has_certificate()
    yield
    world.has_certificate()


def certificate_spoilt(world: World, dice: random.Random) -> Iterator[None]:
    """What cannot be used is not: the present one stays until there is another one."""
    with world.uncut(dice):
        world.daemon.credentials.spoil(dice.choice(SPOILT))
        world.reload(well=False)
        world.has_certificate()
    yield
    world.daemon.credentials.restore()
    world.reload()
    world.has_certificate()


def token_replaced(world: World, dice: random.Random) -> Iterator[None]:
    """Two are valid while clients change over; then the former one is not."""
    credentials, former = world.daemon.credentials, world.daemon.token
    token = credentials.new_token()
    with world.uncut(dice):
        credentials.set_tokens(former, token)
        world.reload()
        world.takes(former), world.takes(token)
        world.daemon.token = token
    yield
    with world.clients.paused():  # none of them asks with the former one after this
        pass
    with world.uncut(dice):
        credentials.set_tokens(token)
        world.reload()
        world.takes(token), world.takes(former, valid=False)
