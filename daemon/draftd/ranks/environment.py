"""The variables and files through which MLX's backends connect a rank to the others, and the time limit for that.

    ring   MLX_RANK, MLX_HOSTFILE: a file with [["HOST:PORT", …], …], each rank's listening addresses
    jaccl  MLX_RANK, MLX_IBV_DEVICES: a file with the RDMA devices from each rank to each; MLX_JACCL_COORDINATOR:
           rank 0's "HOST:PORT"; MLX_JACCL_RING if only neighbours are connected
    nccl   MLX_RANK, MLX_WORLD_SIZE, NCCL_HOST_IP, NCCL_PORT of rank 0; CUDA_VISIBLE_DEVICES

as set by `mlx.launch`. Rank 0 sends them to its followers; variables set by a launcher stay.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from draftd.hardware.system import device
from draftd.models.blas import use_threads
from draftd.ranks.hostfile import Devices
from draftd.ranks.plan import GroupPlan, Start

#: MLX's ring tries to connect for at most 31 s, and waits for its neighbour's connection forever.
JOIN_SECONDS = 60
_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # if these are unset, the ranks of a machine share its cores


@dataclass(frozen=True, slots=True)
class RankEnvironment:
    """The environment of one start of the group, sent by rank 0 to all. `nodes`: each rank's listening addresses;
    `devices`: each rank's RDMA devices. `coordinator`: rank 0's "HOST:PORT", for jaccl and nccl. `beside`: for each
    rank, the number of ranks on its machine; `place`: for each rank, its index from 0 among those."""

    backend: str
    nodes: list[list[str]] = field(default_factory=list)
    devices: list[list[Devices]] = field(default_factory=list)
    coordinator: str = ""
    jaccl_ring: bool = False
    beside: list[int] = field(default_factory=list)
    place: list[int] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=dict)
    launched: bool = False

    @classmethod
    def from_plan(cls, plan: GroupPlan) -> RankEnvironment:
        """Returns the environment for a plan. Ports are free ones if all ranks are on this machine, otherwise those
        after the plan's port."""
        local = plan.start is Start.LOCAL
        ips = [list(host.ips) for host in plan.hosts] if plan.backend == "ring" else [[plan.address]]
        count = sum(map(len, ips))
        ports = iter(free_ports(count) if local else range(plan.port + 1, plan.port + 1 + count))
        nodes = [list(node) for node in plan.nodes] or [[f"{ip}:{next(ports)}" for ip in node] for node in ips]
        beside = [plan.beside(rank) for rank in range(plan.size)]
        return cls(
            backend=plan.backend,
            nodes=nodes if plan.backend == "ring" else [],
            devices=[list(host.rdma) for host in plan.hosts] if plan.backend == "jaccl" else [],
            coordinator=nodes[0][0] if plan.backend != "ring" else "",
            jaccl_ring=plan.jaccl_ring,
            beside=[len(ranks) for ranks in beside],
            place=[ranks.index(rank) for rank, ranks in enumerate(beside)],
            environment=dict(plan.environment),
            launched=plan.start is Start.LAUNCHER,
        )

    def variables(self, rank: int, folder: Path) -> dict[str, str]:
        """Returns a rank's variables, with its files in `folder`; empty if a launcher has set them."""
        variables = dict(self.environment)
        if self.launched:
            return variables
        variables["MLX_RANK"] = str(rank)
        if self.backend == "ring":
            variables["MLX_HOSTFILE"] = _file(folder / "hostfile.json", self.nodes)
        elif self.backend == "jaccl":
            variables["MLX_IBV_DEVICES"] = _file(folder / "devices.json", self.devices)
            variables["MLX_JACCL_COORDINATOR"] = self.coordinator
            if self.jaccl_ring:
                variables["MLX_JACCL_RING"] = "1"
        else:
            host, _, port = self.coordinator.partition(":")
            variables |= {"NCCL_HOST_IP": host, "NCCL_PORT": port, "MLX_WORLD_SIZE": str(len(self.beside))}
            variables["CUDA_VISIBLE_DEVICES"] = str(self.place[rank])
        return variables

    @contextlib.contextmanager
    def enter(self, rank: int, seconds: int = JOIN_SECONDS) -> Iterator[None]:
        """Sets the variables of this process. If the block takes longer than `seconds`, SIGALRM ends the process: MLX
        holds Python's lock while it waits for neighbours, so no thread of ours could."""
        with tempfile.TemporaryDirectory(prefix="draftd-rank-") as folder:
            os.environ.update(self.variables(rank, Path(folder)))
            if self.beside[rank] > 1 and not any(name in os.environ for name in _THREADS):
                use_threads(max(1, device().cores // self.beside[rank]))
            signal.alarm(seconds)
            try:
                yield
            finally:
                signal.alarm(0)


def free_ports(count: int) -> list[int]:
    """Returns different ports of the loopback interface that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [int(sock.getsockname()[1]) for sock in sockets]


def _file(path: Path, content: object) -> str:
    path.write_text(json.dumps(content))
    return str(path)
