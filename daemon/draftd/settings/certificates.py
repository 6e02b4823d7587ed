"""Checks the certificates named in the settings: whether peers will accept them, and when they expire."""

from __future__ import annotations

import ipaddress
import ssl
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from draftd.errors import ConfigError
from draftd.settings.fallback import WebhookSettings
from draftd.settings.load import Settings
from draftd.settings.remote import RemoteSettings
from draftd.settings.serving import ServerSettings

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SMALLEST_RSA_BITS = 2048  # OpenSSL refuses smaller ones
_CURVES = {"secp256r1": "P-256", "secp384r1": "P-384", "secp521r1": "P-521"}
_SOON_SECONDS = 30 * 86400.0
#: Of a certificate's life: those of less than three months are renewed later than 30 days before their end.
_LAST_PART = 1 / 3
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

# Tested to work. gRPC's BoringSSL also accepts P-521 and Ed25519 when it binds a port, and then fails every handshake.
_GRPC_KEYS = ("RSA", "ECDSA P-256", "ECDSA P-384")
_OPENSSL_KEYS = (*_GRPC_KEYS, "ECDSA P-521", "Ed25519")


@dataclass(frozen=True, slots=True)
class CertificateFile:
    """A setting that names a file of certificates: authorities, or, with `key`, the daemon's own chain. `host`: the
    address that a server listens on; None for no server. `keys`: kinds of private keys that work."""

    setting: str
    path: Path
    key: Path | None = None
    host: str | None = None
    keys: tuple[str, ...] = _GRPC_KEYS

    @property
    def key_setting(self) -> str:
        return self.setting.replace("cert", "key").replace("CERT", "KEY")


@dataclass(frozen=True, slots=True)
class CertificateWarning:
    """A warning that some peers cannot connect, now or soon, and the remedy."""

    text: str
    mend: str


@dataclass(frozen=True, slots=True)
class Certificates:
    """A file's valid certificates. `pem` and `key_pem`: the files as read. `expires`: Unix time from which they are
    useless: a chain with the first certificate that expires, authorities with the last."""

    file: CertificateFile
    pem: bytes
    key_pem: bytes
    chain: tuple[x509.Certificate, ...]
    expires: float
    warnings: tuple[CertificateWarning, ...]

    def differs(self, other: Certificates) -> bool:
        return (self.pem, self.key_pem) != (other.pem, other.key_pem)

    def __str__(self) -> str:
        first, others = self.chain[0], len(self.chain) - 1
        more = f" and {others} more" if others else ""
        names = ", ".join(_names(first)) or first.subject.rfc4514_string()
        return f"{_kind(first.public_key())}, {names}{more}, until {in_local_time(self.expires)}"


def certificate_files(settings: Settings) -> tuple[CertificateFile, ...]:
    """Returns all certificate files that the daemon shows or trusts."""
    return (
        *server_certificates(settings.server),
        *webhook_certificates(settings.webhook),
        *remote_certificates(settings.remote),
    )


def server_certificates(server: ServerSettings) -> Iterator[CertificateFile]:
    if server.tls_cert is not None:
        yield CertificateFile("server.tls_cert", server.tls_cert, server.tls_key, server.host)
    if server.tls_client_ca is not None:
        yield CertificateFile("server.tls_client_ca", server.tls_client_ca)


def webhook_certificates(webhook: WebhookSettings) -> Iterator[CertificateFile]:
    if webhook.listens and webhook.tls_cert is not None:
        yield CertificateFile("webhook.tls_cert", webhook.tls_cert, webhook.tls_key, webhook.host, _OPENSSL_KEYS)


def remote_certificates(remote: RemoteSettings) -> Iterator[CertificateFile]:
    if remote.enabled and remote.tls_ca is not None:
        yield CertificateFile("remote.tls_ca", remote.tls_ca)
    if remote.enabled and remote.tls_cert is not None:
        yield CertificateFile("remote.tls_cert", remote.tls_cert, remote.tls_key)


