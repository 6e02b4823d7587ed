"""A fake verifier without a model: it speaks the protocol over a text that a rule defines."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc

from draftd.core import FinishReason
from draftd.engine.remote.verifier_link import (
    CloseSequence,
    FromVerifier,
    OpenSequence,
    Proposal,
    SequenceClosed,
    SequenceOpened,
    ToVerifier,
    Verdict,
)
from draftd.v1 import verification_pb2 as pb
from draftd.v1 import verification_pb2_grpc
from draftd.verifier_client.codec import VERSION, from_edge, to_edge
from tests.scripted_edge import left_of

VOCABULARY = 97


def following(text: Sequence[int]) -> int:
    """Returns the token that follows in the verifier's text."""
    return (7 * text[-1] + 3 * len(text) + 1) % VOCABULARY


def continued(prompt: Sequence[int], tokens: int) -> list[int]:
    """Returns the verifier's whole answer."""
    text = list(prompt)
    for _ in range(tokens):
        text.append(following(text))
    return text[len(prompt) :]


@dataclass
class Words:
    """A tokenizer's vocabulary."""

    names: list[bytes] = field(default_factory=lambda: [b"w%d" % i for i in range(VOCABULARY)])

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(b"\n".join(self.names)).hexdigest()

    def vocabulary(self) -> list[bytes]:
        return self.names


@dataclass
class Text:
    """One sequence, of at most `most` tokens."""

    tokens: list[int]
    most: int
    prompt: int
    guess: list[int] = field(default_factory=list)
    run: int = 0


class FakeVerifier(verification_pb2_grpc.VerificationServiceServicer):
    """A verifier with faults. `silent` gives no verdict, `deaf` answers no ping either, and `stalls` loses what
    arrives. `lies` sends a verdict that does not continue the text; `floods` sends verdicts without end. `refuses` is
    its answer to an `OpenSequence`. `holds` is the number of answer tokens after which no verdict comes. `closed`
    records how each sequence was closed, by edge."""

    def __init__(self, words: Words | None = None, fingerprint: str = "weights") -> None:
        self.words, self.fingerprint = words or Words(), fingerprint
        self.silent = self.deaf = self.lies = self.floods = self.stalls = False
        self.refuses = ""
        self.holds = 1 << 30
        self.edges: list[str] = []
        self.metadata: dict[str, str] = {}  # of the last call
        self.opened: list[OpenSequence] = []
        self.closed: dict[int, int] = {}
        self.lock = threading.Lock()

    def Verify(self, requests: Iterator[pb.VerifyRequest], context: Any) -> Iterator[pb.VerifyResponse]:
        texts: dict[int, Text] = {}
        self.metadata = dict(context.invocation_metadata())
        self.edges.append(next(requests).hello.edge)
        welcome = pb.Welcome(
            protocol=VERSION,
            model="fake",
            model_fingerprint=self.fingerprint,
            tokenizer=self.words.fingerprint,
            context_length=4096,
            vocab_size=VOCABULARY,
            max_draft_tokens=4,
            quality="professional",
            step_seconds=0.001,
            prefill_seconds=1e-5,
            max_sequences=16,
        )
        yield pb.VerifyResponse(welcome=welcome)
        for request in requests:
            if request.HasField("ping"):
                if not self.deaf:
                    yield pb.VerifyResponse(pong=request.ping)
                continue
            for said in self._heard(texts, from_edge(request)):
                yield to_edge(said)

    def GetVocabulary(self, request: pb.GetVocabularyRequest, context: Any) -> pb.GetVocabularyResponse:
        page = self.words.names[request.first : request.first + request.count]
        return pb.GetVocabularyResponse(fingerprint=self.words.fingerprint, size=len(self.words.names), tokens=page)

    def _heard(self, texts: dict[int, Text], message: ToVerifier | None) -> Iterator[FromVerifier]:
        if isinstance(message, OpenSequence):
            self.opened.append(message)
            if self.stalls:
                return
            if self.refuses:
                yield SequenceClosed(message.sequence, self.refuses)
                return
            prompt = message.options.prompt
            texts[message.sequence] = Text(list(message.tokens), prompt + message.max_tokens, prompt)
            yield SequenceOpened(message.sequence, 0)
        elif isinstance(message, CloseSequence):
            self.closed[message.sequence] = message.length
            texts.pop(message.sequence, None)
            yield SequenceClosed(message.sequence)
        elif isinstance(message, Proposal) and not self.silent and (text := texts.get(message.sequence)) is not None:
            full = text.tokens + text.guess
            if message.length > len(full) or full[message.length - 1] != message.last:
                return
            ahead = full[: message.length] + list(message.proposed)
            if len(ahead) >= len(text.tokens) and ahead[: len(text.tokens)] == text.tokens:
                text.guess = ahead[len(text.tokens) :]
            text.run = message.run
            most = min(text.most, text.prompt + self.holds)
            while self.floods or ((text.guess or text.run) and len(text.tokens) < most):
                yield self._verdict(message.sequence, text)
            if len(text.tokens) >= text.most:
                yield SequenceClosed(message.sequence)
                del texts[message.sequence]

    def _verdict(self, sequence: int, text: Text) -> Verdict:
        known, drafted, tokens = len(text.tokens), text.guess[:4], list[int]()
        while True:
            tokens.append(following([*text.tokens, *tokens]))
            if len(tokens) > len(drafted) or tokens[-1] != drafted[len(tokens) - 1]:
                break
        if not drafted:
            text.run -= 1
        text.tokens += tokens
        text.guess = left_of(text.guess, tokens)
        finished = FinishReason.LENGTH if len(text.tokens) >= text.most else None
        known += self.lies
        return Verdict(sequence, known, tuple(tokens), len(tokens) - 1, len(drafted), finished)


@contextlib.contextmanager
def fake_verifier(fake: FakeVerifier, port: int = 0) -> Iterator[int]:
    """Serves the fake until the block ends; yields the port."""
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    verification_pb2_grpc.add_VerificationServiceServicer_to_server(fake, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield port
    finally:
        server.stop(0).wait()
