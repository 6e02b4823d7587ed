"""Identities of callers: the daemon knows them by the token that it requires, and by the certificate that it checked.

What callers say of themselves does not count. Without token and certificate all callers are strangers to each other.
"""

from __future__ import annotations

import hashlib
import secrets

_KEY = secrets.token_bytes(32)  # of this process: an identity tells nothing about token or certificate


def identity_of(token: bytes, certificate: bytes) -> str:
    """Returns the identity of those who show this valid token and this checked certificate (DER; either may be empty),
    the same in all protocols. Empty if they show neither."""
    if not token and not certificate:
        return ""
    shown = len(token).to_bytes(4) + token + certificate
    return hashlib.blake2b(shown, key=_KEY, digest_size=16).hexdigest()
