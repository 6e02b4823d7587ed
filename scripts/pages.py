"""Writes docs/telemetry.md and docs/registry/ from the catalog, and docs/configuration.md from the settings:
`python -m scripts.pages`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from draftd.settings import Settings, describe_settings
from draftd.settings.load import COMMAND_VARIABLES
from draftd.telemetry import catalog
from draftd.telemetry.attributes import Attribute
from draftd.telemetry.catalog import Event, Metric, Span
from scripts import registry

_TELEMETRY = """\
# Telemetry

<!-- Written by `make docs` from daemon/draftd/telemetry/catalog.py. -->

draftd exports traces, metrics and log events over OTLP. The `OTEL_*` environment variables work as in any OpenTelemetry
program; without an endpoint nothing is exported and nothing is recorded.

```
OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317 draftd serve
OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf draftd serve
```

Traces, metrics and logs can go to different places (`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, …) or nowhere
(`OTEL_LOGS_EXPORTER=none`); `OTEL_SDK_DISABLED=true` stops all. A caller's `traceparent` is honoured. The text of
prompts and answers leaves the process only with `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true`.

A collector that is dead, slow or refusing costs no request anything. Spans wait in a bounded queue
(`OTEL_BSP_MAX_QUEUE_SIZE`, 2,048) and the oldest are dropped when it is full; counters are cumulative and catch up by
themselves. One warning tells when the collector is lost, one when it is back. At shutdown the daemon flushes for at
most `telemetry.shutdown_seconds`.

The resource names the service, its version and instance, the host, and the process by `process.pid` and
`process.creation.time`. What `OTEL_RESOURCE_ATTRIBUTES` says wins.

Metric labels have few values each; ids are on spans only. Counts are exact: what a client received, the attributes of
its span, the counters here and the engine's own counts are the same numbers.
"""

_SDK = """\
The SDK counts what it queues and delivers; draftd turns that on
(`OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED=false` turns it off):
"""

_RATIOS = """\
## Reading the counters

With vLLM's definitions, over the same labels and the same time:

- acceptance: `accepted_tokens / draft_tokens`. It falls as blocks grow at constant quality, so compare it at one depth;
- mean acceptance length: `1 + accepted_tokens / drafts`, the bonus token counted;
- acceptance at position *i*: `accepted_tokens_per_pos / draft_tokens_per_pos` at `draftd.position` *i*; at 0 it does
  not depend on the block's length;
- per-token acceptance: `accepted_tokens / (accepted_tokens + rollbacks)`, which does not either;
- break-even acceptance: `(break_even_tokens + cut_tokens) / draft_tokens`. Above it speculation pays, below it costs;
- measured speed-up: `(drafts + accepted_tokens - cut_tokens) / (drafts + break_even_tokens)`;
- parked share: `parked_steps / target_forwards` at `draftd.mode` `speculative`: how often drafting did not pay;
- mean depth: `draft_tokens / drafts`.

`accepted_tokens` counts what the target accepts, before the text is cut at its end; `cut_tokens` counts what lies
beyond. A step is a rollback where the target rejected a token, never because the text ended.

Always, in every single export and in every request's span: `draft_tokens = accepted_tokens + rolled_back_tokens`; the
output tokens are `accepted_tokens + target_forwards - cut_tokens`; and `drafts + parked_steps <= target_forwards`.
"""

_REGISTRY = f"""\
## The registry

[docs/registry](registry/manifest.yaml) says all of this in the format of
[OpenTelemetry Weaver](https://github.com/open-telemetry/weaver), and builds on OpenTelemetry's conventions
v{registry.CONVENTIONS}. With it a running daemon can be checked against both:

```
weaver registry live-check -r docs/registry --otlp-grpc-address 127.0.0.1 --otlp-grpc-port 24317
OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:24317 draftd serve
```

What ran, and what it found:

- Weaver {registry.CHECKED_WITH}, by hand. `registry check --future` finds nothing, also with OpenTelemetry's policies.
  `registry live-check`, of a daemon that answered, refused, was cancelled, changed its level and ran its canaries,
  finds one violation, which is the SDK's: `otel.sdk.processor.log.queue.size` has the unit `{{log}}`, and the
  conventions want `{{log_record}}`.
- `make check` compares the registry with the catalog, and says what Weaver would refuse.
- `make test` applies the live check's rules, in `tests/live_check.py`, to what a daemon exports and to every metric
  there is, those of other machines included. It has no Weaver, which is in no package registry.

Weaver's milder remarks stay. Nearly everything in those conventions, and all of draftd's own, is not stable yet.
`gen_ai.provider.name` knows no `draftd`, `error.type` and `system.memory.state` not all values. Attributes that are
recommended but say nothing here, as `process.owner`, `host.id` or `system.device`, are left out.
"""

_CONFIGURATION = """\
# Configuration

<!-- Written by `make docs` from daemon/draftd/settings/. -->

Every setting has a default. Four places can change one; the first of these that has a value wins:

1. a flag of `draftd serve`: `--set engine.max_batch=4` for any setting that is no secret, and flags of
   their own for the common ones (`draftd serve --help`);
2. an environment variable: `DRAFTD_ENGINE__MAX_BATCH=4`, the section and the name with two underscores between them;
3. the TOML file that `--config` or `DRAFTD_CONFIG` names;
4. the default.

```toml
[engine]
max_batch = 4
```

An unknown name is an error, so that a misspelt one is noticed. An empty variable unsets a setting whose default is
"unset". Relative paths start at the working directory. `OTEL_*` variables work as in any OpenTelemetry program and are
not listed here; see [telemetry.md](telemetry.md).
"""


def telemetry() -> str:
    """docs/telemetry.md."""
    described: tuple[Metric | Span | Event, ...] = (
        *catalog.METRICS,
        *catalog.SDK_METRICS,
        *catalog.SPANS,
        *catalog.EVENTS,
    )
    attributes = {attribute.name: attribute for thing in described for attribute in thing.attributes}
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
        *(_described(span, f"{span.kind}. {span.brief}.") for span in catalog.SPANS),
        "## Log events\n",
        *(_described(event, f"{event.brief}.") for event in catalog.EVENTS),
        "## Attributes\n\nOn a span, a count is of that request alone. What is not known is absent.\n",
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
    """docs/configuration.md."""
    docs = list(describe_settings())
    parts = [_CONFIGURATION]
    for section, info in Settings.model_fields.items():
        summary = " ".join((info.annotation.__doc__ or "").split())
        told = [doc for doc in docs if doc.name.startswith(f"{section}.")]
        rows = ((f"`{doc.name}`", _code(doc.default), doc.allowed, doc.description) for doc in told)
        table = _table(("setting", "default", "allowed", "what it is for"), rows)
        parts.append(f"## `[{section}]`\n\n{summary}\n\n{table}")
    variables = _table(("variable", "what it is for"), ((f"`{name}`", use) for name, use in COMMAND_VARIABLES.items()))
    parts.append(f"## Variables of the commands\n\nNot settings of the daemon.\n\n{variables}")
    return "\n".join(parts)


def _code(default: str) -> str:
    return default if " " in default or default == "unset" else f"`{default}`"


PAGES = {
    Path("docs/telemetry.md"): telemetry,
    Path("docs/configuration.md"): configuration,
    **registry.PAGES,
}


def main(arguments: Sequence[str]) -> int:
    """Writes the pages; with `--check` only compares, and returns 1 where one differs, or the registry is malformed."""
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
