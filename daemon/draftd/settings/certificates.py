"""The certificates that settings name: what is in their files, and when they expire."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cryptography import x509

from draftd.errors import ConfigError
from draftd.settings.load import Settings


def certificate_files(settings: Settings) -> dict[str, Path]:
    """The files with certificates that the daemon shows or trusts, by setting."""
    server, webhook, remote = settings.server, settings.webhook, settings.remote
    named = {
        "server.tls_cert": server.tls_cert,
        "server.tls_client_ca": server.tls_client_ca,
        "webhook.tls_cert": webhook.tls_cert if webhook.listens else None,
        "remote.tls_ca": remote.tls_ca if remote.enabled else None,
        "remote.tls_cert": remote.tls_cert if remote.enabled else None,
    }
    return {setting: path for setting, path in named.items() if path is not None}


def read_certificates(setting: str, path: Path) -> list[x509.Certificate]:
    """All of a PEM file, in its order; one at least. Raises ConfigError."""
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise ConfigError(setting, str(path), f"a readable PEM file ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError(setting, str(path), f"a PEM file with a CERTIFICATE ({error})") from None


def expiry_of(setting: str, certificates: list[x509.Certificate]) -> float:
    """Unix time from which they are of no use: a chain with its first certificate that expires, authorities with the
    last."""
    times = [one.not_valid_after_utc.timestamp() for one in certificates]
    return min(times) if setting.endswith(".tls_cert") else max(times)


def certificate_expiries(settings: Settings) -> Mapping[str, float]:
    """Unix times at which the certificates of the settings expire, by setting. Raises ConfigError."""
    return {
        setting: expiry_of(setting, read_certificates(setting, path))
        for setting, path in certificate_files(settings).items()
    }
