"""Checks the daemon that verifies for this one, for `draftd doctor`."""

from __future__ import annotations

from draftd.cli.figures import milliseconds
from draftd.cli.findings import Finding, bad, note, ok
from draftd.settings import RemoteSettings
from draftd.verifier_client.connection import Vocabulary, check_verifier
from draftd.verifier_client.failures import REFUSED, LinkError
from draftd.verifier_client.messages import VERSION


def check_remote(settings: RemoteSettings, tokenizer: Vocabulary | None) -> list[Finding]:
    """Connects as the link does. `tokenizer`: of this daemon's model; None where that could not be opened."""
    if not settings.enabled:
        return []
    reached = f"{settings.target} answers{' with TLS' if settings.encrypted else ''}"
    try:
        model, trip = check_verifier(settings, tokenizer)
    except LinkError as error:
        found = f"{reached if error.kind in REFUSED else settings.target}: {error.what}"
        return [bad("remote", found, error.cure or "look at the log of the verifier")]
    token = "the token is accepted, " if settings.token is not None else ""
    findings = [
        ok("remote", f"{reached}, {token}protocol {VERSION}, round trip {milliseconds(trip)}"),
        ok("remote", f"it serves {model.model} ({model.quality.label}), context of {model.context_length:,} tokens"),
    ]
    if tokenizer is None:
        return [*findings, note("remote", "its tokenizer was not compared: the model here could not be opened")]
    if model.shared_tokenizer:
        return [*findings, ok("remote", "its tokenizer is the model's here")]
    other = f"its tokenizer is another: {model.difference}; `remote` works by text, `speculative` is refused"
    return [*findings, note("remote", other, "serve a model of the verifier's family to draft for it")]
