"""Plans a group: which ranks there are, where they run, and how they reach each other, from the settings or a
launcher's variables. Starts and connects nothing; an impossible plan is refused with the setting to change."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from draftd.errors import ConfigError
from draftd.ranks.hostfile import SETTING, Host, check_devices, read_hostfile, read_json
from draftd.settings import DistributedSettings, is_loopback

LOOPBACK = "127.0.0.1"
_BACKENDS = ("ring", "jaccl", "nccl")
#: Variables by which a launcher tells a rank how to reach the others, beside MLX_RANK.
_RING, _JACCL, _JACCL_COORDINATOR, _NCCL, _SIZE = (
    "MLX_HOSTFILE",
    "MLX_IBV_DEVICES",
    "MLX_JACCL_COORDINATOR",
    "NCCL_HOST_IP",
    "MLX_WORLD_SIZE",
)


class Start(enum.Enum):
    """How followers are started: by rank 0's daemon, on this machine and over SSH; by a person, with `draftd follow`;
    or by a launcher, which also started rank 0."""

    LOCAL = "local"
    SSH = "ssh"
    BY_HAND = "by hand"
    LAUNCHER = "launcher"


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The plan of a group. `hosts`: one for each rank. `rank`: this process's rank. `address`, `port`: where rank 0
    listens for followers; port 0 is any free one. `nodes`: each rank's "HOST:PORT" addresses in the ring, from a
    launcher; empty if rank 0 decides them. `jaccl_ring`: MLX's jaccl backend connects the ranks as a ring.
    `environment`: variables that are set in every rank's process."""

    backend: str
    hosts: tuple[Host, ...]
    start: Start
    address: str
    port: int
    rank: int = 0
    nodes: tuple[tuple[str, ...], ...] = ()
    jaccl_ring: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.hosts)

    def here(self, rank: int) -> bool:
        """Whether the rank runs on rank 0's machine."""
        host = self.hosts[rank].ssh
        return rank == 0 or is_loopback(host) or host == self.hosts[0].ssh

    def beside(self, rank: int) -> list[int]:
        """Returns the ranks on this rank's machine, including itself, in order."""
        return [
            other
            for other in range(self.size)
            if (self.here(other) and self.here(rank)) or self.hosts[other].ssh == self.hosts[rank].ssh
        ]


@dataclass(frozen=True, slots=True)
class GroupShare:
    """The data that rank 0's engine process needs about its group. `group`: the group's id. `key`: the secret that rank
    0 shares with all followers. `listener`: the file descriptor of the daemon's socket that followers connect to."""

    plan: GroupPlan
    group: str
    key: bytes
    listener: int
    settings: DistributedSettings


def launched_rank(environ: Mapping[str, str]) -> int | None:
    """Returns the rank that a launcher of several ranks gave this process, or None without one. Raises ConfigError."""
    if not (text := environ.get("MLX_RANK", "")) or not any(environ.get(name) for name in (_RING, _JACCL, _NCCL)):
        return None
    if not text.isdecimal():
        raise ConfigError("MLX_RANK", text, "a whole number from 0")
    plan = _launcher_plan(DistributedSettings(), environ, int(text))
    return None if plan is None else plan.rank


def plan_group(settings: DistributedSettings, environ: Mapping[str, str]) -> GroupPlan | None:
    """Returns the plan, or None for a single rank. Raises ConfigError."""
    rank = launched_rank(environ)
    if rank is not None:
        if settings.hostfile is not None or settings.ranks > 1:
            name = SETTING if settings.hostfile is not None else "distributed.ranks"
            raise ConfigError(name, str(settings.hostfile or settings.ranks), "no value: a launcher set MLX_RANK")
        plan = _launcher_plan(settings, environ, rank)
    elif settings.hostfile is not None:
        plan = _of_hostfile(settings, settings.hostfile)
    elif settings.ranks > 1:
        if settings.backend not in ("any", "ring", "nccl"):
            raise ConfigError("distributed.backend", settings.backend, "any, ring or nccl for ranks on one machine")
        backend = "ring" if settings.backend == "any" else settings.backend
        plan = GroupPlan(backend, (Host(ssh=LOOPBACK, ips=[LOOPBACK]),) * settings.ranks, Start.LOCAL, LOOPBACK, 0)
    else:
        return None
    if plan is not None:
        addresses = [plan.address, *(ip for host in plan.hosts for ip in host.ips)]
        check_trusted(settings, addresses)
        starts, near = plan.start in (Start.LOCAL, Start.SSH), all(map(is_loopback, addresses))
        if settings.token is None and not (starts or near):
            allowed = "a secret, the same on all ranks: rank 0 cannot hand one to followers that it does not start"
            raise ConfigError("distributed.token", None, allowed)
    return plan


