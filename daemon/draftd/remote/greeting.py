"""What a verifier says of itself when a connection begins, against what this daemon has: the protocol, the model, the
tokenizer. And such a connection to see what there is, as the link begins one, that is ended at once."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Protocol
from uuid import uuid4

from draftd.engine.remote.verifier_link import RemoteModel
from draftd.remote.connection import Connection, Traffic
from draftd.remote.failures import LinkError, connect_error
from draftd.remote.messages import VERSION
from draftd.settings import RemoteSettings
from draftd.strategies import LinkFailure, QualityClass
from draftd.v1 import verification_pb2 as pb

_PINGS = 4


class Vocabulary(Protocol):
    """Of the local tokenizer."""

    @property
    def fingerprint(self) -> str: ...

    def vocabulary(self) -> list[bytes]: ...


def greet(
    connection: Connection,
    edge: str,
    tokenizer: Vocabulary | None,
    settings: RemoteSettings,
    differences: dict[str, str],
) -> RemoteModel:
    """Begins to connect as this `edge`; returns what the verifier serves. `tokenizer`: this daemon's; None: the two are
    not compared. `differences`: between them, by the fingerprint of the other one; added to where it is new. Raises
    LinkError."""
    connection.greet(edge, "" if tokenizer is None else tokenizer.fingerprint)
    welcome = connection.welcome()
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
        for token, there in enumerate(theirs or [b""] * (len(ours) - first), first):
            here = ours[token] if token < len(ours) else b""
            if here != there:
                return f"id {token} is {_shown(here)} here and {_shown(there)} there"
        if not theirs:
            return ""
        first += len(theirs)


def _shown(token: bytes) -> str:
    return repr(token.decode(errors="backslashreplace")) if token else "no token"


def check_verifier(settings: RemoteSettings, tokenizer: Vocabulary | None) -> tuple[RemoteModel, float]:
    """What the verifier serves, and the seconds of the shortest of a few round trips. `tokenizer` None: its own is not
    compared. Waits `remote.connect_seconds` for each answer. Raises LinkError."""
    heard: queue.SimpleQueue[float | None] = queue.SimpleQueue()  # when a pong came; None: the connection is over

    def take(connection: Connection, response: pb.VerifyResponse) -> None:
        if response.HasField("pong"):
            heard.put(time.monotonic())

    with closing(Connection(settings, Traffic(), take, lambda: heard.put(None))) as connection:
        model = greet(connection, uuid4().hex, tokenizer, settings, {})
        return model, min(_round_trip(connection, heard, settings) for _ in range(_PINGS))


def _round_trip(connection: Connection, heard: queue.SimpleQueue[float | None], settings: RemoteSettings) -> float:
    began = time.monotonic()
    connection.send(pb.VerifyRequest(ping=pb.Ping(nonce=1)))
    try:
        came = heard.get(timeout=settings.connect_seconds)
    except queue.Empty:
        why = f"no answer to a ping within {settings.connect_seconds:g} s"
        raise LinkError(LinkFailure.NO_ANSWER, why, "look at the load and the log of the verifier") from None
    if came is None:
        assert connection.why is not None
        raise connection.why
    return came - began
