"""Certificates and tokens that change while the daemon runs: faults that end with SIGHUP."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator

from tests.faults.credentials import SPOILT
from tests.faults.model import Invariant
from tests.faults.world import World


def hang_up(world: World, dice: random.Random) -> Iterator[None]:
    """Sends SIGHUP without a change, several times. The daemon reloads, and writes to a new log file if that was
    moved."""
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
    """Replaces the certificate by one of another authority: clients that trust only the former one cannot connect any
    more."""
    with world.uncut(dice):
        world.daemon.credentials.renew()
        world.reload()
        world.has_certificate()
    yield
    world.has_certificate()


def certificate_spoilt(world: World, dice: random.Random) -> Iterator[None]:
    """Spoils the certificate files: the daemon must keep the current one until there is a usable one."""
    with world.uncut(dice):
        world.daemon.credentials.spoil(dice.choice(SPOILT))
        world.reload(well=False)
        world.has_certificate()
    yield
    world.daemon.credentials.restore()
    world.reload()
    world.has_certificate()


def token_replaced(world: World, dice: random.Random) -> Iterator[None]:
    """Replaces a token: both are valid while clients change over, then only the new one."""
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
