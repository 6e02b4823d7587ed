"""`python -m benchmarks.verify_attack`: what a peer that means ill costs the others of a verifier.

A daemon with `verify.enabled` answers two clients, in blocks: alone, and while peers that have its token do all that
the protocol lets them do. Printed are the seconds that an answer takes, p50 and p99, and the daemon's memory. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc
import psutil

from benchmarks.arms import Prompt
from benchmarks.run import load_prompts
from draftd.client.child import clean_environ, serve_command, serving
from draftd.client.client import DraftdClient
from draftd.remote.messages import VERSION
from draftd.v1 import inference_pb2
from draftd.v1 import verification_pb2 as pb

BOUND = 2.0  # times the p99 without an attack
_VERIFY = f"/{pb.DESCRIPTOR.services_by_name['VerificationService'].full_name}/Verify"
_HUGE = 1 << 31
_AGAIN_SECONDS = 0.05  # after a connection was ended
_CLIENTS = 2

Messages = Iterator[pb.VerifyRequest | bytes]
Attack = Callable[[random.Random, int], Messages]
"""What an edge sends after its greeting, to a verifier with a context of so many tokens."""


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
    """Stale, doubled, and of sequences that there are not; and pings."""
    text = _ids(dice, 20)
    yield _opened(1, text, 64)
    while True:
        good = _step(1, len(text), text[-1], _ids(dice, 8))
        yield from (good, good, _step(1, 3, 299), _step(1, 4_000_000, 1, [1]), _step(dice.randrange(99), 1, 1))
        yield pb.VerifyRequest(ping=pb.Ping(nonce=7))


def never_closes(dice: random.Random, context: int) -> Messages:
    """Opens more than it may have, and has each decoded as far as it goes."""
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
    """Ids, numbers and bytes that mean nothing: the last of these end the connection."""
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
    """A new edge each time, which leaves its sequences."""
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
    """While the block runs, each of these is done by an edge of its own, over and over."""
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
    # Little room for what it does not read, as of a slow machine.
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


def answers(clients: Sequence[DraftdClient], prompts: Sequence[Prompt], seconds: float) -> list[float]:
    """Seconds that each answer took, with every client asking one prompt after the other."""
    taken: list[float] = []
    until = time.monotonic() + seconds

    def ask(client: DraftdClient, turn: int) -> None:
        for prompt in itertools.islice(itertools.cycle(prompts), turn, None):
            if time.monotonic() > until:
                return
            began = time.perf_counter()
            for _ in client.generate(tokens=prompt.tokens, max_tokens=32, timeout=120.0):
                pass
            taken.append(time.perf_counter() - began)

    threads = [threading.Thread(target=ask, args=(client, i)) for i, client in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken


def quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


@contextlib.contextmanager
def verifier() -> Iterator[tuple[str, psutil.Process]]:
    """The embedded pair in a process of its own, and where it listens."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {k: v for k, v in clean_environ(str(Path(folder) / "flags.json")).items() if k[:5] != "OTEL_"}
        environ |= {"DRAFTD_VERIFY__ENABLED": "true", "DRAFTD_VERIFY__IDLE_SECONDS": "5", "OTEL_SDK_DISABLED": "true"}
        with serving([*serve_command("--host", "127.0.0.1", "--port", "0")], environ, timeout=120.0) as child:
            yield child.address, psutil.Process().children()[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a block")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--attacks", nargs="*", choices=ATTACKS, default=list(ATTACKS))
    asked = parser.parse_args()
    prompts = load_prompts(str(files("draftd.models.nano") / "target"), 4)
    times: dict[str, list[float]] = {"alone": [], "attacked": []}
    with verifier() as (address, process), contextlib.ExitStack() as opened:
        clients = [opened.enter_context(DraftdClient(address)) for _ in range(_CLIENTS)]
        context = clients[0].loaded(120.0).context_length
        answers(clients, prompts, 3.0)
        most, before = 0, process.memory_info().rss
        for block in range(asked.blocks):
            times["alone"] += answers(clients, prompts, asked.seconds)
            with attacked(address, asked.attacks, context):
                times["attacked"] += answers(clients, prompts, asked.seconds)
                most = max(most, process.memory_info().rss)
            print(f"block {block + 1} of {asked.blocks}: {_line(times)}", flush=True)
            time.sleep(6.0)  # until what was left open is closed
    ratio = quantile(times["attacked"], 0.99) / quantile(times["alone"], 0.99)
    result = {
        name: {"answers": len(one), "p50": quantile(one, 0.5), "p99": quantile(one, 0.99)}
        for name, one in times.items()
    }
    print(json.dumps({**result, "p99_ratio": ratio, "bytes_before": before, "bytes_attacked": most}))
    return 0 if ratio <= BOUND else 1


def _line(times: dict[str, list[float]]) -> str:
    return "; ".join(
        f"{name}: {len(one)} answers, p50 {quantile(one, 0.5):.3f} s, p99 {quantile(one, 0.99):.3f} s"
        for name, one in times.items()
        if one
    )


if __name__ == "__main__":
    sys.exit(main())
