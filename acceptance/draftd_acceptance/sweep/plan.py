"""Plans and runs a sweep: which arms on which prompts, in which order, and what is left out and why. Every answer is
kept as it arrives, so that a sweep can be stopped at any time and continued.

Prompts are three tiers that come with the package, the workload classes that suit the model, and the user's own. A tier
says how long the prompt is: a short control, a problem of several steps, a question over retrieved passages, as many as
fit into the model's context.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from draftd.client.client import ModelReply
from draftd.client.prompts import Prompt, from_file, held_out, spread, suited_classes
from draftd.core import (
    DRAFT_HEAD,
    DRAFT_MODEL,
    GRAMMAR,
    LIGHT_DRAFT_MODEL,
    MODEL_DRAFTERS,
    DrafterName,
    WorkloadClass,
)
from draftd.errors import DraftdError
from draftd_acceptance.folder import RunFolder
from draftd_acceptance.manifest import prompt_checksum
from draftd_acceptance.options import LONG, MEDIUM, SHORT, TIERS, SweepOptions
from draftd_acceptance.session import Advance, ErrorLimit, Progress, Session, SessionStep, sampling
from draftd_acceptance.ticks import AUTOREGRESSIVE, Arm, Key, MachineSample, Stage, Tick

CHARACTERS_A_TOKEN = 3.0  # an estimate on the safe side: English has four and more in a large vocabulary
_SETS = Path(__file__).parents[1] / "prompt_sets"
_SYSTEM = "You answer questions from passages that were found for you. Say nothing that they do not say."
_WARM_UP_TOKENS = 16
_HOT = ("heavy", "trapping", "sleeping")
_LOOK_SECONDS = 1.0


def group(name: str, context_length: int, each: int) -> list[Prompt]:
    """Returns the prompts of one of GROUPS: `each` prompts of a workload class, or all prompts of one of TIERS."""
    if name in (SHORT, MEDIUM):
        return from_file(_SETS / f"{name}.jsonl")
    if name == LONG:
        return [_over_passages(line, context_length) for line in _lines(LONG)]
    return [replace(prompt, group=name) for prompt in spread(held_out(WorkloadClass(name)), each)]


def distinct(prompts: Iterable[Prompt]) -> list[Prompt]:
    """Returns all prompts, with a number added to a name that occurs again: names identify measurements."""
    seen: set[str] = set()
    named = []
    for prompt in prompts:
        name, number = prompt.name, 1
        while name in seen:
            number += 1
            name = f"{prompt.name} #{number}"
        seen.add(name)
        named.append(replace(prompt, name=name, group=prompt.group or str(prompt.workload)))
    return named


def checksums(prompts: Sequence[Prompt]) -> dict[str, str]:
    """Returns the checksum of each group, for the manifest."""
    groups = dict.fromkeys(prompt.group for prompt in prompts)
    return {name: prompt_checksum([prompt for prompt in prompts if prompt.group == name]) for name in groups}


def tokens_of(prompt: Prompt) -> int:
    """Returns an upper estimate of the prompt's tokens."""
    return round(sum(len(content) for _, content in prompt.messages) / CHARACTERS_A_TOKEN)


def _over_passages(line: dict[str, Any], context_length: int) -> Prompt:
    """Returns the question over the passages that it needs, and as many others as fit into half of the context."""
    passages = _lines("passages")
    chosen = [p for p in passages if p["id"] in line["passages"]]
    space = context_length * CHARACTERS_A_TOKEN / 2
    for passage in passages:
        with_it = [p for p in passages if p in chosen or p is passage]
        if len(_SYSTEM) + len(_question(line["question"], with_it)) <= space:
            chosen = with_it
    messages = (("system", _SYSTEM), ("user", _question(line["question"], chosen)))
    return Prompt(line["id"], messages, WorkloadClass.UNSPECIFIED, line["max_tokens"], LONG)


def _question(question: str, passages: Sequence[dict[str, Any]]) -> str:
    passages_text = "\n\n".join(f"[{number}] {p['title']}\n{p['text']}" for number, p in enumerate(passages, 1))
    return f"Passages:\n\n{passages_text}\n\nQuestion: {question}"


