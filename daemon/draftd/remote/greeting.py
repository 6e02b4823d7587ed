"""What a verifier says of itself when a connection begins, against what this daemon has: the protocol, the model, the
tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from draftd.engine.remote.verifier_link import RemoteModel
from draftd.remote.connection import Connection
from draftd.remote.failures import connect_error
from draftd.remote.messages import VERSION
from draftd.settings import RemoteSettings
from draftd.strategies import LinkFailure, QualityClass
from draftd.v1 import verification_pb2 as pb


class Vocabulary(Protocol):
    """Of the local tokenizer."""

    @property
    def fingerprint(self) -> str: ...

    def vocabulary(self) -> list[bytes]: ...


def remote_model(
    welcome: pb.Welcome,
    connection: Connection,
    tokenizer: Vocabulary | None,
    settings: RemoteSettings,
    differences: dict[str, str],
) -> RemoteModel:
    """What the verifier serves. `tokenizer`: this daemon's; None: the two are not compared. `differences`: between
    them, by the fingerprint of the other one; added to where it is new. Raises LinkError."""
    if welcome.protocol != VERSION:
        said = f"it speaks version {welcome.protocol} of the protocol, and this daemon {VERSION}"
        raise connect_error(LinkFailure.OTHER_PROTOCOL, settings, said)
    difference = ""
    if tokenizer is not None and welcome.tokenizer != tokenizer.fingerprint:
        if welcome.tokenizer not in differences:
            differences.clear()
            differences[welcome.tokenizer] = _difference(connection, tokenizer.vocabulary(), settings.connect_seconds)
        difference = differences[welcome.tokenizer]
    return RemoteModel(
        model=welcome.model,
        fingerprint=welcome.model_fingerprint,
        context_length=welcome.context_length,
        vocab_size=welcome.vocab_size,
        max_draft_tokens=welcome.max_draft_tokens,
        shared_tokenizer=not difference,
        difference=difference,
        quality=_quality(settings.quality or welcome.quality),
        step_seconds=welcome.step_seconds,
        prefill_seconds=welcome.prefill_seconds,
        drafts=welcome.drafts,
    )


def _quality(label: str) -> QualityClass:
    """The lowest where this version does not know it."""
    return QualityClass.of(label) if label.upper() in QualityClass.__members__ else QualityClass.DRAFT


def _difference(connection: Connection, ours: Sequence[bytes], seconds: float) -> str:
    """The first id that two vocabularies do not have in common; empty where there is none, though one is longer by
    ids without a token. Raises LinkError."""
    first = 0
    while True:
        theirs = connection.vocabulary(first, seconds)
        for token, name in enumerate(theirs, first):
            here = ours[token] if token < len(ours) else b""
            if here != name:
                return f"id {token} is {_shown(here)} here and {_shown(name)} there"
        first += len(theirs)
        if not theirs:
            break
    for token, here in enumerate(ours[first:], first):
        if here:
            return f"id {token} is {_shown(here)} here and {_shown(b'')} there"
    return ""


def _shown(token: bytes) -> str:
    return repr(token.decode(errors="backslashreplace")) if token else "no token"
