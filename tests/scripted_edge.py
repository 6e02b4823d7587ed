"""An edge that knows the coming text, and proposes it or something else at any time."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from draftd.core import PEER, DecodePlan, DecodeRequest, FinishReason, SamplingParams
from draftd.engine.remote.peer import PeerSequence
from draftd.engine.remote.verifier_link import Proposal, Verdict
from tests.rig import Rig, autoregressive, request, speculative


def left_of(guess: list[int], tokens: Sequence[int]) -> list[int]:
    """Returns the rest of a guess after these tokens, empty if they differ from it."""
    return guess[len(tokens) :] if guess[: len(tokens)] == list(tokens) else []


class Edge:
    """An edge that sends steps to a `PeerSequence` and applies its verdicts, each of which may arrive late."""

    def __init__(
        self,
        prompt: Sequence[int],
        wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.verdicts: list[Verdict] = []
        self.peer = PeerSequence(1, prompt, self._told, wake, clock)
        self.text, self.guess = list(prompt), list[int]()
        self.granted = 0
        self._prompt = len(prompt)
        self._under_way = deque[Verdict]()
        self._sent = [Proposal(1, 1, prompt[0])]

    def rest(self, rig: Rig) -> None:
        """Steps until there is nothing to verify, and no grant; applies all verdicts."""
        while self.peer.due(self.text):
            rig.scheduler.step()
        rig.scheduler.step()
        self.receive()

    def request(self, depth: int, tokens: int, sampling: SamplingParams | None = None) -> DecodeRequest:
        plan = speculative(depth, PEER) if depth else autoregressive()
        return self.asked(plan, depth, tokens, sampling)

    def asked(self, plan: DecodePlan, depth: int, tokens: int, sampling: SamplingParams | None = None) -> DecodeRequest:
        """Returns a request. Its `plan` uses the verifier's own drafter, or the edge alone; a step takes `depth` tokens
        of the guess."""
        self.peer._deepest = depth
        return replace(request(self.text, plan, max_tokens=tokens, sampling=sampling), peer=self.peer)

    @property
    def answer(self) -> list[int]:
        return self.text[self._prompt :]

    @property
    def finished(self) -> FinishReason | None:
        return self.verdicts[-1].finished if self.verdicts else None

    def _told(self, verdict: object) -> None:
        if not isinstance(verdict, Verdict):
            return
        assert self.finished is None
        assert verdict.length == self._prompt + sum(len(one.tokens) for one in self.verdicts)
        self.verdicts.append(verdict)
        self._under_way.append(verdict)

    def receive(self, most: int = 1 << 30) -> None:
        while self._under_way and most:
            verdict, most = self._under_way.popleft(), most - 1
            assert verdict.length == len(self.text)
            self.guess = left_of(self.guess, verdict.tokens)
            self.text += verdict.tokens
            if not verdict.drafted:
                self.granted = max(0, self.granted - len(verdict.tokens))

    def send(self, proposed: Sequence[int], run: int = 0, known: int | None = None) -> bool:
        """Proposes tokens after the guess, or after the first `known` tokens of the text."""
        full = self.text + self.guess
        known = len(full) if known is None else known
        step = Proposal(1, known, full[known - 1], tuple(proposed), run)
        self._sent.append(step)
        taken = self.peer.offer(step)
        if taken:
            self.guess, self.granted = [*full[len(self.text) : known], *proposed], run
        return taken

    def whim(self, chance: random.Random, expected: Sequence[int]) -> None:
        """Does something at random: proposes right or wrong tokens, behind the guess or instead of it, grants,
        withdraws, or repeats itself. `expected` is the whole answer."""
        self.receive(chance.randrange(3))
        kind, ends = chance.randrange(10), len(self.text) + len(self.guess)
        right = expected[ends - self._prompt : ends - self._prompt + chance.randrange(9)]
        if kind < 4:
            self.send(right, run=chance.choice([0, 0, 3]))
        elif kind < 6:
            self.send([*right[:2], chance.randrange(32), *right[3:]])
        elif kind == 6:
            self.send([], run=chance.randrange(1, 12))
        elif kind == 7:
            known = chance.randrange(1, len(self.text) + 1)
            self.send(self.text[known : known + 4], run=2, known=known)
        elif kind == 8:
            self.peer.offer(chance.choice(self._sent))
        else:
            last = (self.text[-1] + 1) % 32
            assert not self.peer.offer(Proposal(1, len(self.text), last, tuple(right)))
        if not (self.guess or self.granted):
            self.send([], run=1)
