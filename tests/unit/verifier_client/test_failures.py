"""A link that does not come up: its cause in the log, the journal, the counter, and from the doctor."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager as Context
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from draftd.cli.commands.doctor import check_remote
from draftd.cli.findings import Finding, Severity
from draftd.errors import DraftdError, NotEnabled, NotServing, OtherProtocol, TooManyPeers, Unauthenticated
from draftd.fronts.grpc.interceptors import rich_status
from draftd.journal import Journal, Subject
from draftd.protocol import DETAILS_KEY
from draftd.service.peers import Refusals
from draftd.settings import RemoteSettings
from draftd.strategies import LinkFailure
from draftd.v1 import verification_pb2 as pb
from draftd.v1 import verification_pb2_grpc as rpc
from draftd.verifier_client.codec import VERSION
from draftd.verifier_client.failures import LinkError
from draftd.verifier_client.link import GrpcLink, LinkAnnouncements
from tests.certificates import Authority
from tests.fake_verifier import FakeVerifier, Words, fake_verifier
from tests.proxy import proxied
from tests.scripted_link import MODEL, Clock
from tests.wait_until import until

NOWHERE = "x" * 64 + ".invalid"  # no valid name: no name server is asked for it


@contextlib.contextmanager
def grpc_server(
    verifier: rpc.VerificationServiceServicer | None = None, credentials: grpc.ServerCredentials | None = None
) -> Iterator[int]:
    """Runs a gRPC server; yields its port."""
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    if verifier is not None:
        rpc.add_VerificationServiceServicer_to_server(verifier, server)  # type: ignore[no-untyped-call]
    at = "127.0.0.1:0"
    port = server.add_insecure_port(at) if credentials is None else server.add_secure_port(at, credentials)
    server.start()
    try:
        yield port
    finally:
        server.stop(0).wait()


class RefusingVerifier(rpc.VerificationServiceServicer):
    """Ends each connection with an error, as a daemon does."""

    def __init__(self, error: DraftdError) -> None:
        self._error = error

    def Verify(
        self, requests: Iterator[pb.VerifyRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.VerifyResponse]:
        context.set_trailing_metadata(((DETAILS_KEY, rich_status(self._error).SerializeToString()),))
        context.abort(grpc.StatusCode[self._error.grpc_status], self._error.message)
        yield pb.VerifyResponse()


class OtherVersionVerifier(rpc.VerificationServiceServicer):
    def Verify(
        self, requests: Iterator[pb.VerifyRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.VerifyResponse]:
        yield pb.VerifyResponse(welcome=pb.Welcome(protocol=VERSION + 1))


@contextlib.contextmanager
def silent_server() -> Iterator[int]:
    """Accepts connections and sends nothing; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    with silent_server() as port:
        pass
    yield port


@contextlib.contextmanager
def resetting_server() -> Iterator[int]:
    """Ends each connection at once, like a relay in front of a machine that is down."""
    with proxied(1) as proxy:
        proxy.cut()
        yield proxy.port


class Certificates:
    """Authorities, certificates, and settings of an edge that trusts them."""

    def __init__(self, folder: Path) -> None:
        self.authority, self.other = Authority(folder, "ca"), Authority(folder, "other")

    def tls(self, *, ask: bool = False, **issue: Any) -> grpc.ServerCredentials:
        server = self.authority.issue("server", **issue)
        authorities = self.authority.file.read_bytes() if ask else None
        pair = (server.key.read_bytes(), server.cert.read_bytes())
        return grpc.ssl_server_credentials([pair], authorities, ask)

    @property
    def trusting(self) -> dict[str, Any]:
        return {"tls_ca": self.authority.file}

    def certified(self) -> dict[str, Any]:
        edge = self.other.issue("edge")
        return {**self.trusting, "tls_cert": edge.cert, "tls_key": edge.key}


def refusing_server(error: DraftdError) -> Callable[[Certificates], tuple[Context[int], dict[str, Any]]]:
    return lambda certificates: (grpc_server(RefusingVerifier(error)), {})


