"""python -m benchmarks.peers"""

import sys

from benchmarks.peers.command import main
from benchmarks.peers.registry import parts

if __name__ == "__main__":
    sys.exit(main(None, parts()))
