"""Simulates an acceptance run: ticks and samples that a daemon of given speed and acceptance would have left."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path

from draftd.canaries.prompts import FrozenPrompts
from draftd.canaries.schemas import schema_of
from draftd.core import DRAFT_MODEL, PROMPT_LOOKUP, FinishReason, WorkloadClass
from draftd.exactness import Exactness, OperationExactness, OperationKind
from draftd_acceptance.folder import RunFolder
from draftd_acceptance.manifest import Manifest, ModelFile, ModelManifest
from draftd_acceptance.options import QualityOptions
from draftd_acceptance.quality import SCHEMAS
from draftd_acceptance.ticks import AUTOREGRESSIVE, Arm, MachineSample, RunPlace, Stage, Tick
from tests.synthetic_request import BEGAN, Truth, request

GIB = 1 << 30

GROUPS: Mapping[str, WorkloadClass] = {
    "short_control": WorkloadClass.UNSPECIFIED,
    "medium_reasoning": WorkloadClass.UNSPECIFIED,
    "long_context": WorkloadClass.UNSPECIFIED,
    "code": WorkloadClass.CODE,
    "tool_call": WorkloadClass.TOOL_CALL,
    "chat": WorkloadClass.CHAT,
    "prose": WorkloadClass.PROSE,
}

ARMS: tuple[Arm, ...] = (
    AUTOREGRESSIVE,
    *(Arm(k) for k in (2, 3, 4, 6)),
    Arm(6, automatic=True),
    Arm(4, PROMPT_LOOKUP),
    replace(AUTOREGRESSIVE, temperature=0.8),
    Arm(4, temperature=0.8),
    *(replace(arm, concurrency=c) for c in (2, 4) for arm in (AUTOREGRESSIVE, Arm(4))),
)

EXACTNESS = Exactness(
    exact=False,
    by_token=False,
    forward=OperationExactness("whole forward", OperationKind.FORWARD, width=13, batch=13, difference=2e-6),
    operations=(OperationExactness("layers.0.mlp.up_proj", OperationKind.LINEAR, width=13, difference=1e-6),),
    measured=9,
    flips=0.3,
    positions=640,
    seconds=4.2,
)


def manifest(**changes: object) -> Manifest:
    """Returns the manifest of an invented machine and pair."""
    files = (
        ModelFile("config.json", "config", 812, "1f" * 32),
        ModelFile("model.safetensors", "weights", 4_610_000_000, "2e" * 32),
        ModelFile("tokenizer.json", "tokenizer", 11_422_654, "3d" * 32),
        ModelFile("tokenizer_config.json: chat_template", "chat_template", 4168, "4c" * 32),
    )
    draft = tuple(replace(one, sha256="5b" * 32) if one.kind == "weights" else one for one in files)
    made = Manifest(
        created="2026-11-21T18:00:00+00:00",
        harness="0.6.0",
        draftd="0.6.0",
        packages={"mlx": "0.32.0", "mlx-lm": "0.32.1", "numpy": "2.3.1"},
        python="3.11.9",
        os="macOS 26.1",
        device="Apple M4 Pro",
        cores=12,
        memory_bytes=24 * GIB,
        backend="metal",
        blas="",
        power_source="mains",
        low_power=False,
        models={
            "target": ModelManifest("Larch-8B-4bit", "4 bits, groups of 64", 4_610_000_000, files),
            "draft": ModelManifest("Larch-0.6B-4bit", "4 bits, groups of 64", 340_000_000, draft),
        },
        settings={"engine.max_draft_tokens": "6", "engine.max_concurrency": "4", "log.level": "info"},
        prompts={group: f"{number:02x}" * 32 for number, group in enumerate(GROUPS, 1)},
        load_seconds=3.4,
        exactness=EXACTNESS,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def synthetic_run(
    path: Path,
    *,
    seed: int = 0,
    truth: Truth = Truth(),
    name: str = "",
    stages: Sequence[Stage] = tuple(Stage),
    manifests: Sequence[Manifest] = (),
    groups: Sequence[str] = tuple(GROUPS),
    arms: Sequence[Arm] = ARMS,
    prompts: int = 4,
    repetitions: int = 3,
    tokens: int = 48,
    left_out: Mapping[str, str] | None = None,
    sweep_errors: int = 0,
    soak_seconds: float = 600.0,
    soak_errors: int = 0,
    soak_alpha: Sequence[float] = (),
    leak: float = 0.0,
    headroom: int = 3 * GIB,
    swap_in: int = 0,
    critical_seconds: float = 0.0,
    throttles: int | None = 0,
    watts: float | None = 11.0,
    failing: int = 1,
    failing_drafted: int = 1,
    schemas: bool = True,
    wrong_under_schemas: int = 0,
    invalid: int = 0,
) -> RunFolder:
    """Writes one, and opens it.

    `prompts` of each group, asked `repetitions` times for `tokens` each. The first of `manifests` is the sweep's
    session, the last that of soak and quality. `sweep_errors`: so many ticks of the sweep failed. `soak_alpha`: by the
    minute of the soak, instead of the truth's; the last one holds on. `leak`: bytes a second by which the resident set
    grows in the soak and the headroom, which begins at `headroom`, shrinks. `swap_in`, `critical_seconds`, `throttles`:
    what came in addition during the soak; None: not readable. `failing`, `failing_drafted`: so many of the quality
    prompts are answered wrongly without drafts, and with them. `schemas`: those that can be are asked under a schema,
    too; with drafts, `wrong_under_schemas` of these answers are wrong and `invalid` are not valid.
    """
    folder = RunFolder.create(path, name)
    random_ = random.Random(seed)
    numbers = [folder.begin_session(one) for one in (manifests or (manifest(),))]
    if Stage.SWEEP in stages:
        folder.freeze_plan(
            Stage.SWEEP,
            {
                "block_lengths": sorted({arm.block_length for arm in arms}),
                "repetitions": repetitions,
                "left_out": [{"arm": arm, "reason": reason} for arm, reason in (left_out or {}).items()],
            },
        )
        _sweep(folder, random_, truth, numbers[0], groups, arms, prompts, repetitions, tokens, sweep_errors, watts)
    if Stage.SOAK in stages:
        folder.freeze_plan(Stage.SOAK, {"duration": soak_seconds, "streams": 4, "block_length": 4})
        for at in range(int(soak_seconds) + 1):
            part = at / max(1.0, soak_seconds)
            folder.keep_sample(
                replace(
                    _sample(random_, Stage.SOAK, numbers[-1], "k4-x4", float(at), watts),
                    resident=int(6 * GIB + leak * at + random_.gauss(0, 4 << 20)),
                    headroom=int(headroom - leak * at + random_.gauss(0, 8 << 20)),
                    available=int(10 * GIB + headroom - leak * at),
                    swap_in=int(swap_in * part),
                    critical_seconds=critical_seconds * part,
                    pressure="critical" if critical_seconds and part > 0.5 else "normal",
                    throttles=None if throttles is None else round(throttles * part),
                    thermal="heavy" if throttles and part > 0.5 else "nominal",
                )
            )
        for tick in _soak(random_, truth, numbers[-1], groups, soak_seconds, soak_errors, soak_alpha, tokens):
            folder.keep_tick(tick)
    if Stage.QUALITY in stages:
        options = QualityOptions(block_length=4, drafter=DRAFT_MODEL, repeats=1, schemas=schemas)
        folder.freeze_plan(Stage.QUALITY, options.frozen())
        if schemas:
            for tick in _under_schemas(random_, truth, numbers[-1], wrong_under_schemas, invalid):
                folder.keep_tick(tick)
        for tick in _quality(random_, truth, numbers[-1], failing, failing_drafted):
            folder.keep_tick(tick)
    return folder


def _sweep(
    folder: RunFolder,
    random_: random.Random,
    truth: Truth,
    session: int,
    groups: Sequence[str],
    arms: Sequence[Arm],
    prompts: int,
    repetitions: int,
    tokens: int,
    errors: int,
    watts: float | None,
) -> None:
    elapsed, sampled, left = 0.0, 0.0, errors
    alone = [arm for arm in arms if arm.concurrency == 1]
    together = [arm for arm in arms if arm.concurrency > 1]
    names = [(group, f"{group}-{number}") for group in groups for number in range(1, prompts + 1)]
    for arm in arms:
        place = RunPlace(
            Stage.SWEEP, session, arm.id, 0, names[0][1], names[0][0], GROUPS.get(names[0][0], _NONE), True
        )
        tick = request(random_, truth, arm, place, elapsed, tokens=8)
        folder.keep_tick(tick)
        elapsed += tick.ended + 0.1
    for repetition in range(1, repetitions + 1):
        batches = [(arm, [name]) for name in names for arm in random_.sample(alone, len(alone))]
        for arm in together:
            batches += [(arm, names[i : i + arm.concurrency]) for i in range(0, len(names), arm.concurrency)]
        for arm, batch in batches:
            ticks = []
            for group, prompt in batch:
                place = RunPlace(Stage.SWEEP, session, arm.id, repetition, prompt, group, GROUPS.get(group, _NONE))
                error = "UNAVAILABLE: the daemon drains" if left > 0 else ""
                left -= 1
                ticks.append(request(random_, truth, arm, place, elapsed, tokens=tokens, error=error))
                folder.keep_tick(ticks[-1])
            elapsed += max(tick.ended for tick in ticks) + 0.1
            while sampled < elapsed:
                folder.keep_sample(_sample(random_, Stage.SWEEP, session, arm.id, sampled, watts))
                sampled += 4.0


def _soak(
    random_: random.Random,
    truth: Truth,
    session: int,
    groups: Sequence[str],
    seconds: float,
    errors: int,
    alphas: Sequence[float],
    tokens: int,
) -> Iterator[Tick]:
    arm, left = Arm(4, concurrency=4), errors
    for stream in range(arm.concurrency):
        elapsed, number = stream * 0.3, 0
        while elapsed < seconds:
            group = groups[number % len(groups)]
            number += 1
            alpha = alphas[min(int(elapsed // 60), len(alphas) - 1)] if alphas else None
            place = RunPlace(Stage.SOAK, session, arm.id, stream * 10_000 + number, f"{group}-1", group, GROUPS[group])
            error = "INTERNAL: decoding failed" if left > 0 else ""
            left -= 1
            tick = request(random_, truth, arm, place, elapsed, tokens=tokens, alpha=alpha, error=error)
            elapsed = min(elapsed + tick.ended + 3.0, max(elapsed + tick.ended, seconds - 0.1))
            yield tick


def _quality(random_: random.Random, truth: Truth, session: int, failing: int, drafted: int) -> Iterator[Tick]:
    lines = (resources.files("draftd.canaries") / "quality.jsonl").read_text(encoding="utf-8").splitlines()
    elapsed = 0.0
    for number, line in enumerate(lines):
        canary = json.loads(line)
        for arm, wrong in ((AUTOREGRESSIVE, number < failing), (Arm(4), number < drafted)):
            place = RunPlace(
                Stage.QUALITY, session, arm.id, 1, canary["id"], "quality", WorkloadClass(canary["workload"])
            )
            text = "I would rather not." if wrong else right_answer(canary["check"])
            tick = request(random_, truth, arm, place, elapsed, tokens=24, text=text)
            elapsed += tick.ended + 0.1
            yield tick


def _under_schemas(random_: random.Random, truth: Truth, session: int, wrong: int, invalid: int) -> Iterator[Tick]:
    """Yields answers under schemas: the first prompts' are wrong, the last ones' are invalid."""
    asked = [one for one in FrozenPrompts.of_package().canaries if schema_of(one.check) is not None]
    for number, canary in enumerate(asked):
        for arm in (AUTOREGRESSIVE, Arm(4)):
            check = asdict(canary.check)
            if arm.speculative and number < wrong:  # the first ones are objects
                check["values"] = {name: value * 2 for name, value in check["values"].items()}
            text = right_answer(check)
            if arm.speculative and number >= len(asked) - invalid:
                text = text[:-1]
            place = RunPlace(Stage.QUALITY, session, arm.id, 1, canary.id, SCHEMAS, canary.workload)
            tick = request(random_, truth, arm, place, 0.0, tokens=24, text=text)
            yield replace(tick, finish_reason=FinishReason.STOP)


def right_answer(check: Mapping[str, object]) -> str:
    """Returns an answer that passes the check."""
    if check["kind"] == "json_object":
        return json.dumps(check["values"])
    if check["kind"] == "tool_call":
        return json.dumps({"name": check["name"], "arguments": check["arguments"]})
    mentions = check["mentions"]
    assert isinstance(mentions, list)
    return f"It is {mentions[0]}."


def _sample(
    random_: random.Random, stage: Stage, session: int, arm: str, elapsed: float, watts: float | None
) -> MachineSample:
    return MachineSample(
        stage=stage,
        session=session,
        arm=arm,
        elapsed=elapsed,
        at=BEGAN + elapsed,
        resident=int(6 * GIB + random_.gauss(0, 4 << 20)),
        available=13 * GIB,
        headroom=3 * GIB,
        floor=10 * GIB,
        pressure="normal",
        swap_in=0,
        mlx_active=5 * GIB,
        mlx_cache=GIB // 2,
        thermal="nominal",
        throttles=0,
        temperature=61 + random_.gauss(0, 0.5),
        watts=None if watts is None else watts + random_.gauss(0, 0.2),
    )


_NONE = WorkloadClass.UNSPECIFIED
