"""What the probe's prompts showed while all was well, by drafter: what later probes are compared with."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence

from draftd.canaries.prompts import FrozenPrompt
from draftd.core import DrafterKind
from draftd.policy.document import Fields, chosen
from draftd.policy.drift import Baseline


class Lessons:
    """Any thread. What was learnt of other prompts is of no use for these."""

    def __init__(self, prompts: Sequence[FrozenPrompt]) -> None:
        self._prompts = hashlib.sha256(repr(tuple(prompts)).encode()).hexdigest()[:16]
        self._lock = threading.Lock()
        self._at_best: dict[DrafterKind, Baseline] = {}
        self._age = 0  # how often it was forgotten

    @property
    def age(self) -> int:
        """To be asked before a lesson begins, and given with it."""
        with self._lock:
            return self._age

    def of(self, drafter: DrafterKind) -> Baseline | None:
        with self._lock:
            return self._at_best.get(drafter)

    def learn(self, drafter: DrafterKind, showed: Baseline, age: int) -> None:
        """A lesson that was under way while all was forgotten is of an old draft still, and teaches nothing."""
        with self._lock:
            if age == self._age:
                self._at_best[drafter] = showed

    def forget(self) -> None:
        """Drafts with weights are others on purpose. Prompt lookup has none."""
        with self._lock:
            self._age += 1
            self._at_best = {kind: one for kind, one in self._at_best.items() if kind is DrafterKind.PROMPT_LOOKUP}

    def document(self) -> dict[str, object]:
        """What json.dumps takes, and `recall` reads."""
        with self._lock:
            learnt = {kind.value: {"mean": one.mean, "spread": one.spread} for kind, one in self._at_best.items()}
        return {"prompts": self._prompts, "at_best": learnt}

    def recall(self, document: Mapping[str, object]) -> None:
        """What an earlier run learnt. Raises ValueError, which names the field, its value and what is allowed; then
        nothing is recalled."""
        fields = Fields(document, "lessons")
        if fields.text("prompts") != self._prompts:
            return
        where = f"name in {fields.at('at_best')}"
        found = {
            chosen(name, DrafterKind, where): Baseline(one.number("mean", 0, 1), one.number("spread", 0, 1))
            for name, one in fields.items("at_best")
        }
        with self._lock:
            self._at_best = found
