"""The webhook's TLS, where it is set."""

from __future__ import annotations

import ssl

from draftd.errors import ConfigError
from draftd.settings import WebhookSettings


def server_context(settings: WebhookSettings) -> ssl.SSLContext | None:
    """None for plain HTTP. Raises ConfigError where the certificate cannot be had."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # A key with a password would be asked for on the terminal.
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=lambda: b"")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        said = str(error) or type(error).__name__
        allowed = f"a PEM file with a certificate, and webhook.tls_key with its key, readable ({said})"
        raise ConfigError("webhook.tls_cert", str(settings.tls_cert), allowed) from None
    return context
