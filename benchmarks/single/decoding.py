"""Parts `ar`, `batch` and `classes`: how fast one client and four decode, and what drafts gain by prompt category
(class).

All use one daemon with default settings that exports its telemetry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from benchmarks.single.asking import ask, ask_mlx_lm, ask_together
from benchmarks.single.figures import (
    Found,
    Record,
    Row,
    acceptance,
    decode_rate,
    interval,
    same_texts,
    spread,
    together_rate,
    whole_rate,
)
from benchmarks.single.part import AUTOMATIC, AUTOREGRESSIVE, MLX_LM, Turn
from draftd.core import ModePreference, WorkloadClass

_COUNTS = {  # prompts of a repetition
    WorkloadClass.EDIT: 3,  # a function, a paragraph and a record
    WorkloadClass.CODE: 2,
    WorkloadClass.CHAT: 2,
    WorkloadClass.PROSE: 2,
}
_MOST_TOKENS = {WorkloadClass.EDIT: 96}  # maximum of an answer; the copied parts of an edit come late
FOUR = "four"  # autoregressive streams at once
_LEAST_TOKENS = 8  # minimum of an answer whose decoding is timed


@dataclass(frozen=True, slots=True)
class Autoregressive:
    """Measures the daemon's tokens per second divided by mlx-lm's. The daemon is asked over gRPC and exports telemetry.
    Whole answers count, prompt and gRPC included, as in benchmarks.run. Every prompt begins with a token of its own, so
    that the daemon processes all of it, as mlx-lm does."""

    name: str = "ar"
    title: str = "autoregressive over gRPC, telemetry on, over mlx-lm's stream_generate"
    kinds: tuple[WorkloadClass, ...] = (WorkloadClass.CODE, WorkloadClass.PROSE, WorkloadClass.CHAT)
    each: int = 2
    max_tokens: int = 32

    def measure(self, turn: Turn) -> None:
        prompts = [prompt for kind in self.kinds for prompt in turn.of_class(kind, self.each)]
        prompts = [turn.prompts.unlike_any(one, i) for i, one in enumerate(prompts)]
        warm_up(turn, MLX_LM)
        for prompt in prompts:
            for arm in turn.shuffled((AUTOREGRESSIVE, MLX_LM)):
                turn.processes.rest()
                if arm == MLX_LM:
                    turn.add(arm, ask_mlx_lm(turn.processes.mlx_lm, prompt, self.max_tokens))
                else:
                    answer = ask(turn.processes.daemon, prompt, self.max_tokens, ModePreference.AUTOREGRESSIVE)
                    turn.add(arm, answer)

    def found(self, records: Sequence[Record]) -> Found:
        same_texts(records)
        whole = spread(records, AUTOREGRESSIVE, MLX_LM, whole_rate)
        decoding = spread(records, AUTOREGRESSIVE, MLX_LM, decode_rate)
        rows = [
            Row("whole answers, prompt included", whole, "tokens/s", "≥ 0.98"),
            Row("from the first token to the last", decoding, "tokens/s"),
        ]
        return Found({"ar_vs_mlx_lm": whole.document()}, rows)


@dataclass(frozen=True, slots=True)
class Batch:
    """Measures the total tokens per second of four concurrent streams divided by those of a stream alone. The four
    streams count while all decode: from the latest first token to the earliest last one."""

    name: str = "batch"
    title: str = "four autoregressive streams at once over one, in total, while all decode"
    streams: int = 4
    max_tokens: int = 48

    def measure(self, turn: Turn) -> None:
        prompts = turn.of_class(WorkloadClass.CODE, self.streams)
        warm_up(turn)
        for arm in turn.shuffled((AUTOREGRESSIVE, FOUR)):
            turn.processes.rest()
            client, most, mode = turn.processes.daemon, self.max_tokens, ModePreference.AUTOREGRESSIVE
            if arm == FOUR:
                answers = ask_together(client, prompts, most, mode, ignore_eos=True)
            else:
                answers = [ask(client, prompt, most, mode, ignore_eos=True) for prompt in prompts[:2]]
            for answer in answers:
                turn.add(arm, answer)

    def found(self, records: Sequence[Record]) -> Found:
        same_texts(records)
        found = spread(records, FOUR, AUTOREGRESSIVE, _rate)
        return Found({"batch4_vs_1": found.document()}, [Row("four streams over one", found, "tokens/s", "≥ 2.5")])


@dataclass(frozen=True, slots=True)
class Classes:
    """Measures the default, automatic depth, against autoregressive decoding of the same prompt. Time counts from the
    first token, because the second request finds the prompt in the prefix cache."""

    name: str = "classes"
    title: str = "automatic depth over autoregressive, from the first token to the last"
    counts: Mapping[WorkloadClass, int] = field(default_factory=lambda: _COUNTS)
    max_tokens: int = 48

    def measure(self, turn: Turn) -> None:
        by_kind = [turn.of_class(kind, count) for kind, count in self.counts.items()]
        prompts = [one for together in zip_longest(*by_kind) for one in together if one is not None]
        modes = {AUTOMATIC: ModePreference.AUTO, AUTOREGRESSIVE: ModePreference.AUTOREGRESSIVE}
        warm_up(turn)
        for prompt in prompts:
            most = _MOST_TOKENS.get(WorkloadClass(prompt.workload), self.max_tokens)
            for arm in turn.shuffled(tuple(modes)):
                turn.processes.rest()
                answer = ask(turn.processes.daemon, prompt, most, modes[arm])
                turn.add(arm, answer | {"words": turn.prompts.text(answer["text"])})

    def found(self, records: Sequence[Record]) -> Found:
        same_texts(records)
        figures, rows = {}, []
        long = [one for one in records if len(one["text"]) >= _LEAST_TOKENS]
        for kind in self.counts:
            found = spread(long, AUTOMATIC, AUTOREGRESSIVE, decode_rate, workload=kind)
            between = interval(long, AUTOMATIC, AUTOREGRESSIVE, decode_rate, workload=kind)
            figures[f"{kind}_vs_ar"] = found.document(ci_low=between[0], ci_high=between[1])
            accepted, a_step = acceptance(long, AUTOMATIC, workload=kind)
            detail = f"95 % {between[0]:.3f}–{between[1]:.3f}; {accepted:.0%} accepted, {a_step:.2f} tokens a step"
            wanted = "≥ 1.6" if kind is WorkloadClass.EDIT else "≥ 0.99 (95 %: 0.97)"
            rows.append(Row(kind, found, "tokens/s", wanted, detail))
        return Found(figures, rows, _samples(long, WorkloadClass.EDIT))


def warm_up(turn: Turn, *arms: str) -> None:
    """Warms up the daemon, and mlx-lm if `MLX_LM` is among `arms`: sends them requests and discards the answers."""
    prompt = turn.prompts.of_length(20, -1)
    for mode in (ModePreference.AUTOREGRESSIVE, ModePreference.AUTO):
        ask(turn.processes.daemon, prompt, 8, mode)
    if MLX_LM in arms:
        ask_mlx_lm(turn.processes.mlx_lm, prompt, 8)


def _rate(records: Sequence[Record]) -> float:
    return together_rate(records) if records[0]["arm"] == FOUR else decode_rate(records)


def _samples(records: Sequence[Record], kind: WorkloadClass, count: int = 3) -> list[str]:
    """Returns some answers' texts, for a reader to see what was measured."""
    some = {one["prompt"]: one["words"] for one in records if one["workload"] == kind}
    return [f"{prompt}: {words!r}" for prompt, words in list(some.items())[:count]]
