"""Clients that send one request after the other and judge each answer; and one that only checks health."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draftd.client.client import CallError, DraftdClient, Message
from draftd.client.prompts import held_out
from draftd.core import PROMPT_LOOKUP, DepthMode, FallbackLevel, ModePreference, SamplingParams, WorkloadClass
from draftd.v1 import inference_pb2 as pb
from draftd.v1 import inference_pb2_grpc
from tests.faults.credentials import Access
from tests.faults.daemon import HANG_SECONDS, Daemon
from tests.faults.model import Model, Reference, Request

TOKENS = 24
_POLL_SECONDS, _CHECK_SECONDS = 0.05, 1.0


@dataclass(frozen=True)
class Prompt:
    messages: tuple[Message, ...]
    workload: WorkloadClass
    sampling: SamplingParams = field(default_factory=SamplingParams)
    reference: Reference = field(default_factory=Reference)


def prompts() -> list[Prompt]:
    """Returns greedy prompts, and one that is sampled with a seed."""
    code, tools = (held_out(kind)[:2] for kind in (WorkloadClass.CODE, WorkloadClass.TOOL_CALL))
    found = [Prompt(one.messages, one.workload) for one in (*code, *tools)]
    return [*found, replace(found[0], sampling=SamplingParams(temperature=0.8, seed=7))]


def learnt(access: Access) -> list[Prompt]:
    """Returns the prompts with the answers of an undisturbed daemon without drafts, which all later answers must
    equal."""
    found = []
    with access.client() as client:
        client.wait_until_loaded(HANG_SECONDS)
        for prompt in prompts():
            tokens, text = list[int](), ""
            for event in client.generate(
                messages=prompt.messages,
                max_tokens=TOKENS,
                sampling=prompt.sampling,
                mode=ModePreference.AUTOREGRESSIVE,
                timeout=HANG_SECONDS,
            ):
                tokens += event.chunk.token_ids
                text += event.chunk.text
            found.append(replace(prompt, reference=Reference(tuple(tokens), text)))
    return found


@dataclass(frozen=True)
class Manner:
    """Options of one request. The client `leaves` after so many chunks, pauses `pause` seconds between two, and has the
    deadline `timeout`."""

    mode: ModePreference = ModePreference.AUTO
    depth: DepthMode | None = None
    drafter: str | None = None
    leaves: int | None = None
    pause: float = 0.0
    timeout: float = HANG_SECONDS

    @classmethod
    def drawn(cls, dice: random.Random) -> Manner:
        made = cls(
            dice.choice((ModePreference.AUTO, ModePreference.AUTO, ModePreference.AUTOREGRESSIVE)),
            dice.choice((None, DepthMode.FIXED)),
            dice.choice((None, None, PROMPT_LOOKUP)),
        )
        kind = dice.random()
        if kind < 0.15:
            return replace(made, leaves=dice.randint(0, 6))
        if kind < 0.25:
            return replace(made, pause=0.05)
        return replace(made, timeout=dice.uniform(0.02, 0.4)) if kind < 0.35 else made


def ask(client: DraftdClient, life: int, prompt: Prompt, manner: Manner) -> Request:
    """Sends one request and reads it as `manner` says. Returns the request's record."""
    made = Request(life, prompt.reference, time.monotonic())
    if manner.timeout < HANG_SECONDS:
        made.own = frozenset({"DEADLINE_EXCEEDED"})
    stream = client.generate(
        messages=prompt.messages,
        max_tokens=TOKENS,
        sampling=prompt.sampling,
        mode=manner.mode,
        depth_mode=manner.depth,
        drafter=manner.drafter,
        workload=prompt.workload,
        timeout=manner.timeout,
    )
    chunks = 0
    try:
        for event in stream:
            kind = event.WhichOneof("event")
            if made.finished is not None or (kind == "started") != (made.started is None):
                made.disorder = f"{kind} came {'after the end' if made.finished is not None else 'out of order'}"
            if kind == "started":
                made.started, made.id = time.monotonic(), event.started.request_id
                made.level = FallbackLevel[event.started.plan.level.upper()]
            elif kind == "finished":
                made.finished = event.finished
            else:
                chunks += 1
                made.tokens += event.chunk.token_ids
                made.text += event.chunk.text
            if manner.leaves is not None and chunks >= manner.leaves:
                break
            if manner.pause:
                time.sleep(manner.pause)
        else:
            made.code = "OK"
    except CallError as error:
        made.code, made.details, made.refusal = error.code.name, error.details, error.reason
    finally:
        stream.close()  # type: ignore[attr-defined]
    made.ended = time.monotonic()
    return made


