"""The link to a verifier, over real sockets and a network that the test breaks."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from draftd.core import SamplingParams
from draftd.engine.remote.verifier_link import Close, Closed, FromVerifier, Open, Opened, Step, Verdict
from draftd.engine.targets.base import SequenceOptions
from draftd.remote.link import GrpcLink
from draftd.settings import RemoteSettings
from draftd.strategies import LinkFailure, QualityClass
from tests.proxy import Proxy, proxied
from tests.verifying import FakeVerifier, Words, continued, fake_verifier
from tests.waiting import until

PROMPT = (5, 6, 7)
QUICK: dict[str, Any] = {"step_seconds": 0.4, "probe_seconds": 0.3, "connect_seconds": 0.6}


@dataclass
class Edge:
    """What an engine does with a link, without a draft: it proposes what the caller says."""

    link: GrpcLink
    heard: list[FromVerifier] = field(default_factory=list)
    texts: dict[int, list[int]] = field(default_factory=dict)
    woken: threading.Event = field(default_factory=threading.Event)

    def open(self, sequence: int, most: int = 40) -> None:
        self.texts[sequence] = list(PROMPT)
        options = SequenceOptions(len(PROMPT), len(PROMPT), SamplingParams(seed=1))
        self.link.send(Open(sequence, PROMPT, options, most))

    def step(self, sequence: int, *proposed: int, run: int = 0) -> None:
        text = self.texts[sequence]
        self.link.send(Step(sequence, len(text), text[-1], proposed, run))

    def hear(self) -> None:
        for message in self.link.received():
            self.heard.append(message)
            if isinstance(message, Verdict):
                text = self.texts[message.sequence]
                assert message.known == len(text)
                text += message.tokens

    def answer(self, sequence: int) -> list[int]:
        self.hear()
        return self.texts[sequence][len(PROMPT) :]

    def said(self, kind: type, sequence: int) -> list[Any]:
        self.hear()
        return [one for one in self.heard if isinstance(one, kind) and one.sequence == sequence]


@contextlib.contextmanager
def linked(port: int, *, words: Words | None = None, wait: bool = True, **settings: Any) -> Iterator[Edge]:
    made = RemoteSettings(**{"enabled": True, "target": f"127.0.0.1:{port}", **QUICK, **settings})
    link = GrpcLink(made, lambda: words or Words())
    edge = Edge(link)
    link.listen(edge.woken.set)
    link.start()
    try:
        if wait:
            until(lambda: link.state.up, 10, "the link")
        yield edge
    finally:
        assert link.close()


@pytest.fixture
def fake() -> FakeVerifier:
    return FakeVerifier()


@pytest.fixture
def proxy(fake: FakeVerifier) -> Iterator[Proxy]:
    with fake_verifier(fake) as port, proxied(port) as proxy:
        yield proxy


def test_verdicts_and_the_verifiers_name_come_through(fake: FakeVerifier, proxy: Proxy) -> None:
    proxy.network.delay = 0.02
    with linked(proxy.port, quality="standard", token="the-verifiers-own-token") as edge:
        assert fake.metadata["authorization"] == "Bearer the-verifiers-own-token"
        state = edge.link.state
        assert state.model is not None
        assert (state.model.model, state.model.shared_tokenizer, state.model.quality) == (
            "fake",
            True,
            QualityClass.STANDARD,
        )
        expected = continued(PROMPT, 6)
        edge.open(1, most=6)
        edge.step(1, *expected[:3])
        until(lambda: edge.answer(1) == expected[:4])
        assert edge.woken.is_set()
        edge.step(1, run=9)
        until(lambda: edge.said(Closed, 1) == [Closed(1)])
        assert edge.answer(1) == expected
        until(lambda: (edge.link.state.round_trip or 0) > 0.035)
        state = edge.link.state
        assert state.round_trip is not None
        assert state.round_trip < 0.3
        assert state.bytes_sent > 100
        assert state.bytes_received > 100
        assert (state.open_sequences, state.connections, state.errors) == (0, 1, 0)


def test_another_tokenizer_is_told_by_its_first_difference(fake: FakeVerifier) -> None:
    names = Words().names
    fake.words = Words([*names[:17], b"b", *names[18:]])
    with fake_verifier(fake) as port, linked(port) as edge:
        model = edge.link.state.model
        assert model is not None
        assert (model.shared_tokenizer, model.difference) == (False, "id 17 is 'w17' here and 'b' there")


def test_padding_of_a_vocabulary_is_no_difference(fake: FakeVerifier) -> None:
    fake.words = Words([*Words().names, b"", b""])
    with fake_verifier(fake) as port, linked(port) as edge:
        model = edge.link.state.model
        assert model is not None
        assert model.shared_tokenizer


def test_a_lost_connection_resumes_with_the_verdicts_received(fake: FakeVerifier, proxy: Proxy) -> None:
    with linked(proxy.port) as edge:
        edge.open(1)
        edge.step(1, run=3)
        until(lambda: len(edge.answer(1)) == 3)
        proxy.reset()
        until(lambda: len(edge.said(Opened, 1)) == 2)
        assert fake.opened[-1].tokens == tuple(edge.texts[1])
        assert fake.opened[-1].options.prompt == len(PROMPT)
        assert len(set(fake.edges)) == 1
        edge.step(1, run=2)
        until(lambda: edge.answer(1) == continued(PROMPT, 5))
        assert edge.link.state.connections == 2


def test_a_connection_lost_before_opening_loses_no_step(fake: FakeVerifier, proxy: Proxy) -> None:
    with linked(proxy.port, step_seconds=20) as edge:
        fake.stalls = True
        edge.open(1)
        edge.step(1, run=3)
        until(lambda: len(fake.opened) == 1)
        fake.stalls = False
        proxy.reset()
        until(lambda: len(edge.answer(1)) == 3)
        assert len(edge.said(Opened, 1)) == 1


def test_steps_are_void_until_the_resumption_is_received(proxy: Proxy) -> None:
    with linked(proxy.port) as edge:
        edge.open(1)
        edge.step(1, run=1)
        until(lambda: len(edge.answer(1)) == 1)
        proxy.reset()
        until(lambda: edge.link.state.connections == 2)
        time.sleep(0.05)
        edge.step(1, run=1)
        until(lambda: len(edge.said(Opened, 1)) == 2)
        time.sleep(0.05)
        assert len(edge.answer(1)) == 1


def test_other_weights_take_new_sequences_and_no_old_ones(fake: FakeVerifier, proxy: Proxy) -> None:
    with linked(proxy.port) as edge:
        edge.open(1)
        fake.fingerprint = "others"
        proxy.reset()
        until(lambda: bool(edge.said(Closed, 1)))
        (closed,) = edge.said(Closed, 1)
        assert closed.lost
        assert "other weights" in closed.error
        until(lambda: edge.link.state.up)
        edge.open(2)
        edge.step(2, run=1)
        until(lambda: len(edge.answer(2)) == 1)


def test_an_outage_loses_all_and_is_over_after_a_probe(fake: FakeVerifier, proxy: Proxy) -> None:
    with linked(proxy.port) as edge:
        edge.open(1)
        edge.step(1, run=2)
        until(lambda: len(edge.answer(1)) == 2)
        proxy.cut()
        until(lambda: bool(edge.said(Closed, 1)))
        assert edge.said(Closed, 1)[0].lost
        until(lambda: edge.link.state.retry_after is not None)  # which is not told while it is tried again
        state = edge.link.state
        assert not state.up
        assert state.failure is LinkFailure.CONNECTION_LOST
        assert state.errors == 1
        edge.open(2)
        assert edge.said(Closed, 2)[0].lost
        edge.link.send(Close(1, len(edge.texts[1])))
        proxy.restore()
        until(lambda: edge.link.state.up, 4 * QUICK["probe_seconds"])
        until(lambda: fake.closed.get(1) == len(edge.texts[1]))


def test_a_black_hole_is_noticed_by_its_silence(proxy: Proxy) -> None:
    with linked(proxy.port) as edge:
        edge.open(1)
        proxy.swallow()
        until(lambda: bool(edge.said(Closed, 1)), 5)
        assert edge.said(Closed, 1)[0].lost
        until(lambda: not edge.link.state.up, 5)
        proxy.restore()
        until(lambda: edge.link.state.up, 5)


def test_a_step_is_not_late_because_the_network_is_tried_again(fake: FakeVerifier, proxy: Proxy) -> None:
    with linked(proxy.port, step_seconds=0.5, connect_seconds=30) as edge:
        fake.silent = True
        edge.open(1)
        until(lambda: bool(edge.said(Opened, 1)))
        edge.step(1, run=1)
        proxy.swallow()
        until(lambda: bool(edge.said(Closed, 1)), 10)
        assert edge.said(Closed, 1)[0].lost


def test_a_step_without_a_verdict_ends_in_time(fake: FakeVerifier, proxy: Proxy) -> None:
    fake.silent = True
    with linked(proxy.port) as edge:
        edge.open(1)
        edge.open(2)
        until(lambda: bool(edge.said(Opened, 2)))
        edge.step(1, run=1)
        until(lambda: bool(edge.said(Closed, 1)), 5)
        assert edge.said(Closed, 1)[0].lost
        assert not edge.said(Closed, 2)  # has no step in hand
        assert edge.link.state.up
        edge.link.send(Close(1, len(PROMPT)))
        until(lambda: fake.closed.get(1) == len(PROMPT))


@pytest.mark.parametrize("fault", ["lies", "floods"])
def test_a_verifier_that_breaks_the_rules_is_cut_off(fake: FakeVerifier, proxy: Proxy, fault: str) -> None:
    with linked(proxy.port, probe_seconds=60) as edge:
        edge.open(1, most=4)
        setattr(fake, fault, True)
        edge.step(1, run=1)
        until(lambda: not edge.link.state.up)
        assert "sequence 1: a verdict" in edge.link.state.why
        assert (edge.link.state.retry_after or 0) > 30
        assert edge.said(Closed, 1)[0].lost is (fault == "lies")  # the flood begins once the text has ended
        assert continued(PROMPT, 40)[: len(edge.answer(1))] == edge.answer(1)


def test_a_refused_sequence_is_told_and_the_link_stays_up(fake: FakeVerifier, proxy: Proxy) -> None:
    fake.refuses = "too many sequences"
    with linked(proxy.port) as edge:
        edge.open(1)
        until(lambda: edge.said(Closed, 1) == [Closed(1, "too many sequences")])
        assert edge.link.state.up
