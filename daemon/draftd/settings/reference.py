"""Writes docs/configuration.md from the settings: `python -m draftd.settings.reference [--check]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from draftd.settings.load import COMMAND_VARIABLES, Settings, describe_settings

_PAGE = Path("docs/configuration.md")

_HEAD = """\
# Configuration

<!-- Written by `make docs` from daemon/draftd/settings/. -->

Every setting has a default. Four places can change one; the first of these that has a value wins:

1. a flag of `draftd serve`: `--set engine.max_batch=4` for any setting, and flags of their own for the common ones
   (`draftd serve --help`);
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


def render() -> str:
    """The whole page."""
    parts = [_HEAD]
    docs = list(describe_settings())
    for section, info in Settings.model_fields.items():
        summary = " ".join((info.annotation.__doc__ or "").split())
        parts.append(f"## `[{section}]`\n\n{summary}\n\n| setting | default | allowed | what it is for |")
        parts.append("| --- | --- | --- | --- |")
        parts += [
            f"| `{doc.name}` | {_code(doc.default)} | {doc.allowed} | {doc.description} |"
            for doc in docs
            if doc.name.startswith(f"{section}.")
        ]
        parts.append("")
    parts.append(
        "## Variables of the commands\n\nNot settings of the daemon.\n\n| variable | what it is for |\n| --- | --- |"
    )
    parts += [f"| `{name}` | {use} |" for name, use in COMMAND_VARIABLES.items()]
    return "\n".join(parts) + "\n"


def _code(default: str) -> str:
    return default if " " in default or default == "unset" else f"`{default}`"


def main(arguments: Sequence[str]) -> int:
    """Writes the page; with `--check` only compares, and returns 1 where it differs."""
    fresh = render()
    if "--check" not in arguments:
        _PAGE.write_text(fresh, encoding="utf-8")
    elif not _PAGE.is_file() or _PAGE.read_text(encoding="utf-8") != fresh:
        print(f"{_PAGE} is not what the settings say: run make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