def load_certificates(files: Sequence[CertificateFile], now: float | None = None) -> dict[str, Certificates]:
    """Returns certificates by setting. Raises ConfigError for an unusable file: not a certificate, a key of an
    unsupported kind or of another certificate, or not valid `now`."""
    at = time.time() if now is None else now
    return {file.setting: load_certificate(file, at) for file in files}


def load_certificate(file: CertificateFile, now: float) -> Certificates:
    """Returns one file's certificates; see `load_certificates`."""
    pem = _read(file.setting, file.path)
    try:
        chain = tuple(x509.load_pem_x509_certificates(pem))
        for certificate in chain:
            certificate.public_key()
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(file.setting, str(file.path), "a PEM file with a CERTIFICATE") from None
    key_pem = b""
    if file.key is not None:
        key_pem = _read(file.key_setting, file.key)
        _check_key(file, key_pem, chain)
    valid = [certificate for certificate in chain if _begin(certificate) <= now < _end(certificate)]
    if len(valid) < (1 if file.key is None else len(chain)):
        raise _not_valid(file, next(certificate for certificate in chain if certificate not in valid), now)
    expires = (max if file.key is None else min)(map(_end, chain))
    return Certificates(file, pem, key_pem, chain, expires, tuple(_warnings(file, chain, expires, now)))


def server_context(own: Certificates, authority: Certificates | None = None) -> ssl.SSLContext:
    """Returns the TLS context for a server with OpenSSL. With `authority`, clients need a certificate that this
    authority signed. Raises ConfigError if OpenSSL refuses a file."""
    assert own.file.key is not None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    file = own.file
    try:
        context.load_cert_chain(file.path, file.key, password=lambda: b"")  # otherwise it would ask on the terminal
        if authority is not None:
            file = authority.file
            context.load_verify_locations(file.path)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:
        raise ConfigError(file.setting, str(file.path), f"certificates that OpenSSL takes ({error})") from None
    return context


def in_local_time(at: float) -> str:
    """Returns a time such as 2026-11-23 06:15+01:00."""
    return datetime.fromtimestamp(at).astimezone().isoformat(" ", "minutes")


