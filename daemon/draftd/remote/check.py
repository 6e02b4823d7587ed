"""One connection to a verifier, to see what there is: as the link begins one, and ended at once."""

from __future__ import annotations

import queue
import time
from uuid import uuid4

from draftd.engine.remote.verifier_link import RemoteModel
from draftd.remote.connection import Connection, Traffic
from draftd.remote.failures import LinkError, connect_error
from draftd.remote.greeting import Vocabulary, remote_model
from draftd.settings import RemoteSettings
from draftd.strategies import LinkFailure
from draftd.v1 import verification_pb2 as pb

_PINGS = 4


def check_verifier(settings: RemoteSettings, tokenizer: Vocabulary | None) -> tuple[RemoteModel, float]:
    """What the verifier serves, and the seconds of the shortest of a few round trips. `tokenizer` None: its own is not
    compared. Waits `remote.connect_seconds` for each answer. Raises LinkError."""
    heard: queue.SimpleQueue[float | None] = queue.SimpleQueue()  # when a pong came; None: the connection is over

    def take(connection: Connection, response: pb.VerifyResponse) -> None:
        if response.HasField("pong"):
            heard.put(time.monotonic())

    connection = Connection(settings, Traffic(), take, lambda: heard.put(None))
    try:
        connection.greet(uuid4().hex, "" if tokenizer is None else tokenizer.fingerprint)
        welcome = connection.welcome(settings.connect_seconds)
        if welcome is None:
            raise connect_error(LinkFailure.CONNECT_TIMEOUT, settings)
        model = remote_model(welcome, connection, tokenizer, settings, {})
        return model, min(_round_trip(connection, heard, settings) for _ in range(_PINGS))
    finally:
        connection.close()


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
