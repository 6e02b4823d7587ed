"""How a group forms: what followers must have in common with rank 0, and the errors where they differ."""

from __future__ import annotations

import re
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftd.errors import ConfigError, DraftdError
from draftd.ranks import neighbours
from draftd.ranks.form import listen_for_followers
from draftd.ranks.frames import FrameKind, FrameReader, frame, json_frame
from draftd.ranks.handshake import GroupRefused, Hello, signed_frame
from draftd.ranks.hostfile import Host
from draftd.ranks.plan import GroupPlan, Start
from tests.conftest import NanoPair
from tests.fake_ranks import KEY, TIMEOUT_SECONDS, Begun, local_plan, own, taken_port
from tests.wait_until import until


@pytest.fixture
def formation(nano_pair: NanoPair) -> Iterator[Begun]:
    made = Begun(nano_pair.draft)
    yield made
    made.close()


@pytest.fixture
def model_copy(nano_pair: NanoPair, tmp_path: Path) -> Path:
    return Path(shutil.copytree(nano_pair.draft, tmp_path / "model"))


def refusal_with(formation: Begun, **changed: object) -> str:
    """Returns the refusal of a follower with these fields of its proof changed. Rank 0 and the follower report the
    same."""
    proof = own(formation.model)
    proof.proof = proof.proof.model_copy(update=changed)
    leading, calling = formation.lead(), formation.call(1, proof)
    with pytest.raises(GroupRefused) as here:
        leading.result(10)
    with pytest.raises(GroupRefused) as there:
        calling.result(10)
    assert here.value.message == there.value.message
    return here.value.message.replace(socket.gethostname(), "HOST")


def test_three_ranks_agree_and_form_a_group(nano_pair: NanoPair) -> None:
    formation = Begun(nano_pair.draft, local_plan(3))
    leading, calls = formation.lead(), [formation.call(2), formation.call(1)]
    assert [peer.rank for peer in leading.result(10)] == [1, 2]
    joined = [call.result(10) for call in calls]
    assert joined[0].environment == joined[1].environment
    assert len(joined[0].environment.nodes) == 3
    formation.close()


def test_rank_with_different_package_version_is_refused_in_one_line(formation: Begun) -> None:
    packages = own(formation.model).proof.packages
    message = refusal_with(formation, packages=packages | {"mlx": "0.31.0"})
    assert message == f"rank 1 on HOST has mlx 0.31.0, rank 0 has {packages['mlx']}"


def test_rank_with_different_model_file_sizes_is_refused_in_one_line(formation: Begun) -> None:
    files = own(formation.model).proof.files
    message = refusal_with(formation, model="other", files=files | {"model.safetensors": 5})
    size = files["model.safetensors"]
    assert message.startswith("rank 1 on HOST has another model (other): model.safetensors: 5 bytes, rank 0")
    assert message.endswith(f"has {size:,}")


def test_rank_with_different_weights_of_same_size_is_refused(formation: Begun, model_copy: Path) -> None:
    file = model_copy / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    leading, calling = formation.lead(), formation.call(1, own(model_copy))
    with pytest.raises(
        GroupRefused, match=r"rank 1 on \S+ has other weights: model.safetensors has the size of rank 0's"
    ):
        leading.result(20)
    with pytest.raises(GroupRefused, match="has other weights"):
        calling.result(20)


def test_rank_with_same_weights_in_another_folder_is_accepted_after_hashing(formation: Begun, model_copy: Path) -> None:
    proof = own(model_copy)
    leading, calling = formation.lead(), formation.call(1, proof)
    leading.result(20)
    calling.result(20)
    assert proof.progress["hashed"] > 0


def test_ranks_sharing_one_model_folder_do_not_hash_its_files(formation: Begun) -> None:
    proof = own(formation.model)
    leading, calling = formation.lead(), formation.call(1, proof)
    leading.result(10)
    calling.result(10)
    assert proof.progress["hashed"] == 0


def test_invalid_connections_do_not_disturb_rank_group_handshake(formation: Begun) -> None:
    leading = formation.lead()
    strangers = [socket.create_connection(formation.listener.getsockname()) for _ in range(5)]
    strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    strangers[1].sendall(frame(FrameKind.RECORD, 7, b"x"))
    strangers[2].close()
    with pytest.raises(GroupRefused, match="there is no rank 4 among 2"):
        formation.call(4).result(10)
    with pytest.raises(GroupRefused, match="told of 3 ranks, rank 0 has 2"):
        formation.call(1, ranks=3).result(10)
    calling = formation.call(1)
    assert [peer.rank for peer in leading.result(10)] == [1]
    calling.result(10)


