"""What the engine has learnt of drafting, as a client is told it: prices, acceptance, and the depths that follow."""

from __future__ import annotations

from collections.abc import Sequence

from draftd.engine.depth.acceptance_rates import Acceptance, Evidence, emitted
from draftd.engine.depth.saved import Learnt
from draftd.errors import NotServing
from draftd.protocol import WORKLOADS, duration
from draftd.v1 import control_pb2 as pb

_WORKLOADS = {workload: number for number, workload in WORKLOADS.items()}


def told(learnt: Learnt | None, most: int) -> pb.GetDepthResponse:
    """`most`: tokens that a round may draft. Raises NotServing where nothing is known yet."""
    if learnt is None:
        raise NotServing(
            "nothing is known of drafting yet: the models are not loaded, or there is nothing to draft with"
        )
    prices, costs = learnt.prices, learnt.costs(None)
    acceptance = Acceptance(max(1, most))
    for key, (tried, stood) in learnt.acceptance.items():
        acceptance.evidence[key] = Evidence.of(key, tried, stood, 1.0)
    drafters = sorted({*prices.drafted, *(key[0] for key in learnt.acceptance)})
    made = pb.GetDepthResponse()
    ratios: dict[tuple[object, int], list[float]] = {}
    for drafter in drafters:
        for batch in sorted(prices.plain) or [1]:
            plain = costs.plain(batch, prices.context)
            seconds = costs.drafted(drafter, batch, most, prices.context)[1:]
            ratios[drafter, batch] = [one / plain for one in seconds]
            made.costs.add(drafter=drafter, batch=batch, plain=duration(plain), ratios=ratios[drafter, batch])
    alone = min(prices.plain, default=1)
    for key in sorted(learnt.acceptance, key=str):
        drafter, sampled, seeded, workload = key
        if workload is None:  # all texts together, which those little seen are judged by
            continue
        rates = acceptance.rates(key)[:most]
        made.yields.add(
            drafter=drafter,
            workload=_WORKLOADS[workload],
            sampled=sampled,
            seeded=seeded,
            acceptance=rates,
            tried=learnt.acceptance[key][0][:most],
            depth=best(rates, ratios[drafter, alone]),
        )
    return made


def best(rates: Sequence[float], ratios: Sequence[float]) -> int:
    """The depth with the most expected tokens over what a round takes, beside a plain one; the shortest of equals."""
    tokens = emitted(rates, 1.0, len(rates))
    worth = [1.0, *(tokens[depth] / ratio for depth, ratio in enumerate(ratios, 1))]
    return max(range(len(worth)), key=lambda depth: worth[depth])
