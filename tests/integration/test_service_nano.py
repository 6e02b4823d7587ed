"""The embedded pair over gRPC: the same text both ways, alone and together, for every class of work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources

import pytest

from draftd.core import ModePreference, WorkloadClass
from draftd.engine.pair import load_models
from draftd.v1 import inference_pb2 as pb
from tests.conftest import NanoPair
from tests.in_process_daemon import Answer, Served, collect, serving

CLASSES = (WorkloadClass.CODE, WorkloadClass.TOOL_CALL, WorkloadClass.CHAT, WorkloadClass.PROSE)
EACH = 1


@dataclass(frozen=True)
class Prompt:
    """A held-out prompt."""

    workload: WorkloadClass
    messages: tuple[tuple[str, str], ...]


@pytest.fixture(scope="module")
def served(nano_pair: NanoPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    def models() -> object:
        return load_models(nano_pair.target, nano_pair.draft, progress=lambda line: None)

    with serving(tmp_path_factory.mktemp("nano"), models) as served:  # type: ignore[arg-type]
        yield served


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    found: list[Prompt] = []
    for workload in CLASSES:
        file = resources.files("draftd.models") / "nano" / "prompts" / f"{workload.value}.jsonl"
        for line in file.read_text(encoding="utf-8").splitlines()[:EACH]:
            messages = json.loads(line)["messages"]
            found.append(Prompt(workload, tuple((m["role"], m["content"]) for m in messages)))
    return found


def ask(served: Served, prompt: Prompt, mode: ModePreference) -> Answer:
    answer = collect(
        served.client.generate(messages=prompt.messages, max_tokens=32, workload=prompt.workload, mode=mode)
    )
    assert answer.error is None
    assert answer.finished is not None
    assert answer.finished.usage.output_tokens == len(answer.tokens)
    return answer


def test_decode_modes_give_the_same_text_alone_and_in_a_batch(served: Served, prompts: list[Prompt]) -> None:
    alone = [ask(served, prompt, ModePreference.AUTOREGRESSIVE) for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        mixed = [
            pool.submit(ask, served, prompt, mode)
            for mode in (ModePreference.SPECULATIVE, ModePreference.AUTOREGRESSIVE)
            for prompt in prompts
        ]
        together = [future.result() for future in mixed]
    for reference, *others in zip(alone, together[: len(prompts)], together[len(prompts) :], strict=True):
        for other in others:
            assert other.tokens == reference.tokens
            assert other.text == reference.text
    drafted = [answer.finished.counts for answer in together[: len(prompts)] if answer.finished is not None]
    assert sum(c.accepted_tokens for c in drafted) > 0


def test_answer_text_equals_the_tokenizer_decoding_of_its_tokens(served: Served, prompts: list[Prompt]) -> None:
    answer = ask(served, prompts[0], ModePreference.AUTO)
    detokenizer = served.worker.tokenizer.detokenizer()
    silent = served.worker.tokenizer.eos_ids
    whole = "".join(detokenizer.add(token) for token in answer.tokens if token not in silent) + detokenizer.finish()
    assert answer.text == whole


def test_stop_string_in_mid_answer_ends_the_text_in_both_decode_modes(served: Served, prompts: list[Prompt]) -> None:
    whole = ask(served, prompts[0], ModePreference.SPECULATIVE)
    middle = len(whole.text) // 2
    stop = whole.text[middle : middle + 4]
    for mode in (ModePreference.SPECULATIVE, ModePreference.AUTOREGRESSIVE):
        answer = collect(served.client.generate(messages=prompts[0].messages, max_tokens=32, mode=mode, stop=[stop]))
        assert answer.finished is not None
        assert (answer.finished.reason, answer.finished.stop) == (pb.FINISH_REASON_STOP, stop)
        assert answer.text == whole.text[: whole.text.index(stop)]
