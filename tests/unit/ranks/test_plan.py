"""The ranks of a group and their addresses: from a hostfile, from settings, from a launcher's variables."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from draftd.errors import ConfigError
from draftd.ranks.environment import RankEnvironment
from draftd.ranks.hostfile import read_hostfile
from draftd.ranks.plan import GroupPlan, Start, launched_rank, plan_group
from draftd.settings import DistributedSettings

TWO = [{"ssh": "mac-1", "ips": ["10.0.0.1"]}, {"ssh": "ann@mac-2", "ips": ["10.0.0.2"]}]
MESH = [
    {"ssh": "mac-1", "ips": ["10.0.0.1"], "rdma": [None, "rdma_en2", "rdma_en3"]},
    {"ssh": "mac-2", "ips": [], "rdma": ["rdma_en2", None, ["rdma_en4", "rdma_en5"]]},
    {"ssh": "mac-3", "ips": [], "rdma": ["rdma_en3", ["rdma_en4", "rdma_en5"], None]},
]


def write_hostfile(folder: Path, content: Any) -> Path:
    file = folder / "hosts.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def plan_from(folder: Path, content: Any, **settings: Any) -> GroupPlan:
    settings = {"hostfile": write_hostfile(folder, content), "trusted_network": True, **settings}
    plan = plan_group(DistributedSettings(**settings), {})
    assert plan is not None
    return plan


WRONG = [
    ("[", r"distributed.hostfile: got '.*; allowed: valid JSON"),
    ([{"ips": ["10.0.0.1"]}], r"hosts.json: hosts\[0\].ssh: not set; allowed: a value: this field is required"),
    ([TWO[0], {"ssh": "-oProxyCommand=x"}], r"hosts\[1\].ssh: got '-oProxyCommand=x'; allowed: a host as ssh takes it"),
    ([TWO[0], {"ssh": "b", "ips": ["10.0.0.300"]}], r"hosts\[1\].ips\[0\]: got '10.0.0.300'; allowed: an IPv4 address"),
    ([TWO[0], {"ssh": "b", "ips": ["fe80::1"]}], r"hosts\[1\].ips\[0\]: got 'fe80::1'; allowed: an IPv4 address"),
    ([TWO[0], {"ssh": "b", "ips": "10.0.0.2"}], r"hosts\[1\].ips: got '10.0.0.2'; allowed: a valid list"),
    ([TWO[0], {"ssh": "b"}], r"hosts\[1\].ips: got \[\]; allowed: the address where other ranks reach it"),
    (
        [TWO[0], {"ssh": "b", "ips": ["10.0.0.2", "10.0.1.2"]}],
        r"hosts\[1\].ips: got .*; allowed: 1 addresses, as hosts",
    ),
    ({"backend": "mpi", "hosts": TWO}, r"backend: got 'mpi'; allowed: '', 'ring', 'jaccl'"),
    ({"hosts": TWO, "envs": ["A B=1"]}, r"envs\[0\]: got 'A B=1'; allowed: NAME=VALUE"),
    ({"backend": "jaccl", "hosts": TWO}, r"hosts\[0\].rdma: got \[\]; allowed: 2 entries, one for each rank"),
    (
        [MESH[0], MESH[1], MESH[2] | {"rdma": ["a", None, None]}],
        r"hosts\[2\].rdma\[1\]: not set; allowed: the RDMA dev",
    ),
]


@pytest.mark.parametrize(("content", "message"), WRONG)
def test_invalid_hostfile_error_names_entry_and_field(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_from(tmp_path, content)


def test_distributed_port_without_room_for_mlx_ports_above_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="distributed.port: got 65534; allowed: at most 65533: MLX takes 2 ports"):
        plan_from(tmp_path, TWO, port=65_534)


def test_mlx_launch_hostfile_gives_a_rank_group_plan(tmp_path: Path) -> None:
    file = read_hostfile(write_hostfile(tmp_path, {"backend": "ring", "envs": ["A=b=c"], "hosts": TWO}))
    assert (file.backend, file.environment) == ("ring", {"A": "b=c"})
    plan = plan_from(tmp_path, TWO)
    assert (plan.backend, plan.start, plan.address, plan.port) == ("ring", Start.SSH, "10.0.0.1", 7490)
    assert [plan.here(rank) for rank in (0, 1)] == [True, False]
    assert plan_from(tmp_path, TWO, start=False, token="secret").start is Start.BY_HAND


def test_ranks_started_by_hand_or_launcher_require_a_token(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"distributed.token: not set; allowed: a secret, the same on all ranks"):
        plan_from(tmp_path, TWO, start=False)
    environ = {"MLX_RANK": "1", "MLX_HOSTFILE": str(write_hostfile(tmp_path, [["10.0.0.1:1"], ["10.0.0.2:1"]]))}
    with pytest.raises(ConfigError, match=r"distributed.token"):
        plan_group(DistributedSettings(trusted_network=True), environ)


def test_rank_hosts_beyond_loopback_require_trusted_network_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"distributed.trusted_network: got False; allowed: true, where no other"):
        plan_from(tmp_path, TWO, trusted_network=False)
    near = [{"ssh": "127.0.0.1", "ips": ["127.0.0.1"]}] * 2
    assert plan_from(tmp_path, near, trusted_network=False).here(1)


def test_ring_backend_gets_rank_addresses_from_generated_hostfile(tmp_path: Path) -> None:
    environment = RankEnvironment.from_plan(plan_from(tmp_path, TWO, port=8000))
    assert environment.nodes == [["10.0.0.1:8001"], ["10.0.0.2:8002"]]
    variables = environment.variables(1, tmp_path)
    assert variables["MLX_RANK"] == "1"
    assert json.loads(Path(variables["MLX_HOSTFILE"]).read_text()) == environment.nodes


def test_jaccl_mesh_backend_gets_rdma_devices_from_generated_file(tmp_path: Path) -> None:
    environment = RankEnvironment.from_plan(plan_from(tmp_path, MESH))
    variables = environment.variables(2, tmp_path)
    assert variables["MLX_RANK"] == "2"
    assert variables["MLX_JACCL_COORDINATOR"] == "10.0.0.1:7491"
    assert json.loads(Path(variables["MLX_IBV_DEVICES"]).read_text()) == [one["rdma"] for one in MESH]
    assert "MLX_JACCL_RING" not in variables


def test_rdma_ring_requires_devices_to_neighbouring_ranks_only(tmp_path: Path) -> None:
    hosts = [{"ssh": f"m{rank}", "ips": ["10.0.0.1"], "rdma": ["d"] * 4} for rank in range(4)]
    for rank, host in enumerate(hosts):
        host["rdma"] = ["d" if abs(rank - other) in (1, 3) else None for other in range(4)]
    variables = RankEnvironment.from_plan(plan_from(tmp_path, {"backend": "jaccl-ring", "hosts": hosts})).variables(
        0, tmp_path
    )
    assert variables["MLX_JACCL_RING"] == "1"
    with pytest.raises(ConfigError, match=r"hosts\[0\].rdma\[2\]"):
        plan_from(tmp_path, {"backend": "jaccl", "hosts": hosts})


def test_cuda_ranks_on_one_host_get_one_card_each(tmp_path: Path) -> None:
    hosts = [{"ssh": "gpu-1", "ips": ["10.0.0.1"]}, *[{"ssh": "gpu-2", "ips": ["10.0.0.2"]}] * 2]
    environment = RankEnvironment.from_plan(plan_from(tmp_path, {"backend": "nccl", "hosts": hosts}))
    variables = [environment.variables(rank, tmp_path) for rank in range(3)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in variables] == ["0", "0", "1"]
    assert {one["NCCL_HOST_IP"] for one in variables} == {"10.0.0.1"}
    assert {(one["NCCL_PORT"], one["MLX_WORLD_SIZE"]) for one in variables} == {("7491", "3")}


def test_local_ranks_get_distinct_loopback_ports() -> None:
    plan = plan_group(DistributedSettings(ranks=3), {})
    assert plan is not None
    assert (plan.start, plan.address, plan.port) == (Start.LOCAL, "127.0.0.1", 0)
    environment = RankEnvironment.from_plan(plan)
    assert len({node for (node,) in environment.nodes}) == 3
    assert (environment.beside, environment.place) == ([3, 3, 3], [0, 1, 2])


def test_single_rank_settings_give_no_rank_group(tmp_path: Path) -> None:
    assert plan_group(DistributedSettings(), {}) is None
    assert plan_group(DistributedSettings(hostfile=write_hostfile(tmp_path, TWO[:1])), {}) is None


def test_launched_rank_takes_its_number_and_addresses_from_environment(tmp_path: Path) -> None:
    nodes = [["127.0.0.1:32323"], ["127.0.0.1:32324"]]
    environ = {"MLX_RANK": "1", "MLX_HOSTFILE": str(write_hostfile(tmp_path, nodes))}
    assert launched_rank(environ) == 1
    plan = plan_group(DistributedSettings(), environ)
    assert plan is not None
    assert (plan.start, plan.rank, plan.size, plan.address, plan.port) == (Start.LAUNCHER, 1, 2, "127.0.0.1", 7490)
    environment = RankEnvironment.from_plan(plan)
    assert [tuple(one) for one in environment.nodes] == [("127.0.0.1:32323",), ("127.0.0.1:32324",)]
    assert "MLX_HOSTFILE" not in environment.variables(1, tmp_path)  # the launcher's file stays


@pytest.mark.parametrize(
    ("nodes", "rank", "message"),
    [
        ([["127.0.0.1:1"], ["127.0.0.1"]], "0", r"MLX_HOSTFILE .*: \[1\]: got .*; allowed: a list of addresses with p"),
        ([["127.0.0.1:1"], ["127.0.0.1:2"]], "2", "MLX_RANK: got 2; allowed: a whole number from 0 to 1"),
        ([["127.0.0.1:1"], ["127.0.0.1:2"]], "-1", "MLX_RANK: got '-1'; allowed: a whole number from 0"),
    ],
)
def test_invalid_launcher_variables_are_refused_naming_allowed_values(
    tmp_path: Path, nodes: Any, rank: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_group(DistributedSettings(), {"MLX_RANK": rank, "MLX_HOSTFILE": str(write_hostfile(tmp_path, nodes))})


def test_launcher_variables_and_ranks_setting_exclude_each_other(tmp_path: Path) -> None:
    environ = {"MLX_RANK": "0", "MLX_HOSTFILE": str(write_hostfile(tmp_path, [["127.0.0.1:1"], ["127.0.0.1:2"]]))}
    with pytest.raises(ConfigError, match=r"distributed.ranks: got '2'; allowed: no value: a launcher set MLX_RANK"):
        plan_group(DistributedSettings(ranks=2), environ)
    empty = tmp_path / "one.json"
    empty.write_text("\n")  # as mlx.launch leaves it for one rank
    assert launched_rank({"MLX_RANK": "0", "MLX_HOSTFILE": str(empty)}) is None


def test_rank_environment_sets_mlx_variables_and_ends_process_if_its_block_hangs(tmp_path: Path) -> None:
    """Runs in a process of its own, which SIGALRM ends: MLX holds Python's lock, so that no thread of ours could."""
    program = (
        "import os, sys, time; from draftd.ranks.environment import RankEnvironment\n"
        "from draftd.ranks.plan import plan_group\n"
        "from draftd.models.blas import describe_blas, load_blas; from draftd.settings import DistributedSettings\n"
        "environment = RankEnvironment.from_plan(plan_group(DistributedSettings(ranks=64), {}))\n"
        "with environment.enter(1, 1):\n"
        "    found = os.environ['MLX_RANK'], os.path.exists(os.environ['MLX_HOSTFILE'])\n"
        "    print(*found, describe_blas(load_blas()), flush=True)\n"
        "    time.sleep(60)\n"
    )
    environ = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environ)
    assert process.returncode == -signal.SIGALRM, process.stderr
    output = process.stdout.strip()
    assert output.startswith("1 True")
    assert "threads" not in output or output.endswith("threads: 1")
