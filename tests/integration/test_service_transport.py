"""Tokens and TLS."""

from __future__ import annotations

import gc
import socket
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from draftd.client.client import CallError, DraftdClient, message_of
from draftd.core import PROMPT_LOOKUP
from draftd.engine.pair import LoadedModels
from draftd.errors import ConfigError
from draftd.protocol import RELAYED_KEY
from draftd.settings import RemoteSettings
from draftd.strategies import LinkFailure
from draftd.v1 import inference_pb2_grpc
from draftd.verifier_client.link import GrpcLink
from tests.certificates import Authority
from tests.in_process_daemon import Served, collect, serving
from tests.scripted import scripted_models
from tests.wait_until import until

TOKEN = "correct-horse-battery-staple"


def models() -> LoadedModels:
    return scripted_models(0.7)


def refused(served: Served, client: DraftdClient) -> CallError:
    with client, pytest.raises(CallError) as caught:
        client.model(timeout=5)
    return caught.value


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", TOKEN[:-1], TOKEN.upper()])
def test_grpc_calls_without_the_token_are_unauthenticated_except_health(
    tmp_path: Path, token: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path, models, token=TOKEN) as served:
        with DraftdClient(served.target, token) as stranger:
            assert stranger.serving()
            for call in (stranger.model, stranger.status, stranger.get_flag, lambda: stranger.set_flag("off")):
                with pytest.raises(CallError, match="bearer token") as caught:
                    call()
                assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(CallError) as caught:
                list(stranger.generate("x"))
            assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
            assert caught.value.reason == "UNAUTHENTICATED"
        with served.channel() as channel:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            asked = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
            with pytest.raises(grpc.RpcError) as reflected:
                list(asked)
        assert reflected.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert served.client.get_flag().flag.default_variant == "on"
        assert len(collect(served.client.generate("x", max_tokens=4)).tokens) == 4
        assert len(served.telemetry.heard) == 1
    lines = [line for line in caplog.messages if "was refused" in line]
    methods = {line.split(" of ")[0].rpartition("/")[2] for line in lines}
    assert methods == {"GetModel", "GetStatus", "GetFlag", "SetFlag", "Generate", "ServerReflectionInfo"}
    assert len(lines) == len(methods), "one of each for a host"


def accepted(client: DraftdClient) -> int:
    """Asks for an answer that prompt lookup drafts. Returns how many drafted tokens were accepted."""
    answer = collect(client.generate("What follows?", max_tokens=24, drafter=PROMPT_LOOKUP))
    assert answer.finished is not None
    return answer.finished.counts.accepted_tokens


def test_earlier_answers_draft_only_for_clients_that_show_the_same_token(tmp_path: Path) -> None:
    other = "another-token-altogether"
    with serving(tmp_path, models, server={"token": f"{TOKEN} {other}"}, token=None) as served:
        first, second = DraftdClient(served.target, TOKEN), DraftdClient(served.target, other)
        with first, second:
            alone = accepted(first)
            assert accepted(second) == alone
            assert accepted(first) > alone
            assert accepted(second) > alone


def test_earlier_answers_draft_for_no_client_if_no_token_is_required(tmp_path: Path) -> None:
    with serving(tmp_path, models, token=None) as served, DraftdClient(served.target, TOKEN) as client:
        assert accepted(client) == accepted(client) == accepted(served.client)


def test_requests_relayed_by_another_daemon_draft_from_no_earlier_answers(tmp_path: Path) -> None:
    """All callers of the other daemon show this one the same token."""
    with serving(tmp_path, models, token=TOKEN) as served, served.channel() as channel:
        alone = accepted(served.client)
        assert accepted(served.client) > alone
        metadata = (("authorization", f"Bearer {TOKEN}"), (RELAYED_KEY, "1"))
        message = message_of("What follows?", max_tokens=24, drafter=PROMPT_LOOKUP)
        for _ in range(2):
            *_, last = inference_pb2_grpc.InferenceServiceStub(channel).Generate(message, metadata=metadata)
            assert last.finished.counts.accepted_tokens == alone


