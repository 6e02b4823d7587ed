"""Faults of the network and of the verifier, under traffic: no request may be lost or wrong, and the verifier must be
used again as soon as possible."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import quantiles

from tests.remote.asking import Asked, Clients, Reference, Wanted, wrong
from tests.remote.daemons import DRAFT, Two, until_remote

_STREAMING = 4  # requests that a fault meets
_LATER_SECONDS = 0.05
_SETTLE_SECONDS = 20.0
_CLIENTS = 8


@dataclass(frozen=True)
class Fault:
    """A fault. `strike` breaks something, and `mend` repairs it so many seconds later. `weights`: the verifier serves
    other weights meanwhile."""

    name: str
    strike: Callable[[Two], None]
    mend: Callable[[Two], None]
    seconds: float = 0.0
    weights: bool = False


def _other_weights(two: Two) -> None:
    two.end_verifier(kill=True)
    two.verifier.start(DRAFTD_MODEL__PATH=DRAFT, DRAFTD_MODEL__DRAFT_PATH=DRAFT)


def _right_weights(two: Two) -> None:
    two.end_verifier(kill=False)
    two.verifier.start()


def _restored(two: Two) -> None:
    two.proxy.restore()


RESET = Fault("reset", lambda two: two.proxy.reset(), lambda two: None)
CUT = Fault("cut of 1 s", lambda two: two.proxy.cut(), _restored, 1.0)
KILL = Fault("kill -9", lambda two: two.end_verifier(kill=True), lambda two: two.verifier.start())
RESTART = Fault("restart", lambda two: two.end_verifier(kill=False), lambda two: two.verifier.start())
BLACK_HOLE = Fault("black hole", lambda two: two.proxy.swallow(), _restored, 12.0)
WEIGHTS = Fault("wrong weights after restart", _other_weights, _right_weights, 5.0, weights=True)
LONG_CUT = Fault("cut of 60 s", lambda two: two.proxy.cut(), _restored, 60.0)
FAULTS = (RESET, CUT, KILL, RESTART, BLACK_HOLE, WEIGHTS, LONG_CUT)


@dataclass
class Faulted:
    """Results. `resumed` has the seconds from a fault to the next token of each request that it met; `back` those from
    the repair until the verifier answered again."""

    requests: int = 0
    remote_tokens: int = 0
    failed_over: int = 0
    local: int = 0
    refused: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    resumed: dict[str, list[float]] = field(default_factory=dict)
    back: dict[str, list[float]] = field(default_factory=dict)
    whys: Counter[str] = field(default_factory=Counter)  # why requests went on locally
    broken: list[str] = field(default_factory=list)
    reconciled: int = 0  # times, and after each fault it is tried

    def report(self) -> str:
        lines = [
            f"{self.requests} requests: {self.failed_over} went on locally, {self.local} began so, {self.refused} were "
            f"refused with a delay; {self.remote_tokens} tokens of the remote; {len(self.broken)} wrong"
        ]
        for name, count in self.injected.items():
            lines.append(f"{name}: {count} times; next token {_shown(self.resumed.get(name, []))}; "
                         f"back {_shown(self.back.get(name, []))}")  # fmt: skip
        lines += [f"went on locally, {count} times: {why}" for why, count in self.whys.most_common()]
        every = [one for found in self.resumed.values() for one in found]
        lines.append(f"all faults: next token {_shown(every)}")
        lines.append(f"tokens of both daemons were the same after {self.reconciled} of {self.injected.total()} faults")
        return "\n".join(lines)


def run(
    two: Two,
    target: Reference,
    draft: Reference,
    wanted: Sequence[Wanted],
    *,
    probe_seconds: float,
    faults: Sequence[Fault] = FAULTS,
    seed: int = 1,
    each: int = 16,
    told: Callable[[str], None] = lambda line: None,
) -> Faulted:
    """Applies each fault once before any occurs again, until all was asked. The edge serves the draft. Of `each`
    requests half are sent before a fault, and half while it lasts."""
    result, dice, order = Faulted(), random.Random(seed), list[Fault]()
    met: list[tuple[Fault, float, list[Asked]]] = []
    wrong_weights: list[tuple[float, float]] = []
    clients = Clients(two.edge.address, wanted, _CLIENTS, granted=True)
    for first in range(0, len(wanted), each):
        order = order or dice.sample(list(faults), len(faults))
        fault = order.pop()
        clients.grant(each // 2)
        _streaming(clients, min(_STREAMING, each // 4))
        time.sleep(dice.uniform(0, _LATER_SECONDS))
        struck, hit = time.monotonic(), clients.streaming()
        met.append((fault, struck, hit))
        fault.strike(two)
        clients.grant(each - each // 2)
        time.sleep(fault.seconds)
        fault.mend(two)
        mended = time.monotonic()
        took = until_remote(two, 2 * probe_seconds + 30)
        if fault.weights:
            wrong_weights.append((struck, mended + took))
        result.injected[fault.name] += 1
        result.back.setdefault(fault.name, []).append(took)
        clients.settle(min(first + each, len(wanted)))
        decided, applied = two.tokens()
        result.reconciled += decided == applied
        if decided != applied:
            result.broken.append(f"{fault.name}: the verifier decided {decided} tokens, {applied} were applied")
        told(f"{fault.name}: {len(hit)} requests met; back after {took:.2f} s")
    clients.close()
    for fault, struck, hit in met:
        for one in hit:
            later = [at - struck for at in one.times if at > struck]
            if later:
                result.resumed.setdefault(fault.name, []).append(later[0])
    for one in clients.asked:
        others = any(one.began < end and one.ended > begin for begin, end in wrong_weights)
        _judge(result, one, [target, draft] if others else [target], draft)
    return result


def _streaming(clients: Clients, least: int) -> None:
    """Waits until so many requests have remote tokens that a fault would meet."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while len(clients.streaming()) < least and time.monotonic() < deadline:
        time.sleep(0.002)


def _judge(result: Faulted, one: Asked, remote: Sequence[Reference], local: Reference) -> None:
    result.requests += 1
    result.remote_tokens += one.remote_tokens
    result.failed_over += one.failed_over
    if one.finished is not None and one.failed_over:
        result.whys[one.finished.failed_over] += 1
    result.refused += bool(one.error)
    result.local += not one.error and not one.remote_tokens
    if why := wrong(one, remote, local):
        result.broken.append(f"seed {one.wanted.seed}: {why}")


def _shown(seconds: list[float]) -> str:
    if not seconds:
        return "-"
    if len(seconds) == 1:
        return f"{seconds[0]:.2f} s"
    cuts = quantiles(seconds, n=100, method="inclusive")
    return f"p50 {cuts[49]:.2f} s, p99 {cuts[98]:.2f} s, of {len(seconds)}"
