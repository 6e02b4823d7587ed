"""`draftd doctor --hostfile`: checks each machine of a group, and the links between them.

The group is formed as for serving, but serves nothing (ranks/doctor.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from draftd.cli.figures import milliseconds, size
from draftd.cli.findings import Finding, bad, note, ok
from draftd.cli.persistent_state import paths_of
from draftd.errors import ConfigError, ModelLoadError, in_words
from draftd.ranks.doctor import LinkFindings, RankFindings, look_at_group
from draftd.ranks.plan import GroupPlan, Start, check_trusted, plan_group
from draftd.ranks.proof import OwnProof, Proof
from draftd.settings import Settings

_FAR_SECONDS, _NARROW = 1e-3, 0.8e9 / 8  # seconds of a round trip, bytes a second: worse than a cable's


def check_hosts(settings: Settings) -> list[Finding]:
    """Checks the machines that the hostfile names, and leaves nothing running on them."""
    trusting = settings.distributed.model_copy(update={"trusted_network": True})
    try:
        plan = plan_group(trusting, {})
    except ConfigError as error:
        return [bad("hostfile", error.message, "correct it; mlx.distributed_config writes one")]
    if plan is None:
        return [note("hostfile", f"{settings.distributed.hostfile} has one host: the target runs within the daemon")]
    findings = [ok("hostfile", f"{plan.size} ranks, {plan.backend}"), *_check_network(settings, plan)]
    path, _ = paths_of(settings.model)
    try:
        with contextlib.closing(OwnProof(path, settings.model.adapter_path, os.environ, offline=True)) as own:
            looking = settings.model_copy(update={"distributed": trusting})
            ranks, links = look_at_group(looking, plan, os.environ, own)
    except ModelLoadError as error:
        return [*findings, bad("rank 0", error.message, "give --model as to `draftd serve`")]
    except ConfigError as error:
        return [*findings, bad("ranks' port", error.message, "a group may run already; otherwise correct it")]
    except OSError as error:
        return [*findings, bad("ranks", f"followers cannot be started: {in_words(error)}", "install ssh")]
    for rank in ranks:
        findings += _judge_rank(plan, rank, ranks[0])
    findings += [_judge_link(plan, link) for link in links]
    if plan.backend == "jaccl":
        text = "the RDMA devices are not measured: what is above is TCP, by which ranks meet"
        findings.append(note("jaccl", text, "ibv_devices lists them; rdma_ctl enable, in recovery, turns them on"))
    return findings


def _check_network(settings: Settings, plan: GroupPlan) -> Iterator[Finding]:
    addresses = [plan.address, *(ip for host in plan.hosts for ip in host.ips)]
    try:
        check_trusted(settings.distributed, addresses)
    except ConfigError as error:
        yield bad(
            "network", error.message, "set distributed.trusted_network where that is so; see `draftd docs distributed`"
        )


def _judge_rank(plan: GroupPlan, rank: RankFindings, first: RankFindings) -> Iterator[Finding]:
    """Yields whether the rank answers, and whether it can serve its part of the target."""
    subject, name, own = f"rank {rank.rank}", plan.hosts[rank.rank].ssh, first.proof
    assert own is not None
    if rank.error:
        yield bad(subject, f"{name}: {rank.error}", _mend_error(plan, rank, name))
    if rank.proof is None:
        return
    yield ok(subject, f"{name} ({rank.host}) answers {'here' if plan.here(rank.rank) else 'from there'}")
    if rank.backends and plan.backend not in rank.backends:
        has = ", ".join(rank.backends)
        mend = "jaccl needs macOS 26.2 and Thunderbolt 5, nccl CUDA: choose another distributed.backend"
        yield bad(subject, f"{name}: its MLX has no {plan.backend}, but {has}", mend)
    if rank.difference:
        yield bad(subject, rank.difference, _mend_difference(own, rank.proof, name))
    elif rank.rank and not rank.error:
        versions = f"draftd {own.draftd}, mlx {own.packages.get('mlx', '?')}, mlx-lm {own.packages.get('mlx-lm', '?')}"
        same = f"the files of {own.model} are rank 0's{' to the last byte (SHA-256)' if rank.hashed else ''}"
        yield ok(subject, f"{versions}; {same}")
    yield from _check_room(plan, rank, rank.proof, name)


def _mend_error(plan: GroupPlan, rank: RankFindings, name: str) -> str:
    if rank.rank == 0 or rank.proof is not None:
        return "look at its disk, and at the connection"
    if "model: " in rank.error:
        return f"put the model there as it lies here: rsync -a FOLDER {name}:FOLDER"
    if plan.start is Start.BY_HAND:
        return f"on {name}: draftd follow --address {plan.address}:{plan.port} --rank {rank.rank} --model MODEL"
    if plan.here(rank.rank):
        return "see its words"
    if any(word in rank.error for word in ("draftd", "python", "No such option")):
        return f"install this draftd on {name}, and say in distributed.command how it is called there"
    if "cannot be reached" in rank.error or "has not connected" in rank.error:
        return f"a firewall, another network: on {name}, `ping {plan.address}`; on macOS allow Python to listen here"
    return f"make `ssh {name}` work without a password (ssh-copy-id), on macOS with Remote Login on"


def _mend_difference(own: Proof, other: Proof, name: str) -> str:
    packages = [f"draftd=={own.draftd}", *(f"{package}=={version}" for package, version in own.packages.items())]
    if (own.draftd, own.packages) != (other.draftd, other.packages):
        return f"on {name}: pip install {' '.join(packages)}"
    if own.system != other.system:
        return "leave it out of the hostfile"
    return f"copy the model from here: rsync -a --checksum --delete FOLDER/ {name}:FOLDER/"


def _check_room(plan: GroupPlan, rank: RankFindings, proof: Proof, name: str) -> Iterator[Finding]:
    """Compares each machine's free memory with the weights of the ranks there. Each rank counts as an equal share of
    the weights; those that every rank loads in full are not added."""
    beside = plan.beside(rank.rank)
    if rank.memory is None or rank.rank != min(beside):
        return
    needed = sum(proof.files.values()) // plan.size * len(beside)
    part = "its part" if len(beside) == 1 else "the parts there"
    text = f"{name}: {size(rank.memory)} free; about {size(needed)} of weights for {part}"
    if needed > rank.memory:
        yield bad(f"rank {rank.rank}", text, "close something there, or add a machine to the hostfile")
    else:
        yield ok(f"rank {rank.rank}", text)


def _judge_link(plan: GroupPlan, link: LinkFindings) -> Finding:
    subject, address = f"link {link.source} → {link.target}", link.address.rpartition(":")[0]
    source, target = plan.hosts[link.source].ssh, plan.hosts[link.target].ssh
    if link.listening:
        mend = f"correct the address of {target} in the hostfile, or distributed.port"
        return bad(subject, f"{target} cannot listen on {address}: {link.listening}", mend)
    if link.error:
        mend = f"a firewall, a cable, another network: on {source}, `ping {address}`; on macOS allow Python to listen"
        return bad(subject, f"{source} does not reach {address}: {link.error}", mend)
    trip, rate = link.figures["round_trip_seconds"], link.figures["bytes_per_second"]
    gigabits = rate * 8 / 1e9
    bits = f"{gigabits:.{0 if gigabits >= 10 else 2}f} Gbit/s"
    text = f"{milliseconds(trip) if trip >= 1e-4 else f'{1e6 * trip:.0f} µs'} there and back, {bits}"
    if trip > _FAR_SECONDS or rate < _NARROW:
        mend = "each layer waits for it twice: use a cable, no Wi-Fi or VPN; `draftd docs distributed` has figures"
        return note(subject, text, mend, figures=dict(link.figures))
    return ok(subject, text, figures=dict(link.figures))