def _read(setting: str, path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(setting, str(path), f"a readable PEM file ({error.strerror})") from None
    if data.startswith(_BYTE_ORDER_MARK):
        raise ConfigError(setting, str(path), "a PEM file without a byte order mark at its beginning")
    return data


def _check_key(file: CertificateFile, key_pem: bytes, chain: Sequence[x509.Certificate]) -> None:
    path = str(file.key)
    try:
        key = load_pem_private_key(key_pem, None)
    except TypeError:
        raise ConfigError(file.key_setting, path, "a private key without a passphrase") from None
    except Exception:  # ValueError, UnsupportedAlgorithm, and OpenSSL's errors
        raise ConfigError(file.key_setting, path, "a PEM file with a PRIVATE KEY") from None
    owners = [number for number, certificate in enumerate(chain, 1) if certificate.public_key() == key.public_key()]
    if not owners:
        raise ConfigError(file.key_setting, path, f"the private key of the certificate in {file.setting} ({file.path})")
    if owners[0] != 1:
        allowed = f"the certificate of {file.key_setting} first, and then its issuers; it is number {owners[0]}"
        raise ConfigError(file.setting, str(file.path), allowed)
    public, kind = chain[0].public_key(), _kind(chain[0].public_key())
    small = isinstance(public, rsa.RSAPublicKey) and public.key_size < _SMALLEST_RSA_BITS
    if small or not kind.startswith(file.keys):
        *most, last = (f"RSA of {_SMALLEST_RSA_BITS} bits or more", *file.keys[1:])
        allowed = f"a certificate whose key is {', '.join(most)} or {last}; this one's is {kind}"
        raise ConfigError(file.setting, str(file.path), allowed)


def _not_valid(file: CertificateFile, certificate: x509.Certificate, now: float) -> ConfigError:
    if now < _begin(certificate):
        why = f"is valid from {in_local_time(_begin(certificate))} on: is this machine's clock right?"
    else:
        why = f"expired on {in_local_time(_end(certificate))}"
    allowed = f"certificates that are valid now; that of {certificate.subject.rfc4514_string()} {why}"
    return ConfigError(file.setting, str(file.path), allowed)


def _warnings(
    file: CertificateFile, chain: Sequence[x509.Certificate], expires: float, now: float
) -> Iterator[CertificateWarning]:
    life = expires - max(map(_begin, chain))
    if expires - now < min(_SOON_SECONDS, life * _LAST_PART):
        yield CertificateWarning(f"expires on {in_local_time(expires)}", "renew it, then send the daemon SIGHUP")
    if file.key is None:
        for certificate in chain:
            if _end(certificate) <= now:
                fault = f"{certificate.subject.rfc4514_string()} expired on {in_local_time(_end(certificate))}"
                yield CertificateWarning(fault, "remove it: gRPC may choose it over a newer one of the same name")
        return
    for certificate, issuer in pairwise(chain):
        try:
            certificate.verify_directly_issued_by(issuer)
        except (ValueError, TypeError, InvalidSignature):
            fault = f"{certificate.subject.rfc4514_string()} was not issued by the one after it in the file"
            yield CertificateWarning(fault, "put its own first, then that of its issuer, and so on")
    if file.host is not None:
        yield from _server_warnings(file.host, chain[0])


def _server_warnings(host: str, own: x509.Certificate) -> Iterator[CertificateWarning]:
    names, listens = _names(own), host.strip("[]").lower()
    mend = "make it again with subjectAltName: each name and address that clients use"
    if not names:
        yield CertificateWarning("has no subjectAltName: many clients do not look at another name", mend)
    elif not _any_address(listens) and not _covers(names, _LOOPBACK if listens in _LOOPBACK else (listens,)):
        yield CertificateWarning(f"is for {', '.join(names)}, not for {host}, on which the daemon listens", mend)
    try:
        usage = own.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (x509.ExtensionNotFound, ValueError):
        return
    if not {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & set(usage):
        yield CertificateWarning("is not for servers", "make it again with extendedKeyUsage serverAuth, or without any")


def _names(certificate: x509.Certificate) -> list[str]:
    """Returns the subjectAltNames: host names and addresses."""
    try:
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return [
        *alternatives.get_values_for_type(x509.DNSName),
        *map(str, alternatives.get_values_for_type(x509.IPAddress)),
    ]


def _covers(names: Sequence[str], hosts: Sequence[str]) -> bool:
    """Whether one of `hosts` is among the names; `*.lan` stands for one label."""
    lower_names = {name.lower() for name in names}
    return any(host in lower_names or f"*.{host.partition('.')[2]}" in lower_names for host in hosts)


def _any_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def key_that_grpc_refuses(certificate: bytes) -> str:
    """Returns the kind of key of a certificate (DER) if gRPC's handshakes fail with it; empty for others."""
    kind = _kind(x509.load_der_x509_certificate(certificate).public_key())
    return "" if kind.startswith(_GRPC_KEYS) else kind


def _kind(key: CertificatePublicKeyTypes) -> str:
    if isinstance(key, rsa.RSAPublicKey):
        return f"RSA of {key.key_size} bits"
    if isinstance(key, ec.EllipticCurvePublicKey):
        return f"ECDSA {_CURVES.get(key.curve.name, key.curve.name)}"
    return type(key).__name__.removesuffix("PublicKey")


def _begin(certificate: x509.Certificate) -> float:
    return certificate.not_valid_before_utc.timestamp()


def _end(certificate: x509.Certificate) -> float:
    return certificate.not_valid_after_utc.timestamp()
