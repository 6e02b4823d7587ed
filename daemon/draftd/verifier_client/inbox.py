"""Messages from the link to the engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from draftd.engine.remote.verifier_link import FromLink
from draftd.strategies import LinkFailure
from draftd.verifier_client.failures import LinkError

_MOST_IN = 8192  # messages that the engine has not taken


class EngineInbox:
    """The messages that the engine has not taken, in order. The link calls every method under its own lock, but `wake`
    without the lock."""

    def __init__(self) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._messages: deque[FromLink] = deque()

    def put(self, message: FromLink) -> None:
        self._messages.append(message)

    def check_room(self) -> None:
        """Raises LinkError if the verifier has sent more than the engine takes."""
        if len(self._messages) >= _MOST_IN:
            why = f"the verifier sent {_MOST_IN} messages that were not taken yet"
            raise LinkError(LinkFailure.BROKEN_RULE, why)

    def take(self) -> list[FromLink]:
        messages = list(self._messages)
        self._messages.clear()
        return messages
