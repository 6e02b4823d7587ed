"""Certificates: which are accepted, and the warnings and refusals of the others."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID

from draftd.cli.commands.doctor import check_certificates
from draftd.cli.findings import Severity
from draftd.cli.options import DaemonOptions
from draftd.errors import ConfigError
from draftd.settings import Settings, load_settings
from draftd.settings.certificates import (
    CertificateFile,
    Certificates,
    certificate_files,
    in_local_time,
    load_certificate,
    load_certificates,
    server_context,
)
from tests.certificates import Authority, Certified, key_pem

DAY = 86400.0
KEYS: dict[str, Callable[[], CertificateIssuerPrivateKeyTypes]] = {
    "RSA of 1024 bits": lambda: rsa.generate_private_key(65537, 1024),
    "RSA of 2048 bits": lambda: rsa.generate_private_key(65537, 2048),
    "ECDSA secp256k1": lambda: ec.generate_private_key(ec.SECP256K1()),
    "ECDSA P-256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ECDSA P-384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "ECDSA P-521": lambda: ec.generate_private_key(ec.SECP521R1()),
    "Ed25519": ed25519.Ed25519PrivateKey.generate,
    "Ed448": ed448.Ed448PrivateKey.generate,
}


def of_server(made: Certified, host: str = "127.0.0.1") -> CertificateFile:
    return CertificateFile("server.tls_cert", made.cert, made.key, host)


def checked(file: CertificateFile) -> Certificates:
    return load_certificate(file, time.time())


def refusal(file: CertificateFile) -> tuple[str, str]:
    """Returns the refused field and its allowed values."""
    with pytest.raises(ConfigError) as caught:
        checked(file)
    return caught.value.field, caught.value.allowed


def dates(cert: Path) -> tuple[float, float]:
    found = x509.load_pem_x509_certificate(cert.read_bytes())
    return found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp()


def over_grpc(made: Certified, authority: Path) -> bool:
    """Returns whether a call reaches a server with this certificate."""
    server = grpc.server(ThreadPoolExecutor(1))
    echo = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    server.add_registered_method_handlers("test", {"Echo": echo})  # type: ignore[attr-defined]
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", {"Echo": echo}),))
    try:
        pair = made.key.read_bytes(), made.cert.read_bytes()
        port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials([pair]))
        server.start()
        trusting = grpc.ssl_channel_credentials(authority.read_bytes())
        with grpc.secure_channel(f"localhost:{port}", trusting) as channel:
            return bool(channel.unary_unary("/test/Echo")(b"x", timeout=20) == b"x")  # type: ignore[call-arg]
    except (RuntimeError, grpc.RpcError):
        return False
    finally:
        server.stop(None)


def over_openssl(made: Certified, authority: Path) -> bool:
    """Returns whether a client of Python's ssl shakes hands with a server with this certificate."""
    ours, theirs = socket.socketpair()
    with contextlib.closing(ours), contextlib.closing(theirs):
        try:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(made.cert, made.key)
            thread = threading.Thread(target=accept, args=(context, theirs), daemon=True)
            thread.start()
            ssl.create_default_context(cafile=authority).wrap_socket(ours, server_hostname="localhost").close()
            thread.join(20)
        except OSError:
            return False
    return True


