"""Requests to an edge, their results, and the expected texts: the verifier's, and after a failover the local model's
continuation of it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from draftd.client.client import CallError, DraftdClient
from draftd.core import DecodeMode, DecodePlan, DecodeRequest, FallbackLevel, SamplingParams
from draftd.engine.loop import EngineWorker
from draftd.engine.pair import load_models
from draftd.outcome import Emission, Outcome
from draftd.v1 import inference_pb2 as pb
from tests.wait_until import loaded, until

ANSWER_SECONDS = 180.0
_numbers = itertools.count()


@dataclass(frozen=True)
class Wanted:
    """One request. `strategy` None leaves it to the edge's flag; `depth` None leaves it to the edge."""

    prompt: tuple[int, ...]
    most: int = 32
    seed: int | None = None  # greedy without one, else at temperature 0.8
    depth: int | None = None
    strategy: pb.Strategy | None = None

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams() if self.seed is None else SamplingParams(temperature=0.8, seed=self.seed)


@dataclass
class Asked:
    """The result of a request. `times` has the arrival of each token."""

    wanted: Wanted
    began: float = 0.0
    ended: float = 0.0
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    remote_tokens: int = 0  # the first of them, which the remote chose
    finished: pb.Finished | None = None
    error: str = ""
    retry_after: float | None = None
    mixed: bool = False  # a remote token came after a local one

    @property
    def failed_over(self) -> bool:
        return self.finished is not None and bool(self.finished.failed_over)


def ask(client: DraftdClient, wanted: Wanted, asked: Asked | None = None) -> Asked:
    """Sends a request and fills `asked` as the answer arrives."""
    one = asked or Asked(wanted)
    sampling = wanted.sampling
    request = pb.GenerateRequest(
        tokens=pb.TokenInput(ids=wanted.prompt),
        max_tokens=wanted.most,
        sampling=pb.SamplingParams(temperature=sampling.temperature, seed=sampling.seed),
        strategy=wanted.strategy or pb.STRATEGY_UNSPECIFIED,
    )
    if wanted.depth is not None and wanted.strategy is not pb.STRATEGY_REMOTE:
        request.max_draft_tokens, request.depth_mode = wanted.depth, pb.DEPTH_MODE_FIXED
    one.began = time.monotonic()
    try:
        for response in client.generate_raw(request, timeout=ANSWER_SECONDS):
            now = time.monotonic()
            if response.HasField("finished"):
                one.finished = response.finished
            fresh = list(response.chunk.token_ids)
            if fresh and response.chunk.verifier == pb.VERIFIER_REMOTE:
                one.mixed = one.mixed or one.remote_tokens < len(one.tokens)
                one.remote_tokens += len(fresh)
            one.tokens += fresh
            one.times += [now] * len(fresh)
    except CallError as error:
        one.error, one.retry_after = error.message, error.retry_after
    one.ended = time.monotonic()
    return one


class Reference:
    """A model that decodes without drafts and without a network."""

    def __init__(self, folder: str) -> None:
        self._worker = EngineWorker(lambda progress: load_models(folder, progress=lambda line: None))
        self._worker.start()
        loaded(self._worker)
        self._known: dict[tuple[Wanted, tuple[int, ...]], tuple[int, ...]] = {}

    def close(self) -> None:
        self._worker.close()

    def answer(self, wanted: Wanted, begun: Sequence[int] = ()) -> tuple[int, ...]:
        """Returns the continuation of an answer that began with `begun`. Only one thread may call it."""
        key = replace(wanted, depth=None, strategy=None), tuple(begun)
        if key not in self._known:
            self._known[key] = self._decoded(wanted, tuple(begun))
        return self._known[key]

    def _decoded(self, wanted: Wanted, begun: tuple[int, ...]) -> tuple[int, ...]:
        if len(begun) >= wanted.most:
            return ()
        sink = _Sink()
        request = DecodeRequest(
            id=f"reference {next(_numbers)}",
            prompt=wanted.prompt + begun,
            max_tokens=wanted.most - len(begun),
            plan=DecodePlan(DecodeMode.AUTOREGRESSIVE, 0, None, FallbackLevel.FULL, "on", "reference"),
            arrival=time.monotonic(),
            sampling=wanted.sampling,
            answered=len(begun),
        )
        self._worker.submit(request, sink)
        assert sink.done.wait(ANSWER_SECONDS)
        return tuple(sink.tokens)


