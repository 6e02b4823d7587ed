"""A head is fed each hidden state once, and a perfect one is accepted whole."""

from __future__ import annotations

import random

from draftd.core import DRAFT_HEAD
from draftd.engine.pair import LoadedModels
from draftd.models.head_families import MTP
from tests.heads.targets import HEAD_KINDS, KINDS, target_with_head
from tests.rig import Rig, autoregressive, request, speculative
from tests.rigged_head import TOLERANCE, TOLERANCE_OF_STATES, RiggedHead, check_fed, rigged

_TURNS, _TOKENS = 6, 28


def check() -> tuple[dict[str, int], list[str]]:
    """Decodes batches of unlike lengths, some of which go on from earlier texts, in slices of several widths, with
    heads that are right always or often. Returns the positions that were compared, and what failed."""
    failures, positions = list[str](), 0
    for kind in KINDS:
        models = target_with_head(kind)
        for right in (1.0, 0.6):
            for chunk in (512, 24):
                try:
                    tolerance = TOLERANCE_OF_STATES if kind in ("window", "recurrent") else TOLERANCE
                    positions += _decode_turns(models, rigged(HEAD_KINDS.get(kind, MTP)), right, chunk, tolerance)
                except AssertionError as error:
                    failures.append(f"{kind}, {right:.0%} right, slices of {chunk}: {error}")
        print(f"{kind:16} {positions} positions so far", flush=True)
    return {"positions": positions}, failures


def _decode_turns(models: LoadedModels, drafter: type[RiggedHead], right: float, chunk: int, tolerance: float) -> int:
    rig, dice = Rig(models, prefill_chunk=chunk, prefix_bytes=256 << 20, head_drafter=drafter), random.Random(chunk)
    head = rig.scheduler.local.drafting.drafters[DRAFT_HEAD]
    assert isinstance(head, RiggedHead)
    earlier, positions = [list[int]()], 0
    for number in range(_TURNS):
        texts = [
            [*dice.choice(earlier), *(dice.randrange(5, 900) for _ in range(dice.randrange(3, 60)))] for _ in "123"
        ]
        plain = Rig(models).run([request(text, autoregressive(), max_tokens=_TOKENS + 8) for text in texts])
        head.right, head.fed_features = right, []
        head.answers = {tuple(t): [*t, *sink.tokens] for t, sink in zip(texts, plain, strict=True)}
        depth = 1 + number % 4
        sinks = rig.run([request(text, speculative(depth, DRAFT_HEAD), max_tokens=_TOKENS) for text in texts])
        assert [sink.tokens for sink in sinks] == [sink.tokens[:_TOKENS] for sink in plain], "a text differs"
        counts = [sink.done.stats.counts for sink in sinks]
        drafted, accepted = sum(c.drafted for c in counts), sum(c.accepted for c in counts)
        assert drafted > _TOKENS / 2, f"only {drafted} tokens were drafted"
        ended = any(len(sink.tokens) < _TOKENS + 8 for sink in plain)  # nothing is right beyond its end
        assert right < 1.0 or ended or drafted == accepted, f"{accepted} of {drafted} accepted at depth {depth}"
        check_fed(models, head, whole=False, tolerance=tolerance)
        positions += sum(features.positions for _, features in head.fed_features)
        earlier = [[*text, *sink.tokens] for text, sink in zip(texts, sinks, strict=True) if len(text) < 200] or [[]]
    return positions
