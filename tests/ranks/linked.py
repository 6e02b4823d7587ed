"""Two ranks that a launcher has started, as `mlx.launch … draftd serve` does, with a simulated network between them:
each has a hostfile of its own, in which the other is a proxy."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from draftd.client.client import DraftdClient
from tests.proxy import Proxy, proxied
from tests.ranks import ring
from tests.remote.daemons import free_port
from tests.wait_until import until


class LinkedRanks:
    """The two ranks. `ring[i]` is the connection that rank i opens to the next one; `control` is that of rank 1 to rank
    0."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, settings: Mapping[str, object]) -> None:
        nodes, control, self._port = [free_port(), free_port()], free_port(), free_port()
        self.ring: list[Proxy] = [stack.enter_context(proxied(nodes[1])), stack.enter_context(proxied(nodes[0]))]
        self.control: Proxy = stack.enter_context(proxied(control))
        self.lines: list[list[str]] = [[], []]
        self.processes = list[subprocess.Popen[str]]()
        for rank, others in enumerate(self.ring):
            ports = [nodes[0], others.port] if rank == 0 else [others.port, nodes[1]]
            hostfile = folder / f"hostfile-{rank}.json"
            hostfile.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in ports]))
            environ = {
                **{name: value for name, value in ring.environ().items() if not name.startswith(("DRAFTD_", "OTEL_"))},
                "XDG_STATE_HOME": str(folder / f"state-{rank}"),
                "MLX_RANK": str(rank),
                "MLX_HOSTFILE": str(hostfile),
                "DRAFTD_DISTRIBUTED__PORT": str(self.control.port if rank else control),
                "DRAFTD_SERVER__PORT": str(self._port),
                "DRAFTD_FLAG__FILE": str(folder / "flags.json"),
                **{f"DRAFTD_{name.replace('.', '__').upper()}": str(value) for name, value in settings.items()},
            }
            command = [sys.executable, "-m", "draftd", "serve"]
            process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environ, text=True)
            self.processes.append(process)
            stack.callback(self._end, process)
            threading.Thread(target=self._read, args=(rank,), daemon=True).start()
        self.client = stack.enter_context(DraftdClient(f"127.0.0.1:{self._port}"))

    def serving(self, seconds: float) -> None:
        try:
            until(self.client.serving, seconds)
        except AssertionError:
            raise AssertionError(f"the ranks do not serve: {self.lines}") from None

    def lost(self) -> dict[str, int]:
        """Returns how often the group was lost, by reason."""
        return dict(self.client.status().group.losses)

    def stop(self, seconds: float) -> list[int]:
        """Stops rank 0. Returns the exit codes of both."""
        self.processes[0].terminate()
        return [one.wait(seconds) for one in self.processes]

    def _read(self, rank: int) -> None:
        stream = self.processes[rank].stderr
        assert stream is not None
        self.lines[rank].extend(line.rstrip() for line in stream)

    @staticmethod
    def _end(process: subprocess.Popen[str]) -> None:
        process.kill()
        process.wait()


@contextlib.contextmanager
def linked_ranks(folder: Path, **settings: object) -> Iterator[LinkedRanks]:
    """Starts both ranks. `settings` apply to both, by their dotted names."""
    with contextlib.ExitStack() as stack:
        yield LinkedRanks(folder, stack, settings)
