"""Part `clients`: tokens per second of clients in a closed loop, with draftd divided by those with mlx-lm's own server.

A client in a closed loop sends its next prompt when the last one is answered. Both servers are new in each repetition,
have their defaults (the peer a batch as large as draftd's), and see each prompt once. Tokens count while all clients
are busy. Each client has three prompts. With one and a half the window was only the beginning: one server prefilled
eight prompts at once, and the other had already answered some of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.arms import Prompt
from benchmarks.peers.asking import AskDraftd, Asker, AskPeer
from benchmarks.peers.codec import Codec
from benchmarks.peers.load import closed_loop
from benchmarks.peers.mlx_server import peer
from benchmarks.peers.part import Pair
from benchmarks.single.figures import Found, Record, Row, median_of, same_share, spread
from benchmarks.single.part import AUTOMATIC, Turn
from draftd.core import WorkloadClass

PEER = "mlx_lm_server"
_PROMPTS: Mapping[int, int] = {1: 3, 4: 12, 8: 24}  # by number of clients
_WANTED = {("chat", 1): 1.0, ("chat", 4): 1.1, ("chat", 8): 1.1}
_EDIT = 1.3  # required for edits, with any number of clients
_MOST_TOKENS = {WorkloadClass.EDIT: 64}  # maximum of an answer; the copied parts of an edit come late


@dataclass(frozen=True, slots=True)
class Clients:
    name: str = "clients"
    title: str = "clients in a closed loop: total tokens per second, automatic depth over mlx_lm.server"
    kinds: Sequence[WorkloadClass] = (WorkloadClass.CHAT, WorkloadClass.EDIT)
    prompts: Mapping[int, int] = field(default_factory=lambda: _PROMPTS)
    max_tokens: int = 32

    def measure(self, turn: Turn) -> None:
        model = turn.processes.model
        batch = max(self.prompts)
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(peer(Pair(model, ""), draft_depth=None, batch=batch))
            askers: dict[str, Asker] = {
                AUTOMATIC: AskDraftd(turn.processes.daemon),
                PEER: AskPeer(server, Codec(model)),
            }
            for asker in askers.values():  # the warm-up is not kept
                closed_loop(asker, [turn.prompts.of_length(20, -2 - i) for i in range(2)], 2, 8)
            for kind in self.kinds:
                for clients, prompts in self._prompts(turn, kind):
                    for arm in turn.shuffled(tuple(askers)):
                        turn.processes.rest()
                        most = _MOST_TOKENS.get(kind, self.max_tokens)
                        load = closed_loop(askers[arm], prompts, clients, most)
                        record = {"workload": kind, "clients": clients, "rate": load.tokens_per_second}
                        texts = {stream.prompt: stream.text for stream in load.streams}
                        turn.add(arm, record | {"texts": texts, "load": load.record()})

    def _prompts(self, turn: Turn, kind: WorkloadClass) -> list[tuple[int, list[Prompt]]]:
        """Returns the prompts for each number of clients. Each prompt begins with a token of its own, because a
        category (class) has too few prompts to use each once."""
        pool = turn.of_class(kind, sum(self.prompts.values()))
        pool = turn.draw.sample(pool, len(pool))
        before = self.kinds.index(kind) * len(pool)
        pool = [turn.prompts.unlike_any(one, before + i) for i, one in enumerate(pool)]
        found, first = [], 0
        for clients, count in self.prompts.items():
            found.append((clients, pool[first : first + count]))
            first += count
        return found

    def found(self, records: Sequence[Record]) -> Found:
        figures: dict[str, dict[str, Any]] = {}
        rows = []
        for kind in sorted({one["workload"] for one in records}):
            for clients in sorted({one["clients"] for one in records}):
                rate = spread(records, AUTOMATIC, PEER, median_of("rate"), workload=kind, clients=clients)
                wanted = f"≥ {_WANTED.get((kind, clients), _EDIT)}"
                share = same_share(records, AUTOMATIC, PEER, workload=kind, clients=clients)
                rows.append(Row(f"{kind}, {clients} clients", rate, "tokens/s", wanted, f"{share:.0%} of texts equal"))
                figures.setdefault(kind, {})[str(clients)] = rate.document()
        return Found({"clients_vs_server": figures}, rows)
