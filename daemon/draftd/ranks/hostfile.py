"""The hostfile: the machines of the ranks, as `mlx.launch --hostfile` reads it and `mlx.distributed_config` writes it:

    [{"ssh": "mac-1", "ips": ["10.0.0.1"], "rdma": [null, "rdma_en2"]},
     {"ssh": "mac-2", "ips": ["10.0.0.2"], "rdma": ["rdma_en2", null]}]

or {"backend": "jaccl", "envs": ["NAME=VALUE"], "hosts": [as above]}. Ranks are numbered by its entries, from 0.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from draftd.errors import ConfigError, wrong_field

SETTING = "distributed.hostfile"
_MOST_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=[^\0]*")

#: The RDMA devices between two ranks, one or several; None for a rank itself, or without a cable.
Devices = str | list[str] | None


def _reachable(value: str) -> str:
    if ":" in value:
        raise ValueError("an IPv4 address without a port: MLX's ring knows no IPv6")
    try:
        ipaddress.IPv4Address(value)
    except ValueError:
        if not _NAME.fullmatch(value) or value.replace(".", "").isdigit():
            raise ValueError("an IPv4 address, as 10.0.0.2") from None
    return value


def _ssh(value: str) -> str:
    # A leading hyphen would make it an option of ssh.
    if not value or value.startswith("-") or not value.isprintable() or " " in value:
        raise ValueError("a host as ssh takes it: NAME or USER@NAME")
    return value


def _variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise ValueError("NAME=VALUE")
    return value


class Host(BaseModel):
    """The machine of a rank. `ssh`: its name for ssh. `ips`: its addresses for the ring, one for each of the ring's
    connections. `rdma`: one entry for each rank."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)  # ignores fields that mlx.launch ignores

    ssh: Annotated[str, AfterValidator(_ssh)]
    ips: list[Annotated[str, AfterValidator(_reachable)]] = Field(default_factory=list)
    rdma: list[Devices] = Field(default_factory=list)


class Hostfile(BaseModel):
    """A hostfile's contents. `backend`: "" if not named. `envs`: variables of all ranks."""

    model_config = Host.model_config

    backend: Literal["", "ring", "jaccl", "jaccl-ring", "nccl"] = ""
    envs: list[Annotated[str, AfterValidator(_variable)]] = Field(default_factory=list)
    hosts: list[Host] = Field(min_length=1, max_length=64)

    @property
    def environment(self) -> dict[str, str]:
        return dict(variable.split("=", 1) for variable in self.envs)


def read_hostfile(path: Path) -> Hostfile:
    """Reads a hostfile. Raises ConfigError, which names the entry and its field."""
    content = read_json(path, SETTING)
    try:
        return Hostfile.model_validate({"hosts": content} if isinstance(content, list) else content)
    except ValidationError as error:
        where, value, allowed = wrong_field(error)
        raise ConfigError(f"{SETTING} {path}: {where or 'the file'}", value, allowed) from None


def check_devices(hosts: Sequence[Host], path: Path, *, ring: bool) -> None:
    """Checks that each rank names a device for every rank that jaccl connects it with: all others, or its neighbours in
    a ring. Raises ConfigError."""
    size = len(hosts)
    for rank, host in enumerate(hosts):
        place = f"{SETTING} {path}: hosts[{rank}].rdma"
        if len(host.rdma) != size:
            raise ConfigError(
                place, list(host.rdma), f"{size} entries, one for each rank, with null for the rank's own"
            )
        if host.rdma[rank] is not None:
            raise ConfigError(f"{place}[{rank}]", host.rdma[rank], "null: the entry stands for the rank itself")
        for other in range(size) if not ring else ((rank - 1) % size, (rank + 1) % size):
            if other != rank and host.rdma[other] is None:
                what = f"the RDMA device that connects it with {hosts[other].ssh}"
                raise ConfigError(f"{place}[{other}]", None, what)


def read_json(path: Path, name: str) -> Any:
    """Reads JSON; None for an empty file. Raises ConfigError, which calls the file `name`."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(name, str(path), f"a file that can be read ({error.strerror})") from None
    if len(raw) > _MOST_BYTES:
        raise ConfigError(name, str(path), f"a file of at most {_MOST_BYTES} bytes")
    try:
        return json.loads(raw) if raw.strip() else None
    except ValueError as error:
        raise ConfigError(name, str(path), f"valid JSON ({error})") from None
