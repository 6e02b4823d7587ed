"""Writes docs/telemetry.md and docs/registry/ from the catalog of telemetry, and docs/configuration.md from the
settings.

`python -m scripts.pages` writes them; `--check` only compares.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from draftd.settings import Settings, describe_settings
from draftd.settings.load import COMMAND_VARIABLES
from draftd.telemetry import catalog, catalog_spans
from draftd.telemetry.attributes import Attribute, Event, Metric, Span
from scripts import registry

_TELEMETRY = """\
# Telemetry

<!-- Written by `make docs` from daemon/draftd/telemetry/catalog.py. -->

draftd exports traces, metrics and log events over OTLP. The `OTEL_*` environment variables work as in any OpenTelemetry
program; without an endpoint nothing is exported, and only the metrics of `/metrics` are recorded.

<!-- not run here: needs a collector; the tests in tests/stack run one -->
```sh
OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317 draftd serve
OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf draftd serve
```

Traces, metrics and logs can go to different places (`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, …) or nowhere
(`OTEL_LOGS_EXPORTER=none`); `OTEL_SDK_DISABLED=true` turns all of them off. A caller's `traceparent` is used. Spans
have the text of prompts and answers only with `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true`.

A collector that is dead, slow or refusing delays no request. Spans wait in a queue of limited size
(`OTEL_BSP_MAX_QUEUE_SIZE`, 2,048); when it is full, the oldest are dropped. Counters are cumulative, so that no count
is lost. The log has one warning when the collector is lost, and one when it is back. At shutdown the daemon flushes for
at most `telemetry.shutdown_seconds`.

The resource attributes name the service, its version and instance, the host, and the process by `process.pid` and
`process.creation.time`, and `server.port`, the port that is configured: with the host it names the daemon over
restarts. `OTEL_RESOURCE_ATTRIBUTES` overrides them. Where the target runs on several ranks,
`draftd.group.id` names their group for the life of the daemon; `draftd.group.starts` counts how often it began.

Metric labels have few values each; ids are on spans only. Counts are exact: the client's counts, the attributes of its
span, these counters and the engine's counts are the same numbers.
"""

_SDK = """\
The SDK counts what it queues and delivers. draftd turns these metrics on
(`OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED=false` turns it off):
"""

_RATIOS = """\
## Reading the counters

With vLLM's definitions, over the same labels and the same time:

- acceptance: `accepted_tokens / draft_tokens`. It falls as blocks grow at constant quality, so compare it at one depth;
- mean acceptance length: `1 + accepted_tokens / drafts`, the bonus token counted;
- acceptance at position *i*: `accepted_tokens_per_pos / draft_tokens_per_pos` at `draftd.position` *i*; at 0 it does
  not depend on the block's length;
- acceptance of reached tokens: `accepted_tokens / (accepted_tokens + rollbacks)`, which does not depend on it either;
- cost of a drafted step in autoregressive ones: `1 + break_even_tokens / (drafts - unpriced_drafts)`;
- measured speed-up: `(drafts + accepted_tokens - cut_tokens) / (drafts * cost)`;
- break-even acceptance: `(drafts * (cost - 1) + cut_tokens) / draft_tokens`. Speculation pays above it;
- parked share: `parked_steps / target_forwards` at `draftd.mode` `speculative`: how often drafting did not pay;
- mean depth: `draft_tokens / drafts`.

`accepted_tokens` counts what the target accepts, before the text is cut at its end; `cut_tokens` counts the tokens
after the end. A step is a rollback if the target rejected a token; the end of a text is no rollback.

Of two daemons: the verifier's `draftd.verify.tokens - draftd.verify.discarded_tokens` are its edges'
`draftd.remote.tokens`; the share of round trips that were hidden is `draftd.remote.hidden_round_trips /
draftd.remote.verdicts`, that of proposals that were wasted `draftd.remote.wasted_tokens /
draftd.remote.proposed_tokens`. A request counts there when it ends.

Of several ranks: `draftd.group.io / draftd.group.records` is the bytes of a record, and the rate of
`draftd.rank.collective.time` the share of its time that a rank spends in collectives. They begin at 0 with each start
of the group.

Always, in every export and in every request's span: `draft_tokens = accepted_tokens + rolled_back_tokens`; the
output tokens are `accepted_tokens + target_forwards - cut_tokens`; and `drafts + parked_steps <= target_forwards`.
"""

_REGISTRY = f"""\
## The registry

[docs/registry](registry/manifest.yaml) has the same content in the format of
[OpenTelemetry Weaver](https://github.com/open-telemetry/weaver), based on OpenTelemetry's conventions
v{registry.CONVENTIONS}. Weaver can compare a running daemon with both:

<!-- not run here: needs Weaver; tests/live_check.py runs it -->
```sh
weaver registry live-check -r docs/registry --otlp-grpc-address 127.0.0.1 --otlp-grpc-port 24317
OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:24317 draftd serve
```

What ran, and what it found:

- Weaver {registry.CHECKED_WITH}, run by hand. `registry check --future` finds nothing, also with OpenTelemetry's
  policies. `registry live-check` was run on a daemon that answered, refused and cancelled requests, changed its level
  and ran its canaries. It finds one violation, in the SDK: `otel.sdk.processor.log.queue.size` has the unit `{{log}}`
  instead of `{{log_record}}`.
- `make check` compares the registry with the catalog, and reports what Weaver would refuse.
- `make test` applies the live check's rules (`tests/live_check.py`) to a daemon's exports and to all metrics, also
  those of other platforms. It does not run Weaver, which no package registry has.

Weaver also gives advice that is not followed. Nearly all of those conventions, and all of draftd's, are not stable yet.
The conventions do not list `draftd` for `gen_ai.provider.name`, nor all values of `error.type` and
`system.memory.state`. Recommended attributes without a use here, such as `process.owner`, `host.id` or `system.device`,
are left out.
"""

_CONFIGURATION = """\
# Configuration

<!-- Written by `make docs` from daemon/draftd/settings/. -->

A setting's value comes from the first of these places that has one:

1. a flag of `draftd serve`: `--set engine.max_batch=4` for any setting that is not secret; common settings also have
   their own flags (`draftd serve --help`);
2. an environment variable: `DRAFTD_ENGINE__MAX_BATCH=4`, with two underscores between section and name;
3. the TOML file that `--config` or `DRAFTD_CONFIG` names;
4. the default.

```toml
[engine]
max_batch = 4
```

An unknown name is an error. An empty variable unsets a setting whose default is "unset". Relative paths start at the
working directory, which is `/` for a service of launchd or systemd; `~/` is the home folder. `OTEL_*` variables are not
listed here; see [telemetry.md](telemetry.md).
"""


def telemetry() -> str:
    """Returns the text of docs/telemetry.md."""
    described: tuple[Metric | Span | Event, ...] = (
        *catalog.METRICS,
        *catalog.SDK_METRICS,
        *catalog_spans.SPANS,
        *catalog_spans.EVENTS,
    )
    attributes = {
        one.name: one for one in (*catalog.RESOURCE, *(one for thing in described for one in thing.attributes))
    }
    parts = [
        _TELEMETRY,
        "## Metrics\n",
        _table(
            ("Metric", "Prometheus", "Instrument", "Unit", "What it counts"),
            ((f"`{m.name}`", f"`{_prometheus(m)}`", m.kind.value, f"`{m.unit}`", m.brief) for m in catalog.METRICS),
        ),
        f"Most carry the labels {_names(catalog.LABELS)}. In Prometheus dots become underscores.\n",
        _table(("Metric", "Attributes"), ((f"`{m.name}`", _labels(m)) for m in catalog.METRICS)),
        "Histogram bounds, in seconds:\n",
        _table(
            ("Metric", "Bounds"),
            ((f"`{m.name}`", " ".join(f"{b:g}" for b in m.buckets)) for m in catalog.METRICS if m.buckets),
        ),
        _SDK,
        _table(
            ("Metric", "Prometheus", "Instrument", "What it counts", "Attributes"),
            (
                (f"`{m.name}`", f"`{m.prometheus}`", m.kind.value, m.brief, _names(m.attributes))
                for m in catalog.SDK_METRICS
            ),
        ),
        _RATIOS,
        "## Spans\n",
        *(_described(span, f"{span.kind}. {span.brief}.") for span in catalog_spans.SPANS),
        "## Log events\n",
        *(_described(event, f"{event.brief}.") for event in catalog_spans.EVENTS),
        "## Attributes\n\nOn a span, counts are those of that request. Unknown values are absent.\n",
        _table(
            ("Attribute", "Type", "What it says"),
            ((f"`{a.name}`", a.type, a.brief) for _, a in sorted(attributes.items())),
        ),
        _REGISTRY,
    ]
    return "\n".join(parts).rstrip("\n") + "\n"


def _prometheus(metric: Metric) -> str:
    return metric.prometheus + ("_{bucket,sum,count}" if metric.buckets else "")


def _labels(metric: Metric) -> str:
    more = [attribute for attribute in metric.attributes if attribute not in catalog.LABELS]
    if len(metric.attributes) - len(more) < len(catalog.LABELS):
        return _names(metric.attributes)
    return ", ".join(part for part in ("the labels", _names(more)) if part)


def _described(thing: Span | Event, brief: str) -> str:
    listed = f"\nAttributes: {_names(thing.attributes)}\n" if thing.attributes else ""
    return f"### `{thing.name}`\n\n{brief}\n{listed}"


def _names(attributes: Iterable[Attribute]) -> str:
    return ", ".join(f"`{attribute.name}`" for attribute in attributes)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def configuration() -> str:
    """Returns the text of docs/configuration.md."""
    docs = list(describe_settings())
    parts = [_CONFIGURATION]
    for section, info in Settings.model_fields.items():
        summary = " ".join((info.annotation.__doc__ or "").split())
        told = [doc for doc in docs if doc.name.startswith(f"{section}.")]
        rows = ((f"`{doc.name}`", _code(doc.default), doc.allowed, doc.description) for doc in told)
        table = _table(("setting", "default", "allowed", "what it is for"), rows)
        parts.append(f"## `[{section}]`\n\n{summary}\n\n{table}")
    variables = _table(("variable", "what it is for"), ((f"`{name}`", use) for name, use in COMMAND_VARIABLES.items()))
    parts.append(f"## Variables of the commands\n\nThese are not settings of the daemon.\n\n{variables}")
    return "\n".join(parts)


def _code(default: str) -> str:
    return default if " " in default or default == "unset" else f"`{default}`"


PAGES = {
    Path("docs/telemetry.md"): telemetry,
    Path("docs/configuration.md"): configuration,
    **registry.PAGES,
}


def main(arguments: Sequence[str]) -> int:
    """Writes the pages. With `--check` it only compares them. Returns 1 if one differs, or if the registry is
    malformed."""
    status = 0
    for problem in registry.problems():
        print(f"{registry.FOLDER}: {problem}", file=sys.stderr)
        status = 1
    for path, render in PAGES.items():
        if "--check" not in arguments:
            path.parent.mkdir(exist_ok=True)
            path.write_text(render(), encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != render():
            print(f"{path} is out of date: run make docs", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
