"""Greedy text is mlx-lm's own autoregressive text, token for token, at every depth, drafter and batch size.

Ten held-out prompts of each workload class of the embedded pair. Under automatic depth every prompt is decoded in
batches of eight, where sequences come, go and are rolled back each at its own place, with prices that are drawn anew
for each step: whatever depth, none included, and whichever drafter is chosen, however often that changes. The fixed
depths and drafters share the prompts out among them: one in eight in batches of four, and another one in eight alone,
where a sequence takes a path of its own (its cache is as long as the batch, nothing is masked), which does not depend
on the prompt. With PARITY=all every plan has every prompt of the eighty.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import mlx.core as mx
import pytest

from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, DecodePlan, DepthMode
from draftd.engine.pair import LoadedModels, load_models
from tests.random_costs import random_depth_control
from tests.rig import Rig, automatic, autoregressive, request, speculative

pytestmark = [pytest.mark.parity, pytest.mark.slow, pytest.mark.timeout(900)]

TOKENS = 24
CLASSES = ["code", "tool_call", "chat", "prose"]
DEPTHS = [1, 2, 3, 4, 6]
FIXED = {
    **{f"depth {depth}": speculative(depth) for depth in DEPTHS},
    "prompt lookup": speculative(4, PROMPT_LOOKUP),
    "autoregressive": autoregressive(),
}
AUTOMATIC = automatic(6, DRAFT_MODEL, PROMPT_LOOKUP)
PLANS = FIXED | {"automatic": AUTOMATIC}
WHOLE = os.environ.get("PARITY") == "all"
PART = 20  # prompts that mlx-lm writes at a time
SHARE = 1 if WHOLE else 8


@pytest.fixture(scope="module")
def models(nano_pair) -> LoadedModels:
    return load_models(nano_pair.target, nano_pair.draft, progress=lambda line: None)


@pytest.fixture(scope="module")
def prompts(nano_pair, models) -> list[list[int]]:
    folder = Path(nano_pair.target).parent / "prompts"
    lines = [line for name in CLASSES for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    lines = [line for i, line in enumerate(lines) if WHOLE or i % 8 == 1]
    return [models.tokenizer.render_chat(json.loads(line)["messages"]) for line in lines]


@contextmanager
def alone_with(file: Path, wait: bool) -> Iterator[bool]:
    """Whether no other worker of this run is in here; with `wait`, once none is."""
    with file.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


@pytest.fixture(scope="module")
def expected(models, prompts, tmp_path_factory) -> list[list[int]]:
    """What mlx-lm writes; once in a run of the tests, however many workers share it: each writes parts that no other
    has in hand, then waits for theirs."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    texts: list[list[int]] = []
    for wait in (False, True):
        texts = []
        for first in range(0, len(prompts), PART):
            found = shared / f"mlx-lm-texts-{first}.json"
            with alone_with(found.with_suffix(".lock"), wait) as mine:
                if mine and not found.exists():
                    found.write_text(json.dumps(written_by_mlx_lm(models, prompts[first : first + PART])))
                if wait:
                    texts += json.loads(found.read_text())
    return texts


def written_by_mlx_lm(models: LoadedModels, prompts: list[list[int]]) -> list[list[int]]:
    """Autoregressively, by mlx-lm's own batches: much quicker than one prompt at a time, and the same text."""
    from mlx_lm.generate import BatchGenerator

    stop = [[token] for token in models.tokenizer.eos_ids]
    generator = BatchGenerator(models.target, max_tokens=TOKENS, stop_tokens=stop)
    texts: dict[int, list[int]] = {uid: [] for uid in generator.insert(prompts)}
    while responses := generator.next_generated():
        for response in responses:
            texts[response.uid].append(response.token)
    generator.close()
    return list(texts.values())


def written_alone(models: LoadedModels, prompt: list[int]) -> list[int]:
    from mlx_lm.generate import generate_step

    text: list[int] = []
    for token, _ in generate_step(mx.array(prompt), models.target, max_tokens=TOKENS):
        text.append(int(token))
        if token in models.tokenizer.eos_ids:
            break
    return text


