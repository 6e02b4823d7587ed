"""The verifier and the drafters that hold the rows' texts. After a failed round all are made anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from draftd.core import DrafterName
from draftd.engine.drafters.base import Drafter
from draftd.engine.observer import EngineObserver
from draftd.engine.sequence import DecodeSequence
from draftd.engine.targets.base import Verifier


class Decoders:
    """Engine thread only."""

    def __init__(
        self,
        verifier: Callable[[], Verifier],
        drafters: Callable[[], Mapping[DrafterName, Drafter]],
        observer: EngineObserver,
        renewed: Callable[[DrafterName], None] = lambda kind: None,
    ) -> None:
        """`renewed` is told when another drafter stands behind a name."""
        self._make_verifier, self._make_drafters, self._observer = verifier, drafters, observer
        self._renewed = renewed
        self.verifier, self.drafters = verifier(), dict(drafters())
        self.barred: frozenset[DrafterName] = frozenset()  # there, but newcomers no longer get them

    @property
    def offered(self) -> frozenset[DrafterName]:
        """What newcomers may draft with."""
        return frozenset(self.drafters) - self.barred

    @property
    def nbytes(self) -> int:
        """Of key-value caches."""
        return self.verifier.nbytes + sum(drafter.nbytes for drafter in self.drafters.values())

    def put(self, kind: DrafterName, drafter: Drafter) -> None:
        """From the next round on this one drafts; it must know the rows that do so with a fixed depth."""
        self.remove(kind)
        self.drafters[kind] = drafter
        self._renewed(kind)

    def remove(self, kind: DrafterName) -> None:
        """Forgets a drafter that no row uses."""
        drafter = self.drafters.pop(kind, None)
        if drafter is not None:
            drafter.close()

    def leave(self, row: DecodeSequence) -> None:
        """No drafter has to know this row any more."""
        for drafter in self.drafters.values():
            drafter.leave(row)

    def drafter_failed(self, row: DecodeSequence, message: str) -> None:
        """The row goes on autoregressively."""
        row.degrade(f"the drafter failed: {message}")
        self.leave(row)
        self._observer.on_drafter_error(row.request, message)

    def rebuild(self) -> None:
        """None of the caches can be trusted any more: all begin anew, knowing no rows."""
        self.verifier.close()
        for drafter in self.drafters.values():
            drafter.close()
        self.verifier, self.drafters = self._make_verifier(), dict(self._make_drafters())
