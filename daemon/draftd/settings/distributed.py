"""One target over several ranks, on this machine or on several."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, FiniteFloat

from draftd.settings.kinds import ExistingFile, Section, Token


class DistributedSettings(Section):
    """One target over several processes, its ranks, with MLX's distributed engine."""

    ranks: int = Field(default=1, ge=1, le=64)
    """Ranks to start on this machine. 1: the target runs within the daemon. Leave it at 1 with a hostfile, which has
    one entry for each rank."""
    hostfile: ExistingFile | None = None
    """JSON file with the machine of each rank, in the format of `mlx.launch --hostfile`. The first entry is this
    machine; the daemon starts the other ranks over SSH unless distributed.start is off. Unset: all ranks run on this
    machine."""
    backend: Literal["any", "ring", "jaccl", "nccl"] = "any"
    """How ranks exchange data: ring (TCP), jaccl (RDMA over Thunderbolt 5, macOS only) or nccl (CUDA). any: as the
    hostfile says, or else jaccl if every entry has RDMA devices, and ring if not."""
    port: int = Field(default=7490, ge=1024, le=65_535)
    """Port of rank 0, on its address in the hostfile, to which followers connect. MLX uses the ports after it: with
    ring one for each address of each rank, otherwise one. Without a hostfile, ranks use free ports instead."""
    start: bool = True
    """Start the followers on other machines over SSH. Off: you start them there, with `draftd follow`."""
    command: str | None = None
    """Command that runs draftd on the other machines, in shell syntax, such as /opt/draftd/bin/draftd. Unset: the path
    of the Python that runs this daemon."""
    token: Token | None = None
    """Secret that all ranks must have. Unset: rank 0 makes one and gives it to the followers that it starts. Beyond
    loopback, followers that you or a launcher start need this setting."""
    trusted_network: bool = False
    """Confirms that no other machine can reach the network between the ranks. Traffic between ranks is not encrypted,
    and MLX's connections are not authenticated, so without this, ranks beyond loopback are refused."""
    timeout_seconds: FiniteFloat = Field(default=20, ge=0.5, le=3600)
    """Longest time in seconds that a rank may be silent or take for one step. After that the whole group ends. It must
    be longer than a slice of a prompt takes."""
    start_seconds: FiniteFloat = Field(default=600, ge=5, le=86_400)
    """Longest time in seconds for all ranks to read their weights, after all are connected. After that the whole group
    ends."""
    restart: bool = True
    """If the group is lost after it has served, start it again, after a pause that grows from 1 to 60 s. Off: the
    daemon exits."""
