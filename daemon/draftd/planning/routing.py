"""Chooses a request's strategy: local, remote, or drafted here and verified there. Pure: figures in, a table out.

Seconds to the complete answer = load + queue + prefill + tokens / throughput + round trips. Throughput is the recent
measurement, or else the engine's estimate (engine/remote/mode_control.py), or else that of a plain step for each token.

The cheapest option wins that has the wanted class and is within the limits; at one price, the fastest. Without prices
the fastest wins. If none is within the limits, the one wins that exceeds them least.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from draftd.planning.prices import PriceList, money
from draftd.strategies import QualityClass, RemoteEstimate, RemoteMode, Strategy

DEFAULT_QUALITY = QualityClass.STANDARD
"""The class that is wanted if the request names none."""


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """One request. `only`: the only strategy that is allowed, by the request or by the flag; None: the best.
    `demanded`: the request names it. `quality` None: DEFAULT_QUALITY is wanted, but not demanded. `no_drafts`: why the
    request may not draft; empty if it may. `local_only`, `token_ids_only`: as in `RequestedPlan`."""

    prompt_tokens: int
    tokens: float  # expected of the answer
    only: Strategy | None = None
    demanded: bool = False
    quality: QualityClass | None = None
    max_seconds: float | None = None
    max_cost: float | None = None
    no_drafts: str = ""
    local_only: str = ""
    token_ids_only: str = ""


@dataclass(frozen=True, slots=True)
class LocalState:
    """This daemon's engine now. `step`: seconds of a plain step. `prefill`: seconds to prefill one token. `load`,
    `queue`: seconds until the weights are loaded, and in the queue. `measured`: recent tokens per second; None if there
    were none. `batch`: sequences decoded together, the request's own included."""

    quality: QualityClass
    step: float
    prefill: float
    load: float = 0.0
    queue: float = 0.0
    measured: float | None = None
    batch: int = 1


@dataclass(frozen=True, slots=True)
class VerifierState:
    """The remote daemon now. `unavailable`: why it cannot be used. `speculation`: why it cannot verify for this daemon.
    `down`: it may be available again after `retry_after` seconds. `busy`: its open requests, divided by those that it
    decodes together. `measured`: recent tokens per second by strategy. `expected`: the engine's estimate; None until
    there is one."""

    unavailable: str = ""
    speculation: str = ""
    down: bool = False
    retry_after: float | None = None
    quality: QualityClass = QualityClass.PROFESSIONAL
    step: float = 0.0
    prefill: float = 0.0
    round_trip: float | None = None
    busy: float = 0.0
    measured: Mapping[Strategy, float] = field(default_factory=dict)
    expected: RemoteEstimate | None = None


@dataclass(frozen=True, slots=True)
class RouteEstimate:
    """An estimate of one option: seconds, tokens per second, cost. `round_trips`: None if not measured. `cost`: None if
    no price is known."""

    load: float
    queue: float
    prefill: float
    decode: float
    round_trips: float | None
    tokens_per_second: float
    measured: bool
    cost: float | None

    @property
    def seconds(self) -> float:
        return self.load + self.queue + self.prefill + self.decode + (self.round_trips or 0.0)


@dataclass(frozen=True, slots=True)
class RouteOption:
    """A row of the table. `unavailable`: why the strategy cannot be used; it then has no estimate. `why`: why it was
    chosen, or why not."""

    strategy: Strategy
    quality: QualityClass
    unavailable: str = ""
    estimate: RouteEstimate | None = None
    chosen: bool = False
    why: str = ""

    @property
    def available_estimate(self) -> RouteEstimate:
        """The estimate of a strategy that can be used."""
        assert self.estimate is not None
        return self.estimate


@dataclass(frozen=True, slots=True)
class Route:
    """The table and the choice. `strategy`: None if the request is refused. `refusal`: why; a retry may help if the
    remote is `down`. `reason`: the choice in words, for people. `wanted`: the least class."""

    ways: tuple[RouteOption, ...]
    strategy: Strategy | None
    reason: str
    wanted: QualityClass
    refusal: str = ""
    down: bool = False
    retry_after: float | None = None

    def way(self, strategy: Strategy) -> RouteOption:
        return next(way for way in self.ways if way.strategy is strategy)


