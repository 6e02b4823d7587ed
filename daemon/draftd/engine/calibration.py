"""A short measurement at load: what an autoregressive round of the target costs, by batch size.

It runs what decoding runs, on the machine that decodes, so that the first drafted round already has a price to be
compared with.
"""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import Any

from draftd.core import (
    DecodeMode,
    DecodePlan,
    DecodeRequest,
    Emission,
    FallbackLevel,
    Outcome,
    SamplingParams,
)
from draftd.engine.batch import Row
from draftd.engine.sampling import Sampling
from draftd.engine.verification import LocalVerifier

_PROMPT = 32  # tokens of each row
_WARM_UP, _ROUNDS = 2, 8
_PLAN = DecodePlan(DecodeMode.AUTOREGRESSIVE, 0, None, FallbackLevel.FULL, "", "calibration")


def measure(model: Any, vocabulary: int, max_batch: int, seconds: float) -> dict[int, float]:
    """Median seconds of a round by batch size: 1, then doubled up to `max_batch`, while `seconds` are not used up.

    The first size is measured in any case. Engine thread only.
    """
    verifier, rows, found = LocalVerifier(model, vocabulary), list[Row](), dict[int, float]()
    began, size = time.perf_counter(), 1
    while True:
        while len(rows) < size:
            rows.append(_join(verifier, len(rows), vocabulary))
        found[size] = _rounds(verifier, rows)
        if size >= max_batch or time.perf_counter() - began >= seconds:
            return found
        size = min(2 * size, max_batch)


def _join(verifier: LocalVerifier, index: int, vocabulary: int) -> Row:
    prompt = tuple((7 * i + index) % vocabulary for i in range(_PROMPT))
    request = DecodeRequest(f"calibration-{index}", prompt, 1 << 20, _PLAN, 0.0)
    row = Row.of(request, _Nobody(), 1 << 30)
    token = verifier.prefill(row, _PROMPT)
    while token is None:
        token = verifier.prefill(row, _PROMPT)
    row.tokens.append(token)
    verifier.join(row)
    return row


def _rounds(verifier: LocalVerifier, rows: list[Row]) -> float:
    """Pipelined as decoding is. The last is not, so that a newcomer can join after it, and is not measured."""
    sampling, ticks = Sampling([SamplingParams()] * len(rows)), list[float]()
    for i in range(_WARM_UP + _ROUNDS + 2):
        last = i == _WARM_UP + _ROUNDS + 1
        for row, token in zip(rows, verifier.advance(rows, sampling, ahead=not last), strict=True):
            row.tokens.append(token)
        ticks.append(time.perf_counter())
    measured = ticks[_WARM_UP:-1]
    return statistics.median(after - before for before, after in pairwise(measured))


class _Nobody:
    def on_tokens(self, emission: Emission) -> None:
        return None

    def on_finish(self, outcome: Outcome) -> None:
        return None
