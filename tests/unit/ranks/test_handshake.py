"""How a group begins: what followers must be like, and what is said where they are not."""

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
def begun(nano_pair: NanoPair) -> Iterator[Begun]:
    made = Begun(nano_pair.draft)
    yield made
    made.close()


@pytest.fixture
def copied(nano_pair: NanoPair, tmp_path: Path) -> Path:
    return Path(shutil.copytree(nano_pair.draft, tmp_path / "model"))


def refused(begun: Begun, **changed: object) -> str:
    """What rank 0 and a follower say, of whose proof something is changed."""
    proof = own(begun.model)
    proof.proof = proof.proof.model_copy(update=changed)
    leading, calling = begun.lead(), begun.call(1, proof)
    with pytest.raises(GroupRefused) as here:
        leading.result(10)
    with pytest.raises(GroupRefused) as there:
        calling.result(10)
    assert here.value.message == there.value.message
    return here.value.message.replace(socket.gethostname(), "HOST")


def test_three_ranks_agree_to_go(nano_pair: NanoPair) -> None:
    begun = Begun(nano_pair.draft, local_plan(3))
    leading, calls = begun.lead(), [begun.call(2), begun.call(1)]
    assert [peer.rank for peer in leading.result(10)] == [1, 2]
    joined = [one.result(10) for one in calls]
    assert joined[0].environment == joined[1].environment
    assert len(joined[0].environment.nodes) == 3
    begun.close()


def test_unlike_versions_are_one_line(begun: Begun) -> None:
    packages = own(begun.model).proof.packages
    said = refused(begun, packages=packages | {"mlx": "0.31.0"})
    assert said == f"rank 1 on HOST has mlx 0.31.0, rank 0 has {packages['mlx']}"


def test_unlike_sizes_are_one_line(begun: Begun) -> None:
    files = own(begun.model).proof.files
    said = refused(begun, model="other", files=files | {"model.safetensors": 5})
    size = files["model.safetensors"]
    assert said.startswith("rank 1 on HOST has another model (other): model.safetensors: 5 bytes, rank 0")
    assert said.endswith(f"has {size:,}")


def test_unlike_weights_of_one_size_are_refused(begun: Begun, copied: Path) -> None:
    file = copied / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    leading, calling = begun.lead(), begun.call(1, own(copied))
    with pytest.raises(
        GroupRefused, match=r"rank 1 on \S+ has other weights: model.safetensors has the size of rank 0's"
    ):
        leading.result(20)
    with pytest.raises(GroupRefused, match="has other weights"):
        calling.result(20)


def test_same_weights_elsewhere_are_proven_by_hashes(begun: Begun, copied: Path) -> None:
    proof = own(copied)
    leading, calling = begun.lead(), begun.call(1, proof)
    leading.result(20)
    calling.result(20)
    assert proof.progress["hashed"] > 0


def test_files_of_one_machine_are_not_hashed(begun: Begun) -> None:
    proof = own(begun.model)
    leading, calling = begun.lead(), begun.call(1, proof)
    leading.result(10)
    calling.result(10)
    assert proof.progress["hashed"] == 0


def test_strangers_at_the_port_do_not_disturb_a_handshake(begun: Begun) -> None:
    leading = begun.lead()
    strangers = [socket.create_connection(begun.listener.getsockname()) for _ in range(5)]
    strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    strangers[1].sendall(frame(FrameKind.RECORD, 7, b"x"))
    strangers[2].close()
    with pytest.raises(GroupRefused, match="there is no rank 4 among 2"):
        begun.call(4).result(10)
    with pytest.raises(GroupRefused, match="told of 3 ranks, rank 0 has 2"):
        begun.call(1, ranks=3).result(10)
    calling = begun.call(1)
    assert [peer.rank for peer in leading.result(10)] == [1]
    calling.result(10)


