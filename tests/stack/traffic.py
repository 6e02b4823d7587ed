"""Realistic clients: several categories, both modes, some that leave, some with short deadlines, some invalid requests,
and sometimes more of them than the daemon accepts."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files

from draftd.client.client import CallError, DraftdClient, Message
from draftd.core import PROMPT_LOOKUP, DrafterName, ModePreference, SamplingParams, WorkloadClass
from draftd.telemetry import catalog
from tests.stack.components import Prometheus
from tests.wait_until import until

CLASSES = ("code", "tool_call", "chat", "prose")
_AUTO, _AUTOREGRESSIVE = ModePreference.AUTO, ModePreference.AUTOREGRESSIVE
_GREEDY = SamplingParams()


class Traffic:
    """Keeps a client for each category busy while the block runs; unusual requests are sent on demand."""

    def __init__(self, address: str, *, pause: float = 0.0, max_tokens: int = 48) -> None:
        self._address = address
        self._pause, self._max_tokens = pause, max_tokens
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ordinary, args=(name,), daemon=True) for name in CLASSES]
        self._lock = threading.Lock()
        self.ended: Counter[str] = Counter()

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def overload(self, clients: int = 24) -> None:
        """Sends so many requests at once that the queue overflows and some are refused."""
        threads = [threading.Thread(target=self._one, args=("chat",), daemon=True) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    def trouble(self) -> None:
        """Sends one request that is left, one whose deadline passes, and two that are invalid."""
        with DraftdClient(self._address) as client:
            leaving = client.generate(messages=prompts("prose")[0], workload=WorkloadClass.PROSE, max_tokens=400)
            for _ in range(3):
                next(leaving)
            leaving.close()  # type: ignore[attr-defined]
            self._count("cancelled")
            self._one("code", timeout=0.08, max_tokens=400)
            with contextlib.suppress(CallError):
                list(client.generate(messages=prompts("chat")[0], max_tokens=-1, timeout=10))
            with contextlib.suppress(CallError):
                list(client.generate(tokens=[10**6], max_tokens=4, timeout=10))

    def _ordinary(self, name: str) -> None:
        for number in itertools.count():
            if self._stop.wait(self._pause):
                return
            drafter = PROMPT_LOOKUP if number % 5 == 4 else None
            mode = _AUTOREGRESSIVE if number % 4 == 1 and drafter is None else _AUTO
            if number % 7 == 6:
                mode = ModePreference.SPECULATIVE  # a demand: refused while the flag is off
            sampling = SamplingParams(temperature=0.7, seed=number) if number % 4 == 3 else _GREEDY
            self._one(name, number=number, mode=mode, drafter=drafter, sampling=sampling)

    def _one(
        self,
        name: str,
        *,
        number: int = 0,
        mode: ModePreference = ModePreference.AUTO,
        drafter: DrafterName | None = None,
        sampling: SamplingParams = _GREEDY,
        timeout: float = 60.0,
        max_tokens: int | None = None,
    ) -> None:
        asked = prompts(name)
        with DraftdClient(self._address) as client:
            try:
                for event in client.generate(
                    messages=asked[number % len(asked)],
                    mode=mode,
                    drafter=drafter,
                    sampling=sampling,
                    workload=WorkloadClass(name),
                    max_tokens=max_tokens or self._max_tokens,
                    timeout=timeout,
                ):
                    if event.HasField("finished"):
                        self._count("answered")
            except CallError as error:
                self._count(error.code.name)
                time.sleep(0.05)

    def _count(self, how: str) -> None:
        with self._lock:
            self.ended[how] += 1


def prompts(name: str) -> list[list[Message]]:
    lines = (files("draftd.models.nano") / "prompts" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [[(one["role"], one["content"]) for one in json.loads(line)["messages"]] for line in lines]


@contextlib.contextmanager
def flag_off(address: str) -> Iterator[None]:
    """Turns speculation off while the block runs."""
    with DraftdClient(address) as client:
        client.set_flag("off")
        try:
            yield
        finally:
            client.set_flag("on")


MODES = (ModePreference.SPECULATIVE, ModePreference.AUTOREGRESSIVE)


class Counting:
    """Concurrent clients, one for each category, and sums of what they received, by mode."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self.received: dict[str, Counter[str]] = {mode.value: Counter() for mode in MODES}

    def run(self) -> None:
        threads = [threading.Thread(target=self._one, args=(name,)) for name in CLASSES]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()

    def _one(self, name: str) -> None:
        lines = (files("draftd.models.nano") / "prompts" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        with DraftdClient(self._address) as client:
            for line in lines[:2]:
                messages = [(one["role"], one["content"]) for one in json.loads(line)["messages"]]
                for mode in MODES:
                    sums: Counter[str] = Counter(requests=1)
                    for event in client.generate(
                        messages=messages, mode=mode, workload=WorkloadClass(name), max_tokens=24, timeout=60
                    ):
                        sums["tokens"] += len(event.chunk.token_ids)
                        sums["accepted"] += event.finished.counts.accepted_tokens
                        sums["cut"] += event.finished.counts.cut_tokens
                        sums["input"] += event.finished.usage.input_tokens
                        sums["drafted"] += event.finished.counts.drafted_tokens
                        sums["target_forwards"] += event.finished.counts.target_forwards
                    with self._lock:
                        self.received[mode.value] += sums


def counted(of: Prometheus, mode: str) -> Counter[str]:
    def total(metric: catalog.Metric, more: str = "") -> int:
        return int(of.number(f'sum({metric.prometheus}{{draftd_mode="{mode}"{more}}})') or 0)

    return +Counter(
        requests=total(catalog.REQUESTS),
        tokens=total(catalog.TOKENS, ', gen_ai_token_type="output"'),
        input=total(catalog.TOKENS, ', gen_ai_token_type="input"'),
        accepted=total(catalog.ACCEPTED_TOKENS),
        cut=total(catalog.CUT_TOKENS),
        drafted=total(catalog.DRAFT_TOKENS),
        target_forwards=total(catalog.TARGET_FORWARDS),
    )


def counts_equal_what_clients_receive(of: Prometheus, address: str) -> None:
    """Checks, before any other request, that each sum in Prometheus equals the clients' own."""
    clients = Counting(address)
    clients.run()
    for mode, received in clients.received.items():
        assert received["requests"] == 2 * len(CLASSES)
        assert received["tokens"] > 100
        assert received["tokens"] == received["accepted"] + received["target_forwards"] - received["cut"]
        until(
            lambda m=mode, r=received: counted(of, m) == +r,  # type: ignore[misc]
            20,
            f"{mode}: received {+received}, counted {counted(of, mode)}",
        )
    assert clients.received["speculative"]["accepted"] > 0
