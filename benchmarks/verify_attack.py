"""`python -m benchmarks.verify_attack`: how much do malicious peers slow a verifier's other clients?

A daemon with `verify.enabled` answers two clients and an edge, in blocks of time: without an attack, and while peers
that have its token send whatever the protocol allows. Prints p50 and p99 of the seconds that an answer takes, and the
daemon's memory. The last line is JSON.

The attackers run in a process of their own at the lowest CPU priority, so that the difference comes from the daemon's
work for them. The daemon's counts of its peers show how much of the attack arrived.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import queue
import random
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import psutil

from benchmarks import options
from benchmarks.run import load_prompts
from draftd.client.child import clean_environ, serve_command, serving
from draftd.client.client import DraftdClient
from draftd.v1 import inference_pb2
from draftd.v1 import verification_pb2 as pb
from draftd.verifier_client.codec import VERSION

BOUND = 2.0  # maximum of the p99 under attack divided by the p99 without
_VERIFY = f"/{pb.DESCRIPTOR.services_by_name['VerificationService'].full_name}/Verify"
_HUGE = 1 << 31
_AGAIN_SECONDS = 0.05  # from a connection's end to the next one
_BEGIN_SECONDS, _END_SECONDS = 1.0, 3.0  # until an attack is under way, and until what it left open is closed
_START_SECONDS = 600.0
_IDLE_SECONDS = 2  # after which the daemon closes what an attack left open
_CLIENTS, _ANSWER, _DEPTH = 2, 32, 4  # clients; tokens of an answer; tokens that the edge proposes

Messages = Iterator[pb.VerifyRequest | bytes]
Attack = Callable[[random.Random, int], Messages]
"""Yields the messages an edge sends after its greeting, given the verifier's context length in tokens."""


class Text(NamedTuple):
    """A prompt and its greedy answer, as token ids."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def _ids(dice: random.Random, count: int) -> list[int]:
    return [dice.randrange(200) for _ in range(count)]


def _opened(number: int, tokens: Sequence[int], max_tokens: int, **more: Any) -> pb.VerifyRequest:
    sampling = inference_pb2.SamplingParams(temperature=0.0)
    return pb.VerifyRequest(
        open=pb.OpenSequence(
            sequence=number,
            tokens=tokens,
            prompt_tokens=len(tokens),
            max_tokens=max_tokens,
            sampling=sampling,
            **more,
        )
    )


def _step(number: int, known: int, last: int, proposed: Sequence[int] = (), run: int = 0) -> pb.VerifyRequest:
    step = pb.ProposeStep(sequence=number, known=known, last=last, proposed=proposed, run=run)
    return pb.VerifyRequest(step=step)


def floods_steps(dice: random.Random, context: int) -> Messages:
    """Sends stale, repeated and unknown-sequence steps without a pause, and pings."""
    text = _ids(dice, 20)
    yield _opened(1, text, 64)
    while True:
        good = _step(1, len(text), text[-1], _ids(dice, 8))
        yield from (good, good, _step(1, 3, 299), _step(1, 4_000_000, 1, [1]), _step(dice.randrange(99), 1, 1))
        yield pb.VerifyRequest(ping=pb.Ping(nonce=7))


def never_closes(dice: random.Random, context: int) -> Messages:
    """Opens more sequences than the verifier allows, and lets each decode to the end of its context."""
    for number in itertools.count(1):
        text = _ids(dice, 30)
        yield _opened(number, text, context - 40)
        yield _step(number, len(text), text[-1], run=_HUGE)


def sends_huge_prompts(dice: random.Random, context: int) -> Messages:
    far_too_long = _opened(1, _ids(dice, 50 * context), 1)
    for number in itertools.count(1):
        yield _opened(number, _ids(dice, context - 2), 1)
        yield far_too_long
        yield pb.VerifyRequest(close=pb.CloseSequence(sequence=number, known=0))


def replays_opens(dice: random.Random, context: int) -> Messages:
    for _ in itertools.count():
        yield _opened(1, _ids(dice, context // 2), 64)


def sends_garbage(dice: random.Random, context: int) -> Messages:
    """Sends meaningless ids, numbers and bytes; the bytes end the connection."""
    yield _opened(1, _ids(dice, 10), 64)
    for _ in range(20):
        yield _step(1, 10, 5, [dice.randrange(2**32) for _ in range(8)])
        yield _opened(dice.randrange(2**63), [dice.randrange(2**32) for _ in range(20)], 64, grammar="{")
        yield pb.VerifyRequest(close=pb.CloseSequence(sequence=dice.randrange(2**63), known=2**32 - 1))
    yield dice.randbytes(200)


def reads_nothing(dice: random.Random, context: int) -> Messages:
    for number in range(1, 5):
        text = _ids(dice, 10)
        yield _opened(number, text, context - 20, logprobs=20)
        yield _step(number, len(text), text[-1], run=_HUGE)
    while True:
        yield pb.VerifyRequest(ping=pb.Ping(nonce=1))


def comes_and_goes(dice: random.Random, context: int) -> Messages:
    """Opens eight sequences and leaves them: each connection uses a new edge id and is soon cut."""
    for number in range(1, 9):
        yield _opened(number, _ids(dice, 60), context // 2)


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        floods_steps, never_closes, sends_huge_prompts, replays_opens, sends_garbage, reads_nothing, comes_and_goes,
    )
}  # fmt: skip


@contextlib.contextmanager
def attacked(target: str, names: Sequence[str], context: int, token: str | None = None) -> Iterator[None]:
    """Runs each named attack from an edge of its own, again and again, while the block runs."""
    stop = threading.Event()
    threads = [threading.Thread(target=_attack, args=(target, name, context, token, stop)) for name in names]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)


def _attack(target: str, name: str, context: int, token: str | None, stop: threading.Event) -> None:
    dice = random.Random(name)
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    # Small receive buffers, as on a slow machine.
    options = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(target, options) as channel:
        verify = channel.stream_stream(_VERIFY, _written, pb.VerifyResponse.FromString)

        def messages() -> Messages:
            yield pb.VerifyRequest(hello=pb.Hello(protocol=VERSION, edge=dice.randbytes(16).hex()))
            for message in ATTACKS[name](dice, context):
                if stop.is_set():
                    return
                yield message

        while not stop.is_set():
            call: Any = verify(messages(), metadata=metadata)
            end = threading.Timer(1.0, call.cancel) if name == "comes_and_goes" else None
            if end is not None:
                end.start()
            with contextlib.suppress(grpc.RpcError):
                if name == "reads_nothing":
                    while call.is_active() and not stop.wait(0.02):
                        pass
                else:
                    for _ in call:
                        if stop.is_set():
                            break
            call.cancel()
            if end is not None:
                end.cancel()
            stop.wait(_AGAIN_SECONDS)


def _written(message: pb.VerifyRequest | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


@dataclass
class Asked:
    """Measurements of one configuration. `seconds` holds each answer's time, by who asked (`client` or `edge`).
    `refused` counts how often the edge was told to come back later; the wait is part of its time. `peers` is what the
    daemon counted of all peers meanwhile, the edge included."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {"client": [], "edge": []})
    refused: int = 0
    peers: Counter[str] = field(default_factory=Counter)

    def told(self) -> dict[str, object]:
        """Returns the values of the last line: the number of answers and p50 and p99 of their seconds by who asked, and
        the counts."""
        seconds = {
            who: {"answers": len(taken), "p50": quantile(taken, 0.5), "p99": quantile(taken, 0.99)}
            for who, taken in self.seconds.items()
        }
        return {**seconds, "refused": self.refused, "peers": dict(self.peers)}


