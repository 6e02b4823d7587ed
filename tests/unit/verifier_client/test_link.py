"""The link to a verifier, over real sockets and a network that the test breaks."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from draftd.core import SamplingParams
from draftd.engine.remote.verifier_link import OpenSequence
from draftd.engine.targets.base import SequenceOptions
from draftd.settings import RemoteSettings
from draftd.strategies import LinkFailure, QualityClass, Strategy
from draftd.verifier_client.link import GrpcLink
from tests.fake_verifier import FakeVerifier, Words, continued, fake_verifier
from tests.proxy import Proxy, proxied
from tests.rig import Rig, autoregressive, request
from tests.scripted import scripted_models
from tests.scripted_link import EdgeEngine, Heard
from tests.wait_until import until

PROMPT = (5, 6, 7)
QUICK: dict[str, Any] = {"step_seconds": 0.4, "probe_seconds": 0.3, "connect_seconds": 0.6}


class RealTimeEdge(EdgeEngine):
    """An edge over a real link, in real time."""

    def __init__(self, link: GrpcLink, step_seconds: float) -> None:
        super().__init__(Rig(scripted_models(1.0)), link, time.monotonic, step_seconds=step_seconds)
        self.link = link
        self.woken = threading.Event()
        link.listen(self.woken.set)

    def ask(self, tokens: int = 40) -> Heard:
        decode_request = request(list(PROMPT), autoregressive(), max_tokens=tokens)
        return self.add(
            replace(decode_request, plan=replace(decode_request.plan, strategy=Strategy.REMOTE), ignore_eos=True)
        )

    def until(self, condition: Callable[[], bool]) -> None:
        """Runs steps of the engine until `condition` is true."""
        until(lambda: (self.scheduler.step(), condition())[1], 10)


@contextlib.contextmanager
def linked(port: int, *, words: Words | None = None, wait: bool = True, **changes: Any) -> Iterator[RealTimeEdge]:
    settings = RemoteSettings(**{"enabled": True, "target": f"127.0.0.1:{port}", **QUICK, **changes})
    link = GrpcLink(settings)
    edge = RealTimeEdge(link, settings.step_seconds)
    link.start(lambda: words or Words())
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


def test_verifier_link_delivers_verdicts_and_reports_model_and_round_trip(fake: FakeVerifier, proxy: Proxy) -> None:
    proxy.network.delay = 0.02
    with linked(proxy.port, quality="standard", token="the-verifiers-own-token", step_seconds=20) as edge:
        assert fake.metadata["authorization"] == "Bearer the-verifiers-own-token"
        state = edge.link.state
        assert state.model is not None
        assert (state.model.model, state.model.shared_tokenizer, state.model.quality) == (
            "fake",
            True,
            QualityClass.STANDARD,
        )
        sink = edge.ask(6)
        edge.until(lambda: sink.outcome is not None)
        assert edge.woken.is_set()
        assert sink.tokens == continued(PROMPT, 6)
        edge.until(lambda: (edge.link.state.round_trip or 0) > 0.035)
        edge.until(lambda: fake.closed.get(1) == len(PROMPT) + 6)
        state = edge.link.state
        assert state.round_trip is not None
        assert state.round_trip < 0.3
        assert state.bytes_sent > 100
        assert state.bytes_received > 100
        assert (state.connections, state.errors) == (1, 0)


def test_verifier_link_reports_first_difference_between_tokenizers(fake: FakeVerifier) -> None:
    names = Words().names
    fake.words = Words([*names[:17], b"b", *names[18:]])
    with fake_verifier(fake) as port, linked(port) as edge:
        model = edge.link.state.model
        assert model is not None
        assert (model.shared_tokenizer, model.difference) == (False, "id 17 is 'w17' here and 'b' there")


def test_verifier_link_ignores_vocabulary_padding_when_comparing_tokenizers(fake: FakeVerifier) -> None:
    fake.words = Words([*Words().names, b"", b""])
    with fake_verifier(fake) as port, linked(port) as edge:
        model = edge.link.state.model
        assert model is not None
        assert model.shared_tokenizer


def test_verifier_link_resumes_sequence_after_lost_connection_from_received_verdicts(
    fake: FakeVerifier, proxy: Proxy
) -> None:
    fake.holds = 3
    with linked(proxy.port, step_seconds=20) as edge:
        sink = edge.ask()
        edge.until(lambda: len(sink.tokens) == 3)
        fake.holds = 40
        proxy.reset()
        edge.until(lambda: sink.outcome is not None)
        assert sink.tokens == continued(PROMPT, 40)
        assert sink.remote.reopened == 1
        assert fake.opened[-1].tokens == (*PROMPT, *sink.tokens[:3])
        assert fake.opened[-1].options.prompt == len(PROMPT)
        assert len(set(fake.edges)) == 1
        assert edge.link.state.connections == 2


def test_connection_lost_while_opening_sequence_on_verifier_loses_no_tokens(fake: FakeVerifier, proxy: Proxy) -> None:
    with linked(proxy.port, step_seconds=20) as edge:
        fake.stalls = True
        sink = edge.ask()
        edge.until(lambda: len(fake.opened) == 1)
        fake.stalls = False
        proxy.reset()
        edge.until(lambda: sink.outcome is not None)
        assert sink.tokens == continued(PROMPT, 40)
        assert sink.remote.reopened == 0


def test_verifier_link_drops_messages_addressed_to_lost_connection(fake: FakeVerifier, proxy: Proxy) -> None:
    with linked(proxy.port) as edge:
        options = SequenceOptions(len(PROMPT), len(PROMPT), SamplingParams(seed=1))
        message = OpenSequence(1, PROMPT, options, 40)
        proxy.reset()
        until(lambda: edge.link.state.connections == 2)
        edge.link.send(message, 1)
        edge.link.send(replace(message, sequence=2), 2)
        until(lambda: len(fake.opened) == 1)
        assert fake.opened[0].sequence == 2


def test_verifier_with_changed_weights_fails_over_running_sequence_and_accepts_new(
    fake: FakeVerifier, proxy: Proxy
) -> None:
    fake.holds = 3
    with linked(proxy.port, step_seconds=20) as edge:
        sink = edge.ask()
        edge.until(lambda: len(sink.tokens) == 3)
        fake.fingerprint, fake.holds = "others", 40
        proxy.reset()
        edge.until(lambda: sink.outcome is not None)
        assert "other weights" in sink.done.failed_over
        assert sink.remote.tokens == 3
        edge.until(lambda: edge.link.state.up)
        again = edge.ask()
        edge.until(lambda: again.outcome is not None)
        assert again.tokens == continued(PROMPT, 40)


def test_verifier_outage_fails_over_running_and_new_sequences_and_link_reconnects(
    fake: FakeVerifier, proxy: Proxy
) -> None:
    fake.holds = 2
    with linked(proxy.port, step_seconds=20) as edge:
        sink = edge.ask()
        edge.until(lambda: len(sink.tokens) == 2)
        proxy.cut()
        edge.until(lambda: sink.outcome is not None)
        assert sink.remote.tokens == 2
        edge.until(lambda: edge.link.state.retry_after is not None)  # it is None during an attempt
        state = edge.link.state
        assert not state.up
        assert state.failure is LinkFailure.CONNECTION_LOST
        assert state.errors == 1
        refused = edge.ask()
        edge.until(lambda: refused.outcome is not None)
        assert refused.done.failed_over == state.why
        assert refused.remote.tokens == 0
        proxy.restore()
        edge.until(lambda: edge.link.state.up)
        edge.until(lambda: fake.closed.get(1) == len(PROMPT) + 2)


def test_network_that_silently_drops_bytes_takes_verifier_link_down(fake: FakeVerifier, proxy: Proxy) -> None:
    fake.holds = 2
    with linked(proxy.port) as edge:
        proxy.swallow()
        sink = edge.ask()
        edge.until(lambda: sink.outcome is not None)
        assert sink.done.failed_over
        edge.until(lambda: not edge.link.state.up)
        proxy.restore()
        edge.until(lambda: edge.link.state.up)


def test_verification_step_deadline_applies_while_network_silently_drops_bytes(
    fake: FakeVerifier, proxy: Proxy
) -> None:
    fake.silent = True
    with linked(proxy.port, step_seconds=0.5, connect_seconds=30) as edge:
        sink = edge.ask()
        edge.until(lambda: bool(fake.opened))
        proxy.swallow()
        edge.until(lambda: sink.outcome is not None)
        assert sink.done.failed_over == "no verdict came within its deadline"


def test_verification_step_without_verdict_fails_over_at_deadline_and_link_stays_up(
    fake: FakeVerifier, proxy: Proxy
) -> None:
    fake.silent = True
    with linked(proxy.port) as edge:
        sink = edge.ask()
        edge.until(lambda: sink.outcome is not None)
        assert sink.done.failed_over == "no verdict came within its deadline"
        state = edge.link.state
        assert (state.up, state.errors, state.failures[LinkFailure.LATE]) == (True, 1, 1)
        edge.until(lambda: fake.closed.get(1) == len(PROMPT))


@pytest.mark.parametrize("fault", ["lies", "floods"])
def test_verifier_that_violates_protocol_is_disconnected(fake: FakeVerifier, proxy: Proxy, fault: str) -> None:
    with linked(proxy.port, probe_seconds=60) as edge:
        setattr(fake, fault, True)
        sink = edge.ask(4)
        edge.until(lambda: sink.outcome is not None and not edge.link.state.up)
        assert edge.link.state.failure is LinkFailure.BROKEN_RULE
        assert (edge.link.state.retry_after or 0) > 30
        if fault == "lies":
            assert "sequence 1: a verdict goes on from token 4 of a text of 3" in edge.link.state.why
            assert "broke the protocol" in sink.done.failed_over
        else:  # the flood begins once the text has ended
            assert sink.tokens == continued(PROMPT, 4)


def test_sequence_refused_by_verifier_fails_over_and_link_stays_up(fake: FakeVerifier, proxy: Proxy) -> None:
    fake.refuses = "too many sequences"
    with linked(proxy.port) as edge:
        sink = edge.ask()
        edge.until(lambda: sink.outcome is not None)
        assert sink.done.failed_over == "too many sequences"
        assert edge.link.state.up
