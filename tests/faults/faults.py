"""The faults. Each is a generator that injects the fault, yields while it lasts, and removes it.

Faults that stop or end the daemon are injected `last` and removed first: the others apply when it dies and when it
starts again. Only one fault of a `group` is active at a time; `+` separates several groups.
"""

from __future__ import annotations

import errno
import json
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc

from draftd.client.client import CallError
from draftd.core import FallbackLevel
from tests.faults.crowds import (
    beside,
    cancelled_streams,
    clients_vanish,
    flooded,
    idle,
    slow_senders,
    too_many_requests,
    too_many_watchers,
)
from tests.faults.daemon import HANG_SECONDS, Gone
from tests.faults.model import Invariant
from tests.faults.renewals import certificate_renewed, certificate_spoilt, hang_up, token_replaced
from tests.faults.surroundings import level_of
from tests.faults.world import World

Act = Callable[[World, random.Random], Iterator[None]]

_HOUR = 3600.0
_HOLD_SECONDS = 600.0  # longer than any step takes


@dataclass(frozen=True)
class Fault:
    """One fault. `statuses` are those that requests may end with because of it; `share` is how often it is drawn."""

    name: str
    act: Act
    group: str
    share: int = 1
    last: int = 0
    statuses: frozenset[str] = frozenset()

    @property
    def groups(self) -> frozenset[str]:
        return frozenset(self.group.split("+"))

    @contextmanager
    def put_in(self, world: World, dice: random.Random) -> Iterator[None]:
        with world.model.excused(self.statuses):
            yield from self.act(world, dice)


# The process.


def _kill(world: World, dice: random.Random) -> Iterator[None]:
    with world.outage():
        world.kill()
        yield


def _kill_twice(world: World, dice: random.Random) -> Iterator[None]:
    """Kills the daemon, and again while it starts."""
    with world.outage():
        world.kill()
        yield
        world.start()
        world.model.ends(world.daemon.life)
        time.sleep(dice.uniform(0.0, 1.0))
        world.kill()


def _terminate(world: World, dice: random.Random) -> Iterator[None]:
    with world.outage():
        world.stop()
        yield


def _engine_dies(world: World, dice: random.Random) -> Iterator[None]:
    with world.outage(), world.model.excused({"INTERNAL"}):
        world.daemon.tell("arm", "engine", 1)
        world.dies()
        yield


def _suspend(world: World, dice: random.Random) -> Iterator[None]:
    world.daemon.signal(signal.SIGSTOP)
    yield
    world.daemon.signal(signal.SIGCONT)
    world.reachable = time.monotonic()
    world.serving(world.reachable)


def _damaged(world: World, dice: random.Random, pattern: str, *, twice: bool = False) -> Iterator[None]:
    """Damages a file of the state folder while the daemon is down. With `twice` the daemon is killed again at once."""
    with world.outage():
        most = world.kill(forgets=pattern.startswith("ladder"))
        for path in world.daemon.disk.path.glob(pattern):
            _damage(path, dice)
        if pattern == "transitions.jsonl":
            world.model.events.forget()
        yield
        for _ in range(1 + twice):
            if world.daemon.alive:
                world.model.ends(world.daemon.life)
                world.kill(forgets=True)
            world.start()
            with suppress(CallError), world.client() as client:
                level = level_of(client.level())
                told = f"after {pattern} was damaged: {level.label}, and {most.label} was the most before"
                world.model.expects(level <= most, Invariant.LEVEL, told)


