"""What `draftd status` says of what is kept of finished requests."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from draftd.cli.commands.status import lines
from draftd.v1 import control_pb2 as pb


@pytest.mark.parametrize(
    ("cache", "said"),
    [
        (pb.PrefixCache(), "off"),
        (
            pb.PrefixCache(bytes=2_000_000, limit_bytes=8_000_000, entries=3, lookups=40, hits=30, read_tokens=900),
            "2 MB of 8 MB, 3 texts; 30 of 40 requests read 900 tokens",
        ),
        (pb.PrefixCache(lookups=4, hits=1, read_tokens=20), "0 B of 0 B, 0 texts; 1 of 4 requests read 20 tokens"),
    ],
)
def test_the_prefix_cache_is_told_of_in_a_line(cache: pb.PrefixCache, said: str) -> None:
    told = dict(lines(pb.GetStatusResponse(prefix_cache=cache), datetime.now(UTC)))
    assert told["prefix cache"] == said
    assert "prefix cache" not in dict(lines(pb.GetStatusResponse(), datetime.now(UTC)))
