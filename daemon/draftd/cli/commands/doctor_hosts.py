"""`draftd doctor --hostfile`: is each machine of a group ready for its rank, and are the links between them?

Rank 0's is this one. Each other is asked by a `draftd doctor --answer` there, over SSH, or here where its entry is
loopback.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from draftd.cli.figures import milliseconds, size
from draftd.cli.findings import Finding, bad, note, ok
from draftd.cli.state import paths_of
from draftd.errors import ConfigError
from draftd.hardware.state import HardwareSample, advance
from draftd.hardware.system import system_probe
from draftd.listening import try_listening
from draftd.models import blas
from draftd.ranks.followers import ssh_command
from draftd.ranks.hosts import AskedHost, Host, HostError, OwnHost, answer
from draftd.ranks.plan import GroupPlan, check_trusted, plan_group
from draftd.ranks.proof import OwnProof, Proof, difference, hash_difference
from draftd.settings import Settings

_REPORT_SECONDS = 45.0  # SSH, the interpreter, MLX
_HASH_SECONDS = 900.0
_LINK_SECONDS = 20.0
_STREAM_SECONDS = 0.4
_FAR_SECONDS, _NARROW = 1e-3, 0.8e9 / 8  # a round trip, bytes a second: more, and less, than a cable's


@dataclass(slots=True)
class _Rank:
    number: int
    name: str
    here: bool
    host: Host
    report: dict[str, Any] | None = None

    @property
    def subject(self) -> str:
        return f"rank {self.number}"


def check_hosts(settings: Settings) -> list[Finding]:
    """All checks of the machines that the hostfile names; nothing is left running anywhere."""
    trusting = settings.distributed.model_copy(update={"trusted_network": True})
    try:
        plan = plan_group(trusting, {})
    except ConfigError as error:
        return [bad("hostfile", error.message, "correct it; mlx.distributed_config writes one")]
    if plan is None:
        return [note("hostfile", f"{settings.distributed.hostfile} has one host: the target runs within the daemon")]
    findings = [ok("hostfile", f"{plan.size} ranks, {plan.backend}"), *_trusted(settings, plan)]
    with contextlib.ExitStack() as stack:
        ranks = []
        for number in range(plan.size):
            try:
                host = stack.enter_context(_host(settings, plan, number))
            except HostError as error:
                findings.append(_unreachable(plan, number, error))
            else:
                ranks.append(_Rank(number, plan.hosts[number].ssh, plan.here(number), host))
        findings += sorted(_reports(plan, ranks), key=lambda one: one.subject)
        there = [rank for rank in ranks if rank.report is not None]
        findings += [*_alike(there), *_room(plan, there), *_links(plan, {one.number: one for one in there})]
    return findings


def answer_for(settings: Settings) -> None:
    """What this machine tells a doctor elsewhere, on standard output, until its input ends."""

    def told(line: str) -> None:
        print(line, flush=True)

    answer(sys.stdin, told, *_of_here(settings))


def _of_here(settings: Settings) -> tuple[Callable[[], OwnProof], Callable[[], Mapping[str, Any]]]:
    path, _ = paths_of(settings.model)

    def machine() -> Mapping[str, Any]:
        blas.load_blas()  # before MLX is imported
        from draftd.engine.ranks.group import backends

        found = advance(None, system_probe(HardwareSample).sample(), 0.0, settings.hardware.memory_floor_bytes)
        return {"backends": backends(), "memory": found.available}

    return lambda: OwnProof(path, settings.model.adapter_path, os.environ, offline=True), machine


def _host(settings: Settings, plan: GroupPlan, rank: int) -> Host:
    """Raises HostError."""
    return OwnHost(*_of_here(settings)) if rank == 0 else AskedHost(_command(settings, plan, rank))


def _command(settings: Settings, plan: GroupPlan, rank: int) -> list[str]:
    arguments = ["doctor", "--answer"]
    named = {"model.path": settings.model.path, "model.adapter_path": settings.model.adapter_path}
    for name, value in named.items():
        arguments += ["--set", f"{name}={value}"] if value is not None else []
    if plan.here(rank):
        return [sys.executable, "-m", "draftd", *arguments]
    return ssh_command(plan.hosts[rank].ssh, settings.distributed.command, arguments, plan.environment)


def _trusted(settings: Settings, plan: GroupPlan) -> Iterator[Finding]:
    addresses = [plan.address, *(ip for host in plan.hosts for ip in host.ips)]
    try:
        check_trusted(settings.distributed, addresses)
    except ConfigError as error:
        yield bad(
            "network", error.message, "set distributed.trusted_network where that is so; see `draftd docs distributed`"
        )


def _unreachable(plan: GroupPlan, rank: int, error: HostError) -> Finding:
    name = plan.hosts[rank].ssh
    if plan.here(rank):
        return bad(f"rank {rank}", f"{name}: draftd does not answer here: {error.message}", "see its words")
    mend = f"make `ssh {name}` work without a password (ssh-copy-id), on macOS with Remote Login on"
    if "draftd" in error.message or "python" in error.message or "No such option" in error.message:
        mend = f"install this draftd on {name}, and say in distributed.command how it is called there"
    return bad(f"rank {rank}", f"{name}: {error.message}", mend)


def _reports(plan: GroupPlan, ranks: Iterable[_Rank]) -> Iterator[Finding]:
    """All are asked at once. Those that answer have a report afterwards."""
    began, ranks = time.monotonic(), list(ranks)
    for rank in ranks:
        rank.host.ask("report")
    for rank in reversed(ranks):  # this machine last: it answers when it is waited for
        try:
            report = rank.host.told(began + _REPORT_SECONDS - time.monotonic())
        except HostError as error:
            yield _unreachable(plan, rank.number, error)
            continue
        rank.report = report
        how = "here" if rank.here else "over SSH"
        yield ok(rank.subject, f"{rank.name} ({report['host']}) answers {how}")
        if plan.backend not in report["backends"]:
            has = ", ".join(report["backends"]) or "none"
            mend = "jaccl needs macOS 26.2 and Thunderbolt 5, nccl CUDA: choose another distributed.backend"
            yield bad(rank.subject, f"{rank.name}: its MLX has no {plan.backend}, but {has}", mend)


def _alike(ranks: list[_Rank]) -> Iterator[Finding]:
    """Versions, and the model to the last byte, against those of rank 0."""
    proofs = dict[int, Proof]()
    for rank in ranks:
        assert rank.report is not None
        if why := rank.report.get("model_error"):
            yield bad(rank.subject, why, f"put the model there as it lies here: rsync -a FOLDER {rank.name}:FOLDER")
        else:
            proofs[rank.number] = Proof.model_validate(rank.report["proof"])
    if (own := proofs.get(0)) is None:
        return
    alike = []
    for rank in ranks:
        if rank.number == 0 or (proof := proofs.get(rank.number)) is None:
            continue
        if why := difference(own, proof, rank.subject):
            yield bad(rank.subject, why, _alike_again(own, proof, rank.name))
        else:
            alike.append(rank)
    yield from _hashed(own, proofs, ranks, alike)


def _alike_again(own: Proof, other: Proof, name: str) -> str:
    packages = [f"draftd=={own.draftd}", *(f"{one}=={version}" for one, version in own.packages.items())]
    if (own.draftd, own.packages) != (other.draftd, other.packages):
        return f"on {name}: pip install {' '.join(packages)}"
    if own.system != other.system:
        return "leave it out of the hostfile"
    return f"copy the model from here: rsync -a --delete FOLDER/ {name}:FOLDER/"


def _hashed(own: Proof, proofs: Mapping[int, Proof], ranks: list[_Rank], alike: list[_Rank]) -> Iterator[Finding]:
    """Of those whose files have the same sizes. The same files need no hashes."""
    versions = f"draftd {own.draftd}, mlx {own.packages.get('mlx', '?')}, mlx-lm {own.packages.get('mlx-lm', '?')}"
    same, other = list[_Rank](), list[_Rank]()
    for rank in alike:
        (same if rank.here and proofs[rank.number].same == own.same else other).append(rank)
    for rank in same:
        yield ok(rank.subject, f"{versions}; the files of {own.model} are rank 0's")
    if not other:
        return
    began, asked = time.monotonic(), [*other, ranks[0]]
    for rank in asked:
        rank.host.ask("hashes")
    found = dict[int, dict[str, str]]()
    for rank in asked:
        try:
            found[rank.number] = rank.host.told(began + _HASH_SECONDS - time.monotonic())["hashes"]
        except HostError as error:
            yield bad(rank.subject, f"its model cannot be read: {error.message}", "look at the disk")
    for rank in other:
        if 0 not in found or rank.number not in found:
            continue
        if why := hash_difference(found[0], found[rank.number], rank.subject):
            yield bad(rank.subject, why, f"copy it from here: rsync -a --checksum FOLDER/ {rank.name}:FOLDER/")
        else:
            yield ok(rank.subject, f"{versions}; {own.model} is rank 0's to the last byte (SHA-256)")


def _room(plan: GroupPlan, ranks: list[_Rank]) -> Iterator[Finding]:
    """Free memory against an equal part of the weights, without what every rank reads whole; and rank 0's port."""
    for rank in ranks:
        report = rank.report or {}
        if (free := report.get("memory")) is None or "proof" not in report:
            continue
        beside = len(plan.beside(rank.number))
        needed = sum(report["proof"]["files"].values()) // plan.size * beside
        found = (
            f"{size(free)} free; about {size(needed)} of weights for {'its part' if beside == 1 else 'the parts there'}"
        )
        if needed > free:
            yield bad(rank.subject, f"{rank.name}: {found}", "close something there, or add a machine to the hostfile")
        elif rank.number == min(plan.beside(rank.number)):
            yield ok(rank.subject, f"{rank.name}: {found}")
    if plan.port:
        try:
            try_listening(plan.address, plan.port)
        except OSError as error:
            where = f"{plan.address}:{plan.port}"
            if error.errno == errno.EADDRINUSE:
                yield bad("ranks' port", f"{where} is taken", "a group may run already; otherwise set distributed.port")
            else:
                mend = "the first entry of the hostfile is this machine: correct its address"
                yield bad("ranks' port", f"{where}: {error.strerror}", mend)


