"""Dashboard of the fallback: the current level and its cause, signals that ask for a lower one, probes, canaries,
alerts, saved state."""

from __future__ import annotations

from dashboards.board import Board, Row, traces
from dashboards.boards import look
from dashboards.panels import BAD, GOOD, WARN, Panel, Text, bars, lines, single, states, tile
from dashboards.queries import fallback as ask
from dashboards.queries import speculation
from dashboards.queries import traces as tempo
from dashboards.settings import Alerting

_RESULTS = {"^(accepted|ok|good|sent)$": GOOD, "^(bad|failed|invalid)$": BAD, "^too_few_samples$": "text"}


def board(alerting: Alerting) -> Board:
    return Board(
        "fallback",
        "Fallback",
        "How far each daemon has stepped down from full speculation, what asked for it, and how it recovers. Probes "
        "and canaries are the daemon's own requests; no other dashboard counts them.",
        (
            Row("Now, and totals over the time shown", _figures()),
            Row("Level in force, and signals that ask for less", _standing()),
            Row("Level changes and drift", _steps()),
            Row("Probes of the level above", _probes(alerting)),
            Row("Quality canaries", _canaries()),
            Row("Alerts, annotations, saved state", _told()),
        ),
    )


def _figures() -> tuple[Panel, ...]:
    return (
        single(
            tile("Level",
                 "The lowest fallback level now in force on any chosen daemon: full (no restriction), short block "
                 "(fewer drafted tokens), light draft (a cheaper drafter) or autoregressive (no drafts).", look.LEVEL),
            speculation.LEVEL_NOW,
            words=look.LEVELS,
        ),
        single(
            tile("Levels down",
                 "How many levels the lowest of the chosen daemons is below full, now.", look.COUNT,
                 decimals=0),
            ask.LEVELS_DOWN_NOW,
            steps=((None, GOOD), (1, WARN)),
        ),
        single(
            tile("Hold",
                 "Whether an operator holds the level of any chosen daemon now. A held level stays until the hold is "
                 "released or expires.",
                 look.LEVEL),
            ask.HELD_NOW,
            words=look.HELD,
        ),
        single(
            tile("Alerts in force",
                 "Alerts that ask a chosen daemon for a lower level now. Each counts until it resolves, or is not "
                 "repeated in time.",
                 look.COUNT, decimals=0),
            ask.LEASES_NOW,
            steps=((None, GOOD), (1, WARN)),
        ),
        single(
            tile("Level changes",
                 "Steps down and up the fallback ladder, over the time shown. Many: the level flaps.",
                 look.COUNT, decimals=0),
            ask.STEPS_NOW,
        ),
        single(
            tile("Texts that differ",
                 "Greedy canaries whose text with drafts differed from the text without drafts, over the time shown. "
                 "Drafts must not change a text; on a GPU, near-ties may.",
                 look.COUNT, decimals=0),
            ask.DIVERGENCES_NOW,
            steps=look.NONE_IS_WELL,
        ),
    )  # fmt: skip


def _standing() -> tuple[Panel, ...]:
    return (
        states(
            Text("Level and hold",
                 "For each daemon: the fallback level in force, and whether an operator holds it there.",
                 look.LEVEL),
            (speculation.LEVELS, look.LEVELS),
            (ask.HOLDS, look.HELD),
        ),
        states(
            Text("Signals that ask for a level",
                 "For each signal that asks for a lower level: the level that it asks for. A daemon goes to the "
                 "lowest of them.", look.LEVEL, no_value="no signal"),
            (ask.DEMANDS, look.LEVELS),
        ),
        traces(
            lines(
                Text("Levels below full",
                     "How many levels each daemon is below full. The ladder may have several levels of short block "
                     "and of light draft; each counts.",
                     look.COUNT, low=0, decimals=0),
                ask.LEVELS_DOWN,
            ),
            tempo.STEPPED_DOWN,
            "Requests planned below full",
        ),
    )  # fmt: skip