CASES: dict[LinkFailure, Any] = {
    LinkFailure.NAME_NOT_FOUND: (lambda certificates: (closed_port(), {"host": NOWHERE}), "remote.target"),
    LinkFailure.CONNECTION_REFUSED: (lambda certificates: (closed_port(), {}), "remote.target"),
    LinkFailure.CONNECT_TIMEOUT: (
        lambda certificates: (silent_server(), {"connect_seconds": 0.2}),
        "remote.connect_seconds",
    ),
    LinkFailure.CONNECTION_LOST: (lambda certificates: (resetting_server(), {}), "remote.target"),
    LinkFailure.TLS_REQUIRED: (
        lambda certificates: (grpc_server(FakeVerifier(), certificates.tls()), {}),
        "remote.tls_ca",
    ),
    LinkFailure.TLS_NOT_SPOKEN: (
        lambda certificates: (grpc_server(FakeVerifier()), certificates.trusting),
        "server.tls_cert",
    ),
    LinkFailure.UNKNOWN_AUTHORITY: (
        lambda certificates: (grpc_server(FakeVerifier(), certificates.tls()), {"tls_ca": certificates.other.file}),
        "remote.tls_ca",
    ),
    LinkFailure.WRONG_NAME: (
        lambda certificates: (grpc_server(FakeVerifier(), certificates.tls(names=["gpu.lan"])), certificates.trusting),
        "127.0.0.1: use a name of the certificate in remote.target",
    ),
    LinkFailure.CERTIFICATE_EXPIRED: (
        lambda certificates: (grpc_server(FakeVerifier(), certificates.tls(begin=-3, end=-1)), certificates.trusting),
        "renew server.tls_cert",
    ),
    LinkFailure.KEY_TYPE: (
        lambda certificates: (
            grpc_server(FakeVerifier(), certificates.tls(key=ed25519.Ed25519PrivateKey.generate())),
            certificates.trusting,
        ),
        "(Ed25519): make a certificate with an RSA, P-256 or P-384 key",
    ),
    LinkFailure.CLIENT_CERTIFICATE: (
        lambda certificates: (grpc_server(FakeVerifier(), certificates.tls(ask=True)), certificates.certified()),
        "remote.tls_cert",
    ),
    LinkFailure.NO_VERIFIER: (lambda certificates: (grpc_server(), {}), "remote.target"),
    LinkFailure.UNAUTHENTICATED: (refusing_server(Unauthenticated("no token")), "remote.token"),
    LinkFailure.OTHER_PROTOCOL: (
        refusing_server(OtherProtocol("the edge speaks version 2, this daemon 3")),
        "version 2",
    ),
    LinkFailure.NOT_ENABLED: (refusing_server(NotEnabled("no")), "verify.enabled"),
    LinkFailure.NOT_SERVING: (refusing_server(NotServing("the model is loading")), "(the model is loading)"),
    LinkFailure.TOO_MANY_PEERS: (refusing_server(TooManyPeers("64 peers are connected")), "raise verify.peers"),
}


def edge_settings(port: int, host: str = "127.0.0.1", **changes: Any) -> RemoteSettings:
    quick = {"token": "0123456789abcdef", "probe_seconds": 0.1, "connect_seconds": 20}
    return RemoteSettings(**{"enabled": True, "target": f"{host}:{port}", **quick, **changes})


@contextlib.contextmanager
def linked(settings: RemoteSettings, journal: Journal) -> Iterator[GrpcLink]:
    link = GrpcLink(settings, journal=journal, jitter=lambda: 1.0)
    link.start(Words)
    try:
        yield link
    finally:
        assert link.close()


def link_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record.getMessage() for record in caplog.records if record.name == "draftd.verifier_client.link"]
    return [line.partition(": ")[2] for line in lines]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.mark.parametrize("failure", CASES)
