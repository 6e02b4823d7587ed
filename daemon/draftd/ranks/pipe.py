"""What the daemon and the process of its engine tell each other, and how it travels.

Pickled messages over a socket pair that only these two have: an end that is closed ends the other. Every wait has a
limit: a process that is stopped answers nothing, and takes nothing.
"""

from __future__ import annotations

import io
import pickle
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from draftd.core import DecodeRequest, DrafterName, Emission, FinishReason, Outcome
from draftd.engine.limits import Limits
from draftd.engine.memory import MlxMemory
from draftd.engine.observer import EngineStatus
from draftd.group import Loss, RankStatus
from draftd.model_info import ModelInfo
from draftd.models.folder import PairFiles
from draftd.models.tokenizer import Tokenizer
from draftd.ranks.models import Models, Share

if TYPE_CHECKING:
    from draftd.engine.depth.saved import Learnt

_LENGTH = struct.Struct("!Q")  # before each message
_MOST_AT_ONCE = 1 << 20


# From the daemon


@dataclass(frozen=True, slots=True)
class Machine:
    """What the engine asks of the machine while it runs: `Limits` has the same names."""

    memory_share: float
    headroom: int | None
    available: int | None

    @classmethod
    def of(cls, limits: Limits) -> Machine:
        return cls(limits.memory_share(), limits.headroom(), limits.available())


@dataclass(frozen=True, slots=True)
class Begin:
    """The first message. `limits` without what the machine says, which is `machine`; `log_level` of draftd's own
    records. `share`: where the target is shared with other ranks."""

    models: Models
    share: Share | None
    limits: Mapping[str, Any]
    machine: Machine
    learnt: Learnt | None
    log_level: int
    beat_seconds: float


@dataclass(frozen=True, slots=True)
class Submit:
    """Choices of one request; `number` grows by one for each."""

    number: int
    choices: Sequence[DecodeRequest]


@dataclass(frozen=True, slots=True)
class Command:
    """A method of EngineHandle, by name. What it returns comes back as Done where it is a future."""

    number: int
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class End:
    reasons: Mapping[str, FinishReason]


@dataclass(frozen=True, slots=True)
class Close:
    """Takes no more requests; those in hand may run until `drain_until`, in monotonic seconds, which all processes of a
    machine share."""

    drain_until: float


# From the engine


@dataclass(frozen=True, slots=True)
class Loading:
    line: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Sent some times a second: the sign of life. `waiting`: ids of clients' requests that wait, of those that
    were submitted up to `number`."""

    status: EngineStatus
    waiting: frozenset[str]
    number: int
    progress: str
    step_seconds: float
    prefill_seconds: float
    draft_bytes: Mapping[DrafterName, int]
    files: PairFiles
    memory: MlxMemory | None
    parallel: str = ""
    ranks: tuple[RankStatus, ...] = ()
    records: int = 0
    record_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    info: ModelInfo
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Learned:
    learnt: Learnt


@dataclass(frozen=True, slots=True)
class Tokens:
    id: str
    emission: Emission


@dataclass(frozen=True, slots=True)
class Observed:
    """A call of an EngineObserver: its method's name and all arguments but the request."""

    id: str
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    id: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a Command: `value`, or `error`."""

    number: int
    value: Any
    error: Exception | None
    snapshot: Snapshot | None


@dataclass(frozen=True, slots=True)
class Logged:
    name: str
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The last message, where the group or its engine has ended for a reason of its own."""

    loss: Loss
    reason: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The last message, where it was told to end."""


def own_tokenizer() -> Tokenizer:
    """What stands for the tokenizer in a message: each process has its own. The reader puts it in."""
    raise TypeError("a tokenizer is not sent")


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return (own_tokenizer, ()) if isinstance(obj, Tokenizer) else NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, tokenizer: Callable[[], Tokenizer]) -> None:
        super().__init__(io.BytesIO(data))
        self._tokenizer = tokenizer

    def find_class(self, module: str, name: str) -> Any:
        return self._tokenizer if (module, name) == (__name__, "own_tokenizer") else super().find_class(module, name)


class Pipe:
    """One end. One thread sends, and one receives. Without `patient` it waits for ever."""

    def __init__(self, end: socket.socket, tokenizer: Callable[[], Tokenizer] = own_tokenizer) -> None:
        """`tokenizer`: this process's own, where what is received may refer to it. Takes the socket over."""
        self._from, self._to = end, end.dup()
        self._tokenizer = tokenizer

    def patient(self, receive: float, send: float) -> None:
        """The longest, in seconds, that the other end may send nothing, or take nothing. Both or neither."""
        self._from.settimeout(receive)
        self._to.settimeout(send)

    def send(self, messages: Sequence[Any]) -> None:
        """Raises OSError where the other end is gone, TimeoutError where it takes nothing."""
        data = io.BytesIO()
        _Pickler(data, pickle.HIGHEST_PROTOCOL).dump(messages)
        self._to.sendall(_LENGTH.pack(data.tell()) + data.getvalue())

    def receive(self) -> Sequence[Any]:
        """Waits. Raises OSError where the other end is gone, TimeoutError where it sends nothing."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        messages: Sequence[Any] = _Unpickler(self._exactly(length), self._tokenizer).load()
        return messages

    def _exactly(self, length: int) -> bytes:
        data = bytearray()
        while len(data) < length:
            more = self._from.recv(min(length - len(data), _MOST_AT_ONCE))
            if not more:
                raise ConnectionResetError("the other end is closed")
            data += more
        return bytes(data)

    def close(self) -> None:
        self._from.close()
        self._to.close()