def _links(plan: GroupPlan, ranks: Mapping[int, _Rank]) -> Iterator[Finding]:
    """Each way that a rank connects to another: the ring's neighbours, and all followers to rank 0."""
    for one, other in _ways(plan):
        if one not in ranks or other not in ranks:
            continue
        to = plan.address if other == 0 else plan.hosts[other].ips[0]
        yield _link(ranks[one], ranks[other], to)
    if plan.backend == "jaccl":
        text = "the RDMA devices are not measured: what is above is TCP, by which ranks meet"
        yield note("jaccl", text, "ibv_devices lists them; rdma_ctl enable, in recovery, turns them on")


def _ways(plan: GroupPlan) -> list[tuple[int, int]]:
    ring = [(one, (one + 1) % plan.size) for one in range(plan.size)] if plan.backend == "ring" else []
    return ring + [way for one in range(1, plan.size) if (way := (one, 0)) not in ring]


def _link(one: _Rank, other: _Rank, address: str) -> Finding:
    subject = f"link {one.number} → {other.number}"
    try:
        told = _asked(other, lambda: other.host.ask("listen", address=address))
    except HostError as error:
        mend = f"correct the address of {other.name} in the hostfile"
        return bad(subject, f"{other.name} cannot listen on {address}: {error.message}", mend)
    try:
        found = _asked(one, lambda: one.host.ask("measure", address=address, seconds=_STREAM_SECONDS, **told))
    except HostError as error:
        mend = f"a firewall, a cable, another network: on {one.name}, `ping {address}`; on macOS allow Python to listen"
        return bad(subject, f"{one.name} does not reach {address}: {error.message}", mend)
    trip, rate = found["round_trip"], found["bandwidth"]
    figures = {"round_trip_seconds": trip, "bytes_per_second": rate}
    text = f"{milliseconds(trip) if trip >= 1e-4 else f'{1e6 * trip:.0f} µs'} there and back, {_bits(rate)}"
    if trip > _FAR_SECONDS or rate < _NARROW:
        mend = "each layer waits for it twice: use a cable, no Wi-Fi or VPN; `draftd docs distributed` has figures"
        return note(subject, text, mend, figures=figures)
    return ok(subject, text, figures=figures)


def _asked(rank: _Rank, ask: Callable[[], None]) -> dict[str, Any]:
    ask()
    return rank.host.told(_LINK_SECONDS)


def _bits(rate: float) -> str:
    gigabits = rate * 8 / 1e9
    return f"{gigabits:.0f} Gbit/s" if gigabits >= 10 else f"{gigabits:.2f} Gbit/s"