def test_second_follower_claiming_a_connected_rank_is_refused(nano_pair: NanoPair) -> None:
    formation = Begun(nano_pair.draft, local_plan(3))
    leading, twice = formation.lead(), [formation.call(1), formation.call(1)]
    until(lambda: any(call.done() for call in twice), 10)
    formation.call(2).result(10)
    assert [peer.rank for peer in leading.result(10)] == [1, 2]
    failures = [error_message(call) for call in twice]
    assert sorted(failures)[0].startswith("None")
    assert "rank 1 is connected already" in sorted(failures)[1]
    formation.close()


def test_follower_rank_that_disconnected_may_join_again(nano_pair: NanoPair) -> None:
    formation = Begun(nano_pair.draft, local_plan(3))
    leading, proof = formation.lead(), own(formation.model).proof
    with socket.create_connection(formation.listener.getsockname()) as early:
        say_hello(early, Hello(rank=1, ranks=3, host="early", proof=proof, challenge="x"))
        assert early.recv(100)  # a sign of life: rank 0 has taken the follower
    calls = [formation.call(1), formation.call(2)]
    assert [peer.host for peer in leading.result(10)] == [socket.gethostname()] * 2
    for call in calls:
        call.result(10)
    formation.close()


def say_hello(sock: socket.socket, hello: Hello, key: bytes = KEY) -> None:
    """Sends `hello` as a follower does, signed for rank 0's challenge."""
    (challenge,) = FrameReader().feed(sock.recv(1000))
    sock.sendall(signed_frame(FrameKind.HELLO, hello.model_dump(), key, challenge.fields()["challenge"]))


def test_follower_rank_without_the_key_is_refused_and_a_valid_one_joins(formation: Begun) -> None:
    """Neither a guessed key nor a HELLO replayed from another connection makes a stranger a follower."""
    leading = formation.lead()
    with pytest.raises(GroupRefused, match="another key than rank 0: distributed.token must be the same on all ranks"):
        formation.call(1, key=b"guessed").result(10)
    hello = Hello(rank=1, ranks=2, host="x", proof=own(formation.model).proof, challenge="x")
    with socket.create_connection(formation.listener.getsockname()) as stranger:
        stranger.recv(1000)
        stranger.sendall(signed_frame(FrameKind.HELLO, hello.model_dump(), KEY, "another challenge"))
        (refusal,) = FrameReader().feed(stranger.recv(1000))
        assert refusal.kind is FrameKind.REFUSED
    calling = formation.call(1)
    assert [follower.rank for follower in leading.result(10)] == [1]
    calling.result(10)


def test_follower_rank_does_not_join_a_rank_0_without_the_key(formation: Begun) -> None:
    calling = formation.call(1)
    formation.listener.settimeout(10)
    with formation.listener.accept()[0] as leader:
        leader.sendall(json_frame(FrameKind.CHALLENGE, {"challenge": "x"}))
        (hello,) = FrameReader().feed(leader.recv(1 << 16))
        fields = {"group": "g1", "look": False, "hashes": False, "timeout_seconds": TIMEOUT_SECONDS, "environment": {}}
        leader.sendall(signed_frame(FrameKind.WELCOME, fields, b"guessed", hello.body[32:].decode()))
        with pytest.raises(GroupRefused, match="does not have this rank's key: distributed.token must be the same"):
            calling.result(10)


def error_message(future: Future[Any]) -> str:
    return str(future.exception(10))


def test_doctor_inspects_ranks_and_links_while_follower_continues_waiting(
    nano_pair: NanoPair, monkeypatch: Any
) -> None:
    """A follower that the doctor did not start joins the group that forms afterwards."""
    monkeypatch.setattr(neighbours, "_STREAM_SECONDS", 0.01)
    formation = Begun(
        nano_pair.draft, replace(plan_by_hand("127.0.0.1", "127.0.0.1"), nodes=((free_address(),), (free_address(),)))
    )
    calling = formation.call(1)
    ranks, links = formation.look().result(30)
    assert [(rank.error, rank.difference, "ring" in rank.backends) for rank in ranks] == [("", "", True)] * 2
    assert [(link.source, link.target, link.error) for link in links] == [(0, 1, ""), (1, 0, "")]
    assert all(link.figures["bytes_per_second"] > 0 for link in links)
    assert not calling.done()
    assert [follower.rank for follower in formation.lead().result(10)] == [1]
    calling.result(10)
    formation.close()