def test_rank_is_taken_once_while_it_is_there(nano_pair: NanoPair) -> None:
    begun = Begun(nano_pair.draft, local_plan(3))
    leading, twice = begun.lead(), [begun.call(1), begun.call(1)]
    until(lambda: any(one.done() for one in twice), 10)
    begun.call(2).result(10)
    assert [peer.rank for peer in leading.result(10)] == [1, 2]
    failures = [said(one) for one in twice]
    assert sorted(failures)[0].startswith("None")
    assert "rank 1 is connected already" in sorted(failures)[1]
    begun.close()


def test_rank_that_has_gone_may_come_again(nano_pair: NanoPair) -> None:
    begun = Begun(nano_pair.draft, local_plan(3))
    leading, proof = begun.lead(), own(begun.model).proof
    with socket.create_connection(begun.listener.getsockname()) as early:
        say_hello(early, Hello(rank=1, ranks=3, host="early", proof=proof, challenge="x"))
        assert early.recv(100)  # a sign of life: it was taken
    calls = [begun.call(1), begun.call(2)]
    assert [peer.host for peer in leading.result(10)] == [socket.gethostname()] * 2
    for one in calls:
        one.result(10)
    begun.close()


def say_hello(sock: socket.socket, hello: Hello, key: bytes = KEY) -> None:
    """Says it as a follower does, to rank 0's challenge."""
    (challenge,) = FrameReader().feed(sock.recv(1000))
    sock.sendall(signed_frame(FrameKind.HELLO, hello.model_dump(), key, challenge.fields()["challenge"]))


def test_follower_without_the_key_is_refused_alone(begun: Begun) -> None:
    """Neither a guessed key nor a HELLO that was heard on another connection makes a stranger a follower."""
    leading = begun.lead()
    with pytest.raises(GroupRefused, match="another key than rank 0: distributed.token must be the same on all ranks"):
        begun.call(1, key=b"guessed").result(10)
    hello = Hello(rank=1, ranks=2, host="x", proof=own(begun.model).proof, challenge="x")
    with socket.create_connection(begun.listener.getsockname()) as stranger:
        stranger.recv(1000)
        stranger.sendall(signed_frame(FrameKind.HELLO, hello.model_dump(), KEY, "another challenge"))
        (refusal,) = FrameReader().feed(stranger.recv(1000))
        assert refusal.kind is FrameKind.REFUSED
    calling = begun.call(1)
    assert [follower.rank for follower in leading.result(10)] == [1]
    calling.result(10)


def test_follower_does_not_join_a_rank_0_without_the_key(begun: Begun) -> None:
    calling = begun.call(1)
    begun.listener.settimeout(10)
    with begun.listener.accept()[0] as leader:
        leader.sendall(json_frame(FrameKind.CHALLENGE, {"challenge": "x"}))
        (hello,) = FrameReader().feed(leader.recv(1 << 16))
        fields = {"group": "g1", "look": False, "hashes": False, "timeout_seconds": TIMEOUT_SECONDS, "environment": {}}
        leader.sendall(signed_frame(FrameKind.WELCOME, fields, b"guessed", hello.body[32:].decode()))
        with pytest.raises(GroupRefused, match="does not have this rank's key: distributed.token must be the same"):
            calling.result(10)


def said(one: Future[Any]) -> str:
    return str(one.exception(10))


def test_look_finds_no_fault_and_leaves_the_follower_waiting(nano_pair: NanoPair, monkeypatch: Any) -> None:
    """A follower that the doctor did not start joins the group that begins after the look."""
    monkeypatch.setattr(neighbours, "_STREAM_SECONDS", 0.01)
    begun = Begun(nano_pair.draft, replace(by_hand("127.0.0.1", "127.0.0.1"), nodes=((free(),), (free(),))))
    calling = begun.call(1)
    ranks, links = begun.look().result(30)
    assert [(rank.error, rank.difference, "ring" in rank.backends) for rank in ranks] == [("", "", True)] * 2
    assert [(link.source, link.target, link.error) for link in links] == [(0, 1, ""), (1, 0, "")]
    assert all(link.figures["bytes_per_second"] > 0 for link in links)
    assert not calling.done()
    assert [follower.rank for follower in begun.lead().result(10)] == [1]
    calling.result(10)
    begun.close()


