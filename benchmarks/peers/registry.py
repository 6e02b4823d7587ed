"""Lists the parts in the order in which they are measured."""

from __future__ import annotations

from benchmarks.peers.clients import Clients
from benchmarks.peers.growth import Growth
from benchmarks.peers.long_prompts import LongPrompts
from benchmarks.peers.never_slower import NeverSlower
from benchmarks.peers.open_loop import OpenLoop
from benchmarks.peers.part import Part
from benchmarks.peers.prefix import Prefix
from benchmarks.peers.regret import Regret
from benchmarks.peers.short_requests import ShortRequests


def parts() -> tuple[Part, ...]:
    return (Clients(), OpenLoop(), LongPrompts(), Prefix(), ShortRequests(), Regret(), NeverSlower(), Growth())
