"""Configurations (arms) that answer a prompt and record how: draftd in one of its modes, and mlx-lm's server, the
peer."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.arms import Prompt
from benchmarks.peers.codec import Codec, tokens_of
from benchmarks.peers.mlx_server import Peer, peer
from benchmarks.peers.part import Pair
from benchmarks.peers.serving import daemon, without_reuse
from benchmarks.peers.streams import Stream, counted
from draftd.client.client import CallError, DraftdClient
from draftd.core import ModePreference, WorkloadClass

ANSWER_SECONDS = 600.0  # a real model on a busy machine takes minutes for a long prompt

AUTOMATIC = "automatic"  # draftd's default: speculation with automatic depth
AUTOREGRESSIVE = "autoregressive"  # draftd, where each request turns speculation off
PEER = "peer"  # mlx-lm's server without a draft model
PEER_DRAFT = "peer_with_draft"  # mlx-lm's server with the pair's draft model
ARMS = (AUTOMATIC, AUTOREGRESSIVE, PEER, PEER_DRAFT)


def arms_of(pair: Pair) -> tuple[str, ...]:
    """Returns the arms that a pair allows: all of `ARMS`, except `PEER_DRAFT` if the pair has no draft model."""
    return ARMS if pair.draft else tuple(arm for arm in ARMS if arm != PEER_DRAFT)


class Asker(Protocol):
    def ask(self, prompt: Prompt, max_tokens: int, until: float | None = None) -> Stream:
        """Sends a prompt and records its greedy answer until it ends, or until the time.perf_counter `until`. A failure
        becomes the stream's `error`."""
        ...


@dataclass(frozen=True, slots=True)
class AskDraftd:
    """Sends prompts to a draftd daemon over gRPC."""

    client: DraftdClient
    mode: ModePreference = ModePreference.AUTO

    def ask(self, prompt: Prompt, max_tokens: int, until: float | None = None) -> Stream:
        asked = time.perf_counter()
        left = ANSWER_SECONDS if until is None else max(until - asked, 0.001)
        chunks: list[tuple[float, int]] = []
        text, error, said = "", "", (0, 0, 0)
        try:
            for response in self.client.generate(
                tokens=prompt.tokens,
                max_tokens=max_tokens,
                mode=self.mode,
                workload=WorkloadClass(prompt.workload),
                timeout=left,
            ):
                if response.HasField("chunk"):
                    chunks.append((time.perf_counter(), len(response.chunk.token_ids)))
                    text += response.chunk.text
                elif response.HasField("finished"):
                    usage = response.finished.usage
                    said = (usage.input_tokens, usage.cache_read_tokens, usage.output_tokens)
        except CallError as failure:
            error = str(failure)
        return Stream(prompt.id, asked, time.perf_counter(), counted(chunks), *said, text, error)


@dataclass(frozen=True, slots=True)
class AskPeer:
    """Sends prompts to mlx-lm's server over HTTP. It takes text, and reports the numbers of tokens at an answer's
    end."""

    server: Peer
    codec: Codec

    def ask(self, prompt: Prompt, max_tokens: int, until: float | None = None) -> Stream:
        body = self.codec.text(prompt.tokens)
        asked = time.perf_counter()
        left = ANSWER_SECONDS if until is None else until - asked
        texts: list[str] = []
        times: list[float] = []
        error, usage = "", dict[str, int]()
        cached = 0
        answer = self.server.completion(body, max_tokens, left)
        try:
            with contextlib.closing(answer):
                for event in answer:
                    now = time.perf_counter()
                    if now > asked + left:
                        raise TimeoutError(f"{self.server.name} is still answering after {left:.1f} s")
                    for choice in event["choices"]:
                        texts.append(choice["text"])
                        times.append(now)
                    if "usage" in event:
                        usage = event["usage"]
                        cached = (event["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            if not usage:
                error = f"{self.server.name}: the stream ended before its usage"
        except (OSError, RuntimeError, http.client.HTTPException) as failure:
            error = f"{type(failure).__name__}: {failure}"
        ended = time.perf_counter()
        if usage and usage["prompt_tokens"] != len(prompt.tokens):
            error = f"{self.server.name} read {usage['prompt_tokens']} tokens, draftd {len(prompt.tokens)}"
        text = "".join(texts)
        # When the server drafts and the length limit ends a text, it counts the last token twice.
        total = min(usage.get("completion_tokens", len(texts)), max_tokens)
        chunks = counted(list(zip(times, tokens_of(texts, self.codec.ends(text), total), strict=True)))
        return Stream(prompt.id, asked, ended, chunks, usage.get("prompt_tokens", 0), cached, total, text, error)


@contextlib.contextmanager
def arms(
    pair: Pair, codec: Codec, batch: int, names: Sequence[str] | None = None, *, keep_prompts: bool = False
) -> Iterator[dict[str, Asker]]:
    """Starts new servers and yields the arms by name: `names`, or all that the pair allows. Each server decodes at most
    `batch` answers at a time. In the arm `PEER_DRAFT`, mlx-lm's server drafts a fixed number of tokens a step: the
    daemon's `max_draft_tokens`. Unless `keep_prompts`, no server caches prompts, because the same prompts are sent
    again and again."""
    names = arms_of(pair) if names is None else names
    with contextlib.ExitStack() as stack:
        settings: dict[str, object] = {"engine.max_batch": batch} | ({} if keep_prompts else without_reuse())
        client = stack.enter_context(daemon(pair, settings))
        made: dict[str, Asker] = {
            AUTOMATIC: AskDraftd(client),
            AUTOREGRESSIVE: AskDraftd(client, ModePreference.AUTOREGRESSIVE),
        }
        for name, depth in ((PEER, None), (PEER_DRAFT, client.model().max_draft_tokens)):
            if name in names:
                server = peer(pair, draft_depth=depth, batch=batch, keep_prompts=keep_prompts)
                made[name] = AskPeer(stack.enter_context(server), codec)
        yield {name: made[name] for name in names}