class Edge:
    """A well-behaved peer: it proposes correct tokens, and sends each step after the verdict on the one before."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._sent: queue.SimpleQueue[pb.VerifyRequest | None] = queue.SimpleQueue()
        self._sent.put(pb.VerifyRequest(hello=pb.Hello(protocol=VERSION, edge=secrets.token_hex(16))))
        verify = channel.stream_stream(_VERIFY, pb.VerifyRequest.SerializeToString, pb.VerifyResponse.FromString)
        self._heard: Any = verify(iter(self._sent.get, None))
        self._number = 0

    def answer(self, text: Text) -> int:
        """Lets the verifier decode one text. Returns how often it was told to come back later."""
        whole, refused = (*text.prompt, *text.answer), 0
        self._open(text)
        for response in self._heard:
            if response.HasField("closed") and response.closed.sequence == self._number and response.closed.error:
                refused += 1
                time.sleep(response.closed.retry_after_seconds or 0.1)
                self._open(text)
            if not response.HasField("verdict") or response.verdict.sequence != self._number:
                continue
            known = response.verdict.known + len(response.verdict.tokens)
            if known >= len(whole):
                break
            step = _step(self._number, known, whole[known - 1], whole[known : known + _DEPTH], run=1)
            self._sent.put(step)
        return refused

    def _open(self, text: Text) -> None:
        self._number += 1
        self._sent.put(_opened(self._number, text.prompt, len(text.answer)))

    def close(self) -> None:
        self._sent.put(None)


def ask(clients: Sequence[DraftdClient], edge: Edge, texts: Sequence[Text], seconds: float, asked: Asked) -> None:
    """Has all clients and the edge send one text after the other for `seconds`, at the same time. Adds each answer's
    time to `asked`."""
    until = time.monotonic() + seconds

    def turns(who: str, first: int, answer: Callable[[Text], object]) -> None:
        for text in itertools.islice(itertools.cycle(texts), first, None):
            if time.monotonic() > until:
                return
            began = time.perf_counter()
            answer(text)
            asked.seconds[who].append(time.perf_counter() - began)

    def asks(client: DraftdClient) -> Callable[[Text], object]:
        return lambda text: _answer(client, text.prompt)

    def edges(text: Text) -> None:
        asked.refused += edge.answer(text)

    with ThreadPoolExecutor(len(clients) + 1) as pool:
        running = [pool.submit(turns, "client", i, asks(one)) for i, one in enumerate(clients)]
        running.append(pool.submit(turns, "edge", len(clients), edges))
        for one in running:
            one.result()


def _answer(client: DraftdClient, prompt: Sequence[int]) -> tuple[int, ...]:
    return tuple(
        token
        for response in client.generate(tokens=prompt, max_tokens=_ANSWER, timeout=120.0)
        for token in response.chunk.token_ids
    )


def quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


@contextlib.contextmanager
def verifier(model: str, draft: str) -> Iterator[tuple[str, psutil.Process]]:
    """Starts a daemon that verifies for peers. Yields its address and its process. `draft` is empty for no draft
    model."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {k: v for k, v in clean_environ(str(Path(folder) / "flags.json")).items() if k[:5] != "OTEL_"}
        environ |= {"DRAFTD_VERIFY__ENABLED": "true", "OTEL_SDK_DISABLED": "true"}
        environ["DRAFTD_VERIFY__IDLE_SECONDS"] = str(_IDLE_SECONDS)
        pair = ["--model", model, *(["--draft-model", draft] if draft else [])]
        command = serve_command(*pair, "--host", "127.0.0.1", "--port", "0")
        with serving(command, environ, timeout=_START_SECONDS) as child:
            yield child.address, psutil.Process().children()[0]