def accept(context: ssl.SSLContext, one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        context.wrap_socket(one, server_side=True).recv(1)


@pytest.mark.parametrize("kind", KEYS)
def test_certificate_key_type_is_accepted_only_if_tls_handshakes_succeed(tmp_path: Path, kind: str) -> None:
    authority = Authority(tmp_path, "ca")
    made = authority.issue("server", KEYS[kind]())
    openssl = over_openssl(made, authority.file)
    if openssl and over_grpc(made, authority.file):
        assert str(checked(of_server(made))).startswith(f"{kind}, localhost, 127.0.0.1, until ")
    else:
        allowed = (
            f"a certificate whose key is RSA of 2048 bits or more, ECDSA P-256 or ECDSA P-384; this one's is {kind}"
        )
        assert refusal(of_server(made)) == ("server.tls_cert", allowed)
    settings = load(webhook__token="x" * 16, webhook__tls_cert=made.cert, webhook__tls_key=made.key)
    (file,) = certificate_files(settings)
    with pytest.raises(ConfigError) if not openssl or kind == "Ed448" else contextlib.nullcontext():
        checked(file)


def load(**overrides: object) -> Settings:
    return load_settings(None, {name.replace("__", "."): value for name, value in overrides.items()}, {})


def test_certificate_check_refuses_unusable_certificate_and_key_files(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path, "ca"), Authority(tmp_path, "other")
    own, stranger = authority.issue("own"), other.issue("stranger")
    key = ec.generate_private_key(ec.SECP256R1())
    encrypted = Certified(authority.issue("encrypted", key).cert, tmp_path / "encrypted.key")
    encrypted.key.write_bytes(key_pem(key, b"secret"))

    def file(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    turned = file("turned.pem", authority.file.read_bytes() + own.cert.read_bytes())
    marked = file("marked.pem", b"\xef\xbb\xbf" + own.cert.read_bytes())
    cert, key_file = "server.tls_cert", "server.tls_key"
    for made, field, allowed in (
        (Certified(tmp_path / "none.pem", own.key), cert, "a readable PEM file (No such file or directory)"),
        (Certified(own.cert, tmp_path), key_file, "a readable PEM file (Is a directory)"),
        (Certified(file("empty.pem", b""), own.key), cert, "a PEM file with a CERTIFICATE"),
        (Certified(own.key, own.key), cert, "a PEM file with a CERTIFICATE"),
        (Certified(marked, own.key), cert, "a PEM file without a byte order mark at its beginning"),
        (Certified(own.cert, own.cert), key_file, "a PEM file with a PRIVATE KEY"),
        (encrypted, key_file, "a private key without a passphrase"),
        (Certified(own.cert, stranger.key), key_file, f"the private key of the certificate in {cert} ({own.cert})"),
        (
            Certified(turned, own.key),
            cert,
            "the certificate of server.tls_key first, and then its issuers; it is number 2",
        ),
    ):
        assert refusal(of_server(made)) == (field, allowed)


def test_certificate_check_refuses_expired_or_not_yet_valid_certificate_with_date(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    between = Authority(tmp_path, "between", authority, begin=-9, end=-1)
    expired, early = authority.issue("expired", begin=-9, end=-2), authority.issue("early", begin=2, end=9)
    chain = between.issue("chain")
    chain.cert.write_bytes(chain.cert.read_bytes() + between.file.read_bytes())
    begin, end = (in_local_time(dates(file)[index]) for file, index in ((early.cert, 0), (between.file, 1)))
    for file, why in (
        (of_server(expired), f"CN=expired expired on {in_local_time(dates(expired.cert)[1])}"),
        (of_server(early), f"CN=early is valid from {begin} on: is this machine's clock right?"),
        (of_server(chain), f"CN=between expired on {end}"),
        (CertificateFile("remote.tls_ca", between.file), f"CN=between expired on {end}"),
    ):
        assert refusal(file)[1] == f"certificates that are valid now; that of {why}"


def test_certificate_check_warns_of_certificates_that_some_clients_refuse(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")

    def found(made: Certified, host: str = "127.0.0.1") -> list[str]:
        return [warning.text for warning in checked(of_server(made, host)).warnings]

    usual = authority.issue("usual", names=("gpu.lan", "*.lan", "::1"))
    for host in ("gpu.lan", "GPU.lan", "mini.lan", "::1", "localhost", "0.0.0.0", "::"):
        assert found(usual, host) == [], host
    elsewhere = "is for gpu.lan, *.lan, ::1, not for {}, on which the daemon listens"
    for host in ("10.0.0.7", "mini.example.lan", "lan"):
        assert found(usual, host) == [elsewhere.format(host)]
    assert found(authority.issue("bare", names=())) == [
        "has no subjectAltName: many clients do not look at another name"
    ]
    for_clients = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    assert found(authority.issue("client", extensions=[for_clients])) == ["is not for servers"]
    mixed = authority.issue("mixed")
    mixed.cert.write_bytes(mixed.cert.read_bytes() + Authority(tmp_path, "other").file.read_bytes())
    assert found(mixed) == ["CN=mixed was not issued by the one after it in the file"]
    renewed = tmp_path / "both.pem"
    renewed.write_bytes(Authority(tmp_path, "old", begin=-9, end=-1).file.read_bytes() + authority.file.read_bytes())
    (warning,) = checked(CertificateFile("server.tls_client_ca", renewed)).warnings
    assert warning.text.startswith("CN=old expired on ")


@pytest.mark.parametrize(
    ("begin", "end", "soon"),
    [
        (-335, 30.1, False),
        (-335, 29.9, True),
        (-60, 29.9, True),
        (-1, 1, False),
        (-0.9, 0.4, True),
        (-0.8, 0.45, False),
    ],
)
def test_certificate_check_warns_of_expiry_near_end_of_lifetime(
    tmp_path: Path, begin: float, end: float, soon: bool
) -> None:
    made = Authority(tmp_path, "ca", end=999).issue("server", begin=begin, end=end)
    found = [one.text for one in checked(of_server(made)).warnings]
    assert found == [f"expires on {in_local_time(dates(made.cert)[1])}"] * soon


def test_certificate_expiry_is_earliest_in_chain_and_latest_among_authorities(tmp_path: Path) -> None:
    first, last = Authority(tmp_path, "first", end=3), Authority(tmp_path, "last", end=5)
    made = first.issue("server", end=4)
    made.cert.write_bytes(made.cert.read_bytes() + first.file.read_bytes())
    both = tmp_path / "both.pem"
    both.write_bytes(last.file.read_bytes() + first.file.read_bytes())
    found = load_certificates([of_server(made), CertificateFile("server.tls_client_ca", both)])
    days = {setting: round((one.expires - time.time()) / DAY) for setting, one in found.items()}
    assert days == {"server.tls_cert": 3, "server.tls_client_ca": 5}


def test_doctor_checks_every_certificate_in_use(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca", end=99)
    server, edge = authority.issue("server", end=99), authority.issue("edge", end=99)
    expired = authority.issue("expired", begin=-9, end=-1)
    settings = load(
        server__tls_cert=server.cert,
        server__tls_key=server.key,
        server__tls_client_ca=authority.file,
        webhook__tls_cert=expired.cert,
        webhook__tls_key=expired.key,
        remote__enabled=True,
        remote__target="gpu.lan:50551",
        remote__token="t",
        remote__tls_ca=authority.file,
        remote__tls_cert=edge.cert,
        remote__tls_key=edge.key,
    )
    findings = check_certificates(settings)
    assert [(one.verdict, one.text.partition(": ")[0]) for one in findings] == [
        (Severity.OK, "server.tls_cert"),
        (Severity.OK, "server.tls_client_ca"),
        (Severity.OK, "remote.tls_ca"),
        (Severity.OK, "remote.tls_cert"),
    ], "the webhook does not listen, and shows no certificate"
    (bad,) = check_certificates(
        load(webhook__secret="x" * 16, webhook__tls_cert=expired.cert, webhook__tls_key=expired.key)
    )
    assert (bad.verdict, bad.text.partition(": ")[0]) == (Severity.BAD, "webhook.tls_cert")
    away = authority.issue("away", names=("gpu.lan",), end=99)
    found = check_certificates(load(server__tls_cert=away.cert, server__tls_key=away.key))
    assert [one.verdict for one in found] == [Severity.OK, Severity.NOTE]
    assert check_certificates(Settings()) == []


def test_server_certificate_that_openssl_refuses_raises_config_error(tmp_path: Path) -> None:
    made = Authority(tmp_path, "ca").issue("server")
    found = checked(of_server(made))
    made.key.write_text("replaced since")
    with pytest.raises(ConfigError, match="server.tls_cert: got .*; allowed: certificates that OpenSSL takes"):
        server_context(found)


def test_command_line_client_names_option_of_unusable_tls_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path, "ca")
    old, own = Authority(tmp_path, "old", begin=-9, end=-1), authority.issue("own", KEYS["Ed25519"]())
    with pytest.raises(ConfigError, match="--tls-ca: .*that of CN=old expired"):
        DaemonOptions(tls_ca=str(old.file)).connect()
    monkeypatch.setenv("DRAFTD_TLS_CERT", str(own.cert))
    with pytest.raises(ConfigError, match="DRAFTD_TLS_KEY: not set"):
        DaemonOptions(tls_ca=str(authority.file)).connect()
    monkeypatch.setenv("DRAFTD_TLS_KEY", str(own.key))
    with pytest.raises(ConfigError, match="DRAFTD_TLS_CERT: .*this one's is Ed25519"):
        DaemonOptions(tls_ca=str(authority.file)).connect()
