"""Finds out why there is no link to a verifier, and which setting to look at: from gRPC's error, or, if that is
unclear, from a TLS handshake with the standard library."""

from __future__ import annotations

import re
import socket
import ssl
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from draftd.errors import DraftdError, in_one_line
from draftd.protocol import DETAILS_KEY
from draftd.settings import RemoteSettings
from draftd.strategies import LinkFailure

_LOOK_SECONDS = 2.0

# Fault and cure of each failure to connect. Placeholders: host, seconds, detail (from gRPC or the verifier).
_CAUSES = {
    LinkFailure.NAME_NOT_FOUND: (
        "no address of the host {host} is known",
        "correct remote.target, or the name service",
    ),
    LinkFailure.CONNECTION_REFUSED: ("nothing listens there", "start the verifier, or correct remote.target"),
    LinkFailure.UNREACHABLE: ("it cannot be reached ({detail})", "look at the network, and at remote.target"),
    LinkFailure.CONNECT_TIMEOUT: (
        "no connection within {seconds:g} s",
        "look at the network and its firewalls, and at remote.target and remote.connect_seconds",
    ),
    LinkFailure.TLS_REQUIRED: (
        "it speaks TLS, and this daemon does not",
        "set remote.tls_ca to the authority of its certificate, or remote.tls if the system trusts it",
    ),
    LinkFailure.TLS_NOT_SPOKEN: (
        "it does not speak TLS",
        "set server.tls_cert and server.tls_key there; on loopback remote.tls, remote.tls_ca and remote.tls_cert may "
        "be unset instead",
    ),
    LinkFailure.UNKNOWN_AUTHORITY: (
        "the authority of its certificate is not trusted here ({detail})",
        "set remote.tls_ca to the authority of its present certificate",
    ),
    LinkFailure.WRONG_NAME: (
        "its certificate does not name {host}",
        "use a name of the certificate in remote.target, or make a certificate whose subjectAltName has this one",
    ),
    LinkFailure.CERTIFICATE_EXPIRED: (
        "its certificate is not valid now ({detail})",
        "renew server.tls_cert there, or correct the clock of this machine",
    ),
    LinkFailure.KEY_TYPE: (
        "its certificate has a key of a type that gRPC does not take ({detail})",
        "make a certificate with an RSA, P-256 or P-384 key for server.tls_cert there",
    ),
    LinkFailure.CLIENT_CERTIFICATE: (
        "it ends the connection after the TLS handshake, as if it wanted another certificate of this daemon",
        "set remote.tls_cert and remote.tls_key to a certificate that its server.tls_client_ca has signed",
    ),
    LinkFailure.TLS_HANDSHAKE: (
        "the TLS handshake fails ({detail})",
        "look at remote.tls_ca, remote.tls_cert and remote.tls_key, and at server.tls_cert there",
    ),
    LinkFailure.NO_VERIFIER: ("the server there is not a verifier ({detail})", "correct remote.target"),
    LinkFailure.UNAUTHENTICATED: ("it does not accept the token", "set remote.token to its server.token"),
    LinkFailure.OTHER_PROTOCOL: ("{detail}", "update the older of the two daemons"),
    LinkFailure.NOT_ENABLED: ("it does not verify for other daemons", "set verify.enabled there"),
    LinkFailure.NOT_SERVING: ("it takes no requests now ({detail})", "look at its log if this lasts"),
    LinkFailure.TOO_MANY_PEERS: ("{detail}", "raise verify.peers there"),
    LinkFailure.CONNECTION_LOST: (
        "it ends each connection at once",
        "look at what listens there, and at remote.target",
    ),
    LinkFailure.OTHER: ("{detail}", ""),
}
# What gRPC's errors say about a failed connection. The first match counts.
_PATTERNS = (
    (r"resolv|lookup", LinkFailure.NAME_NOT_FOUND),
    (r"Connection refused", LinkFailure.CONNECTION_REFUSED),
    (r"certificate has expired|certificate is not yet valid", LinkFailure.CERTIFICATE_EXPIRED),
    (r"(?i)hostname verification|not in peer certificate", LinkFailure.WRONG_NAME),
    (r"CERTIFICATE_VERIFY_FAILED|certificate signature failure", LinkFailure.UNKNOWN_AUTHORITY),
    (r"WRONG_VERSION_NUMBER", LinkFailure.TLS_NOT_SPOKEN),
    (r"Failed parsing HTTP/2", LinkFailure.NO_VERIFIER),
    (r"(?i)unreachable|no route|timed out", LinkFailure.UNREACHABLE),
    (r"(?i)handshake", LinkFailure.TLS_HANDSHAKE),
)
_CLOSED = re.compile(r"(?i)closed|reset|broken pipe|end of tcp|eof")
#: Refusals by a verifier whose network and TLS work. A member's name is the reason in the verifier's `ErrorInfo`.
REFUSED = frozenset(
    {
        LinkFailure.UNAUTHENTICATED,
        LinkFailure.OTHER_PROTOCOL,
        LinkFailure.NOT_ENABLED,
        LinkFailure.NOT_SERVING,
        LinkFailure.TOO_MANY_PEERS,
    }
)


