"""The other ranks of a plan, for a daemon that has rank 0: where it is called, and the processes that it starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from draftd.ranks.followers import Followers
from draftd.ranks.handshake import listen_for_followers
from draftd.ranks.models import Share
from draftd.ranks.plan import GroupPlan
from draftd.settings import Settings


class StartedRanks:
    """`Ranks` of engine_process. Listens from when it is made until it is closed: where the group begins anew,
    followers wait."""

    def __init__(
        self,
        settings: Settings,
        plan: GroupPlan,
        environ: Mapping[str, str],
        group: str,
        out: Callable[[str], None] | None = None,
    ) -> None:
        """`out` as `Followers` has it. Raises ConfigError where it cannot listen."""
        self._settings, self._plan, self._group = settings, plan, group
        self._followers = Followers(settings, plan, environ, out=out)
        self._listener = listen_for_followers(plan)

    def start(self) -> Share:
        host, port = self._listener.getsockname()[:2]
        self._followers.start(f"{host}:{port}")
        return Share(self._plan, self._group, self._listener.fileno(), self._settings.distributed)

    def gone(self) -> str:
        ended = self._followers.ended()
        return "" if ended is None else str(ended)

    def stop(self) -> None:
        self._followers.stop()

    def close(self) -> None:
        self._listener.close()