@contextlib.contextmanager
def _attackers(target: str, names: Sequence[str], context: int) -> Iterator[None]:
    """Runs `attacked` in a child process while the block runs."""
    command = [sys.executable, "-m", "benchmarks.verify_attack", "--attack", target, str(context), *names]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()  # the attacks have begun
        time.sleep(_BEGIN_SECONDS)
        yield
    finally:
        process.communicate()  # it ends with its input
        assert process.returncode == 0, "the attackers failed"


def _attack_until_told(target: str, context: str, *names: str) -> int:
    _yield_processors()
    with attacked(target, names, int(context)):
        print("begun", flush=True)
        sys.stdin.read()
    return 0


def _yield_processors() -> None:
    """Gives this process and the threads it starts from now on the lowest CPU priority."""
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)


@contextlib.contextmanager
def _memory(process: psutil.Process) -> Iterator[list[int]]:
    """Samples a process's resident memory while the block runs. Yields a list whose only item is the maximum so far, in
    bytes."""
    most, stop = [0], threading.Event()

    def look() -> None:
        while not stop.wait(0.1):
            most[0] = max(most[0], process.memory_info().rss)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        stop.set()
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of each block")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--attacks", nargs="*", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--each", action="store_true", help="measure the attacks one by one, then all at once")
    args = options.parse(parser)
    prompts = load_prompts(args.model, 4)
    names = {**({name: [name] for name in args.attacks} if args.each else {}), "all": args.attacks}
    alone, arms = Asked(), {name: Asked() for name in names}
    with verifier(args.model, args.draft_model) as (address, process), contextlib.ExitStack() as opened:
        clients = [opened.enter_context(DraftdClient(address)) for _ in range(_CLIENTS)]
        context = clients[0].wait_until_loaded(_START_SECONDS).context_length
        texts = [Text(one.tokens, _answer(clients[0], one.tokens)) for one in prompts]
        channel = opened.enter_context(grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]))
        edge = opened.enter_context(contextlib.closing(Edge(channel)))
        ask(clients, edge, texts, 3.0, Asked())
        before = process.memory_info().rss
        most = opened.enter_context(_memory(process))
        for _ in range(args.blocks):
            ask(clients, edge, texts, args.seconds, alone)
            print(_line("alone", alone), flush=True)
            for name, arm in arms.items():
                with _attackers(address, names[name], context):
                    counted = _counted(clients[0])
                    ask(clients, edge, texts, args.seconds, arm)
                    arm.peers += _counted(clients[0]) - counted
                print(_line(name, arm), flush=True)
                time.sleep(_END_SECONDS)
    ratios = {
        name: {who: quantile(taken, 0.99) / quantile(alone.seconds[who], 0.99) for who, taken in arm.seconds.items()}
        for name, arm in arms.items()
    }
    said = {name: one.told() for name, one in {"alone": alone, **arms}.items()}
    print(json.dumps({**said, "p99_ratio": ratios, "bytes_before": before, "bytes_most": most[0]}))
    return 0 if max(ratio for one in ratios.values() for ratio in one.values()) <= BOUND else 1


def _counted(client: DraftdClient) -> Counter[str]:
    total = client.status().verification.total
    return Counter({name: getattr(total, name) for name in ("opened", "refused", "steps", "tokens", "bytes_received")})


def _line(name: str, arm: Asked) -> str:
    told = (
        f"{who}: {len(taken)} answers, p50 {quantile(taken, 0.5):.3f} s, p99 {quantile(taken, 0.99):.3f} s"
        for who, taken in arm.seconds.items()
    )
    return f"{name:18} {'; '.join(told)}; {arm.refused} refused; {dict(arm.peers)}"


if __name__ == "__main__":
    sys.exit(_attack_until_told(*sys.argv[2:]) if sys.argv[1:2] == ["--attack"] else main())