@cache
def _lines(name: str) -> tuple[dict[str, Any], ...]:
    return tuple(map(json.loads, (_SETS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()))


class NothingToMeasure(DraftdError):
    """No requested prompt fits into the model's context."""


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """`left_out` gives the reason for each arm by its id, `left_out_prompts` for each prompt by its name."""

    options: SweepOptions
    arms: tuple[Arm, ...]
    prompts: tuple[Prompt, ...]
    left_out: Mapping[str, str]
    left_out_prompts: Mapping[str, str]

    def frozen(self, requests: int) -> dict[str, Any]:
        """Returns the plan in the form that a run's folder keeps. `requests` is the number to measure."""
        return {
            **self.options.plan(),
            "arms": [arm.id for arm in self.arms],
            "left_out": [{"arm": arm, "reason": reason} for arm, reason in self.left_out.items()],
            "left_out_prompts": [{"prompt": name, "reason": reason} for name, reason in self.left_out_prompts.items()],
            "prompt_checksums": checksums(self.prompts),
            "requests": requests,
        }


def plan_sweep(options: SweepOptions, model: ModelReply, max_batch: int | None = None) -> SweepPlan:
    """Returns the plan. `max_batch` is the number of requests that the daemon decodes together, if known.

    Raises NothingToMeasure.
    """
    prompts, left_out_prompts = _prompts(options, model)
    arms: list[Arm] = []
    left_out: dict[str, str] = {}
    offered: list[DrafterName | None] = list(model.drafters)
    for arm in _wanted_arms(options, offered, model.max_draft_tokens):
        reason = _obstacle(arm, model, max_batch, len(prompts))
        if reason:
            left_out.setdefault(arm.id, reason)
        elif arm not in arms:
            arms.append(arm)
    return SweepPlan(options, tuple(arms), tuple(prompts), left_out, left_out_prompts)


def chosen_prompts(options: SweepOptions, model: ModelReply) -> tuple[Prompt, ...]:
    """Returns the prompts to ask; their `checksums` are for the manifest. Raises NothingToMeasure."""
    return tuple(_prompts(options, model)[0])


def _prompts(options: SweepOptions, model: ModelReply) -> tuple[list[Prompt], dict[str, str]]:
    groups = (*TIERS, *suited_classes(model.model)) if options.groups is None else options.groups
    context_length = model.context_length
    shipped = [prompt for name in groups for prompt in group(name, context_length, options.each)]
    chosen, left_out = [], {}
    for prompt in distinct([*shipped, *options.prompts]):
        if options.max_tokens is not None:
            prompt = replace(prompt, max_tokens=options.max_tokens)
        needed = tokens_of(prompt) + (prompt.max_tokens or 1)
        if needed > context_length:
            left_out[prompt.name] = f"about {needed} tokens with its answer; the model's context is {context_length}"
        else:
            chosen.append(prompt)
    if not chosen:
        raise NothingToMeasure(f"no prompt fits into the model's context of {context_length} tokens")
    return chosen, left_out


def _wanted_arms(options: SweepOptions, offered: list[DrafterName | None], most: int) -> Iterator[Arm]:
    """Yields the arms, one parameter varied at a time from the base, including arms that the daemon does not support.
    `most` is the longest block that it drafts; automatic depth goes up to it, or to the longest swept one if that is
    shorter. Without a draft head a draft model is expected, and reported if it is missing."""
    drafters = [kind for kind in offered if kind is not None and kind in (options.drafters or offered)]
    expected = options.drafters or (() if set(MODEL_DRAFTERS) & set(offered) else (DRAFT_MODEL,))
    missing = [kind for kind in expected if kind not in offered]
    first = drafters[0] if drafters else (missing or [DRAFT_MODEL])[0]
    # If the daemon cannot draft the base's length, take the longest other length that it can.
    shorter = max((length for length in options.block_lengths if 0 < length <= most), default=options.block_length)
    base = Arm(options.block_length if options.block_length <= most else shorter, first)
    yield AUTOREGRESSIVE
    for length in sorted(set(options.block_lengths) - {0}):
        yield Arm(length, first)
    yield base
    if options.block_length != base.block_length:
        yield replace(base, block_length=options.block_length)
    yield Arm(max(1, min(options.longest_block, most)), first, automatic=True)
    for kind in (*drafters, *missing):
        yield replace(base, drafter=kind)
    for temperature in sorted(set(options.temperatures) - {0.0}):
        yield from (replace(arm, temperature=temperature) for arm in (AUTOREGRESSIVE, base))
    for together in sorted(set(options.concurrency) - {1}):
        yield from (replace(arm, concurrency=together) for arm in (AUTOREGRESSIVE, base))


def _obstacle(arm: Arm, model: ModelReply, max_batch: int | None, prompts: int) -> str:
    """Returns why this daemon cannot run the arm; empty if it can."""
    if arm.speculative:
        if not model.speculation_available and not model.drafters:
            return f"the daemon does not speculate: {model.speculation_reason or 'it offers no drafter'}"
        if arm.drafter not in model.drafters:
            why = _missing_reason(arm.drafter, model)
            return f"the daemon offers no {arm.drafter}" + (f": {why}" if why else "")
        if arm.drafter == GRAMMAR:
            return "a grammar drafts only for answers of a given format, and the prompts of a sweep ask for none"
        if arm.block_length > model.max_draft_tokens:
            return f"the daemon drafts {model.max_draft_tokens} tokens a step at most (engine.max_draft_tokens)"
    if max_batch is not None and arm.concurrency > max_batch:
        return f"the daemon decodes {max_batch} requests together at most (engine.max_batch)"
    if arm.concurrency > prompts:
        return f"there are {prompts} prompts, and each is asked once at a time"
    return ""


def _missing_reason(drafter: DrafterName | None, model: ModelReply) -> str:
    """Returns why the daemon does not offer the drafter; empty if it does not say."""
    reasons = {LIGHT_DRAFT_MODEL: model.light_draft_reason, DRAFT_HEAD: model.draft_head.refusal}
    return reasons.get(drafter or "", model.speculation_reason)


def schedule(plan: SweepPlan) -> list[SessionStep]:
    """Returns all steps; the same for the same plan.

    A block is one prompt with all arms of single requests, or a group of prompts with all arms of that concurrency. The
    arms' order is drawn in each block, the blocks' order in each repetition. The prompts left over after grouping
    differ between repetitions.
    """
    steps: list[SessionStep] = []
    for repetition in range(1, plan.options.repetitions + 1):
        drawn = random.Random(f"{plan.options.seed} {repetition}")
        blocks: list[list[SessionStep]] = []
        for together in sorted({arm.concurrency for arm in plan.arms}):
            arms = [arm for arm in plan.arms if arm.concurrency == together]
            prompts = drawn.sample(plan.prompts, len(plan.prompts))
            for at in range(0, len(prompts) - together + 1, together):
                group = tuple(prompts[at : at + together])
                blocks.append([SessionStep(arm, group, repetition) for arm in drawn.sample(arms, len(arms))])
        drawn.shuffle(blocks)
        steps += [step for block in blocks for step in block]
    return steps


def key_of(tick: Tick) -> Key:
    """Returns the key of the request that the tick answers."""
    return tick.place.arm, *tick.place.key, tick.place.repetition


def measured_keys(ticks: Iterable[Tick]) -> set[Key]:
    """Returns the keys of requests that need no repeating."""
    return {key_of(tick) for tick in ticks if not tick.error and not tick.place.warm_up}


def pending(steps: Iterable[SessionStep], done: Collection[Key]) -> list[SessionStep]:
    """Returns the steps still to run: requests that are sent together are measured together or not at all."""
    return [step for step in steps if not all(key in done for key in step.keys)]


def run_sweep(session: Session, options: SweepOptions, model: ModelReply, progress: Progress) -> None:
    """Measures the missing requests; failed ones are sent again by the next session.

    Raises RunError if the run began with another plan, MeasurementStopped, NothingToMeasure.
    """
    plan = plan_sweep(options, model, session.max_batch)
    steps = schedule(plan)
    total = sum(len(step.prompts) for step in steps)
    session.folder.freeze_plan(Stage.SWEEP, plan.frozen(total))
    missing = pending(steps, measured_keys(session.folder.ticks(Stage.SWEEP)))
    if not missing:
        return
    heat, errors = Heat(options.heat_seconds), ErrorLimit()

    def keep(sample: MachineSample) -> None:
        heat.observe(sample)
        session.folder.keep_sample(sample)

    def ask(step: SessionStep, *, warm_up: bool = False) -> None:
        """Keeps a tick for each request."""
        ticks = session.measure(step, options, chat=model.chat_template, warm_up=warm_up)
        failed = next((tick.error for tick in ticks if tick.error), "")
        for tick in ticks:
            spoilt = f"one beside it failed: {failed}" if failed else ""
            session.folder.keep_tick(replace(tick, error=tick.error or spoilt))
        errors.count(step.arm, ticks)

    def say(at: int, doing: str) -> None:
        done = total - sum(len(step.prompts) for step in missing[at:])
        remaining = (time.perf_counter() - began) / at * (len(missing) - at) if at else None
        progress(Advance(Stage.SWEEP, done, total, remaining, doing))

    with sampling(session, Stage.SWEEP, keep):
        for arm in dict.fromkeys(step.arm for step in missing):
            say(0, f"warming up: {arm.id}")
            ask(_warm_up(arm, plan), warm_up=True)
        began = time.perf_counter()
        for at, step in enumerate(missing):
            heat.wait(partial(say, at))
            say(at, f"{step.arm.id} · {step.prompts[0].name}" + (" …" if len(step.prompts) > 1 else ""))
            ask(step)
            time.sleep(options.cool_down)
        say(len(missing), "done")


def sweep_complete(folder: RunFolder) -> bool:
    """Whether all requests of the sweep are measured; False if there is no sweep."""
    plan = folder.plan(Stage.SWEEP)
    return plan is not None and missing_requests(plan, measured_keys(folder.ticks(Stage.SWEEP))) == 0


def missing_requests(plan: Mapping[str, Any], done: Collection[Key]) -> int:
    """Returns how many requests of the run's plan are missing."""
    wanted: int = plan.get("requests", 0)
    return max(0, wanted - len(done))


class Heat:
    """Waits while the machine throttles, because figures would then show only heat.

    If the machine is still hot after `patience_seconds`, later waits end at once, until the machine has been cool.
    So a run on a machine that is always hot ends too, and its samples show the heat.
    """

    def __init__(self, patience_seconds: float) -> None:
        self._patience = patience_seconds
        self._level: str | None = None
        self._given_up = False

    def observe(self, sample: MachineSample) -> None:
        """Notes a sample; callable on any thread."""
        if sample.thermal is not None:
            self._level = sample.thermal

    def wait(self, say: Callable[[str], None]) -> None:
        """Waits until the thermal level is below "heavy", for `patience_seconds` at most."""
        ends = time.perf_counter() + (0.0 if self._given_up else self._patience)
        while (level := self._level) in _HOT:
            left = ends - time.perf_counter()
            if left <= 0:
                self._given_up = True
                return
            say(f"waiting for the machine to cool: thermal level {level}, {left:.0f} s at most")
            time.sleep(min(_LOOK_SECONDS, left))
        self._given_up = False


def _warm_up(arm: Arm, plan: SweepPlan) -> SessionStep:
    """Returns a short step that compiles and fills caches."""
    shortest = sorted(plan.prompts, key=lambda prompt: sum(len(content) for _, content in prompt.messages))
    shortened = tuple(replace(prompt, max_tokens=_WARM_UP_TOKENS) for prompt in shortest[: arm.concurrency])
    return SessionStep(arm, shortened, 0)