def by_hand(*ips: str) -> GroupPlan:
    hosts = tuple(Host(ssh=f"mac-{rank}", ips=[ip]) for rank, ip in enumerate(ips))
    return GroupPlan("ring", hosts, Start.BY_HAND, "127.0.0.1", 0, nodes=tuple((f"{ip}",) for ip in ips))


def met(model: str, *nodes: str) -> tuple[str, str]:
    """What rank 0 and a follower say where these are the ring's."""
    plan = replace(by_hand("127.0.0.1", "127.0.0.1"), nodes=tuple((node,) for node in nodes))
    begun = Begun(model, plan)
    leading, calling = begun.lead(), begun.call(1, patience=0.1)
    leader = said(leading)
    begun.close()
    return leader.replace(socket.gethostname(), "HOST"), said(calling)


def free() -> str:
    held, port = taken_port()
    held.close()
    return f"127.0.0.1:{port}"


def test_wrong_address_of_a_follower_is_one_line(nano_pair: NanoPair) -> None:
    leader, follower = met(nano_pair.draft, free(), "192.0.2.7:7492")
    assert leader == "rank 1 on HOST: 192.0.2.7 is no address of this machine: correct the hostfile"
    assert follower == "192.0.2.7 is no address of this machine: correct the hostfile"


def test_taken_port_of_a_follower_is_one_line(nano_pair: NanoPair) -> None:
    held, port = taken_port()
    with held:
        leader, _ = met(nano_pair.draft, free(), f"127.0.0.1:{port}")
    assert leader == f"rank 1 on HOST: port {port} of 127.0.0.1 is taken by another program"


def test_taken_port_of_rank_0_is_one_line(nano_pair: NanoPair) -> None:
    held, port = taken_port()
    with held:
        leader, _ = met(nano_pair.draft, f"127.0.0.1:{port}", free())
    assert leader == f"rank 0: port {port} of 127.0.0.1 is taken by another program"


def test_neighbour_out_of_reach_is_one_line(nano_pair: NanoPair) -> None:
    """By hostfiles of a launcher that differ: rank 1 reaches rank 0, and listens elsewhere than rank 0 believes."""
    first, second = free(), free()
    begun = Begun(nano_pair.draft, replace(by_hand("127.0.0.1", "127.0.0.1"), nodes=((first,), (second,))))
    leading, calling = begun.lead(), begun.call(1, nodes=((first,), (free(),)))
    line = rf"rank 0 does not reach rank 1 on \S+: {second} cannot be reached: Connection refused"
    assert re.fullmatch(line, said(leading))
    assert isinstance(calling.exception(10), GroupRefused)
    begun.close()


def test_taken_control_port_is_one_line() -> None:
    held, port = taken_port()
    with held, pytest.raises(ConfigError) as caught:
        listen_for_followers(replace(by_hand("127.0.0.1"), port=port))
    assert caught.value.message == (
        f"distributed.port: got {port}; allowed: a port of 127.0.0.1 that no other program listens on"
    )


def test_wrong_address_of_rank_0_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"hosts\[0\].ips\[0\]: got '192.0.2.7'; allowed: an address of this machine"):
        listen_for_followers(replace(by_hand("127.0.0.1"), address="192.0.2.7"))


def test_rank_0_out_of_reach_is_one_line(nano_pair: NanoPair) -> None:
    begun = Begun(nano_pair.draft)
    begun.listener.close()
    with pytest.raises(DraftdError, match=rf"rank 0 cannot be reached at {begun.address}: Connection refused"):
        begun.call(1, patience=0.3).result(10)
    begun.close()
