"""Scores of given texts over HTTP, as evaluation harnesses ask for them: they are those of mlx-lm's own logits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

import httpx
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import load

from draftd.engine.pair import load_models
from tests.conftest import NanoPair
from tests.in_process_daemon import Served, serving

QUESTION = "Question: Which of these adds two numbers?\nAnswer:"
ANSWERS = [" def add(a, b):\n    return a + b", " a story about a dog é", " 7", " return"]


@pytest.fixture(scope="module")
def served(nano_pair: NanoPair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With drafts, short slices, and a store of prefixes."""
    engine = {"prefill_chunk": 16, "prefix_cache_bytes": 1 << 26}
    with serving(
        tmp_path_factory.mktemp("scoring"),
        lambda: load_models(nano_pair.target, nano_pair.draft, progress=lambda line: None),
        server={"http_port": 0},
        engine=engine,
    ) as served:
        yield served


@pytest.fixture(scope="module")
def reference(nano_pair: NanoPair) -> Any:
    """mlx-lm's own log-probabilities of each token of a text, but for the first; and its tokenizer."""
    model, tokenizer = load(nano_pair.target)[:2]
    model.set_dtype(mx.float32)  # as it is decoded on a CPU

    def logprobs(ids: Sequence[int]) -> np.ndarray:
        logits = model(mx.array([ids]))[0, :-1].astype(mx.float32)
        return np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))

    return logprobs, tokenizer


def post(served: Served, path: str, **body: Any) -> dict[str, Any]:
    answer = httpx.post(f"{served.daemon.url}/{path}", json={"model": "", **body}, timeout=60)
    answer.raise_for_status()
    return dict(answer.json())


def scored(choice: dict[str, Any], context: int) -> tuple[float, bool]:
    """As lm-eval reads an answer (`LocalCompletionsAPI.parse_logprobs`): the last token is the one that was chosen."""
    own, top = (choice["logprobs"][name][context:-1] for name in ("token_logprobs", "top_logprobs"))
    return sum(own), all(one == max(likeliest.values()) for one, likeliest in zip(own, top, strict=True))


@pytest.mark.parametrize("as_ids", [True, False])
def test_lm_eval_answer_scores_from_echoed_http_logprobs_equal_mlx_lm_scores(
    served: Served, reference: Any, as_ids: bool
) -> None:
    """lm-eval's requests, as `LocalCompletionsAPI` makes them: all answers to a question in one, of ids or of texts."""
    logprobs, tokenizer = reference
    context = len(tokenizer.encode(QUESTION))
    whole = [tokenizer.encode(QUESTION + answer) for answer in ANSWERS]
    prompts: list[Any] = whole if as_ids else [QUESTION + answer for answer in ANSWERS]
    asked = {"prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    for _ in range(2):  # the second time the store has the prompts
        choices = sorted(post(served, "completions", **asked)["choices"], key=itemgetter("index"))
        found = [scored(choice, context) for choice in choices]
        expected = [logprobs(ids)[context - 1 :] for ids in whole]
        own = [rows[range(len(rows)), ids[context:]].sum() for rows, ids in zip(expected, whole, strict=True)]
        assert [score for score, _ in found] == pytest.approx(own, abs=1e-3)
        assert [greedy for _, greedy in found] == [
            all(rows.argmax(axis=-1) == ids[context:]) for rows, ids in zip(expected, whole, strict=True)
        ]
    for choice, ids, answer in zip(choices, whole, ANSWERS, strict=True):
        told = choice["logprobs"]
        assert choice["text"].startswith(QUESTION + answer)
        assert (told["token_logprobs"][0], told["top_logprobs"][0], told["text_offset"][0]) == (None, None, 0)
        assert [len(values) for values in told.values()] == [len(ids) + 1] * 4
        assert told["text_offset"][-1] == len(QUESTION + answer)
        ends = [*told["text_offset"][1:], None]
        texts = [choice["text"][at:end] for at, end in zip(told["text_offset"], ends, strict=True)]
        assert all(text == token for text, token in zip(texts, told["tokens"], strict=True) if token.isascii())
    alone = post(served, "completions", **(asked | {"max_tokens": 0}))
    for choice, ids in zip(alone["choices"], whole, strict=True):
        assert len(choice["logprobs"]["tokens"]) == len(ids)
        assert choice["finish_reason"] == "length"
    assert alone["usage"]["completion_tokens"] == 0
    assert alone["usage"]["prompt_tokens"] == sum(map(len, whole))


def test_http_prompt_logprobs_have_the_shape_of_vllm(served: Served, reference: Any) -> None:
    logprobs, tokenizer = reference
    ids = tokenizer.encode(QUESTION)
    done = post(served, "completions", prompt=QUESTION, max_tokens=2, prompt_logprobs=2, logprobs=0)
    (choice,) = done["choices"]
    assert choice["logprobs"]["text_offset"][0] == 0
    assert len(choice["logprobs"]["tokens"]) == 2, "of the answer alone"
    messages = [{"role": "user", "content": "Count."}]
    chat = post(served, "chat/completions", messages=messages, max_completion_tokens=0, prompt_logprobs=2)
    assert (chat["choices"][0]["message"]["content"], chat["choices"][0]["finish_reason"]) == ("", "length")
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    for found, prompt in ((choice["prompt_logprobs"], ids), (chat["prompt_logprobs"], rendered)):
        assert found[0] is None
        for told, token, expected in zip(found[1:], prompt[1:], logprobs(prompt), strict=True):
            likeliest = {str(one) for one in np.argsort(expected)[-2:]}
            assert set(told) == {str(token)} | likeliest
            for one, entry in told.items():
                assert entry["logprob"] == pytest.approx(expected[int(one)], abs=1e-3)
                assert entry["rank"] == (expected > expected[int(one)]).sum() + 1
            assert told[str(token)]["decoded_token"] == served.worker.tokenizer.token_bytes(token).decode()


def test_http_stream_echoes_the_prompt_with_logprobs(served: Served) -> None:
    asked = {"prompt": QUESTION, "max_tokens": 3, "logprobs": 1, "echo": True}
    (whole,) = post(served, "completions", **asked)["choices"]
    body = {"model": "", "stream": True, **asked}
    events = httpx.post(f"{served.daemon.url}/completions", json=body, timeout=60).text.split("\n\n")
    pieces = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events if event.startswith("data: {")]
    assert pieces[0]["text"] == QUESTION
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    told = [piece["logprobs"] for piece in pieces if piece["logprobs"]]
    for name, values in whole["logprobs"].items():
        assert [value for one in told for value in one[name]] == values
    for path, more in (("completions", {"prompt": "x"}), ("chat/completions", {"messages": []})):
        refused = httpx.post(
            f"{served.daemon.url}/{path}", json={"model": "", "stream": True, "prompt_logprobs": 1, **more}
        )
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_logprobs")