def _damage(path: Path, dice: random.Random) -> None:
    """Truncates the file, overwrites part of it, or replaces it."""
    raw = bytearray(path.read_bytes())
    kind = dice.randrange(5)
    if kind == 0:
        raw = raw[: dice.randrange(len(raw))] if raw else raw
    elif kind == 1:
        at = dice.randrange(max(1, len(raw)))
        raw[at : at + 40] = dice.randbytes(40)
    elif kind == 2:
        raw = bytearray(dice.choice((b"", b"{}", b"[]", b"null", b'{"version": 2}', b"\xff\xfe\x00\n")))
    elif kind == 3:
        raw = bytearray(json.dumps(raw.decode(errors="replace")), "utf-8")
    else:
        raw += raw[: len(raw) // 2]
    with suppress(OSError):  # the disk is full: then it is empty
        path.write_bytes(raw)


# The disk.


def _disk_full(world: World, dice: random.Random) -> Iterator[None]:
    """Fills the small file system if there is one; else makes writes to the folder fail as if it were full."""
    if not world.daemon.disk.small:
        with _unwritable(world):
            yield from _condition(world, "disk", errno.ENOSPC, 0)
        return
    with _unwritable(world):
        world.daemon.disk.fill()
        yield
        world.daemon.disk.free()


def _quota(world: World, dice: random.Random) -> Iterator[None]:
    """Limits the size of files; some limits fall in the middle of an event's line."""
    events = world.daemon.disk.path / "transitions.jsonl"
    line = events.stat().st_size + 60 if events.exists() else 60
    with _unwritable(world):
        yield from _condition(world, "quota", dice.choice((0, 100, line, line)), None)


def _read_only(world: World, dice: random.Random) -> Iterator[None]:
    with _unwritable(world):
        yield from _condition(world, "disk", errno.EROFS, 0)


@contextmanager
def _unwritable(world: World) -> Iterator[None]:
    """Marks events recorded meanwhile as possibly lost by a restart; those recorded before and after must stay."""
    world.events()
    world.unwritable += 1
    yield
    with suppress(Gone):
        world.daemon.ask("threads")  # by then it has obeyed
    world.unlisted = not world.events()
    world.unwritable -= 1


def _condition(world: World, name: str, value: object, well: object) -> Iterator[None]:
    """Sets a condition for this life and those that begin meanwhile."""
    world.daemon.conditions[name] = value
    world.daemon.tell(name, value)
    yield
    del world.daemon.conditions[name]
    world.daemon.tell(name, well)


# Clock, descriptors, memory, engine.


def _clock(world: World, dice: random.Random) -> Iterator[None]:
    """Steps the wall clock forward or back, and corrects it again."""
    world.daemon.clock.set_wall(dice.choice((-1, 1)) * dice.choice((2.0, 30.0, 600.0, _HOUR, 20 * _HOUR)))
    yield
    world.daemon.clock.set_wall(0.0)


def _asleep(world: World, dice: random.Random) -> Iterator[None]:
    """Lets the machine sleep, for longer or shorter than a hold lasts."""
    seconds, life = dice.choice((5.0, 200.0, _HOLD_SECONDS + 30.0, 3 * _HOUR)), world.daemon.life
    world.hold(dice.choice(list(FallbackLevel)), _HOLD_SECONDS)
    world.daemon.signal(signal.SIGSTOP)
    world.sleeps(seconds)
    yield
    world.daemon.signal(signal.SIGCONT)
    world.reachable = time.monotonic()
    world.serving(world.reachable)
    if seconds > _HOLD_SECONDS and world.daemon.life == life:
        world.hold_over()
    else:
        world.release()


def _no_descriptors(world: World, dice: random.Random) -> Iterator[None]:
    with _unwritable(world):
        world.daemon.tell("files", dice.randrange(3))
        yield
        world.daemon.tell("files", None)
        world.reachable = time.monotonic()


def _idle_connections(world: World, dice: random.Random) -> Iterator[None]:
    port = dice.choice((world.daemon.access.port, world.daemon.webhook_port))
    with idle(port, 120):
        yield


def _memory(world: World, dice: random.Random) -> Iterator[None]:
    yield from _condition(world, "pressure", True, False)


def _fails(world: World, dice: random.Random, place: str, times: int = 1) -> Iterator[None]:
    world.daemon.tell("arm", place, times)
    if place == "export":
        world.uncounted = world.daemon.life
    yield
    world.daemon.tell("arm", place, 0)


def _slow_forward(world: World, dice: random.Random) -> Iterator[None]:
    world.daemon.tell("slow", dice.uniform(0.2, 1.0))
    yield


# Around it.


def _collector_dead(world: World, dice: random.Random) -> Iterator[None]:
    world.collector.kill()
    yield
    world.collector.start()


def _collector_asleep(world: World, dice: random.Random) -> Iterator[None]:
    """Stops the collector, which resumes where it was: exports that the daemon gave up on then arrive too."""
    world.collector.awake.clear()
    yield
    world.collector.awake.set()


def _collector_slow(world: World, dice: random.Random) -> Iterator[None]:
    world.collector.delay = dice.choice((0.3, 5.0))
    yield
    world.collector.delay = 0.0


def _collector_refuses(world: World, dice: random.Random) -> Iterator[None]:
    refusals = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INVALID_ARGUMENT)
    world.collector.refuse = dice.choice(refusals)
    yield
    world.collector.refuse = None