@contextlib.contextmanager
def asking(access: Access) -> Iterator[Callable[[Prompt, int], grpc.Call]]:
    """Yields a function that begins a request for at most so many tokens, on a connection of its own. Its call can be
    cancelled at any time."""
    with access.channel() as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)  # type: ignore[no-untyped-call]

        def begin(prompt: Prompt, tokens: int) -> grpc.Call:
            request = pb.GenerateRequest(max_tokens=tokens)
            request.chat.messages.extend(pb.ChatMessage(role=role, content=text) for role, text in prompt.messages)
            return stub.Generate(request, timeout=HANG_SECONDS, metadata=access.metadata)

        yield begin


class Clients:
    """Threads that send one request after the other, to whichever daemon is running."""

    def __init__(self, daemon: Daemon, model: Model, seed: int, number: int) -> None:
        self._daemon, self._model = daemon, model
        self._prompts: list[Prompt] = []
        self._stop = threading.Event()
        self._go = threading.Event()
        self._changed = threading.Condition()
        self._busy = 0
        self.well = 0  # requests that ended with OK
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed} client {i}"),), daemon=True)
            for i in range(number)
        ]

    def start(self, prompts: list[Prompt]) -> None:
        self._prompts = prompts
        self._go.set()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stop.set()
        self._go.set()
        for thread in self._threads:
            thread.join(2 * HANG_SECONDS)

    @contextlib.contextmanager
    def paused(self) -> Iterator[bool]:
        """Pauses all clients while the block runs. Yields True if the last requests have ended."""
        self._go.clear()
        with self._changed:
            quiet = self._changed.wait_for(lambda: not self._busy, 2 * HANG_SECONDS)
        try:
            yield quiet
        finally:
            self._go.set()

    def served(self, seconds: float) -> bool:
        """Waits until another request has been answered whole."""
        with self._changed:
            before = self.well
            self._changed.wait_for(lambda: self.well > before or bool(self._model.broken), seconds)
            return self.well > before

    def one(self, client: DraftdClient, life: int, dice: random.Random) -> Request:
        """Sends one request and has it judged."""
        made = ask(client, life, dice.choice(self._prompts), Manner.drawn(dice))
        self._model.ended_request(made)
        return made

    def _run(self, dice: random.Random) -> None:
        access = self._daemon.access
        client = access.client()
        while not self._stop.is_set():
            self._go.wait()
            with self._changed:
                self._busy += 1
            try:
                if not self._go.is_set():
                    continue
                life = self._daemon.life
                if access != self._daemon.access:
                    client.close()
                    access = self._daemon.access
                    client = access.client()
                made = self.one(client, life, dice)
            finally:
                with self._changed:
                    self._busy -= 1
                    self._changed.notify_all()
            if made.code == "OK":
                with self._changed:
                    self.well += 1
                    self._changed.notify_all()
            time.sleep(0.05 if made.code == "UNAVAILABLE" else 0.005)
        client.close()


class Health:
    """Checks health without a pause. An answer is true, false, or None after a second without one."""

    def __init__(self, daemon: Daemon, model: Model) -> None:
        self._daemon, self._model = daemon, model
        self._changed = threading.Condition()
        self._latest: tuple[int, float, float, bool | None] = (0, 0.0, 0.0, None)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(HANG_SECONDS)

    def told(self, serving: bool, since: float, seconds: float = HANG_SECONDS) -> float | None:
        """Waits for an answer of this kind to a check made after `since`. Returns the seconds from then, or None
        without one."""
        life = self._daemon.life

        def found() -> bool:
            number, asked, answered, said = self._latest
            fresh = answered >= since and (number == life or not serving)
            return fresh and bool(said) == serving and (not serving or asked >= since)

        with self._changed:
            self._changed.wait_for(lambda: found() or bool(self._model.broken), seconds)
            return self._latest[2] - since if found() else None

    def _run(self) -> None:
        access = self._daemon.access
        channel = access.channel()
        while not self._stop.is_set():
            life = self._daemon.life
            if access != self._daemon.access:
                channel.close()
                access = self._daemon.access
                channel = access.channel()
            asked, said = time.monotonic(), None
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(), timeout=_CHECK_SECONDS, metadata=access.metadata
                )
                said = answer.status == health_pb2.HealthCheckResponse.SERVING
            except grpc.RpcError:
                pass
            answered = time.monotonic()
            self._model.health(life, asked, answered, said)
            with self._changed:
                self._latest = life, asked, answered, said
                self._changed.notify_all()
            time.sleep(_POLL_SECONDS)
        channel.close()