def choose(request: RouteRequest, local: LocalState, remote: VerifierState, prices: PriceList) -> Route:
    """Returns the table and the choice. A class that the request names is demanded: if no option reaches it, the
    request is refused. Limits of time and cost are wishes, because estimates promise nothing."""
    ways = list_options(request, local, remote, prices)
    considered, available, note = ways, [way for way in ways if not way.unavailable], ""
    if request.only is not None:
        wanted = next(way for way in ways if way.strategy is request.only)
        if wanted.unavailable and request.demanded:
            why = f"the request demands strategy {request.only}, which is not available: {wanted.unavailable}"
            return _refusal(ways, why, [wanted], request, remote)
        if wanted.unavailable:
            note = f"no strategy {request.only}: {wanted.unavailable}"
        available = [
            way for way in available if way.strategy is (Strategy.LOCAL if wanted.unavailable else request.only)
        ]
        considered = [wanted, *available]
    good_enough = [way for way in available if way.quality >= (request.quality or DEFAULT_QUALITY)]
    if not good_enough and request.quality is not None:
        whys = dict.fromkeys(way.unavailable or f"{way.strategy} is {way.quality.label}" for way in considered)
        return _refusal(
            ways, f"quality {request.quality.label} is wanted: {'; '.join(whys)}", considered, request, remote
        )
    if not good_enough:  # none is good enough, and the request does not insist
        best = max(way.quality for way in available)
        good_enough = [way for way in available if way.quality is best]
    in_limits = [way for way in good_enough if not _missed_limit(way, request, prices)]
    costs = [way.available_estimate.cost for way in in_limits or good_enough]
    by_money = None not in costs
    chosen = min(
        in_limits or good_enough,
        key=lambda way: _order(way, by_money) if in_limits else (_excess(way, request), *_order(way)),
    )
    missed = "" if in_limits else _missed_limit(chosen, request, prices)
    rows = tuple(_with_reason(way, chosen, request, prices, good_enough, missed) for way in ways)
    reason = _reason(request, rows, chosen, prices, note, missed)
    return Route(rows, chosen.strategy, reason, request.quality or DEFAULT_QUALITY)


def list_options(
    request: RouteRequest, local: LocalState, remote: VerifierState, prices: PriceList
) -> list[RouteOption]:
    """Returns the options local, remote and speculative, each with its estimate or with why it is not available."""
    tokens = max(1.0, request.tokens)
    rate = local.measured or 1 / local.step
    prefill, decode, measured = request.prompt_tokens * local.prefill, tokens / rate, bool(local.measured)
    cost = prices.local_cost(prefill + decode / local.batch, tokens)
    local_estimate = RouteEstimate(local.load, local.queue, prefill, decode, 0.0, rate, measured, cost)
    ways = [RouteOption(Strategy.LOCAL, local.quality, "", local_estimate)]
    for strategy in (Strategy.REMOTE, Strategy.SPECULATIVE):
        drafts = strategy is Strategy.SPECULATIVE
        why = remote.unavailable or ((remote.speculation or request.no_drafts) if drafts else "")
        estimate = None if why else _estimate_remote(request, remote, prices, strategy)
        ways.append(RouteOption(strategy, remote.quality, why, estimate))
    return ways


def _estimate_remote(
    request: RouteRequest, remote: VerifierState, prices: PriceList, strategy: Strategy
) -> RouteEstimate:
    """Estimates a strategy that uses the remote. Without the engine's estimate, drafting counts as fast as the remote's
    own streaming, which is used when drafts do not pay."""
    tokens, rate, target, draft = max(1.0, request.tokens), 1 / remote.step, remote.step, 0.0
    if (expected := remote.expected) is not None:
        rate = expected.rates[RemoteMode.STREAM]
        if strategy is Strategy.SPECULATIVE:
            rate, target, draft = expected.rate, expected.target_seconds, expected.draft_seconds
    measured = remote.measured.get(strategy)
    rate = measured or rate
    if strategy is Strategy.REMOTE:
        target = min(target, 1 / rate)  # less than a plain step for each token if the remote drafts by itself
    prefill = request.prompt_tokens * remote.prefill
    queue = max(0.0, remote.busy - 1) * (prefill + tokens / rate)
    estimate = RouteEstimate(0.0, queue, prefill, tokens / rate, remote.round_trip, rate, bool(measured), None)
    remote_cost = prices.remote_cost(estimate.seconds, prefill + target * tokens, tokens)
    local_cost = prices.local_cost(draft * tokens, 0.0)
    return replace(estimate, cost=None if remote_cost is None else remote_cost + (local_cost or 0.0))


