"""Certificates and their keys as files: a test's own certificate authority, and what it issues."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes

LOCAL = ("localhost", "127.0.0.1")
_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Certified:
    """A certificate and its key, as files."""

    cert: Path
    key: Path


class Authority:
    """Issues certificates that are valid from yesterday to tomorrow."""

    def __init__(self, folder: Path, name: str, issuer: Authority | None = None, **dates: float) -> None:
        """Creates the authority. `issuer` is the authority that certifies it, None for a root. `dates` are as for
        `issue`."""
        self._folder, self._name, self._issuer = folder, name, issuer or self
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _subject(name)
        self.file = folder / f"{name}.pem"
        builder = self._issuer._builder(self._subject, self._key, **dates)
        self.file.write_bytes(self._issuer._signed(builder.add_extension(x509.BasicConstraints(True, None), True)))

    def issue(
        self,
        name: str,
        key: CertificateIssuerPrivateKeyTypes | None = None,
        *,
        names: Sequence[str] = LOCAL,
        extensions: Sequence[x509.ExtensionType] = (),
        **dates: float,
    ) -> Certified:
        """Issues a certificate. `key` unset stands for a new one of P-256. `names` are its subjectAltName. `dates` are
        `begin` and `end`, in days from now."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_subject(name), key, **dates)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(one) for one in names]), False)
        for extension in extensions:
            builder = builder.add_extension(extension, False)
        made = Certified(self._folder / f"{self._name}-{name}.pem", self._folder / f"{self._name}-{name}.key")
        made.cert.write_bytes(self._signed(builder))
        made.key.write_bytes(key_pem(key))
        return made

    def _builder(
        self, subject: x509.Name, key: CertificateIssuerPrivateKeyTypes, *, begin: float = -1, end: float = 1
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._subject)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        return builder.not_valid_before(now + begin * _DAY).not_valid_after(now + end * _DAY)

    def _signed(self, builder: x509.CertificateBuilder) -> bytes:
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def key_pem(key: CertificateIssuerPrivateKeyTypes, passphrase: bytes = b"") -> bytes:
    hidden = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
