"""The limit of open files, and how many connections clients may have within it."""

from __future__ import annotations

import subprocess
import sys

import pytest

_ASK = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from draftd.hardware.descriptors import most_connections, raise_limit
raise_limit()
print(*resource.getrlimit(resource.RLIMIT_NOFILE), most_connections())
"""


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "connections"),
    [
        (256, 600, 600, 344),  # some are reserved for the daemon's own files
        (100, 100, 100, 50),
        (256, 20_000, 10_240, 9_984),
    ],
)
def test_open_file_limit_is_raised_and_connections_stay_below_it(
    soft: int, hard: int, raised: int, connections: int
) -> None:
    code = _ASK.format(soft=soft, hard=hard)
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert process.stdout.split() == [str(raised), str(hard), str(connections)], process.stderr
