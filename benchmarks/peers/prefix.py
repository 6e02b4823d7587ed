"""Part `prefix`: time to the first token of a chat's second turn, just after a first turn with a history of 1,000
tokens.

Chats differ from their first message on, so that no first turn can reuse another's. draftd and the peer cache prompts
as they do by default. Beside them a daemon without a prefix cache answers. Its texts must equal those with reuse, in
three passes: five of each eight held-out prompts, every fourth of these prompts again, and each prompt continued by its
answer and more text.
"""

from __future__ import annotations

import contextlib
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.arms import Prompt
from benchmarks.peers.asking import PEER, AskDraftd, Asker, AskPeer
from benchmarks.peers.codec import Codec
from benchmarks.peers.load import closed_loop
from benchmarks.peers.mlx_server import peer
from benchmarks.peers.part import Context, Direction, Figure
from benchmarks.peers.serving import daemon, without_reuse
from benchmarks.peers.streams import Stream, failed
from benchmarks.peers.stretched import stretched

DRAFTD, NO_REUSE = "draftd", "draftd_without_reuse"
ARMS = (DRAFTD, NO_REUSE, PEER)
WANTED = 0.25
_PARITY = range(5)  # of each eight prompts of a category (class), those that are compared
_TOKENS = 32  # of an answer
_TOGETHER = 8
_KEPT = 32  # prompts of a group, all of whose passes come first: so few that all are still cached

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Turns:
    """The answers to both turns of one chat."""

    first: Stream
    second: Stream

    @property
    def ratio(self) -> float:
        """The second turn's time to the first token divided by the first turn's."""
        first, second = self.first.time_to_first_token, self.second.time_to_first_token
        if first is None or second is None:
            raise RuntimeError(f"{self.first.prompt}: a turn of the chat got no token")
        return second / first


@dataclass(frozen=True, slots=True)
class Prefix:
    name: str = "prefix"
    title: str = "a chat's second turn after 1,000 tokens: time to the first token ÷ the first turn's"
    chats: int = 6
    history_tokens: int = 1000

    def run(self, context: Context) -> list[Figure]:
        chats = 2 if context.quick else self.chats
        draw = random.Random(f"{context.seed}/prefix")
        order = [(chat, arm) for chat in range(chats) for arm in draw.sample(ARMS, len(ARMS))]
        with contextlib.ExitStack() as stack:
            pair = stack.enter_context(stretched(context.pair))
            codec = Codec(pair.model)
            askers: dict[str, Asker] = {
                DRAFTD: AskDraftd(stack.enter_context(daemon(pair))),
                NO_REUSE: AskDraftd(stack.enter_context(daemon(pair, without_reuse()))),
                PEER: AskPeer(stack.enter_context(peer(pair, draft_depth=None, batch=8)), codec),
            }
            for asker in askers.values():  # the warm-up is not kept
                closed_loop(asker, context.prompts[-4:], 4, _TOKENS)
            self._chats(context, askers, codec, order)
            if without_reuse():
                _parity(context, askers, codec)
            else:
                context.say("this draftd has no prefix cache: there is no reuse to compare")
        records = context.store.records()
        return [*compared(chats_of(records)), *identical(records)]

    def _chats(
        self, context: Context, askers: Mapping[str, Asker], codec: Codec, order: Sequence[tuple[int, str]]
    ) -> None:
        done = chats_of(context.store.records())
        for chat, arm in order:
            if (chat, arm) in done:
                continue
            messages = history(context.prompts, codec, self.history_tokens, random.Random(f"{context.seed}/{chat}"))
            first = _ask(askers[arm], codec, f"chat-{chat}-1", messages)
            messages += [_said("assistant", first.text or "Yes."), _said("user", "And why is that?")]
            second = _ask(askers[arm], codec, f"chat-{chat}-2", messages)
            turns = Turns(first, second)
            context.say(f"{arm}: {turns.ratio:.3f}, {second.cached_tokens} of {second.prompt_tokens} tokens reused")
            place = {"kind": "chat", "chat": chat, "arm": arm}
            both = {"first": first.record(first.asked), "second": second.record(first.asked)}
            context.store.add(place | both)


def history(prompts: Sequence[Prompt], codec: Codec, tokens: int, draw: random.Random) -> list[Message]:
    """Returns messages of user and assistant in turn, drawn from held-out prompts, with the user's last: at least
    `tokens` tokens when rendered."""
    messages: list[Message] = []
    while len(messages) % 2 == 0 or len(codec.chat(messages)) < tokens:
        role = ("user", "assistant")[len(messages) % 2]
        messages.append(_said(role, codec.words(draw.choice(prompts).tokens)))
    return messages