def _missed_limit(way: RouteOption, request: RouteRequest, prices: PriceList) -> str:
    """Returns the limit that the option exceeds, as text for people; empty if there is none. An unknown cost exceeds no
    limit."""
    seconds, cost = way.available_estimate.seconds, way.available_estimate.cost
    if request.max_seconds is not None and seconds > request.max_seconds:
        return f"{_format_seconds(seconds)} is over max_seconds {request.max_seconds:g}"
    if request.max_cost is not None and cost is not None and cost > request.max_cost:
        return f"{money(prices.currency, cost)} is over max_cost {request.max_cost:g}"
    return ""


def _excess(way: RouteOption, request: RouteRequest) -> float:
    """Returns how far the option exceeds its limits: the larger ratio."""
    estimate = way.available_estimate
    over = [estimate.seconds / request.max_seconds] if request.max_seconds else []
    if request.max_cost and estimate.cost is not None:
        over.append(estimate.cost / request.max_cost)
    return max(over, default=0.0)


def _order(way: RouteOption, by_money: bool = True) -> tuple[float, float]:
    return (way.available_estimate.cost or 0.0) if by_money else 0.0, way.available_estimate.seconds


def _with_reason(
    way: RouteOption,
    chosen: RouteOption,
    request: RouteRequest,
    prices: PriceList,
    good_enough: Sequence[RouteOption],
    missed: str,
) -> RouteOption:
    if way is not chosen:
        return replace(way, why=_why_not(way, request, chosen, prices, good_enough))
    if request.only is chosen.strategy:
        why = "demanded" if request.demanded else "by the flag decoding-strategy"
    elif missed:
        why = f"exceeds the limits least: {missed}"
    elif len(good_enough) == 1:
        why = f"alone reaches {(request.quality or DEFAULT_QUALITY).label}"
        if way.quality < (request.quality or DEFAULT_QUALITY):
            why = "has the best class"
    else:
        why = "cheapest" if prices.known else "fastest"
    return replace(way, chosen=True, why=why)


def _why_not(
    way: RouteOption, request: RouteRequest, chosen: RouteOption, prices: PriceList, good_enough: Sequence[RouteOption]
) -> str:
    """Returns why the option was not chosen, in a few words that include its name."""
    if way.unavailable:
        return f"no strategy {way.strategy}: {way.unavailable}"
    if request.only is not None and request.only is not way.strategy:
        return f"{way.strategy} was not requested"
    if way not in good_enough:
        return f"{way.strategy} is {way.quality.label}"
    if missed := _missed_limit(way, request, prices):
        return f"{way.strategy}: {missed}"
    own_estimate, chosen_estimate = way.available_estimate, chosen.available_estimate
    if own_estimate.cost is not None and chosen_estimate.cost is not None and own_estimate.cost > chosen_estimate.cost:
        return f"{way.strategy} costs {money(prices.currency, own_estimate.cost)}"
    return f"{way.strategy} takes {_format_seconds(own_estimate.seconds)}"


def _reason(
    request: RouteRequest, ways: Sequence[RouteOption], chosen: RouteOption, prices: PriceList, note: str, missed: str
) -> str:
    if request.only is not None:
        summary = f"strategy: {'request' if request.demanded else 'flag'}: {chosen.strategy}"
        return "; ".join(part for part in (summary, note, missed) if part)
    estimate = chosen.available_estimate
    spent = "" if estimate.cost is None else f" and {money(prices.currency, estimate.cost)}"
    seconds = _format_seconds(estimate.seconds)
    summary = f"strategy: auto: {chosen.strategy}, {seconds}{spent} for {chosen.quality.label}"
    missing: dict[str, list[str]] = {}
    for way in ways:
        missing.setdefault(way.unavailable, []).append(way.strategy)
    others = [way.why for way in ways if not (way.chosen or way.unavailable)]
    others += [f"no strategy {' or '.join(names)}: {why}" for why, names in missing.items() if why]
    return "; ".join(part for part in (summary, missed, *others) if part)


def _refusal(
    ways: Sequence[RouteOption],
    why: str,
    considered: Sequence[RouteOption],
    request: RouteRequest,
    remote: VerifierState,
) -> Route:
    """Returns the route of a refused request. A retry may help if an option in `considered` is down."""
    down = remote.down and any(way.unavailable for way in considered)
    rows = tuple(replace(way, why=way.unavailable or f"{way.strategy} is {way.quality.label}") for way in ways)
    return Route(rows, None, "", request.quality or DEFAULT_QUALITY, why, down, remote.retry_after if down else None)


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 100 else f"{seconds:.2g} s"
