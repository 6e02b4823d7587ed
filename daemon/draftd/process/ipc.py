"""The messages between the daemon and its engine's process, and the socket pair that carries them.

Only these two have the pair: closing one end ends the other side. The daemon limits its waits, because a stopped
process neither answers nor reads.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import pickle
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

from draftd.core import DecodeRequest, DrafterName, FinishReason
from draftd.counts import DraftCounts
from draftd.engine.limits import Limits
from draftd.engine.memory import MlxMemory
from draftd.engine.observer import EngineStatus
from draftd.engine.pair import ModelPaths
from draftd.group import Loss, RankStatus
from draftd.model_info import ModelInfo
from draftd.models.folder import PairFiles
from draftd.models.tokenizer import Tokenizer
from draftd.outcome import Emission, Outcome
from draftd.ranks.plan import GroupShare

if TYPE_CHECKING:
    from draftd.engine.depth.saved import LearntCosts


# From the daemon


class MachineMemory(NamedTuple):
    """The values of `Limits` that depend on the machine, under the same names."""

    memory_share: float
    headroom: int | None
    available: int | None

    @classmethod
    def read(cls, limits: Limits) -> MachineMemory:
        return cls(limits.memory_share(), limits.headroom(), limits.available())


class Begin(NamedTuple):
    """The first message. `limits`: all except MachineMemory's. `log_level`: for draftd's own records. `share`: None if
    this process has the whole target."""

    paths: ModelPaths
    share: GroupShare | None
    limits: Mapping[str, Any]
    memory: MachineMemory
    learnt: LearntCosts | None
    log_level: int
    beat_seconds: float


class Submit(NamedTuple):
    """All choices of one request. `number` grows by one with each message."""

    number: int
    choices: Sequence[DecodeRequest]


class MethodCall(NamedTuple):
    """A method of EngineHandle to call. Its result comes back as MethodResult if it is a future."""

    number: int
    method: str
    arguments: tuple[Any, ...]


class EndRequests(NamedTuple):
    reasons: Mapping[str, FinishReason]


class Drain(NamedTuple):
    """Refuse new requests; running ones may continue until this time, in monotonic seconds, a clock that all processes
    of a machine share."""

    until: float


# From the engine


class EngineSnapshot(NamedTuple):
    """The engine's state, sent several times a second as a sign of life. `info`: once it takes requests. `learnt`: if
    changed. `waiting`: ids of clients' waiting requests, among those submitted up to `number`."""

    info: ModelInfo | None = None
    learnt: LearntCosts | None = None
    status: EngineStatus = EngineStatus(DraftCounts(), {})
    waiting: frozenset[str] = frozenset()
    number: int = 0
    progress: str = ""
    step_seconds: float = 0.0
    prefill_seconds: float = 0.0
    draft_bytes: Mapping[DrafterName, int] = {}
    files: PairFiles = PairFiles()
    memory: MlxMemory | None = None
    parallel: str = ""
    ranks: tuple[RankStatus, ...] = ()
    records: int = 0
    record_bytes: int = 0


class Tokens(NamedTuple):
    id: str
    emission: Emission


class ObserverCall(NamedTuple):
    """A call of an EngineObserver, except `on_finish`. `arguments`: without the request."""

    id: str
    method: str
    arguments: tuple[Any, ...]


class RequestFinished(NamedTuple):
    id: str
    outcome: Outcome


class MethodResult(NamedTuple):
    """The result of a MethodCall: `value` or `error`."""

    number: int
    value: Any
    error: Exception | None
    snapshot: EngineSnapshot | None


class LogLine(NamedTuple):
    logger: str
    level: int
    text: str


class EngineEnded(NamedTuple):
    """The last message. `loss` and `reason`: unless it ended normally after Drain. `learnt`: as in a snapshot."""

    loss: Loss | None = None
    reason: str = ""
    learnt: LearntCosts | None = None


def own_tokenizer() -> Tokenizer:
    """Stands for a tokenizer in a pickled message. The reader puts its own tokenizer in place of this function's
    result. Raises TypeError: a reader without a tokenizer expects none."""
    raise TypeError("a tokenizer cannot be sent to another process")


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        return (own_tokenizer, ()) if isinstance(obj, Tokenizer) else NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, tokenizer: Callable[[], Tokenizer]) -> None:
        super().__init__(io.BytesIO(data))
        self._tokenizer = tokenizer

    def find_class(self, module: str, name: str) -> Any:
        return self._tokenizer if (module, name) == (__name__, "own_tokenizer") else super().find_class(module, name)


class MessagePipe:
    """One end of the socket pair. One thread sends and one receives. Both raise OSError once the other end is gone."""

    def __init__(self, end: socket.socket, tokenizer: Callable[[], Tokenizer] = own_tokenizer) -> None:
        """`end`: closed by `close`. `tokenizer`: this process's, if received messages may refer to one."""
        self._end, self._connection = end, Connection(os.dup(end.fileno()))
        self._tokenizer, self.wait_seconds = tokenizer, math.inf

    def limit_waits(self, seconds: float) -> None:
        """Makes `receive` and `send` raise TimeoutError after `seconds` without a byte; before this call they wait
        without limit."""
        self.wait_seconds = seconds
        bound = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))  # a timeval
        self._end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bound)
        self._end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bound)

    def send(self, messages: Sequence[Any]) -> None:
        data = io.BytesIO()
        _Pickler(data, pickle.HIGHEST_PROTOCOL).dump(messages)
        with _socket_errors():
            self._connection.send_bytes(data.getbuffer())

    def receive(self) -> Sequence[Any]:
        with _socket_errors():
            data = self._connection.recv_bytes()
        messages: Sequence[Any] = _Unpickler(data, self._tokenizer).load()
        return messages

    def close(self) -> None:
        self._connection.close()
        self._end.close()


@contextlib.contextmanager
def _socket_errors() -> Iterator[None]:
    try:
        yield
    except BlockingIOError:
        raise TimeoutError from None
    except EOFError:
        raise ConnectionResetError("the other process has closed the pipe") from None