class _Sink:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.done = threading.Event()

    def on_tokens(self, emission: Emission) -> None:
        self.tokens += emission.tokens

    def on_finish(self, outcome: Outcome) -> None:
        self.done.set()


def wrong(asked: Asked, remote: Sequence[Reference], local: Reference) -> str:
    """Returns what is wrong with a request's text or end, or an empty text. `remote` are the models that the verifier
    served meanwhile; one of them must have chosen all remote tokens."""
    wanted, told = asked.wanted, f"{len(asked.tokens)} tokens, {asked.remote_tokens} of them remote"
    if asked.mixed:
        return "the remote chose a token after a local one"
    begun = asked.tokens[: asked.remote_tokens]
    if begun and not any(list(one.answer(wanted)[: len(begun)]) == begun for one in remote):
        return f"the remote's tokens are not the verifier's: {told}"
    if asked.error:
        return "" if asked.retry_after is not None else f"it was lost: {asked.error}"
    if asked.finished is None:
        return "it has no end"
    rest = tuple(asked.tokens[len(begun) :])
    whole = [one.answer(wanted) for one in remote] if not rest and begun else []
    if tuple(asked.tokens) in whole:
        return ""
    expected = local.answer(wanted, begun)
    return "" if rest == expected else f"the local model goes on otherwise: {told}, {expected} expected, {rest} came"


class Clients:
    """Clients that each send one request after the other, on a thread of its own, until all were sent. `granted` limits
    the number of requests that `grant` has allowed; without it all may be sent at once."""

    def __init__(self, address: str, wanted: Sequence[Wanted], clients: int, *, granted: bool = False) -> None:
        self._address, self._wanted = address, iter(wanted)
        self._grants = threading.Semaphore(0 if granted else len(wanted) + clients)
        self._lock, self._stop = threading.Lock(), threading.Event()
        self.in_hand: list[Asked] = []
        self.asked: list[Asked] = []
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def grant(self, requests: int) -> None:
        self._grants.release(requests)

    @property
    def done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def settle(self, asked: int) -> None:
        """Waits until so many requests have ended."""
        until(lambda: len(self.asked) >= asked or self.done, ANSWER_SECONDS, "answers")

    def close(self) -> None:
        """Ends the clients once their running requests have ended."""
        self._stop.set()
        for thread in self._threads:
            thread.join(ANSWER_SECONDS + 10)

    @property
    def received(self) -> int:
        """Returns the tokens received by all."""
        with self._lock:
            return sum(len(one.tokens) for one in (*self.asked, *self.in_hand))

    def streaming(self) -> list[Asked]:
        """Returns the requests that have tokens of the remote, and no end yet."""
        with self._lock:
            return [one for one in self.in_hand if one.remote_tokens and one.remote_tokens == len(one.tokens)]

    def _run(self) -> None:
        with DraftdClient(self._address) as client:
            while not self._stop.is_set():
                if not self._grants.acquire(timeout=0.05):
                    continue
                if (wanted := self._next()) is None:
                    return
                one = Asked(wanted)
                with self._lock:
                    self.in_hand.append(one)
                try:
                    ask(client, wanted, one)
                except Exception as error:
                    one.error = repr(error)
                with self._lock:
                    self.in_hand.remove(one)
                    self.asked.append(one)
                if one.error and one.retry_after is not None:
                    self._stop.wait(min(one.retry_after, 1.0))

    def _next(self) -> Wanted | None:
        with self._lock:
            return next(self._wanted, None)
