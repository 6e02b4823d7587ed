"""Keeps a running daemon's fallback ladder on its top while it is measured: the pair is measured, not the ladder.

The hold expires by itself soon after a harness that was killed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from draftd.client.client import CallError
from draftd.core import FallbackLevel
from draftd.errors import FieldError

if TYPE_CHECKING:
    from draftd.client.client import DraftdClient

_HOLD_SECONDS, _RENEW_SECONDS = 120.0, 40.0
_JOIN_SECONDS = 15.0  # a renewal under way ends by then
_NO_LADDER = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.FAILED_PRECONDITION)


class NotMeasurable(FieldError):
    """The daemon does not allow what is to be measured: says what stands in the way."""


@contextlib.contextmanager
def held(client: DraftdClient) -> Iterator[None]:
    """Until the block ends. A hold of an operator's on the same level is left as it is.

    Raises NotMeasurable where the flag is off, or an operator holds the ladder lower.
    """
    variant = client.status().flag_variant
    if variant == "off":
        raise NotMeasurable("flag", variant, "on, while speculation is measured: draftd flag set on")
    try:
        before = client.level()
    except CallError as error:
        if error.code not in _NO_LADDER:
            raise
        yield
        return
    if before.HasField("hold"):
        level = before.ladder[before.hold.rung].level
        if level != FallbackLevel.FULL.label:
            raise NotMeasurable("level", f"held at {level}", "no hold, or one on full: draftd level release")
        yield
        return
    hold = _Hold(client)
    hold.take()
    thread = threading.Thread(target=hold.keep, name="draftd-hold", daemon=True)
    thread.start()
    try:
        yield
    finally:
        hold.done.set()
        thread.join(_JOIN_SECONDS)
        hold.let_go()


class _Hold:
    """Ours, for as long as nobody else has put one in its place."""

    def __init__(self, client: DraftdClient) -> None:
        self._client = client
        self._until = Timestamp()
        self.done = threading.Event()

    def take(self) -> None:
        self._until = self._client.hold_level(FallbackLevel.FULL, _HOLD_SECONDS).hold.until

    def keep(self) -> None:
        while not self.done.wait(_RENEW_SECONDS):
            with contextlib.suppress(CallError):  # while the daemon is away the next one may find it
                if not self._ours():
                    return
                self.take()

    def let_go(self) -> None:
        with contextlib.suppress(CallError):  # it expires by itself
            if self._ours():
                self._client.release_level()

    def _ours(self) -> bool:
        now = self._client.level()
        return now.HasField("hold") and now.hold.until == self._until
