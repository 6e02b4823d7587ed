"""Measures how many more tokens a verifier emits per second of its target's time when edges draft for it.

The clients are one edge daemon, which drafts, and replayed edges. A replayed edge has a connection of its own and
proposes what the draft model proposed there when it was recorded. Clients send their steps together (each waits for the
verdicts of all) or at random times (each after a pause of its own). The result is tokens per second of target time,
divided by that of the same clients without drafts.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from benchmarks.arms import Prompt
from benchmarks.remote_daemons import Daemons
from draftd.core import FinishReason, SamplingParams
from draftd.engine.pair import load_tokenizer
from draftd.engine.remote.verifier_link import (
    CloseSequence,
    LinkConnected,
    LinkLost,
    OpenSequence,
    Proposal,
    SequenceClosed,
    Verdict,
)
from draftd.engine.targets.base import SequenceOptions
from draftd.settings import RemoteSettings
from draftd.v1 import inference_pb2 as pb
from draftd.verifier_client.link import GrpcLink
from tests.remote.asking import Reference, Wanted

EDGES = (1, 4, 16)
DEPTH = 4
ROUND_TRIP = 0.015
_PAUSE_SECONDS = 0.02  # longest pause of a client that sends at random times
_ANSWER_SECONDS = 300.0
_TOGETHER_SECONDS = 0.25  # longest wait for the other clients' verdicts


@dataclass(frozen=True)
class Recorded:
    """A prompt and the verifier's answer to it, as token ids. `proposals[i]` is what the draft model proposes after `i`
    tokens of the answer."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    proposals: tuple[tuple[int, ...], ...]


@dataclass
class Player:
    """A replayed edge: its connection to the verifier, and the sequence that is open on it."""

    link: GrpcLink
    texts: Iterator[Recorded]
    sequence: int = 0
    text: Recorded | None = None
    known: int = 0  # tokens of the answer so far
    waiting: bool = False  # for a verdict
    due: float = 0.0
    done: bool = False
    connection: int = 0


@dataclass
class Replay:
    """Replays all edges on one thread, until each has finished its texts. With `drafts` they propose recorded tokens;
    without, they let the verifier decode. With `together` each step waits for all verdicts. `failed` is the error's
    text."""

    players: Sequence[Player]
    drafts: bool
    together: bool
    wake: threading.Event = field(default_factory=threading.Event)
    dice: random.Random = field(default_factory=lambda: random.Random(1))
    failed: str = ""

    def run(self) -> None:
        for player in self.players:
            player.link.listen(self.wake.set)
        held = time.monotonic()
        while not self.failed and not all(one.done for one in self.players):
            self.wake.wait(0.002)
            self.wake.clear()
            for player in self.players:
                for message in player.link.take_messages():
                    self._take(player, message)
            now = time.monotonic()
            ready = [one for one in self.players if one.text is not None and not one.waiting and one.due <= now]
            if self.together and any(one.waiting for one in self.players) and now - held < _TOGETHER_SECONDS:
                continue
            held = now
            for player in ready:
                self._step(player)

    def _next(self, player: Player) -> None:
        player.text = next(player.texts, None)
        if player.text is None:
            player.done = True
            return
        player.sequence, player.known, player.waiting, player.due = player.sequence + 1, 0, False, 0.0
        options = SequenceOptions(len(player.text.prompt), len(player.text.prompt), SamplingParams())
        opened = OpenSequence(player.sequence, player.text.prompt, options, len(player.text.answer))
        player.link.send(opened, player.connection)

    def _step(self, player: Player) -> None:
        text, known = player.text, player.known
        assert text is not None
        last = text.answer[known - 1] if known else text.prompt[-1]
        place = len(text.prompt) + known
        if self.drafts and known < len(text.answer) - 1:
            step = Proposal(player.sequence, place, last, text.proposals[known])
        else:
            step = Proposal(player.sequence, place, last, run=1 if self.drafts else len(text.answer))
        player.link.send(step, player.connection)
        player.waiting = True

    def _take(self, player: Player, message: object) -> None:
        text = player.text
        if isinstance(message, LinkConnected):
            player.connection = message.connection
            self._next(player)
        if isinstance(message, LinkLost):
            self.failed = message.why
        if isinstance(message, SequenceClosed) and message.sequence == player.sequence and message.error:
            self.failed = message.error
        if text is None or not isinstance(message, Verdict) or message.sequence != player.sequence:
            return
        if tuple(message.tokens) != text.answer[player.known : player.known + len(message.tokens)]:
            self.failed = "the verifier's text differs from the recorded one"
        player.known += len(message.tokens)
        if player.known >= len(text.answer) or message.finished is FinishReason.STOP:
            player.link.send(CloseSequence(player.sequence, len(text.prompt) + player.known), player.connection)
            self._next(player)
        elif self.drafts:
            player.waiting = False
            player.due = time.monotonic() + (0.0 if self.together else self.dice.uniform(0, _PAUSE_SECONDS))


