"""`python -m tests.ranks`: does a target on several ranks write the text of one rank? On a CPU ring over loopback, with
the embedded pair and a tiny model of every family that mlx-lm can shard or pipeline (ten minutes)

--ranks N     size of the group; may be repeated (2 and 4)
--only NAME   only this model; may be repeated. NAME:4bit has weights of 4 bits,
              NAME:pipeline is cut by layers even if its heads can be divided
--tokens N    tokens of each text (20)
--random N    requests that join and leave at random (12)
--seed N      seed of the requests that join, leave and are cancelled at random
--seconds N   maximum time of a model (300)

`python -m tests.ranks faults` kills, stops and disconnects ranks of a daemon: see there.
"""

from __future__ import annotations

import argparse
import json
import sys

from tests.models.architectures import version
from tests.ranks import faults, groups
from tests.ranks.shapes import EMBEDDED, families


def main() -> int:
    if sys.argv[1:2] == ["faults"]:
        return faults.main(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m tests.ranks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--ranks", type=int, action="append", choices=range(2, 9), metavar="N")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    for name, default in (("tokens", 20), ("random", 12), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=300.0)
    given = parser.parse_args()
    names = given.only or [EMBEDDED, *families()]
    options = [f"--{name}={getattr(given, name)}" for name in ("tokens", "random", "seed")]
    print(version(), flush=True)
    summary, broken = dict[str, object](), False
    for ranks in given.ranks or [2, 4]:
        found = groups.run(
            names,
            ranks,
            seconds=given.seconds,
            told=lambda one, n=ranks: _say(n, one),
            options=options,
        )
        run = [one for one in found if not one.get("refused") and not one.get("failed")]
        sums = {key: sum(one[key] for one in run) for key in ("texts", "tokens", "drafted", "accepted", "records")}
        lists = {key: sum(len(one[key]) for one in run) for key in ("ties", "different", "counters")}
        failed = [one["name"] for one in found if one.get("failed")]
        kinds = {kind: sum(one["parallel"] == kind for one in run) for kind in ("tensor", "pipeline")}
        refused = [one["name"] for one in found if one.get("refused")]
        summary[str(ranks)] = {**kinds, **sums, **lists, "refused": refused, "failed": failed}
        broken = broken or bool(failed or lists["different"] or lists["counters"])
    print(json.dumps(summary))
    return int(broken)


def _say(ranks: int, one: groups.Result) -> None:
    name = f"{ranks} ranks, {one['name']}"
    if why := one.get("refused"):
        print(f"{name}: refused: {why}", flush=True)
        return
    if "texts" in one:
        how = f"{one['parallel']}, {'batched' if one['batched'] else 'one by one'}"
        line = f"{name} ({how}): {one['texts']} texts, {one['accepted']} of {one['drafted']} drafted tokens accepted, "
        line += (
            f"{one['cached']} cached, {one['cancelled']} cancelled, {one['records']} records, {one['seconds']:.0f} s"
        )
        print(line, flush=True)
    for what in ("failed", "different", "counters", "ties"):
        said = one.get(what) or []
        for why in [said] if isinstance(said, str) else said[:3]:
            print(f"  {what}: {why}", flush=True)
        if not isinstance(said, str) and len(said) > 3:
            print(f"  {what}: {len(said) - 3} more", flush=True)


if __name__ == "__main__":
    sys.exit(main())