def check(models, prompts, expected, plans: Sequence[DecodePlan], batch: int) -> None:
    asked = [request(p, plans[i % len(plans)], max_tokens=TOKENS) for i, p in enumerate(prompts)]
    sinks = Rig(models, max_batch=batch, depth=random_depth_control(batch)).run(asked)
    different = [i for i, (s, e) in enumerate(zip(sinks, expected, strict=True)) if s.tokens != e]
    assert different == []
    assert all(s.done.degraded == "" for s in sinks)
    for plan in plans:
        if plan.max_draft_tokens:
            judged = [s.done.stats.counts for s, r in zip(sinks, asked, strict=True) if r.plan is plan]
            assert sum(counts.rollbacks for counts in judged) > 0, "no rollback: nothing was proven"
            last = plan.max_draft_tokens - 1
            accepted = [counts.accepted_per_position[last:] for counts in judged]
            assert sum(map(sum, accepted)) > 0, "nor of steps in which all that was drafted is accepted"
        if plan.depth_mode is DepthMode.AUTOMATIC:
            assert sum(counts.parked_steps for counts in judged) > 0
            so_deep = [sum(counts.drafted_per_position[i] for counts in judged
                           if len(counts.drafted_per_position) > i) for i in range(plan.max_draft_tokens)]  # fmt: skip
            assert len(set(so_deep)) > plan.max_draft_tokens // 2, "each differs from the next where a depth was chosen"


def share(name: str, prompts: Sequence[list[int]], later: int = 0) -> list[int]:
    """The prompts that fall to this plan: every so-many-th, of every class."""
    return list(range((list(PLANS).index(name) + later) % SHARE, len(prompts), SHARE))


def test_mlx_lm_gives_same_greedy_text_alone_as_in_its_batches(models, prompts, expected):
    assert [written_alone(models, prompt) for prompt in prompts[::SHARE]] == expected[::SHARE]


def test_greedy_text_under_automatic_depth_equals_mlx_lms(models, prompts, expected):
    check(models, prompts, expected, [AUTOMATIC], 8)


@pytest.mark.parametrize("name", FIXED)
def test_greedy_text_in_batches_of_four_equals_mlx_lms(models, prompts, expected, name):
    some = share(name, prompts)
    check(models, [prompts[i] for i in some], [expected[i] for i in some], [FIXED[name]], 4)


@pytest.mark.parametrize("name", PLANS)
def test_greedy_text_decoded_alone_equals_mlx_lms(models, prompts, expected, name):
    some = share(name, prompts, later=4)
    check(models, [prompts[i] for i in some], [expected[i] for i in some], [PLANS[name]], 1)


def test_greedy_text_continued_from_cached_prefixes_equals_mlx_lms(models, prompts, expected):
    """Prompts, and every second one of them again with a part of its answer: all but the last of that is read, and
    the text goes on the same."""
    if not WHOLE:
        prompts, expected = prompts[::2], expected[::2]
    rig = Rig(models, max_batch=4, depth=random_depth_control(4), prefix_bytes=1 << 30)
    first = rig.run([request(prompt, AUTOMATIC, max_tokens=TOKENS) for prompt in prompts])
    assert [i for i, (s, text) in enumerate(zip(first, expected, strict=True)) if s.tokens != text] == []
    again = list(zip(prompts, expected, strict=True))[::2]
    cuts = [i % min(len(text), TOKENS - 1) for i, (_, text) in enumerate(again)]
    asked = [
        request(prompt + text[:cut], AUTOMATIC, max_tokens=TOKENS - cut)
        for (prompt, text), cut in zip(again, cuts, strict=True)
    ]
    sinks = rig.run(asked)
    rests = [text[cut:] for (_, text), cut in zip(again, cuts, strict=True)]
    assert [i for i, (s, rest) in enumerate(zip(sinks, rests, strict=True)) if s.tokens != rest] == []
    read = [(s.done.stats.cached_tokens, len(one.prompt) - 1) for s, one in zip(sinks, asked, strict=True)]
    assert all(cached == whole for cached, whole in read if whole >= 16), "fewer are computed as fast"


def test_greedy_text_with_mixed_plans_in_one_batch_equals_mlx_lms(models, prompts, expected):
    """Some of the prompts, each of which has one kind here."""
    plans = [AUTOMATIC, autoregressive(), speculative(2), speculative(3, PROMPT_LOOKUP)]
    check(models, prompts[::3], expected[::3], plans, 4)