def check_trusted(settings: DistributedSettings, addresses: list[str]) -> None:
    """Raises ConfigError if an address is beyond loopback and the settings do not declare the network trusted."""
    beyond = next((address for address in addresses if not is_loopback(address)), None)
    if beyond is not None and not settings.trusted_network:
        allowed = (
            f"true, where no other machine can reach the network of {beyond}: ranks send tokens and activations "
            "unencrypted, and MLX's own connections ask for no key"
        )
        raise ConfigError("distributed.trusted_network", False, allowed)


def _of_hostfile(settings: DistributedSettings, path: Path) -> GroupPlan | None:
    file = read_hostfile(path)
    size = len(file.hosts)
    if settings.ranks not in (1, size):
        raise ConfigError("distributed.ranks", settings.ranks, f"unset: {path} has {size} hosts")
    if size == 1:
        return None
    named = file.backend.removesuffix("-ring")
    backend = named if settings.backend == "any" else settings.backend
    if backend == "":
        backend = "jaccl" if all(len(host.rdma) == size for host in file.hosts) else "ring"
    ring = file.backend == "jaccl-ring"
    for rank, host in enumerate(file.hosts):
        needs = backend == "ring" or rank == 0
        if needs and not host.ips:
            what = "the address where other ranks reach it" if rank else "the address where followers reach rank 0"
            raise ConfigError(f"{SETTING} {path}: hosts[{rank}].ips", [], what)
        if backend == "ring" and len(host.ips) != len(file.hosts[0].ips):
            what = f"{len(file.hosts[0].ips)} addresses, as hosts[0] has: the ring has as many connections everywhere"
            raise ConfigError(f"{SETTING} {path}: hosts[{rank}].ips", list(host.ips), what)
    if backend == "jaccl":
        check_devices(file.hosts, path, ring=ring)
    after = sum(len(host.ips) for host in file.hosts) if backend == "ring" else 1
    if settings.port + after > 65_535:
        allowed = f"at most {65_535 - after}: MLX takes {after} ports after it"
        raise ConfigError("distributed.port", settings.port, allowed)
    start = Start.SSH if settings.start else Start.BY_HAND
    address = file.hosts[0].ips[0]
    return GroupPlan(backend, tuple(file.hosts), start, address, settings.port, 0, (), ring, file.environment)


def _launcher_plan(settings: DistributedSettings, environ: Mapping[str, str], rank: int) -> GroupPlan | None:
    """Returns the plan from `mlx.launch`'s variables; None if it started one rank."""
    nodes, ring = tuple[tuple[str, ...], ...](), bool(environ.get("MLX_JACCL_RING"))
    if path := environ.get(_RING):
        backend, nodes = "ring", _nodes(Path(path))
        size, address = len(nodes), nodes[0][0].partition(":")[0] if nodes else ""
    elif path := environ.get(_JACCL):
        devices = read_json(Path(path), _JACCL)
        backend, size = "jaccl", len(devices) if isinstance(devices, list) else 0
        address = environ.get(_JACCL_COORDINATOR, "").partition(":")[0]
        if not address:
            raise ConfigError(_JACCL_COORDINATOR, "", "rank 0's address and a port, as 10.0.0.1:32323")
    else:
        backend, address, text = "nccl", environ[_NCCL], environ.get(_SIZE, "")
        if not text.isdecimal():
            raise ConfigError(_SIZE, text, "the number of ranks")
        size = int(text)
    if size <= 1:
        return None
    if rank >= size:
        raise ConfigError("MLX_RANK", rank, f"a whole number from 0 to {size - 1}: there are {size} ranks")
    if settings.backend not in ("any", backend):
        raise ConfigError(
            "distributed.backend", settings.backend, f"any or {backend}, for which the launcher set the variables"
        )
    ips = [[node.partition(":")[0] for node in each] for each in nodes] or [[]] * size
    hosts = (Host.model_construct(ssh=each[0] if each else f"rank {at}", ips=each) for at, each in enumerate(ips))
    return GroupPlan(backend, tuple(hosts), Start.LAUNCHER, address, settings.port, rank, nodes, ring)


def _nodes(path: Path) -> tuple[tuple[str, ...], ...]:
    """Reads `[["10.0.0.1:32323"], ["10.0.0.2:32324"]]`; empty, as mlx.launch leaves it for one rank. Raises
    ConfigError."""
    nodes = read_json(path, _RING)
    if nodes is None:
        return ()
    if not isinstance(nodes, list):
        raise ConfigError(_RING, str(path), 'a list, as [["10.0.0.1:32323"], ["10.0.0.2:32324"]]')
    for rank, node in enumerate(nodes):
        if (
            not isinstance(node, list)
            or not node
            or not all(isinstance(text, str) and _has_port(text) for text in node)
        ):
            raise ConfigError(f"{_RING} {path}: [{rank}]", node, "a list of addresses with ports, as 10.0.0.2:32324")
    return tuple(tuple(node) for node in nodes)


def _has_port(text: str) -> bool:
    host, colon, port = text.partition(":")
    return bool(host and colon) and port.isdecimal() and 0 < int(port) <= 65_535