class LinkError(DraftdError):
    """The verifier cannot be reached, refuses, or breaks the protocol. `what`: the fault. `cure`: what to do, if that
    is known."""

    def __init__(self, kind: LinkFailure, what: str, cure: str = "") -> None:
        super().__init__(f"{what}: {cure}" if cure else what)
        self.kind, self.what, self.cure = kind, what, cure


def connect_error(kind: LinkFailure, settings: RemoteSettings, detail: str = "") -> LinkError:
    """Returns the error for a connection that failed because of `kind`."""
    host = (settings.target or "").rpartition(":")[0]
    what, cure = _CAUSES[kind]
    return LinkError(kind, what.format(host=host, seconds=settings.connect_seconds, detail=detail), cure)


def failure_of(error: grpc.RpcError, settings: RemoteSettings, *, greeted: bool) -> LinkError:
    """Returns the error behind one of gRPC's. `greeted`: the verifier had accepted the connection. May connect once
    more to find out what listens there."""
    if not isinstance(error, grpc.Call):
        return LinkError(LinkFailure.OTHER, in_one_line(error))
    code, detail = error.code(), error.details() or "no reason given"
    kind = LinkFailure.__members__.get(_reason(error))
    if kind is not None and kind in REFUSED:
        return connect_error(kind, settings, detail)
    if code is grpc.StatusCode.UNAUTHENTICATED:  # from a proxy in front of the verifier
        return connect_error(LinkFailure.UNAUTHENTICATED, settings)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return connect_error(LinkFailure.NO_VERIFIER, settings, detail)
    text = f"{'UNKNOWN' if code is None else code.name}: {detail}"
    if code is not grpc.StatusCode.UNAVAILABLE:
        return LinkError(LinkFailure.CONNECTION_LOST if greeted else LinkFailure.OTHER, text)
    if greeted:
        return LinkError(LinkFailure.CONNECTION_LOST, f"the connection was lost ({detail})")
    detail = detail.rpartition("last error: ")[2]
    if _CLOSED.search(detail):  # which gives no reason
        return _inspect_listener(settings)
    kind = parse_failure(detail) or LinkFailure.UNREACHABLE
    if kind in (LinkFailure.UNKNOWN_AUTHORITY, LinkFailure.CERTIFICATE_EXPIRED):  # the fault is named at the end
        detail = detail.removesuffix(": OK").rpartition(": ")[2]
    return connect_error(kind, settings, detail)


def parse_failure(detail: str) -> LinkFailure | None:
    """Returns the failure that gRPC's text about a connection names; None if it names none."""
    return next((kind for pattern, kind in _PATTERNS if re.search(pattern, detail)), None)


def _reason(error: Any) -> str:
    """Returns the reason in the error's `ErrorInfo`; empty without one."""
    rich, info = status_pb2.Status(), error_details_pb2.ErrorInfo()
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            rich.ParseFromString(value)
    return next((str(info.reason) for detail in rich.details if detail.Unpack(info)), "")


def _inspect_listener(settings: RemoteSettings) -> LinkError:
    """Connects without gRPC, to find out why the listener ends gRPC's connections."""
    from draftd.settings.certificates import key_that_grpc_refuses  # here, because the import is slow

    assert settings.target is not None
    host, _, port = settings.target.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # gRPC has checked the certificate before
    context.set_alpn_protocols(["h2"])
    if settings.tls_cert is not None:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    seconds = min(_LOOK_SECONDS, settings.connect_seconds)
    try:
        plain = socket.create_connection((host.strip("[]"), int(port)), seconds)
        with plain, context.wrap_socket(plain, server_hostname=host.strip("[]")) as encrypted:
            if not settings.encrypted:
                return connect_error(LinkFailure.TLS_REQUIRED, settings)
            if kind := key_that_grpc_refuses(encrypted.getpeercert(binary_form=True) or b""):
                return connect_error(LinkFailure.KEY_TYPE, settings, kind)
            if not _keeps_connection(encrypted):
                return connect_error(LinkFailure.CLIENT_CERTIFICATE, settings)
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            kind = LinkFailure.TLS_HANDSHAKE if settings.encrypted else LinkFailure.TLS_REQUIRED
            return connect_error(kind, settings, (error.reason or "").lower().replace("_", " "))
    except (OSError, ValueError):
        pass
    return connect_error(LinkFailure.CONNECTION_LOST, settings)


def _keeps_connection(encrypted: ssl.SSLSocket) -> bool:
    """Whether the server keeps the connection after the handshake. With TLS 1.3, a server that wants another
    certificate of its client ends the connection only then."""
    try:
        return bool(encrypted.recv(1))
    except TimeoutError:
        return True
    except OSError:
        return False