def _said(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _ask(asker: Asker, codec: Codec, name: str, messages: Sequence[Message]) -> Stream:
    stream = asker.ask(Prompt(name, "chat", codec.chat(messages)), _TOKENS)
    failed([stream])
    return stream


def _parity(context: Context, askers: Mapping[str, Asker], codec: Codec) -> None:
    """Sends prompts in three passes to a daemon with a prefix cache and to one without, and stores the texts. The
    passes are five of each eight held-out prompts, every fourth of these again, and each prompt continued by its answer
    and more text. A quick measurement takes a twelfth of the prompts."""
    chosen = [prompt for i, prompt in enumerate(context.prompts) if i // 4 % 8 in _PARITY]
    if context.quick:
        chosen = chosen[::12]
    for group in range(0, len(chosen), _KEPT):
        some = chosen[group : group + _KEPT]
        firsts = _pass(context, askers, "first", group, some)
        _pass(context, askers, "again", group, some[::4])
        # As a second turn would continue: the prompt, its answer and something more.
        more = [Prompt(p.id, p.workload, p.tokens + codec.tokens(firsts[p.id]) + chosen[0].tokens) for p in some]
        _pass(context, askers, "second_turn", group, more)


def _pass(
    context: Context, askers: Mapping[str, Asker], name: str, group: int, prompts: Sequence[Prompt]
) -> dict[str, str]:
    """Sends all prompts to the daemon without a prefix cache and to the daemon with one, unless the texts are stored.
    Returns, by prompt, the texts of the daemon without a prefix cache."""
    for arm in (NO_REUSE, DRAFTD):
        if _texts(context.store.records(), name, group, arm) is None:
            streams = closed_loop(askers[arm], prompts, _TOGETHER, _TOKENS).streams
            kept = sum(stream.cached_tokens > 0 for stream in streams)
            context.say(f"parity, {name}, {arm}: {len(streams)} texts, {kept} of them with reuse")
            texts = {stream.prompt: stream.text for stream in streams}
            place = {"kind": "parity", "pass": name, "group": group, "arm": arm}
            context.store.add(place | {"texts": texts, "reused": kept})
    return _texts(context.store.records(), name, group, NO_REUSE) or {}


def _texts(records: Sequence[Mapping[str, Any]], name: str, group: int, arm: str) -> dict[str, str] | None:
    for one in records:
        if one["kind"] == "parity" and (one["pass"], one["group"], one["arm"]) == (name, group, arm):
            return dict(one["texts"])
    return None


def chats_of(records: Sequence[Mapping[str, Any]]) -> dict[tuple[int, str], Turns]:
    return {
        (one["chat"], one["arm"]): Turns(Stream.of_record(one["first"]), Stream.of_record(one["second"]))
        for one in records
        if one["kind"] == "chat"
    }


def compared(found: Mapping[tuple[int, str], Turns]) -> list[Figure]:
    """Returns for each arm the median over chats of the second turn's time to the first token divided by the first
    turn's."""
    figures = []
    for arm in ARMS:
        turns = [both for (_, name), both in sorted(found.items()) if name == arm]
        ratios = [both.ratio for both in turns]
        kept = statistics.median(both.second.cached_tokens for both in turns)
        read = statistics.median(both.second.prompt_tokens for both in turns)
        firsts = statistics.median(both.first.time_to_first_token or 0.0 for both in turns)
        figures.append(
            Figure.of_ratios(
                f"{arm}_second_turn",
                ratios,
                WANTED if arm == DRAFTD else None,
                Direction.AT_MOST,
                f"first turn {1000 * firsts:.0f} ms; {kept:.0f} of {read:.0f} tokens of the second reused",
            )
        )
    return figures


def identical(records: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Returns for each pass the share of texts that are the same with and without reuse."""
    figures = []
    passes = [one for one in records if one["kind"] == "parity" and one["arm"] == DRAFTD]
    for name in dict.fromkeys(one["pass"] for one in passes):
        same = number = reused = 0
        for one in passes:
            if one["pass"] == name:
                base = _texts(records, name, one["group"], NO_REUSE) or {}
                same += sum(base.get(prompt) == text for prompt, text in one["texts"].items())
                number += len(one["texts"])
                reused += one["reused"]
        detail = f"{same} of {number} texts, {reused} of them with reuse"
        figures.append(Figure(f"same_text_{name}", same / number, 1.0, Direction.AT_LEAST, detail))
    return figures
