"""A pair under traffic, and all that may lower and raise its level: its draft, alerts, webhook, probes.

Everything is real, with shortened windows: the daemon as `draftd serve` composes it, the collector, Prometheus with the
generated rules, and Alertmanager, which notifies the daemon's own webhook. The pair is the embedded one with its draft
on disk, or a scripted one, which uses almost no processor time.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Protocol

from dashboards.rules_prometheus import prometheus_rules
from dashboards.settings import Alerting
from draftd.client.child import clean_environ
from draftd.client.client import CallError, DraftdClient, Message
from draftd.core import ModePreference, WorkloadClass
from draftd.v1 import control_pb2 as pb
from tests import forked_daemon
from tests.damaged_draft import Draft as DraftOnDisk
from tests.otlp import OtlpReceiver
from tests.stack import scripted_pair
from tests.stack.components import alertmanager, collector, free_ports, prometheus
from tests.wait_until import repeating, until

FIXED = ("--depth-mode", "fixed")  # what the ladder notices by itself: automatic depth would park a damaged draft
_CLIENTS = 2
_PAUSE_SECONDS = 0.3  # of each client between two requests: a daemon that is idle now and then probes sooner
_QUIETER_SECONDS = 5.0  # likewise, where only probes are to show something: a window has too few answers to judge by
_MAX_TOKENS = 40
_LOOK_SECONDS = 0.1
TOKEN, SECRET = "a-token-of-the-test", "a-secret-of-the-test"

#: A few requests in a few seconds are enough: the machine is small, and the damage is great.
#: A damaged draft decodes at less than half the speed; what a busy machine makes of a good one is no alert here.
ALERTING = Alerting(window_seconds=4, min_requests=2, min_drafts=20, speedup_floor=0.7)
#: The daemon's side of it, in seconds.
SHORT = {
    "DRAFTD_FALLBACK__WINDOW_SECONDS": "3",
    "DRAFTD_FALLBACK__LEAST_REQUESTS": "3",  # more than the clients answer in a window where they are quiet
    "DRAFTD_FALLBACK__COOLDOWN_SECONDS": "1",
    "DRAFTD_FALLBACK__LONGEST_WAIT_SECONDS": "4",
    "DRAFTD_FALLBACK__PROBE_SHARE": "0.5",
    "DRAFTD_FALLBACK__CANARY_PERIOD_SECONDS": "0",
}


@dataclass(frozen=True)
class Answered:
    """One request, as its client saw its end. `at` is monotonic."""

    at: float
    tokens: int
    accepted: int
    rollbacks: int
    level: str


@dataclass
class Clients:
    """Clients that ask for greedy text repeatedly, and compare every answer with the target's own."""

    address: str
    answered: list[Answered] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    pause: float = _PAUSE_SECONDS
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        prompts = _prompts()
        with DraftdClient(self.address) as client:
            expected = [_text(client, prompt, ModePreference.AUTOREGRESSIVE)[0] for prompt in prompts]
        threads = [
            threading.Thread(target=self._ask, args=(prompts, expected, first), daemon=True)
            for first in range(_CLIENTS)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(60)
        assert not any(thread.is_alive() for thread in threads)

    def _ask(self, prompts: list[_Prompt], expected: list[tuple[int, ...]], first: int) -> None:
        try:
            with DraftdClient(self.address) as client:
                number = first
                while not self._stop.wait(self.pause):
                    at = number % len(prompts)
                    tokens, seen = _text(client, prompts[at], ModePreference.AUTO)
                    self.answered.append(seen)
                    if tokens != expected[at]:
                        self.wrong.append(f"{prompts[at].workload} at {seen.level}: another text")
                    number += _CLIENTS
        except Exception as error:
            self.wrong.append(f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class _Prompt:
    workload: str
    messages: list[Message]


def _prompts() -> list[_Prompt]:
    """Returns six prompts of two categories, in turn. Alerts judge each category by itself; with more of them a window
    on a busy machine would have too few answers of each."""
    found = []
    for line in range(6):
        for name in ("code", "chat"):
            text = (files("draftd.models.nano") / "prompts" / f"{name}.jsonl").read_text(encoding="utf-8")
            messages = json.loads(text.splitlines()[line])["messages"]
            found.append(_Prompt(name, [(one["role"], one["content"]) for one in messages]))
    return found


def _text(client: DraftdClient, prompt: _Prompt, mode: ModePreference) -> tuple[tuple[int, ...], Answered]:
    tokens: list[int] = []
    level = ""
    for event in client.generate(
        messages=prompt.messages,
        mode=mode,
        workload=WorkloadClass(prompt.workload),
        max_tokens=_MAX_TOKENS,
        timeout=60,
    ):
        tokens += event.chunk.token_ids
        level = event.started.plan.level or level
        finished = event.finished
    counts = finished.counts
    seen = Answered(time.monotonic(), len(tokens), counts.accepted_tokens, counts.rollbacks, level)
    return tuple(tokens), seen


class Draft(Protocol):
    """The draft that the daemon uses, once it has read it again."""

    def damage(self) -> None: ...

    def mend(self) -> None: ...


@dataclass(frozen=True)
class Pair:
    """A pair: its draft, and the program that serves it."""

    draft: Draft
    main: Callable[..., object]
    arguments: tuple[str, ...]


def embedded(folder: Path) -> Pair:
    """Returns the embedded pair, with a copy of its draft on disk."""
    draft = DraftOnDisk.copied(folder)
    target = files("draftd.models.nano") / "target"
    models = (
        "--model",
        str(target),
        "--draft-model",
        str(draft.heavy),
        "--set",
        f"model.light_draft_path={draft.light}",
    )
    return Pair(draft, forked_daemon.command, ("serve", *models, "--port", "0", *FIXED))


@dataclass(frozen=True)
class ScriptedDraft:
    """A draft whose acceptance is in a file, which tests.stack.scripted_pair reads."""

    file: Path

    def damage(self) -> None:
        self.file.write_text("0.05")

    def mend(self) -> None:
        self.file.write_text("0.95")


def scripted(folder: Path) -> Pair:
    """Returns a pair whose draft has the acceptance in a file."""
    draft = ScriptedDraft(folder / "acceptance")
    draft.mend()
    return Pair(draft, scripted_pair.main, (str(draft.file),))


@dataclass
class Falling:
    """The running parts. `seen` has every level that was seen, with its time (monotonic) and the daemon's name for
    it."""

    draft: Draft
    client: DraftdClient
    clients: Clients
    webhook: str
    prometheus: str = ""  # its address, where there is one
    seen: list[tuple[float, str]] = field(default_factory=list)

    @property
    def steps(self) -> list[pb.Transition]:
        """Returns all steps from one level to another, in order."""
        return [t for t in self.client.transitions() if t.subject == "level" and t.previous != t.current]

    @property
    def levels(self) -> list[str]:
        """Returns the levels that it went through, in order."""
        return ["full", *(step.current for step in self.steps)]

    @property
    def ladder(self) -> list[str]:
        """Returns all levels, from the top."""
        return [level_name(level) for level in self.client.level().ladder]

    def told(self) -> str:
        """Returns all steps and the current level, for the message of a failure."""
        steps = "\n".join(f"{t.current}: {t.cause} ({t.evidence})" for t in self.client.transitions())
        return f"{steps}\n{self.client.level()}"

    def look(self) -> None:
        state = self.client.level()
        name = level_name(state.ladder[state.position])
        if not self.seen or self.seen[-1][1] != name:
            self.seen.append((time.monotonic(), name))

    def swap(self, *, good: bool) -> None:
        """Replaces the draft, and makes the daemon read it again."""
        self.draft.mend() if good else self.draft.damage()
        self.client.reload_draft()

    def busy(self, much: bool = True) -> None:
        """Sets the amount of traffic from now on. With little traffic the daemon probes sooner."""
        self.clients.pause = _PAUSE_SECONDS if much else _QUIETER_SECONDS

    def until_at(self, name: str, seconds: float) -> None:
        self.wait_for(lambda: bool(self.seen) and self.seen[-1][1] == name, seconds, f"the daemon at {name}")

    def until_free(self, seconds: float) -> None:
        """Waits until nothing asks for this level any more, and it has lasted as long as it must before a step up."""

        def free() -> bool:
            state = self.client.level()
            over = state.since.ToNanoseconds() / 1e9 + state.wait.ToNanoseconds() / 1e9
            return not state.demands and not state.leases and time.time() > over

        self.wait_for(free, seconds, "nothing asks for the level any more")

    def probed(self, seconds: float) -> str:
        """Returns the verdict of a probe of the level above."""
        found: list[str] = []

        def asked() -> bool:
            with contextlib.suppress(CallError):  # one is under way
                found.append(self.client.probe().verdict)
            return bool(found)

        self.wait_for(asked, seconds, "a probe")
        return found[0]

    def wait_for(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        def there() -> bool:
            assert self.clients.wrong == [], "no request fails, and every greedy text is the target's own"
            return condition()

        try:
            until(there, seconds, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.told()}") from None


def level_name(level: pb.LadderLevel) -> str:
    """Returns a level's name: `full`, `short_block 3`, `light_draft prompt_lookup` …"""
    if level.level == "short_block":
        return f"{level.level} {level.max_draft_tokens}"
    return f"{level.level} {level.drafter}" if level.level == "light_draft" else level.level


@contextlib.contextmanager
def falling(
    pair: Callable[[Path], Pair], folder: Path, environ: Mapping[str, str], *, webhook_port: int | None = None
) -> Iterator[Falling]:
    """Runs a daemon on `embedded` or `scripted`, and its clients. `environ` is added to the short windows' settings."""
    (folder / "draft").mkdir()
    served = pair(folder / "draft")
    port = webhook_port or free_ports(1)[0]
    settings = {
        **clean_environ(str(folder / "flags.json")),
        **SHORT,
        "DRAFTD_FALLBACK__STATE_DIR": str(folder / "state"),
        # Not down to prompt lookup as well: on these texts it pays, and that is where the guard would rightly stay.
        "DRAFTD_FALLBACK__LIGHTER": "light_draft_model",
        "DRAFTD_WEBHOOK__PORT": str(port),
        "DRAFTD_WEBHOOK__TOKEN": TOKEN,
        "DRAFTD_WEBHOOK__SECRET": SECRET,
        **environ,
    }
    with (
        forked_daemon.serving(served.main, *served.arguments, environ=settings) as daemon,
        DraftdClient(daemon.address) as client,
    ):
        one = Falling(served.draft, client, Clients(daemon.address), f"http://127.0.0.1:{port}/v1/alerts")
        with one.clients.asking(), repeating(one.look, _LOOK_SECONDS):
            yield one
        assert daemon.child.poll() is None


@contextlib.contextmanager
def alerted(
    pair: Callable[[Path], Pair],
    folder: Path,
    environ: Mapping[str, str] | None = None,
    alerting: Alerting = ALERTING,
) -> Iterator[Falling]:
    """Runs the same with the whole pipeline; the daemon's own guard is off, so that only the alerts act."""
    rules, (port,) = folder / "draftd.rules.yaml", free_ports(1)
    rules.write_text(prometheus_rules(alerting))
    config = folder / "tells.json"
    config.write_text(json.dumps(_tells(f"http://127.0.0.1:{port}/v1/alerts")))
    with (
        OtlpReceiver() as store,
        collector(folder, store.port, share_percent=0.0) as running,
        alertmanager(folder, config=config) as manager,
        prometheus(folder, running.scrape, own=running.own, rules=[rules], alertmanager=manager.address) as found,
        falling(
            pair,
            folder,
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": running.endpoint,
                "OTEL_METRIC_EXPORT_INTERVAL": "500",
                "OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=falling",
                "DRAFTD_FALLBACK__GUARD": "false",
                "DRAFTD_WEBHOOK__POLL_URL": f"http://{manager.address}",
                "DRAFTD_WEBHOOK__POLL_SECONDS": "2",
                **(environ or {}),
            },
            webhook_port=port,
        ) as one,
    ):
        one.prometheus = found.url
        yield one


def _tells(webhook: str) -> dict[str, object]:
    """Returns an Alertmanager configuration that sends each alert to the daemon at once, with its token."""
    told = {"url": webhook, "http_config": {"authorization": {"type": "Bearer", "credentials": TOKEN}}}
    route = {"receiver": "daemon", "group_by": ["..."], "group_wait": "0s", "group_interval": "500ms"}
    return {"route": route, "receivers": [{"name": "daemon", "webhook_configs": [told]}]}