def test_tls_server_accepts_only_clients_that_trust_its_certificate_authority(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path, "ca"), Authority(tmp_path, "other")
    server = authority.issue("server")
    tls = {"tls_cert": server.cert, "tls_key": server.key}
    with serving(tmp_path, models, server=tls, token=TOKEN, client={"tls_ca": authority.file}) as served:
        assert len(collect(served.client.generate("x", max_tokens=4)).tokens) == 4
        assert refused(served, DraftdClient(served.target, TOKEN)).code is grpc.StatusCode.UNAVAILABLE
        stranger = DraftdClient(served.target, TOKEN, other.file)
        assert refused(served, stranger).code is grpc.StatusCode.UNAVAILABLE
        tokenless = DraftdClient(served.target, None, authority.file)
        assert refused(served, tokenless).code is grpc.StatusCode.UNAUTHENTICATED


def test_server_keeps_its_tls_credentials_alive_through_garbage_collection(tmp_path: Path) -> None:
    server = Authority(tmp_path, "authority").issue("server")
    with serving(tmp_path, models, server={"tls_cert": server.cert, "tls_key": server.key}, wait=False):
        gc.collect()  # gRPC itself does not hold them: a handshake would then end the process
        assert any(isinstance(one, grpc.ServerCredentials) for one in gc.get_objects())


def test_connections_dropped_during_the_tls_handshake_do_not_end_the_server(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    server = authority.issue("server")
    tls = {"tls_cert": server.cert, "tls_key": server.key}
    with serving(tmp_path, models, server=tls, client={"tls_ca": authority.file}) as served:
        for _ in range(10):  # crowds of connections that say nothing, each gone at once
            crowd = [socket.create_connection(("127.0.0.1", served.daemon.port), timeout=5) for _ in range(100)]
            for one in crowd:
                one.close()
        assert served.client.serving()


def test_mutual_tls_server_accepts_only_clients_its_authority_certified(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path, "ca"), Authority(tmp_path, "other")
    server, friend, stranger = authority.issue("server"), authority.issue("friend"), other.issue("stranger")
    other_friend = authority.issue("other-friend")
    tls = {"tls_cert": server.cert, "tls_key": server.key, "tls_client_ca": authority.file}
    own = {"tls_ca": authority.file, "tls_cert": friend.cert, "tls_key": friend.key}
    with serving(tmp_path, models, server=tls, token=TOKEN, client=own) as served:
        assert len(collect(served.client.generate("x", max_tokens=4)).tokens) == 4
        alone = accepted(served.client)
        colleague = DraftdClient(
            served.target, TOKEN, authority.file, tls_cert=other_friend.cert, tls_key=other_friend.key
        )
        with colleague:
            assert accepted(colleague) == alone, "the same token, but another certificate"
        assert accepted(served.client) > alone
        anonymous = DraftdClient(served.target, TOKEN, authority.file)
        assert refused(served, anonymous).code is grpc.StatusCode.UNAVAILABLE
        wrong = DraftdClient(served.target, TOKEN, authority.file, tls_cert=stranger.cert, tls_key=stranger.key)
        assert refused(served, wrong).code is grpc.StatusCode.UNAVAILABLE


def test_remote_link_connects_over_tls_and_after_its_token_is_corrected(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    server = authority.issue("server")
    tls = {"tls_cert": server.cert, "tls_key": server.key}
    with serving(
        tmp_path, models, server=tls, token=TOKEN, verify={"enabled": True}, client={"tls_ca": authority.file}
    ) as served:
        asked = {"enabled": True, "target": served.target, "tls_ca": authority.file}
        own = GrpcLink(RemoteSettings(**asked, token=TOKEN))
        stranger = GrpcLink(RemoteSettings(**asked, token="another-token-altogether"))
        links = own, stranger
        try:
            for link in links:
                link.start(lambda: served.worker.tokenizer)
            until(lambda: own.state.up and stranger.state.retry_after is not None, 20)
            assert stranger.state.failure is LinkFailure.UNAUTHENTICATED
            connections = own.state.connections
            for link in links:
                link.reload(RemoteSettings(**asked, token=TOKEN))
            until(lambda: stranger.state.up, 20)
            assert (own.state.up, own.state.connections) == (True, connections), "none that works is cut"
        finally:
            assert all(link.close() for link in links)


def test_invalid_tls_certificate_or_key_file_is_a_configuration_error(tmp_path: Path) -> None:
    server = Authority(tmp_path, "ca").issue("server")
    for field, tls in (
        ("server.tls_cert", {"tls_cert": server.key, "tls_key": server.key}),
        ("server.tls_key", {"tls_cert": server.cert, "tls_key": server.cert}),
    ):
        with pytest.raises(ConfigError) as caught:
            Served(tmp_path, models, server=tls)
        assert caught.value.field == field
