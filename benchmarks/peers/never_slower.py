"""Part `never_slower`: automatic depth against autoregressive decoding, where drafting cannot pay and where it can.

Two daemons, new for each repetition, answer the same prompts in a random order: one with automatic depth, the other
autoregressively. Nothing is warmed up, so that the time automatic depth spends to learn that a draft does not pay
counts. Where drafting cannot pay, no end token ends an answer, so that enough of it follows the first 64 tokens. Times
begin with an answer's first token.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.arms import Prompt
from benchmarks.peers.part import Context, Direction, Figure, Pair
from benchmarks.peers.random_draft import random_draft
from benchmarks.peers.serving import daemon, without_reuse
from benchmarks.peers.streams import Stream
from benchmarks.peers.stretched import stretched
from benchmarks.peers.ways import AUTOMATIC, AUTOREGRESSIVE, Turn, ask
from benchmarks.ratios import CLASSES

GOOD = "good_pair"
CASES: Mapping[str, str] = {
    "random_draft": "a draft of random weights, as large as the pair's own",
    "slow_draft": "a draft of random weights that takes longer than the target",
    "no_blas": "the pair with the reference BLAS: a verification costs as much as its tokens one by one",
}
_SAME_SIZE = {"hidden": 128, "layers": 1, "inner": 320}
_LARGER = {"hidden": 512, "layers": 12, "inner": 1408}
_BEGINNING = 64
_AFTER, _FROM_THE_FIRST, _WORKLOAD = 0.97, 0.95, 1.0  # required ratios
_CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class Decoded:
    """One answer in one decoding configuration (`way`). `tokens` and `seconds` begin after the chunk that has the
    answer's first token, or its 64th token. `drafted` is the draft tokens of the whole answer."""

    repetition: int
    way: str
    tokens: int
    seconds: float
    drafted: int


@dataclass(frozen=True, slots=True)
class NeverSlower:
    name: str = "never_slower"
    title: str = "automatic depth over autoregressive decoding, new daemons, paired by prompt"
    repetitions: int = 5
    prompts: int = 4  # of each category (class), with the good pair; the other cases use one of each
    long_tokens: int = 256
    tokens: int = 96

    def run(self, context: Context) -> list[Figure]:
        for case in (*CASES, GOOD):
            for repetition in range(1 if context.quick else self.repetitions):
                self._repetition(context, case, repetition)
        return figures(context.store.records())

    def _repetition(self, context: Context, case: str, repetition: int) -> None:
        """Measures a repetition of a case as a whole, unless it is stored already. An interrupted repetition cannot be
        continued: its daemons would be new again and have learned nothing."""
        if any(one["case"] == case and one["repetition"] == repetition for one in context.store.records()):
            return
        draw = random.Random(f"{context.seed}/{repetition}/{case}")
        some = self._prompts(context.prompts, repetition, self.prompts if case == GOOD else 1)
        max_tokens = self.tokens if case == GOOD else self.long_tokens
        environ = {"DRAFTD_BLAS": "reference"} if case == "no_blas" else {}
        answers: list[dict[str, Any]] = []
        began = time.perf_counter()
        with (
            _pair(context.pair, case) as pair,
            daemon(pair, without_reuse(), environ) as first,
            daemon(pair, without_reuse(), environ) as second,
        ):
            arms = [(AUTOMATIC, first), (AUTOREGRESSIVE, second)]
            for prompt in some:
                for way, client in draw.sample(arms, len(arms)):
                    turn = ask(client, way, [prompt], max_tokens)
                    answers.append({"way": way.name, "workload": prompt.workload, "turn": turn.record()})
        context.store.add({"case": case, "repetition": repetition, "answers": answers})
        context.say(f"{case}, repetition {repetition + 1}: {time.perf_counter() - began:.0f} s")

    def _prompts(self, prompts: Sequence[Prompt], repetition: int, each: int) -> list[Prompt]:
        """Returns `each` prompts of each category (class), interleaved by category. The next repetition gets different
        prompts."""
        pools = [[prompt for prompt in prompts if prompt.workload == name] for name in CLASSES]
        return [pool[(repetition * each + i) % len(pool)] for i in range(each) for pool in pools if pool]


@contextlib.contextmanager
def _pair(pair: Pair, case: str) -> Iterator[Pair]:
    if case == GOOD:
        yield pair
        return
    with stretched(pair, _CONTEXT, endless=True) as long, tempfile.TemporaryDirectory(prefix="draftd-draft-") as folder:
        if case == "no_blas":
            yield long
        else:
            size = _LARGER if case == "slow_draft" else _SAME_SIZE
            yield Pair(long.model, str(random_draft(long.draft or long.model, Path(folder) / "draft", **size)))


def after(stream: Stream, first: int) -> tuple[int, float] | None:
    """Returns the tokens, and their seconds, that came after the chunk with token number `first`; None without any."""
    seen = 0
    for number, chunk in enumerate(stream.chunks):
        seen += chunk.tokens
        if seen >= first:
            rest = stream.chunks[number + 1 :]
            return (sum(one.tokens for one in rest), rest[-1].at - chunk.at) if rest else None
    return None


def figures(records: Sequence[Mapping[str, Any]]) -> list[Figure]:
    found = []
    for case, said in CASES.items():
        for beginning, wanted, name in (
            (_BEGINNING, _AFTER, f"after_{_BEGINNING}"),
            (1, _FROM_THE_FIRST, "from_first_token"),
        ):
            decoded = _decoded(records, case, beginning)
            if decoded:
                found.append(figure(f"{case}_{name}", decoded, wanted, said))
    for workload in CLASSES:
        decoded = _decoded(records, GOOD, 1, workload)
        if decoded:
            found.append(figure(f"{GOOD}_{workload}", decoded, _WORKLOAD, ""))
    return found


def _decoded(records: Sequence[Mapping[str, Any]], case: str, first: int, workload: str = "") -> list[Decoded]:
    found = []
    for one in records:
        for answer in one["answers"] if one["case"] == case else ():
            if workload in ("", answer["workload"]):
                turn = Turn.of_record(answer["turn"])
                for stream in turn.streams:
                    if (rest := after(stream, first)) is not None:
                        found.append(Decoded(one["repetition"], answer["way"], *rest, turn.drafted))
    return found


def figure(key: str, decoded: Sequence[Decoded], wanted: float, said: str) -> Figure:
    """Returns automatic depth's tokens per second divided by those of autoregressive decoding: the median and range
    over repetitions. `wanted` is the ratio that it must reach."""
    quotients, rates = [], []
    for repetition in sorted({one.repetition for one in decoded}):
        mine, theirs = (
            _rate([one for one in decoded if one.repetition == repetition and one.way == way.name])
            for way in (AUTOMATIC, AUTOREGRESSIVE)
        )
        quotients.append(mine / theirs)
        rates.append((mine, theirs))
    mine, theirs = (statistics.median(side) for side in zip(*rates, strict=True))
    drafted = statistics.mean(one.drafted for one in decoded if one.way == AUTOMATIC.name)
    detail = f"{mine:.0f} tokens/s against {theirs:.0f}, {drafted:.0f} drafted an answer" + (
        f": {said}" if said else ""
    )
    return Figure.of_ratios(key, quotients, wanted, Direction.AT_LEAST, detail)


def _rate(decoded: Sequence[Decoded]) -> float:
    return sum(one.tokens for one in decoded) / sum(one.seconds for one in decoded)