def _collector_lies(world: World, dice: random.Random) -> Iterator[None]:
    world.collector.lies = True
    yield
    world.collector.lies = False


def _grafana(world: World, dice: random.Random) -> Iterator[None]:
    world.alerts.answers = dice.choice(("slowly", "with errors", "with nonsense"))
    yield
    world.alerts.answers = "well"


# What operators do.


def _flag(world: World, dice: random.Random) -> Iterator[None]:
    """Turns the flag off and on again, over gRPC."""
    with suppress(CallError), world.client() as client:
        client.set_flag("off")
    yield
    world.insist("the flag cannot be set", lambda client: client.set_flag("on"))


def _flag_file(world: World, dice: random.Random) -> Iterator[None]:
    """Edits the flag file by hand: first badly, then well again."""
    path = world.daemon.disk.path / "flags.json"
    good = path.read_text()
    path.write_text(dice.choice(("", "{", "[]", '{"flags": 3}')))
    yield
    fresh = path.with_name("flags.fresh")
    fresh.write_text(good)
    fresh.replace(path)


def _reload(world: World, dice: random.Random) -> Iterator[None]:
    def reload() -> None:
        with suppress(CallError), world.client() as client:
            client.reload_draft(forget=dice.random() < 0.3, timeout=HANG_SECONDS)

    with beside(reload):
        yield


def _hold(world: World, dice: random.Random) -> Iterator[None]:
    world.hold(dice.choice(list(FallbackLevel)))
    yield
    world.release()


def _hold_full(world: World, dice: random.Random) -> Iterator[None]:
    """Holds the top level, so that there are drafts whatever alerts ask for."""
    world.hold(FallbackLevel.FULL)
    yield
    world.release()


def _tries(world: World, dice: random.Random) -> Iterator[None]:
    """Starts a probe, the canaries and the manifest: all operator requests that take long."""

    def call(name: str) -> None:
        with suppress(CallError), world.client() as client:
            getattr(client, name)(timeout=3.0)

    with ExitStack() as threads:
        for name in ("probe", "canaries", "manifest"):
            threads.enter_context(beside(partial(call, name)))
        yield


def _fault(name: str, act: Act, group: str, *statuses: str, **more: int) -> Fault:
    return Fault(name, act, group, statuses=frozenset(statuses), **more)  # type: ignore[arg-type]


def _raises(place: str, *statuses: str, times: int = 1, thread: str = "") -> Fault:
    """Builds a fault in which a part, or a background thread, raises."""
    return _fault(f"{thread or place} raises", partial(_fails, place=place, times=times), f"raises {place}", *statuses)


