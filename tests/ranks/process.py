"""`python -m tests.ranks.process`: runs one rank of a group, for model after model. Rank 0 prints a line of JSON for
each; the others follow."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from draftd.models.blas import load_blas

load_blas()

import mlx.core as mx  # noqa: E402

import draftd.models.nano  # noqa: E402
from draftd.engine.pair import LoadedModels, assemble, load_models  # noqa: E402
from draftd.engine.ranks.caches import lead  # noqa: E402
from draftd.engine.ranks.follower import follow, load_follower  # noqa: E402
from draftd.engine.ranks.group import RankGroup, join_group  # noqa: E402
from draftd.engine.ranks.model_shard import share_of  # noqa: E402
from draftd.errors import ModelLoadError, in_one_line  # noqa: E402
from tests.models.tiny import draft_of, quantised, tiny  # noqa: E402
from tests.ranks.channel import FollowerEnd, Leader  # noqa: E402
from tests.ranks.scene import Found, Scene, Size  # noqa: E402
from tests.ranks.shapes import EMBEDDED, PIPELINED, QUANTISED, shape  # noqa: E402
from tests.rig import Rig, autoregressive, request  # noqa: E402
from tests.scripted import ByteTokenizer  # noqa: E402

_NANO = Path(draftd.models.nano.__file__).parent
_WRITTEN = 32  # tokens that a draft is fitted to


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--random", type=int, default=12)
    given = parser.parse_args()
    rank, names, size = (
        int(os.environ["MLX_RANK"]),
        given.models.split(","),
        Size(given.tokens, given.random, given.seed),
    )
    ranks = len(json.loads(Path(os.environ["MLX_HOSTFILE"]).read_text(encoding="utf-8")))
    if rank:
        follower = FollowerEnd(given.port)
        group = join_group("ring")
        for name in names:
            _follow(name, group, follower)
        return
    leader = Leader(given.port, ranks - 1)
    group = join_group("ring")
    for name in names:
        print(json.dumps(asdict(_lead(name, group, leader, size))), flush=True)


def _model(name: str, ranks: int) -> Any:
    base, _, how = name.partition(":")
    made = quantised(base, shape(base, ranks)) if f":{how}" == QUANTISED else tiny(base, shape(base, ranks))
    if made is None:
        raise ModelLoadError(f"{name}: none of its layers can have 4 bits", "try another")
    return made


def _follow(name: str, group: RankGroup, receiver: FollowerEnd) -> None:
    try:
        if name == EMBEDDED:
            part = load_follower(str(_NANO / "target"), group, progress=_quiet)
        else:
            part = share_of(lambda: _model(name, group.size), group, tensor=not name.endswith(PIPELINED))
            part.agree()
    except ModelLoadError:
        return
    done = follow(part, receiver)
    assert receiver.executed_last is not None
    receiver.say({"records": receiver.executed_last.records, "held": done.held})
    mx.clear_cache()


def _lead(name: str, group: RankGroup, leader: Leader, size: Size) -> Found:
    found, began = Found(name), time.monotonic()
    try:
        alone, shared = _embedded(group, leader) if name == EMBEDDED else _tiny(name, group, leader)
    except ModelLoadError as error:
        found.refused = error.what
        return found
    assert shared.ranks is not None
    found.parallel, found.batched = shared.ranks.part.parallel, shared.info.batched
    if alone.info.batched != found.batched:
        found.different.append(f"on one rank it is {'' if alone.info.batched else 'not '}batched")
    try:
        Scene(found, alone, shared, size).run()
        _reconcile(found, shared, leader)
    except Exception as error:  # which ends the group
        found.failed = in_one_line(error)
        found.seconds = round(time.monotonic() - began, 1)
        print(json.dumps(asdict(found)), flush=True)
        raise
    found.seconds = round(time.monotonic() - began, 1)
    return found


def _reconcile(found: Found, shared: LoadedModels, leader: Leader) -> None:
    """Checks that followers executed all that was sent, and hold nothing that rank 0 does not hold."""
    ranks = shared.ranks
    assert ranks is not None
    gc.collect()
    ranks.give_back()
    found.records, found.record_bytes = ranks.records, leader.record_bytes
    said = leader.end()
    for rank, one in enumerate(said, 1):
        if one["records"] != ranks.records:
            found.counters.append(f"rank {rank} executed {one['records']} records of {ranks.records}")
        if one["held"] != [0, 0]:
            found.counters.append(f"rank {rank} holds {one['held'][0]} caches and {one['held'][1]} prefixes")


def _tiny(name: str, group: RankGroup, leader: Leader) -> tuple[LoadedModels, LoadedModels]:
    part = share_of(lambda: _model(name, group.size), group, tensor=not name.endswith(PIPELINED))
    ranks = lead(part, leader)
    target, base = _model(name, group.size), name.partition(":")[0]
    alone = _loaded(target, None)
    prompt = [5, 17, 3, 44, 9]
    (sink,) = Rig(alone).run([request(prompt, autoregressive(), max_tokens=_WRITTEN)])
    draft, _ = draft_of(base, [*prompt, *sink.tokens], len(prompt), shape(base, group.size))
    return alone, _loaded(part.model, draft, ranks)


def _loaded(target: Any, draft: Any, ranks: Any = None) -> LoadedModels:
    tokenizer = ByteTokenizer(88)
    tokenizer.eos_ids = frozenset()
    return assemble(
        target,
        draft,
        tokenizer,
        model="tiny",
        draft_model="noisy" if draft is not None else None,
        context_length=512,
        backend="test",
        ranks=ranks,
    )


def _embedded(group: RankGroup, leader: Leader) -> tuple[LoadedModels, LoadedModels]:
    target, draft = str(_NANO / "target"), str(_NANO / "draft")
    shared = load_models(target, draft, progress=_quiet, group=group, sender=leader)
    return load_models(target, None, progress=_quiet), shared


def _quiet(line: str) -> None:
    """Ignores lines for people."""


if __name__ == "__main__":
    code = 1
    try:
        main()
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)  # MLX may abort an interpreter that ends with a group, or wait for a rank that is gone