def measure(
    two: Daemons, model: str, draft: str, prompts: Sequence[Prompt], most: int, console: Console
) -> dict[str, object]:
    """Measures capacity with 1, 4 and 16 edges and prints a table. Returns by key, such as `capacity_4_together`, the
    tokens per second of target time with drafts divided by those without."""
    recorded = [one for one in record(model, draft, prompts, most) if len(one.answer) > 1]
    two.network(ROUND_TRIP, 0.1)
    said: dict[str, object] = {}
    table = Table(title=f"tokens per second of the target's time, {DEPTH} draft tokens a step, ÷ those without a draft")
    for heading in ("edges", "arriving", "ratio", "tokens/s of the target", "without a draft"):
        table.add_column(heading, justify="right")
    for edges in EDGES:
        for together in (True, False) if edges > 1 else (False,):
            with_draft = _served(two, model, prompts, recorded, most, edges, drafts=True, together=together)
            without = _served(two, model, prompts, recorded, most, edges, drafts=False, together=together)
            ratio, how = with_draft / without, "together" if together else "at random"
            said[f"capacity_{edges}" + ("_together" if together else "")] = round(ratio, 3)
            table.add_row(str(edges), how if edges > 1 else "", f"{ratio:.3f}", f"{with_draft:.0f}", f"{without:.0f}")
    console.print(table)
    return said


def record(model: str, draft: str, prompts: Sequence[Prompt], most: int) -> list[Recorded]:
    """Decodes each prompt with the target in this process, and records what the draft model proposes at each
    position."""
    target, drafter = Reference(model), Reference(draft)
    try:
        found = []
        for prompt in prompts:
            answer = target.answer(Wanted(prompt.tokens, most))
            proposals = [
                drafter.answer(Wanted(prompt.tokens, place + DEPTH), answer[:place]) for place in range(len(answer))
            ]
            found.append(Recorded(prompt.tokens, answer, tuple(proposals)))
        return found
    finally:
        target.close()
        drafter.close()


def _served(
    two: Daemons,
    model: str,
    prompts: Sequence[Prompt],
    recorded: Sequence[Recorded],
    most: int,
    edges: int,
    *,
    drafts: bool,
    together: bool,
) -> float:
    """Returns the tokens that the verifier emits per second of its target's time. The edge daemon and `edges` - 1
    replayed edges use the verifier. The measurement ends when all replayed edges have finished their texts, or, with
    `edges` 1, when the edge daemon has."""
    stop = threading.Event()
    with _players(two, model, recorded, edges - 1) as players, ThreadPoolExecutor(1) as pool:
        replay = Replay(players, drafts, together)
        before = two.verifier_metrics()
        edge = pool.submit(_edge, two, prompts, most, drafts, stop, once=not players)
        try:
            replay.run()
            if not players:
                edge.result(_ANSWER_SECONDS)
            after = two.verifier_metrics()
        finally:
            stop.set()
        edge.result(_ANSWER_SECONDS)
    if replay.failed:
        raise SystemExit(f"the client that replays recorded drafts failed: {replay.failed}")
    spent = after["draftd_verify_target_time_seconds"] - before["draftd_verify_target_time_seconds"]
    return (after["draftd_verify_tokens"] - before["draftd_verify_tokens"]) / spent


def _edge(
    two: Daemons, prompts: Sequence[Prompt], most: int, drafts: bool, stop: threading.Event, *, once: bool
) -> None:
    """Sends the prompts to the edge daemon one after the other: once, or again and again until `stop` is set."""
    strategy = pb.STRATEGY_SPECULATIVE if drafts else pb.STRATEGY_REMOTE
    while not stop.is_set():
        for prompt in prompts:
            request = pb.GenerateRequest(tokens=pb.TokenInput(ids=prompt.tokens), max_tokens=most, strategy=strategy)
            for _ in two.edge.generate_raw(request, timeout=_ANSWER_SECONDS):
                pass
            if stop.is_set():
                return
        if once:
            return


@contextlib.contextmanager
def _players(two: Daemons, model: str, recorded: Sequence[Recorded], number: int) -> Iterator[list[Player]]:
    tokenizer = load_tokenizer(model) if number else None
    settings = RemoteSettings(enabled=True, target=two.proxy.target, step_seconds=60)
    links = [GrpcLink(settings) for _ in range(number)]
    try:
        for link in links:
            link.start(lambda: tokenizer)
        deadline = time.monotonic() + _ANSWER_SECONDS
        while not all(link.state.up for link in links):
            if time.monotonic() > deadline:
                raise SystemExit("the replayed edges did not connect to the verifier in time")
            time.sleep(0.01)
        yield [Player(link, iter([*recorded[i % 2 :: 2]])) for i, link in enumerate(links)]
    finally:
        for link in links:
            link.close()
