"""Fixtures of the webhook's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.certificates import Authority


@pytest.fixture
def certified(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of this machine with its authority's, and its key."""
    authority = Authority(tmp_path, "ca")
    certificate = authority.issue("webhook")
    certificate.cert.write_bytes(certificate.cert.read_bytes() + authority.file.read_bytes())
    return certificate.cert, certificate.key