def _steps() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Level changes by cause",
                 "Steps down and up the fallback ladder per rate interval, by cause: the signal that asked, an "
                 "operator's hold, its end (released), or a recovery (recovered).",
                 look.COUNT, low=0, no_value="no steps"),
            ask.TRANSITIONS,
        ),
        bars(
            Text("Level changes, from and to",
                 "Steps of the fallback ladder over the time shown, by the level before and after. As many up as "
                 "down: the ladder has recovered. Many of both: it flaps.",
                 look.OCCURRENCES, low=0, decimals=0, no_value="no steps"),
            ask.TRANSITIONS_BY_WAY,
        ),
        lines(
            Text("Drift",
                 "How far acceptance has fallen below its baseline, by kind of text: the CUSUM detector's sum "
                 "divided by its limit. From 1 on it counts as drift and asks for a shorter block. Empty until there "
                 "is a baseline.", "none", low=0, decimals=2,
                 no_value="no baseline yet"),
            ask.DRIFT,
            steps=((None, GOOD), (1, BAD)),
        ),
    )  # fmt: skip


def _probes(alerting: Alerting) -> tuple[Panel, ...]:
    none = "no probe yet"
    return (
        lines(
            Text("Probes",
                 "Probes per rate interval, by the level tried and the verdict. A probe decodes frozen prompts at a "
                 "level above, to see whether the daemon may step up.",
                 look.COUNT, low=0, no_value=none),
            ask.PROBES,
        ),
        lines(
            Text("Acceptance in the last probe",
                 "The accepted share of the drafted tokens that the target reached in each daemon's last probe: "
                 "accepted / (accepted + rollbacks).",
                 look.SHARE, low=0,
                 high=1, no_value=none),
            ask.PROBE_ACCEPTANCE,
        ),
        lines(
            Text("Speed-up in the last probe",
                 "Speed of the steps that drafted in each daemon's last probe, divided by the speed of "
                 "autoregressive steps. Below the dashed line the level that was tried does not pay.",
                 look.TIMES, decimals=2, no_value=none),
            ask.PROBE_SPEEDUP,
            steps=((None, BAD), (alerting.speedup_floor, GOOD)),
        ),
    )  # fmt: skip


def _canaries() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Canary scores",
                 "Share of the quality canaries (frozen prompts with a check of the answer) that passed in the last "
                 "run, with drafts (speculative) and without (autoregressive). If the score with drafts is lower, "
                 "the daemon steps down at once.", look.SHARE, low=0,
                 high=1, no_value="no run yet"),
            ask.CANARY_SCORE,
            colors=look.MODES,
        ),
        lines(
            Text("Canary runs",
                 "Runs of the quality canaries per rate interval, by verdict. Bad: answers with drafts were worse, "
                 "or their texts differed.", look.COUNT, low=0, no_value="no run yet"),
            ask.CANARIES,
            colors=_RESULTS,
        ),
        lines(
            Text("Canary divergences",
                 "Greedy canaries per rate interval whose text with drafts differed from the text without drafts. "
                 "There are none on a CPU; on a GPU, near-ties may differ.", look.COUNT, low=0),
            ask.DIVERGENCES,
        ),
    )  # fmt: skip


def _told() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Notifications by result",
                 "Alert notifications at the daemon's webhook per rate interval, by result: accepted, a duplicate, "
                 "not for this daemon, or the reason of a refusal.", look.COUNT, 6, low=0, no_value="none"),
            ask.NOTIFICATIONS,
            colors=_RESULTS,
        ),
        lines(
            Text("Alerts that ask for a level",
                 "Alerts that ask each daemon for a lower level. Each counts until it resolves, or is not repeated "
                 "in time.",
                 look.COUNT, 6, low=0, decimals=0),
            ask.LEASES,
        ),
        lines(
            Text("Polls for alerts",
                 "Polls of webhook.poll_url per rate interval, by result. Anything but ok: the alerts could not be "
                 "read.",
                 look.COUNT, 6, low=0, no_value="no polling"),
            ask.POLLS,
            colors=_RESULTS,
        ),
        lines(
            Text("Annotations and saving",
                 "Per rate interval: annotations sent to Grafana, by result, and failed attempts to save state, by "
                 "file. While the file of the ladder cannot be saved, a restarted daemon begins at the level that "
                 "was saved last.",
                 look.COUNT, 6, low=0),
            ask.ANNOTATIONS,
            ask.SAVE_ERRORS,
            colors={"^annotations (accepted|ok|sent)$": GOOD, "^not saved: .*": BAD},
        ),
    )  # fmt: skip