def test_verifier_link_failure_is_logged_once_with_setting_to_change(
    failure: LinkFailure, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    make, setting = CASES[failure]
    server, changes = make(certificates)
    journal = Journal()
    with server as port:
        settings = edge_settings(port, **changes)
        with linked(settings, journal) as link:
            until(lambda: sum(link.state.failures.values()) >= 2, 20)
            state = link.state
        (finding,) = check_remote(settings, Words())
    assert (state.up, state.failure) == (False, failure), state.why
    assert {kind for kind, count in state.failures.items() if count} == {failure}
    assert setting in state.why
    assert link_lines(caplog) == [f"down: {state.why}"]
    (event,) = journal.latest(9)
    assert (event.subject, event.previous, event.current) == (Subject.LINK, "", "down")
    assert (event.cause, event.evidence) == (failure.value, state.why)
    assert finding.verdict is Severity.BAD
    assert finding.mend
    assert state.why.endswith(f": {finding.mend}")


def test_doctor_names_verifier_certificate_key_type_that_grpc_rejects(certificates: Certificates) -> None:
    with grpc_server(FakeVerifier(), certificates.tls(key=ec.generate_private_key(ec.SECP521R1()))) as port:
        (finding,) = check_remote(edge_settings(port, **certificates.trusting), Words())
    assert "of a type that gRPC does not take (ECDSA P-521)" in finding.text


def test_verifier_link_log_states_both_versions_on_protocol_mismatch(caplog: pytest.LogCaptureFixture) -> None:
    with grpc_server(OtherVersionVerifier()) as port, linked(edge_settings(port), Journal()) as link:
        until(lambda: link.state.failure is LinkFailure.OTHER_PROTOCOL)
    assert f"it speaks version {VERSION + 1} of the protocol, and this daemon {VERSION}" in link_lines(caplog)[0]


def test_every_verifier_link_state_change_is_logged_and_journaled(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    fake, journal = FakeVerifier(), Journal()
    with fake_verifier(fake) as port, proxied(port) as proxy, linked(edge_settings(proxy.port), journal) as link:
        for _ in range(3):  # all within half a minute: even so each change is logged
            until(lambda: link.state.up)
            proxy.cut()
            until(lambda: not link.state.up)
            fake.fingerprint = "others"
            proxy.restore()
        until(lambda: link.state.up and len(journal.latest(99)) == 7)
    lines, events = link_lines(caplog), journal.latest(99)
    states = [*["up", "down"] * 3, "up"]
    assert [line.partition(":")[0] for line in lines] == [event.current for event in events] == states
    assert [event.previous for event in events] == ["", *states[:-1]]
    assert [event.cause for event in events if event.current == "up"] == [
        "connected",
        "weights_changed",
        *["connected"] * 2,
    ]
    assert lines[2] == "up: it serves fake (professional), with other weights than before"
    assert lines[-1] == "up: it serves fake (professional)"


def test_verifier_with_changed_weights_after_reconnect_is_journaled(caplog: pytest.LogCaptureFixture) -> None:
    fake, journal = FakeVerifier(), Journal()
    with fake_verifier(fake) as port, proxied(port) as proxy, linked(edge_settings(proxy.port), journal) as link:
        until(lambda: link.state.up)
        fake.fingerprint = "others"
        proxy.reset()
        until(lambda: len(journal.latest(9)) == 2)
    change = journal.latest(1)[0]
    assert (change.previous, change.current, change.cause) == ("up", "up", "weights_changed")


def test_verifier_link_logs_failure_whose_cause_differs_from_previous_failure(caplog: pytest.LogCaptureFixture) -> None:
    server, _ = CASES[LinkFailure.NO_VERIFIER][0](None)
    with server as elsewhere, proxied(elsewhere) as proxy, linked(edge_settings(proxy.port), Journal()) as link:
        until(lambda: link.state.failure is LinkFailure.NO_VERIFIER)
        proxy.cut()
        until(lambda: link.state.failure is LinkFailure.CONNECTION_LOST)
        proxy.restore()
        until(lambda: link.state.failure is LinkFailure.NO_VERIFIER)
    assert [re.split("[(:]", line)[1].strip() for line in link_lines(caplog)] == [
        "the server there is not a verifier",
        "it ends each connection at once",
        "the server there is not a verifier",
    ]


def findings_about(fake: FakeVerifier, words: Words | None) -> list[Finding]:
    with fake_verifier(fake) as port:
        settings = edge_settings(port)
        return [
            dataclasses.replace(finding, text=finding.text.replace(settings.target or "", "VERIFIER"))
            for finding in check_remote(settings, words)
        ]


def test_doctor_reports_verifier_connection_model_and_tokenizer() -> None:
    fake = FakeVerifier()
    reached, model, tokenizer = findings_about(fake, Words())
    assert {finding.verdict for finding in (reached, model, tokenizer)} == {Severity.OK}
    text = rf"VERIFIER answers, the token is accepted, protocol {VERSION}, round trip \d+\.\d ms"
    assert re.fullmatch(text, reached.text)
    assert model.text == "it serves fake (professional), context of 4,096 tokens"
    assert tokenizer.text == "its tokenizer is the model's here"
    fake.words = Words([*Words().names[:17], b"b", *Words().names[18:]])
    other = findings_about(fake, Words())[-1]
    assert other.verdict is Severity.NOTE
    assert "id 17 is 'w17' here and 'b' there" in other.text
    assert findings_about(fake, None)[-1].verdict is Severity.NOTE
    fake.deaf = True
    with fake_verifier(fake) as port:
        (deaf,) = check_remote(edge_settings(port, connect_seconds=0.3), Words())
    assert (deaf.verdict, "no answer to a ping" in deaf.text) == (Severity.BAD, True)


def test_doctor_reports_no_finding_for_disabled_remote_verifier() -> None:
    assert check_remote(RemoteSettings(), Words()) == []


def test_every_verifier_link_failure_and_refusal_is_documented() -> None:
    document = (Path(__file__).parents[3] / "docs/remote.md").read_text()
    reasons = {kind.value for kind in LinkFailure} | set(Refusals().counts)
    assert {reason for reason in reasons if f"`{reason}`" not in document} == set()


def test_flapping_verifier_link_logs_one_line_per_half_minute_and_final_state(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock, journal = Clock(), Journal()
    announcements = LinkAnnouncements("gpu.lan:50551", journal, clock)
    for _ in range(600):  # an hour
        announcements.up(MODEL, MODEL)
        clock.now += 3
        announcements.down(LinkError(LinkFailure.NO_ANSWER, "no answer"))
        clock.now += 3
    assert 120 <= len(caplog.messages) <= 131, "one line each half minute"
    clock.now += announcements.settle() or 0.0
    for state, say in (("down", lambda: None), ("up", lambda: announcements.up(MODEL, MODEL))):
        say()
        clock.now += 30.1
        announcements.settle()
        assert caplog.messages[-1].startswith(f"verifier gpu.lan:50551: {state}: ")
        assert journal.latest(1)[0].current == state
    assert len(journal.latest(1000)) == len(caplog.messages)
