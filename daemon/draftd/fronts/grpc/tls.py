"""Credentials of the listener: none on loopback, TLS, or TLS with client certificates."""

from __future__ import annotations

from pathlib import Path

import grpc

from draftd.errors import ConfigError
from draftd.settings import ServerSettings


def server_credentials(settings: ServerSettings) -> grpc.ServerCredentials | None:
    """None for plain text. Raises ConfigError where a file cannot be read or is no PEM."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    key = _pem("server.tls_key", settings.tls_key, "PRIVATE KEY")
    chain = _pem("server.tls_cert", settings.tls_cert, "CERTIFICATE")
    authority = None
    if settings.tls_client_ca is not None:
        authority = _pem("server.tls_client_ca", settings.tls_client_ca, "CERTIFICATE")
    return grpc.ssl_server_credentials(
        [(key, chain)], root_certificates=authority, require_client_auth=authority is not None
    )


def _pem(field: str, path: Path, kind: str) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(field, str(path), f"a readable PEM file ({error.strerror})") from None
    if b"-----BEGIN " not in data or kind.encode() + b"-----" not in data:
        raise ConfigError(field, str(path), f"a PEM file with a {kind}")
    return data
