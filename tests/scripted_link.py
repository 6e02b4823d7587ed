"""A verifier and the link to it, in memory and in simulated time. Its answers come from a text that was decoded before,
at times that the test sets. Connections are lost, and steps arrive twice, as tests want."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftd.core import DecodeRequest, FinishReason
from draftd.engine.drafters.base import Draft, Drafter, DraftSequence, TextDrafter
from draftd.engine.limits import RemoteLimits
from draftd.engine.remote.remote_decoder import RemoteDecoder
from draftd.engine.remote.remote_drafting import RemoteDrafting
from draftd.engine.remote.verifier_link import (
    CloseSequence,
    FromLink,
    FromVerifier,
    LinkConnected,
    LinkLost,
    LinkState,
    OpenSequence,
    Proposal,
    RemoteModel,
    SequenceClosed,
    SequenceOpened,
    ToVerifier,
    Verdict,
    VerifierLink,
)
from draftd.engine.sampling.transforms import Sampling
from draftd.engine.scheduler import Scheduler
from draftd.outcome import Emission
from draftd.strategies import PeerCounts, RemoteCounts, Verifier
from tests.rig import Collected, Rig
from tests.scripted_edge import left_of

MODEL = RemoteModel("remote", "f" * 64, 4096, 256, 8, shared_tokenizer=True, step_seconds=0.01)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(eq=False)
class _Held:
    """A sequence of the verifier. `whole` is its text to the end and beyond."""

    opened: OpenSequence
    whole: list[int]
    length: int
    guess: list[int] = field(default_factory=list)
    run: int = 0
    busy: bool = True  # until its prompt is prefilled
    stepped: float = 0.0  # when the oldest step that waits came
    over: bool = False

    @property
    def text(self) -> list[int]:
        return self.whole[: self.length]


class ScriptedLink:
    """A `VerifierLink` with the verifier behind it. `whole` returns the text of an opened sequence; `step` returns the
    seconds of a forward by its number of drafted tokens."""

    def __init__(
        self,
        whole: Callable[[OpenSequence], list[int]],
        clock: Clock,
        *,
        round_trip: float = 0.0,
        step: Callable[[int], float] = lambda drafted: 0.01 + 0.001 * drafted,
        prefill: float = 0.0,
        model: RemoteModel | None = MODEL,
        twice: bool = False,
        load: float = 0.0,
        own: int = 0,
    ) -> None:
        """Creates the link. `twice`: each step arrives twice. `own` is the number of tokens that the verifier drafts by
        itself in a step of a grant, all correctly."""
        self._own = own
        self._whole, self.clock, self.round_trip, self._step = whole, clock, round_trip, step
        self._prefill, self._model, self._twice, self.load = prefill, model, twice, load
        self.tamper: Callable[[Verdict], FromVerifier] = lambda verdict: verdict
        self.counts = PeerCounts()
        self.sent: list[ToVerifier] = []
        self.up = True
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._held: dict[int, _Held] = {}
        self._inbound: deque[tuple[float, FromLink]] = deque()
        self._connection = 0
        self.complaints: list[str] = []
        if model is not None:
            self._say(LinkConnected(0), clock.now, 0.0)
        self.wake: Callable[[], None] = lambda: None

    # the seam

    def listen(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    @property
    def state(self) -> LinkState:
        why = "" if self.up else "it is down"
        return LinkState(self.up, why, None if self.up else 3.0, self._model, self.round_trip, self.load)

    def send(self, message: ToVerifier, connection: int) -> None:
        self.sent.append(message)
        if connection == self._connection:
            for _ in range(1 + (self._twice and isinstance(message, Proposal))):
                self._carry(message, self.clock.now + self.round_trip / 2)

    def take_messages(self) -> Sequence[FromLink]:
        self.run(self.clock.now)
        found = []
        while self._inbound and self._inbound[0][0] <= self.clock.now:
            found.append(self._inbound.popleft()[1])
        return found

    def count_late_verdict(self, why: str) -> None:
        self.complaints.append(why)

    broken = count_late_verdict

    # the time

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            at, _, event = heapq.heappop(self._events)
            event(at)

    @property
    def next(self) -> float:
        """Returns the time of the next event."""
        return min([at for at, _, _ in self._events[:1]] + [at for at, _ in list(self._inbound)[:1]], default=math.inf)

    def _at(self, at: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (at, next(self._order), event))

    def _carry(self, message: ToVerifier, arrives: float) -> None:
        connection = self._connection
        self._at(arrives, lambda at: self._arrive(message, at) if connection == self._connection else None)

    def _say(self, message: FromLink, at: float, delay: float | None = None) -> None:
        self._inbound.append((at + (self.round_trip / 2 if delay is None else delay), message))

    # faults

    def cut(self, *, resumed: bool) -> None:
        """Loses the connection, and what is on its way. Another connection follows, at once or after all was given
        up."""
        self._connection += 1
        self._inbound.clear()
        for held in self._held.values():
            held.over = True
        if not resumed:
            self._say(LinkLost("it is down"), self.clock.now, 0.0)
        connection = self._connection
        self._at(self.clock.now + (2 * self.round_trip if resumed else 1.0), lambda at: self._connect(connection, at))

    def strays(self, count: int) -> None:
        """Sends messages about sequences that were never open."""
        for _ in range(count):
            self._say(SequenceOpened(1 << 30, 0), self.clock.now, 0.0)

    def _connect(self, connection: int, at: float) -> None:
        if self.up and connection == self._connection:
            self._say(LinkConnected(connection), at, 0.0)

    # the verifier

    def _arrive(self, message: ToVerifier, at: float) -> None:
        if isinstance(message, OpenSequence):
            if (before := self._held.get(message.sequence)) is not None:
                self.counts.discarded += before.length - len(message.tokens)
            held = _Held(message, self._whole(message), len(message.tokens))
            self._held[message.sequence] = held
            assert held.text == list(message.tokens), "what is opened is its own text"
            self._at(at + self._prefill, lambda now: self._prefilled(held, now))
            return
        held = self._held.get(message.sequence)  # type: ignore[assignment]
        if held is None:
            return
        if isinstance(message, CloseSequence):
            self.counts.discarded += held.length - message.length
            held.over = True
            del self._held[message.sequence]
            self._say(SequenceClosed(message.sequence), at)
            return
        self.counts.steps += 1
        full, known, proposed = [*held.text, *held.guess], message.length, list(message.proposed)
        overlap = held.text[known:]
        agrees = proposed[: len(overlap)] == overlap[: len(proposed)]
        if known > len(full) or full[known - 1] != message.last or not agrees:
            self.counts.stale += 1
            return
        place = known - held.length
        if place >= 0:
            held.guess = [*held.guess[:place], *proposed]
        elif len(proposed) > -place:
            held.guess = proposed[-place:]
        held.run, held.stepped = message.run, at
        self._go(held, at)

    def _prefilled(self, held: _Held, at: float) -> None:
        if not held.over:
            self._say(SequenceOpened(held.opened.sequence, 0), at)
            self._decided(held, [], at, 0.0)

    def _go(self, held: _Held, at: float) -> None:
        if held.busy or held.over or not (held.guess or held.run):
            return
        held.busy = True
        left = held.opened.options.prompt + held.opened.max_tokens - held.length
        if not held.guess and (own := min(self._own, left - 1, held.run - 1)) > 0:
            draft = held.whole[held.length : held.length + own]
            self._at(at + self._step(own), lambda now: self._decided(held, draft, now, 0.0, own=True))
            return
        drafted = min(len(held.guess), 8, left - 1)
        draft, queued = held.guess[:drafted], max(0.0, at - held.stepped) if drafted else 0.0
        self._at(at + self._step(drafted), lambda now: self._decided(held, draft, now, queued))

    def _decided(self, held: _Held, draft: list[int], at: float, queued: float, *, own: bool = False) -> None:
        if held.over:
            return
        drafted, accepted, opened = len(draft), 0, held.opened
        while accepted < drafted and draft[accepted] == held.whole[held.length + accepted]:
            accepted += 1
        tokens = tuple(held.whole[held.length : held.length + accepted + 1])
        finished = None
        if held.length + len(tokens) >= opened.options.prompt + opened.max_tokens:
            finished = FinishReason.LENGTH
        if not set(opened.options.ends).isdisjoint(tokens):
            finished = FinishReason.STOP
        seconds, own_drafted = self._step(drafted), drafted if own else 0
        accepted, drafted = (0, 0) if own else (accepted, drafted)
        made = Verdict(
            opened.sequence, held.length, tokens, accepted, drafted, finished, queued, seconds, seconds, self.load,
            own_drafted=own_drafted,
        )  # fmt: skip
        counts = self.counts
        counts.verdicts += 1
        counts.drafted += drafted
        counts.accepted += accepted
        counts.tokens += len(tokens)
        counts.target_seconds += seconds
        held.guess, held.length, held.busy = left_of(held.guess, tokens), held.length + len(tokens), False
        if not drafted:
            held.run = max(0, held.run - len(tokens))
        held.over = finished is not None
        self._say(self.tamper(made), at)
        self._go(held, at)


class Costly(TextDrafter):
    """A drafter that knows the text, is right at a share of random places until it is wrong, and takes time."""

    def __init__(self, clock: Clock, whole: Callable[[DraftSequence], list[int]], right: float, seconds: float) -> None:
        self._clock, self._whole, self._seconds = clock, whole, seconds
        dice = random.Random(1)
        self._right = [dice.random() < right for _ in range(4096)]  # by place

    def continuation(self, sequence: DraftSequence, depth: int) -> list[int]:
        whole, start = self._whole(sequence), len(sequence.tokens)
        right, found = sequence.tokens == whole[:start], list[int]()
        for place in range(start, start + depth):
            right = right and self._right[place]
            found.append(whole[place] if right else (whole[place] + 1) % 256)
        return found

    def propose(self, sequences: Sequence[DraftSequence], depths: Sequence[int], sampling: Sampling) -> Draft:
        self._clock.now += self._seconds * max(depths)
        return super().propose(sequences, depths, sampling)

    def reach(self, sequence: DraftSequence, most: int) -> int:
        return most


@dataclass
class Heard(Collected):
    """A sink that also keeps whose target chose each token."""

    verifiers: list[Verifier] = field(default_factory=list)

    def on_tokens(self, emission: Emission) -> None:
        super().on_tokens(emission)
        self.verifiers += [emission.verifier] * len(emission.tokens)

    @property
    def remote(self) -> RemoteCounts:
        counts = self.done.stats.remote
        assert counts is not None
        return counts


class EdgeEngine:
    """An engine's local and remote sequences, in the test's own thread."""

    def __init__(
        self,
        rig: Rig,
        link: VerifierLink,
        clock: Callable[[], float],
        own: Callable[[], Drafter | None] = lambda: None,
        **limits: Any,
    ) -> None:
        self.rig, local = rig, rig.scheduler.local
        self.scheduler = Scheduler(local, clock=clock)
        bounds = RemoteLimits(**limits)
        self.remote = RemoteDecoder(
            link,
            RemoteDrafting(local.drafting, bounds, 512, own, clock),
            local.delivery,
            move=self.scheduler.move,
            context_length=rig.models.info.context_length,
            limits=bounds,
            clock=clock,
        )
        self.scheduler.decode_elsewhere(self.remote)

    def add(self, request: DecodeRequest) -> Heard:
        sink = Heard()
        self.scheduler.receive(request, sink)
        return sink


class Edge(EdgeEngine):
    """An edge's engine over a scripted link."""

    def __init__(
        self, rig: Rig, link: ScriptedLink, own: Callable[[], Drafter | None] = lambda: None, **limits: Any
    ) -> None:
        super().__init__(rig, link, link.clock, own, **limits)
        self.link = link

    def turn(self) -> None:
        """Executes one iteration of the engine. Time advances if nothing is due."""
        self.scheduler.step()
        if self.rig.scheduler.idle and (wait := self.remote.pause) > 0 and not self.remote.idle:
            at = min(self.link.clock.now + wait, self.link.next)
            assert at < 1e9, "nothing would ever come"
            self.link.clock.now = max(self.link.clock.now, at)

    def run(self, *requests: DecodeRequest, turns: int = 100_000) -> list[Heard]:
        sinks = [self.add(request) for request in requests]
        for _ in range(turns):
            if self.scheduler.idle:
                return sinks
            self.turn()
        raise AssertionError("not finished")

    def settle(self) -> None:
        """Lets what is still on its way arrive."""
        while self.link.next < math.inf:
            self.link.clock.now = max(self.link.clock.now, self.link.next)
            self.scheduler.step()