def plan_by_hand(*ips: str) -> GroupPlan:
    hosts = tuple(Host(ssh=f"mac-{rank}", ips=[ip]) for rank, ip in enumerate(ips))
    return GroupPlan("ring", hosts, Start.BY_HAND, "127.0.0.1", 0, nodes=tuple((f"{ip}",) for ip in ips))


def errors_with_nodes(model: str, *nodes: str) -> tuple[str, str]:
    """Returns the errors of rank 0 and of a follower for these ring addresses."""
    plan = replace(plan_by_hand("127.0.0.1", "127.0.0.1"), nodes=tuple((node,) for node in nodes))
    formation = Begun(model, plan)
    leading, calling = formation.lead(), formation.call(1, patience=0.1)
    leader = error_message(leading)
    formation.close()
    return leader.replace(socket.gethostname(), "HOST"), error_message(calling)


def free_address() -> str:
    listener, port = taken_port()
    listener.close()
    return f"127.0.0.1:{port}"


def test_wrong_address_of_a_follower_rank_gives_one_line_error(nano_pair: NanoPair) -> None:
    leader, follower = errors_with_nodes(nano_pair.draft, free_address(), "192.0.2.7:7492")
    assert leader == "rank 1 on HOST: 192.0.2.7 is not an address of this machine: correct the hostfile"
    assert follower == "192.0.2.7 is not an address of this machine: correct the hostfile"


def test_taken_port_of_a_follower_rank_gives_one_line_error(nano_pair: NanoPair) -> None:
    listener, port = taken_port()
    with listener:
        leader, _ = errors_with_nodes(nano_pair.draft, free_address(), f"127.0.0.1:{port}")
    assert leader == f"rank 1 on HOST: port {port} of 127.0.0.1 is taken by another program"


def test_taken_port_of_rank_0_gives_one_line_error(nano_pair: NanoPair) -> None:
    listener, port = taken_port()
    with listener:
        leader, _ = errors_with_nodes(nano_pair.draft, f"127.0.0.1:{port}", free_address())
    assert leader == f"rank 0: port {port} of 127.0.0.1 is taken by another program"


def test_unreachable_neighbour_rank_gives_one_line_error(nano_pair: NanoPair) -> None:
    """The launcher's hostfiles differ: rank 1 reaches rank 0, but listens at another address than rank 0 expects."""
    first, second = free_address(), free_address()
    formation = Begun(nano_pair.draft, replace(plan_by_hand("127.0.0.1", "127.0.0.1"), nodes=((first,), (second,))))
    leading, calling = formation.lead(), formation.call(1, nodes=((first,), (free_address(),)))
    line = rf"rank 0 does not reach rank 1 on \S+: {second} cannot be reached: Connection refused"
    assert re.fullmatch(line, error_message(leading))
    assert isinstance(calling.exception(10), GroupRefused)
    formation.close()


def test_taken_control_port_gives_one_line_config_error() -> None:
    listener, port = taken_port()
    with listener, pytest.raises(ConfigError) as caught:
        listen_for_followers(replace(plan_by_hand("127.0.0.1"), port=port))
    assert caught.value.message == (
        f"distributed.port: got {port}; allowed: a port of 127.0.0.1 that no other program listens on"
    )


def test_wrong_address_of_rank_0_gives_one_line_config_error() -> None:
    with pytest.raises(ConfigError, match=r"hosts\[0\].ips\[0\]: got '192.0.2.7'; allowed: an address of this machine"):
        listen_for_followers(replace(plan_by_hand("127.0.0.1"), address="192.0.2.7"))


def test_unreachable_rank_0_gives_one_line_error_with_its_address(nano_pair: NanoPair) -> None:
    formation = Begun(nano_pair.draft)
    formation.listener.close()
    with pytest.raises(DraftdError, match=rf"rank 0 cannot be reached at {formation.address}: Connection refused"):
        formation.call(1, patience=0.3).result(10)
    formation.close()
