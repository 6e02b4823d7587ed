"""The engine's end of a link: over which connection it speaks, when answers are due, what was not confirmed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from draftd.engine.remote.verifier_link import Close, FromVerifier, Open, Opened, Step, VerifierLink

_LEAST_PREFILL_SECONDS = 10.0  # of an opened text, until the verifier's first verdict, where its pace is not known
_PREFILL_SLACK = 3  # times what the verifier said of a token of a prompt
_QUEUES = 16  # verdicts whose queue is remembered
_MOST_STRAY = 4096  # messages in a row that nothing awaits: those of sequences that were given up are fewer
_MOST_CLOSES = 1024  # kept until the verifier confirms them


@dataclass(slots=True)
class UnconfirmedClose:
    """A `Close` that the verifier may not have. `end`: tokens of the text at most. `finished`: a verdict has ended it,
    and the verifier says so in a `Closed` besides."""

    message: Close
    end: int
    finished: bool


class LinkSession:
    """Engine thread only."""

    def __init__(self, link: VerifierLink, step_seconds: float) -> None:
        """`step_seconds`: in which a verdict comes, besides what steps wait in the verifier's queue."""
        self.link, self._step_seconds = link, step_seconds
        self.closes: dict[int, UnconfirmedClose] = {}
        self._connection: int | None = None  # that is up, as far as was received
        self._queues: deque[float] = deque(maxlen=_QUEUES)
        self._strays = 0

    @property
    def up(self) -> bool:
        return self._connection is not None

    def connected(self, connection: int) -> None:
        """Speaks over this connection from now on, and says again what was not confirmed."""
        self._connection = connection
        for close in self.closes.values():
            self.send(close.message)

    def lost(self) -> None:
        """Says nothing more until there is another connection."""
        self._connection = None

    def send(self, message: Open | Step | Close) -> None:
        if self._connection is not None:
            self.link.send(message, self._connection)

    # when answers are due

    def prefill_deadline(self, tokens: int, now: float) -> float:
        """The time until which the first verdict of an opened text comes, that has so many tokens."""
        model = self.link.state.model
        pace = 0.0 if model is None else model.prefill_seconds
        seconds = self._step_seconds + pace * tokens * _PREFILL_SLACK
        return now + max(seconds, 0.0 if pace else _LEAST_PREFILL_SECONDS)

    def deadline(self, now: float) -> float:
        """The time until which a verdict comes that is due from now on."""
        return now + self._step_seconds + max(self._queues, default=0.0)

    def queued(self, seconds: float) -> None:
        """Learns how long a step waited in the verifier's queue."""
        self._queues.append(seconds)

    # what is over

    def close(self, close: UnconfirmedClose) -> None:
        """Says it now, and over each connection until it is confirmed."""
        self.closes[close.message.sequence] = close
        if len(self.closes) > _MOST_CLOSES:
            del self.closes[next(iter(self.closes))]
        self.send(close.message)

    def confirm(self, sequence: int) -> None:
        """Takes a `Closed`, of a sequence that was closed."""
        close = self.closes.get(sequence)
        if close is not None and close.finished:
            close.finished = False
        else:
            self.closes.pop(sequence, None)

    def judge(self, message: FromVerifier, *, opened: bool | None) -> None:
        """Ends the connection where too much is said of nothing that is open. `opened`: whether the verifier has opened
        the sequence; None where it is not open here."""
        awaited = message.sequence in self.closes if opened is None else not (opened and isinstance(message, Opened))
        self._strays = 0 if awaited else self._strays + 1
        if self._strays >= _MOST_STRAY:
            self.link.broken(f"the verifier sent {_MOST_STRAY} messages of nothing that is open")
