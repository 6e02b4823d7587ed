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
        "How far the daemon has stepped down, what asked for it, and how it recovers: probes of the level above, "
        "the quality canaries, alerts and holds. No other dashboard counts probes and canaries.",
        (
            Row("Now, and over the time shown", _figures()),
            Row("Level in force, and signals that ask for less", _standing()),
            Row("Steps and drift", _steps()),
            Row("Probes of the level above", _probes(alerting)),
            Row("Quality canaries", _canaries()),
            Row("Alerts, annotations, saved state", _told()),
        ),
    )


def _figures() -> tuple[Panel, ...]:
    return (
        single(
            tile("Level", "The lowest level in force on any daemon chosen above.", look.LEVEL),
            speculation.LEVEL_NOW,
            words=look.LEVELS,
        ),
        single(
            tile("Levels down", "How many levels below the top of its ladder the lowest daemon is.", look.COUNT,
                 decimals=0),
            ask.LEVELS_DOWN_NOW,
            steps=((None, GOOD), (1, WARN)),
        ),
        single(
            tile("Held", "Whether an operator holds the level of any daemon. A held level does not change.",
                 look.LEVEL),
            ask.HELD_NOW,
            words=look.HELD,
        ),
        single(
            tile("Alerts that ask", "Active alerts that ask for a level. Each counts until it resolves or stops being "
                 "repeated.",
                 look.COUNT, decimals=0),
            ask.LEASES_NOW,
            steps=((None, GOOD), (1, WARN)),
        ),
        single(
            tile("Steps", "Steps down and up the ladder.", look.COUNT, decimals=0),
            ask.STEPS_NOW,
        ),
        single(
            tile("Texts that differ", "Greedy canaries whose speculative text differed from the autoregressive one.",
                 look.COUNT, decimals=0),
            ask.DIVERGENCES_NOW,
            steps=look.NONE_IS_WELL,
        ),
    )  # fmt: skip


def _standing() -> tuple[Panel, ...]:
    return (
        states(
            Text("Level and hold", "The level in force on each daemon, and whether an operator holds it there.",
                 look.LEVEL),
            (speculation.LEVELS, look.LEVELS),
            (ask.HOLDS, look.HELD),
        ),
        states(
            Text("What asks for a level", "Each signal that asks for a lower level, and that level. The ladder goes "
                 "to the lowest of them.", look.LEVEL, no_value="no signal"),
            (ask.DEMANDS, look.LEVELS),
        ),
        traces(
            lines(
                Text("Levels below full", "Each shorter block and each lighter drafter is a level of its own.",
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
            Text("Steps by what asked for them", "Steps down and up in each interval, by cause: a signal, an "
                 "operator's hold or its end (released), or a recovery.", look.COUNT, low=0, no_value="no steps"),
            ask.TRANSITIONS,
        ),
        bars(
            Text("Steps from level to level", "Number over the time shown. As many steps up as down: the ladder has "
                 "recovered. Many of both: it flaps.", look.OCCURRENCES, low=0, decimals=0, no_value="no steps"),
            ask.TRANSITIONS_BY_WAY,
        ),
        lines(
            Text("Drift", "CUSUM of acceptance below its baseline, divided by its limit. At 1 it counts as drift and "
                 "asks for a shorter block. Empty until there is a baseline.", "none", low=0, decimals=2,
                 no_value="no baseline yet"),
            ask.DRIFT,
            steps=((None, GOOD), (1, BAD)),
        ),
    )  # fmt: skip


def _probes(alerting: Alerting) -> tuple[Panel, ...]:
    none = "no probe yet"
    return (
        lines(
            Text("Probes", "Probes in each interval, by the level tried and the verdict.",
                 look.COUNT, low=0, no_value=none),
            ask.PROBES,
        ),
        lines(
            Text("Acceptance in the last probe", "Accepted share of the drafted tokens that the target reached.",
                 look.SHARE, low=0,
                 high=1, no_value=none),
            ask.PROBE_ACCEPTANCE,
        ),
        lines(
            Text("Speed-up in the last probe", "Against autoregressive decoding of the same prompts. Below the line "
                 "the level above does not pay.", look.TIMES, decimals=2, no_value=none),
            ask.PROBE_SPEEDUP,
            steps=((None, BAD), (alerting.speedup_floor, GOOD)),
        ),
    )  # fmt: skip


def _canaries() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Canary scores", "Share of the canaries that passed their checks in the last run, with drafts and "
                 "without. If the score with drafts is lower, the ladder steps down at once.", look.SHARE, low=0,
                 high=1, no_value="no run yet"),
            ask.CANARY_SCORE,
            colors=look.MODES,
        ),
        lines(
            Text("Canary runs", "Runs in each interval, by verdict.", look.COUNT, low=0, no_value="no run yet"),
            ask.CANARIES,
            colors=_RESULTS,
        ),
        lines(
            Text("Divergences", "Greedy canaries in each interval whose two texts differ. On a CPU there are none; on "
                 "Metal near-ties may differ.", look.COUNT, low=0),
            ask.DIVERGENCES,
        ),
    )  # fmt: skip


def _told() -> tuple[Panel, ...]:
    return (
        lines(
            Text("Notifications by result", "Notifications at the webhook in each interval, by result: accepted, a "
                 "duplicate, or refused with the reason.", look.COUNT, 6, low=0, no_value="none"),
            ask.NOTIFICATIONS,
            colors=_RESULTS,
        ),
        lines(
            Text("Leases", "Alerts that ask for a level. Each counts until it resolves or is not repeated in time.",
                 look.COUNT, 6, low=0, decimals=0),
            ask.LEASES,
        ),
        lines(
            Text("Polls for alerts", "Polls of webhook.poll_url in each interval, by result.",
                 look.COUNT, 6, low=0, no_value="no polling"),
            ask.POLLS,
            colors=_RESULTS,
        ),
        lines(
            Text("Annotations and saving", "Annotations sent to Grafana in each interval, and failures to save state, "
                 "by file. While the ladder cannot be saved, a restart begins at the level saved last.",
                 look.COUNT, 6, low=0),
            ask.ANNOTATIONS,
            ask.SAVE_ERRORS,
            colors={"^annotations (accepted|ok|sent)$": GOOD, "^not saved: .*": BAD},
        ),
    )  # fmt: skip