FAULTS: tuple[Fault, ...] = (
    _fault("kill", _kill, "life", share=5, last=2),
    _fault("kill, and kill while it starts", _kill_twice, "life", share=2, last=2),
    *(
        _fault(f"kill, {name} damaged", partial(_damaged, pattern=pattern), "life", last=2)
        for name, pattern in (("events", "transitions.jsonl"), ("what was learnt", "learnt.json"))
    ),
    _fault("kill, level damaged", partial(_damaged, pattern="ladder-*.json"), "life", last=2),
    _fault(
        "kill, level damaged, kill again",
        partial(_damaged, pattern="ladder-*.json", twice=True),
        "life",
        last=2,
    ),
    _fault("terminate", _terminate, "life", share=2, last=2),
    _fault("engine raises", _engine_dies, "life", last=2),
    _fault("suspend", _suspend, "stop", share=3, last=1),
    _fault("machine sleeps", _asleep, "stop+hold", share=3, last=1),
    _fault("SIGHUP", hang_up, "credentials+files+disk", share=3),
    _fault("certificate renewed", certificate_renewed, "credentials+files", share=3),
    _fault("certificate spoilt", certificate_spoilt, "credentials+files+life", share=2),
    _fault("token replaced", token_replaced, "credentials+files", share=3),
    _fault("disk full", _disk_full, "disk", share=4),
    _fault("quota", _quota, "disk", share=2),
    _fault("read-only", _read_only, "disk", share=2),
    _fault("clock jumps", _clock, "clock", share=3),
    _fault("no descriptors", _no_descriptors, "files", "UNAVAILABLE", share=3),
    _fault("idle connections", _idle_connections, "connections", "UNAVAILABLE", share=2),
    _fault("memory is short", _memory, "memory", share=2),
    _raises("drafter", times=3),
    _raises("forward", "INTERNAL"),
    _fault("forward fails for good", partial(_fails, place="forward", times=5), "raises forward", "INTERNAL"),
    _fault("forward is slow", _slow_forward, "slow", share=2),
    _raises("planning", "INTERNAL"),
    _raises("fallback", thread="draftd-fallback"),
    _raises("look", thread="look of draftd-fallback"),
    _raises("notices", thread="draftd-webhook-acting"),
    _raises("webhook", thread="draftd-webhook"),
    _raises("accept", thread="accept of draftd-webhook"),
    _raises("poll", thread="draftd-alert-poll"),
    _raises("annotations", thread="draftd-annotations"),
    _raises("hardware", thread="draftd-hardware"),
    _raises("probe", thread="draftd-probe"),
    _raises("learnt", thread="draftd-learnt"),
    _raises("export", thread="exporters", times=3),
    _fault("collector dead", _collector_dead, "collector", share=2),
    _fault("collector sleeps", _collector_asleep, "collector", share=2),
    _fault("collector slow", _collector_slow, "collector", share=2),
    _fault("collector refuses", _collector_refuses, "collector"),
    _fault("collector lies", _collector_lies, "collector"),
    _fault("Grafana is ill", _grafana, "grafana", share=2),
    _fault("cancelled streams", cancelled_streams, "clients", "RESOURCE_EXHAUSTED", share=2),
    _fault("too many requests", too_many_requests, "clients", "RESOURCE_EXHAUSTED", share=2),
    _fault("clients vanish", clients_vanish, "clients", share=2),
    _fault("too many watchers", too_many_watchers, "clients"),
    _fault("flood of the webhook", flooded, "webhook", share=2),
    _fault("slow senders", slow_senders, "webhook", share=2),
    _fault("flag flips", _flag, "flag", share=2),
    _fault("flag file damaged", _flag_file, "disk", share=2, last=1),
    _fault("draft read anew", _reload, "reload", share=2),
    _fault("hold", _hold, "hold", share=2),
    _fault("hold at full", _hold_full, "hold", share=4),
    _fault("probe, canaries, manifest", _tries, "tries"),
)


def named(name: str) -> Fault:
    """Returns the fault of this name. Raises KeyError if there is none."""
    return {one.name: one for one in FAULTS}[name]
