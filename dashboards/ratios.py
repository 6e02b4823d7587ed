"""Ratios that panels and alerts share, each defined once, as PromQL.

`selector` is the text between the braces (may be empty), `window` a range (`5m`, `$__rate_interval`), `by` the labels
to keep, `offset` how far back to look. Each denominator is guarded: without drafts there is no value, instead of NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftd.telemetry import attributes as a
from draftd.telemetry import catalog
from draftd.telemetry.attributes import Attribute
from draftd.telemetry.catalog import Metric

INSTANCE = "instance"  # Prometheus's name of service.instance.id


def label(attribute: Attribute) -> str:
    """Returns an attribute's name as a label in Prometheus."""
    return attribute.name.replace(".", "_")


# Labels that separate acceptance: the daemon, the pair, the prompt category.
BY_WORKLOAD: tuple[str, ...] = (INSTANCE, label(a.MODEL), label(a.DRAFT_MODEL), label(a.WORKLOAD))


def matching(*matchers: str) -> str:
    """Joins label matchers to a selector, without empty ones."""
    return ", ".join(matcher for matcher in matchers if matcher)


def summed(
    metric: Metric, selector: str, window: str, by: Sequence[str] = (), *, offset: str = "", function: str = "rate"
) -> str:
    """Returns the rate of a counter (or another `function`, such as the increase), summed over all labels except
    `by`."""
    braces = f"{{{selector}}}" if selector else ""
    back = f" offset {offset}" if offset else ""
    grouping = f" by ({', '.join(by)})" if by else ""
    return f"sum{grouping} ({function}({metric.prometheus}{braces}[{window}]{back}))"


def acceptance(selector: str, window: str, by: Sequence[str] = (), *, offset: str = "") -> str:
    """Returns accepted divided by drafted tokens, the usual definition. It falls as blocks grow at constant quality."""
    accepted = summed(catalog.ACCEPTED_TOKENS, selector, window, by, offset=offset)
    drafted = summed(catalog.DRAFT_TOKENS, selector, window, by, offset=offset)
    return f"{accepted} / ({drafted} > 0)"


def acceptance_at(position: int, selector: str, window: str, by: Sequence[str] = (), *, offset: str = "") -> str:
    """Returns acceptance at one position in the draft. At position 0 it does not depend on the block's length."""
    there = matching(selector, f'{label(a.POSITION)}="{position}"')
    accepted = summed(catalog.ACCEPTED_PER_POS, there, window, by, offset=offset)
    drafted = summed(catalog.DRAFTED_PER_POS, there, window, by, offset=offset)
    return f"{accepted} / ({drafted} > 0)"


def acceptance_per_token(selector: str, window: str, by: Sequence[str] = (), *, offset: str = "") -> str:
    """Returns acceptance of a drafted token that the target reaches: accepted / (accepted + rollbacks), at any block
    length.

    It is the maximum-likelihood estimate of the alpha of Leviathan et al. 2023 (arXiv 2211.17192).
    """
    accepted = summed(catalog.ACCEPTED_TOKENS, selector, window, by, offset=offset)
    rollbacks = summed(catalog.ROLLBACKS, selector, window, by, offset=offset)
    return f"{accepted} / (({accepted} + {rollbacks}) > 0)"


def mean_accepted_length(selector: str, window: str, by: Sequence[str] = (), *, offset: str = "") -> str:
    """Returns the tokens that a drafted step gives: 1 + accepted / drafts. It counts the bonus token, and tokens cut at
    the end of a text."""
    accepted = summed(catalog.ACCEPTED_TOKENS, selector, window, by, offset=offset)
    drafts = summed(catalog.DRAFTS, selector, window, by, offset=offset)
    return f"1 + {accepted} / ({drafts} > 0)"


def draft_cost(selector: str, window: str, by: Sequence[str] = (), *, offset: str = "") -> str:
    """Returns the measured cost of a drafted step in autoregressive steps of the same batch. No value if it is
    unknown."""
    drafts = summed(catalog.DRAFTS, selector, window, by, offset=offset)
    unpriced = summed(catalog.UNPRICED_DRAFTS, selector, window, by, offset=offset)
    needed = summed(catalog.BREAK_EVEN_TOKENS, selector, window, by, offset=offset)
    return f"(1 + {needed} / (({drafts} - {unpriced}) > 0))"


def break_even_acceptance(selector: str, window: str, by: Sequence[str] = (), *, offset: str = "") -> str:
    """Returns accepted divided by drafted tokens at which the same steps would be as fast as autoregressive ones.
    Tokens cut at the end of a text must be accepted in addition."""
    drafts = summed(catalog.DRAFTS, selector, window, by, offset=offset)
    cost = draft_cost(selector, window, by, offset=offset)
    cut = summed(catalog.CUT_TOKENS, selector, window, by, offset=offset)
    drafted = summed(catalog.DRAFT_TOKENS, selector, window, by, offset=offset)
    return f"({drafts} * ({cost} - 1) + {cut}) / ({drafted} > 0)"


def speedup(selector: str, window: str, by: Sequence[str] = (), *, offset: str = "") -> str:
    """Returns the measured speed of drafted steps divided by that of autoregressive steps of the same batch; above 1
    they pay. Tokens cut at the end of a text do not count."""
    drafts = summed(catalog.DRAFTS, selector, window, by, offset=offset)
    accepted = summed(catalog.ACCEPTED_TOKENS, selector, window, by, offset=offset)
    cut = summed(catalog.CUT_TOKENS, selector, window, by, offset=offset)
    cost = draft_cost(selector, window, by, offset=offset)
    return f"({drafts} + {accepted} - {cut}) / (({drafts} * {cost}) > 0)"


def forwards_per_token(forwards: Metric, selector: str, window: str, by: Sequence[str] = ()) -> str:
    """Returns forward passes (of the draft or of the target) per emitted token."""
    output = matching(selector, f'{label(a.TOKEN_TYPE)}="output"')
    return f"{summed(forwards, selector, window, by)} / ({summed(catalog.TOKENS, output, window, by)} > 0)"


def latency(quantile: float, histogram: Metric, selector: str, window: str, by: Sequence[str] = (),
            *, offset: str = "") -> str:  # fmt: skip
    """Returns a quantile of a histogram, in seconds. Without observations there is no value, instead of NaN."""
    braces = f"{{{selector}}}" if selector else ""
    back = f" offset {offset}" if offset else ""
    name = histogram.prometheus
    grouping = f" by ({', '.join(by)})" if by else ""
    buckets = f"sum by ({', '.join((*by, 'le'))}) (rate({name}_bucket{braces}[{window}]{back}))"
    count = f"sum{grouping} (rate({name}_count{braces}[{window}]{back}))"
    return f"histogram_quantile({quantile:g}, {buckets}) and ({count} > 0)"
