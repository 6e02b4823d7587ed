"""`python -m tests.remote`: is the text over the network the verifier's own, byte for byte? (about a quarter of an
hour) `python -m tests.remote faults`: is a request lost or wrong when verifier or network fail? (as long)

--prompts N   prompts, as many of each category (200)
--each N      prompts for each round trip and depth, the next N each time (50); 0 for all (two hours)
--requests N  requests of the faults (500)
--tokens N    maximum tokens of an answer
--seed N      seed of the faults' order
--only NAME   only this fault; may be repeated
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys

from draftd.models.blas import load_blas
from tests.remote import faults, parity
from tests.remote.asking import Reference, Wanted
from tests.remote.daemons import DRAFT, NO_DRAFT, TARGET, draft_edge, pair_edge, two_daemons, until_remote

_PROBE_SECONDS = 5.0
_UP_SECONDS = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.remote", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("what", nargs="?", choices=["text", "faults"], default="text")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--each", type=int, default=50)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], choices=[one.name for one in faults.FAULTS])
    given = parser.parse_args()
    load_blas()
    return text(given) if given.what == "text" else broken(given)


def text(given: argparse.Namespace) -> int:
    with contextlib.ExitStack() as stack:
        reference = Reference(TARGET)
        stack.callback(reference.close)
        patient = {"step_seconds": 30}  # what is asked is whether texts are right, however busy this machine is
        edges = [
            stack.enter_context(two_daemons(edge=pair_edge(**patient), verifier=NO_DRAFT)),
            stack.enter_context(two_daemons(edge=draft_edge(**patient))),
        ]
        for two in edges:
            until_remote(two, _UP_SECONDS)
        texts = parity.prompts(given.prompts)
        found = parity.run(edges, reference, texts, each=given.each or None, most=given.tokens, told=_say)
    print(found.report())
    print(*found.broken[:20], sep="\n")
    print(json.dumps({"requests": found.requests, "tokens": found.tokens, "wrong": len(found.broken)}))
    return 1 if found.broken else 0


def broken(given: argparse.Namespace) -> int:
    texts = parity.prompts(200)
    wanted = [Wanted(texts[i % len(texts)], given.tokens, None if i % 3 else 2000 + i) for i in range(given.requests)]
    chosen = [one for one in faults.FAULTS if not given.only or one.name in given.only]
    edge = draft_edge(default_strategy="speculative", probe_seconds=_PROBE_SECONDS)
    with contextlib.ExitStack() as stack:
        target, draft = Reference(TARGET), Reference(DRAFT)
        stack.callback(target.close)
        stack.callback(draft.close)
        two = stack.enter_context(two_daemons(edge=edge))
        until_remote(two, _UP_SECONDS)
        two.network(0.015)
        found = faults.run(
            two, target, draft, wanted, probe_seconds=_PROBE_SECONDS, faults=chosen, seed=given.seed, told=_say
        )
    print(found.report())
    print(*found.broken[:20], sep="\n")
    said = {"requests": found.requests, "faults": found.injected.total(), "wrong": len(found.broken)}
    print(json.dumps({**said, "reconciled": found.reconciled}))
    return 1 if found.broken else 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # MLX may abort an interpreter that ends after two engines were in it
