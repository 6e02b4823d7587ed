"""One target over several ranks, on this machine or on several."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, FiniteFloat

from draftd.settings.kinds import ExistingFile, Section, Token


class DistributedSettings(Section):
    """One target over several processes, its ranks, by MLX's distributed engine."""

    ranks: int = Field(default=1, ge=1, le=64)
    """Ranks to start on this machine. 1: the target runs within the daemon. A hostfile says how many itself."""
    hostfile: ExistingFile | None = None
    """Machines that the ranks run on, as `mlx.launch --hostfile` reads it: the first is this one. The others are
    started over SSH, unless `distributed.start` is off."""
    backend: Literal["any", "ring", "jaccl", "nccl"] = "any"
    """How ranks talk: ring over Ethernet, jaccl over Thunderbolt (macOS), nccl on CUDA."""
    port: int = Field(default=7490, ge=1024, le=65_535)
    """Port of rank 0, on its address in the hostfile, where followers connect for what they are to execute. The ports
    after it are for MLX, one for each address of each rank. Ranks on this machine use free ones."""
    start: bool = True
    """Start followers on other machines over SSH. Off: they are started there, with `draftd follow`."""
    command: str | None = None
    """How draftd is called on machines where SSH starts it, as a shell spells it. Unset: with the path of this one's
    Python."""
    token: Token | None = None
    """Key that a follower must have, the same on all ranks. Unset: rank 0 makes one and hands it to the followers that
    it starts. Followers that are started by hand or by a launcher need one beyond loopback."""
    trusted_network: bool = False
    """Collectives and records are not encrypted, and collectives not authenticated: beyond loopback ranks are refused
    unless this says that no other machine can reach that network."""
    timeout_seconds: FiniteFloat = Field(default=20, ge=0.5, le=3600)
    """Longest that a rank may be silent, or execute one step, before the group is ended. Longer than the longest slice
    of a prompt takes."""
    start_seconds: FiniteFloat = Field(default=600, ge=5, le=86_400)
    """Longest that ranks may take to read their weights, once all are connected."""
    restart: bool = True
    """Begin anew after the group was lost, after a pause that grows from 1 to 60 s. Off: the daemon ends."""
