"""Lists the parts in the order in which a repetition measures them."""

from __future__ import annotations

from benchmarks.single.clients import Clients
from benchmarks.single.decoding import Autoregressive, Batch, Classes
from benchmarks.single.first_token import FirstToken
from benchmarks.single.part import Part
from benchmarks.single.start import Start
from benchmarks.single.wide import Wide


def parts() -> tuple[Part, ...]:
    return (Autoregressive(), Batch(), Classes(), Wide(), Start(), Clients(), FirstToken())
