"""`python -m tests.ranks.rank_0 PORT MODEL TIMEOUT`: rank 0 alone, without a daemon, of a group whose followers others
start. Prints a line of JSON for each group that begins and for each text; reads what to do from its standard input:
`decode`, `end`."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from draftd.engine.pair import ModelPaths
from draftd.engine.ranks.channel import RanksLost
from draftd.errors import DraftdError
from draftd.process.main import begin_group
from draftd.ranks.handshake import listen_for_followers
from draftd.ranks.hostfile import Host
from draftd.ranks.plan import LOOPBACK, GroupPlan, GroupShare, Start
from draftd.settings import DistributedSettings


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def lost(error: RanksLost) -> None:
    say(lost=error.loss, why=error.message)
    os._exit(1)


def main() -> None:
    port, model, timeout = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    plan = GroupPlan("ring", (Host(LOOPBACK, (LOOPBACK,)),) * 2, Start.LOCAL, LOOPBACK, port)
    paths = ModelPaths(model, prompt_lookup=False)
    try:
        settings = DistributedSettings(timeout_seconds=timeout, start_seconds=60.0)
        share = GroupShare(plan, "g1", listen_for_followers(plan).detach(), settings)
        group, channel = begin_group(share, paths, lambda line: print(line, file=sys.stderr), lost)
    except DraftdError as error:
        say(refused=error.message)
        sys.exit(1)
    from tests.rig import Rig, autoregressive, request

    models = paths(lambda line: None, group=group, sender=channel)
    say(began=group.size)
    for line in sys.stdin:
        if line.strip() == "end":
            break
        (text,) = Rig(models).run([request((260, 263, 266, 269), autoregressive(), max_tokens=24)])
        say(tokens=text.tokens)
    channel.close()


if __name__ == "__main__":
    main()
