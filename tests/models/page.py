"""Reports results as a table for people, as docs/models.md, and as one line of JSON."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from tests.models.architectures import TABLES, kind, other_names, version
from tests.models.result import COLUMNS, Result

PATH = Path("docs/models.md")
_HEADS = ("served", "batched", "speculating", "prefix reuse", "identical", "4 bits", "4.x and 5.x")

_TEXT = """\
# Models

<!-- Written by `make models` (python -m tests.models). -->

Every text architecture of {version}, as a tiny model with random weights: {architectures} of them. {served} are served,
{batched} of these with one forward for all sequences, {speculating} with speculation from the first token to the last,
{prefix} with reuse of prefixes. In {identical} every text is mlx-lm's own; {texts} texts were compared{ties}. With the
configuration as either version of transformers writes it, {forms} have mlx-lm's logits.

- **served**: mlx-lm's own loop runs it on this machine, and the engine answers every request.
- **batched**: one forward serves all sequences. Where not, each has a forward of its own, with mlx-lm's caches.
- **speculating**: with a draft model, here the same weights with noise, from the first token to the last. *until full*:
  until a window is.
- **prefix reuse**: the next turn of a conversation is not computed anew. *whole texts*: what shares only a part is.
- **identical**: greedy text is that of mlx-lm's loop, token for token: at depth 0, 1, 4 and 6 and with prompt lookup,
  alone and in a batch of four prompts of unlike length, over texts that fill every window twice; beside sampled
  requests, and beside one that is cancelled. With a seed, sampled text is the same at every depth. Weights are fp32.
  Where rounding decides between two tokens, a text may go on with either, and is counted as a tie.
- **4 bits**: the same holds with weights quantised as `mlx_lm.convert` does.
- **4.x and 5.x**: served from a folder whose config.json has the form that transformers 4 writes, and from one that has
  transformers 5's, the model has the same logits, to the last bit, and they are mlx-lm's. The bases of the rotary
  embedding are no defaults, and its positions are scaled where mlx-lm scales them.

It ran on {where}.

"""

_NO_TABLE = "in no table yet"

_OTHERS = """
## Other names

mlx-lm loads these types of models as one of the architectures above:

"""


def verdict(result: Result) -> str:
    """Returns the result as one line."""
    said = [head if getattr(result, column) else f"not {head}" for column, head in zip(COLUMNS, _HEADS, strict=True)]
    return ", ".join(said) if result.served else f"not served: {result.reasons.get('served', '')}"


def table(results: Sequence[Result]) -> Table:
    shown = Table(title=f"architectures of {version()}")
    for head in ("architecture", *_HEADS, "texts", "ties", "accepted", "why not"):
        shown.add_column(head)
    for one in results:
        accepted = f"{one.accepted} of {one.drafted}" if one.drafted else ""
        said = [cell(one, column) for column in COLUMNS]
        shown.add_row(one.name, *said, str(one.texts), str(len(one.ties)), accepted, escape(why(one)))
    return shown


def cell(result: Result, column: str) -> str:
    """Returns the text of a table's cell."""
    if getattr(result, column):
        if column == "prefix" and not result.shared:
            return "whole texts"
        return "yes"
    if column == "speculating" and result.reasons.get(column, "").startswith("only until"):
        return "until full"
    return "no" if result.served or column == "served" else ""


def why(result: Result) -> str:
    """Returns all reasons, each once."""
    if not result.served:
        return result.reasons.get("served", "")
    return "; ".join(dict.fromkeys(result.reasons[column] for column in COLUMNS if column in result.reasons))


def render(results: Sequence[Result]) -> str:
    """Returns the text of docs/models.md."""
    counts = summary(results)
    ties = sum(len(one.ties) for one in results)
    texts = sum(one.texts for one in results)
    text = _TEXT.format(
        **{name: counts[name] for name in ("architectures", *COLUMNS)},
        version=version(),
        texts=f"{texts:,}",
        ties=f", {ties} of which differ by a tie" if ties else "",
        where=f"{platform.system()} {platform.machine()}, MLX's default device of that build",
    )
    kinds: dict[str, list[Result]] = {name: [] for name in [*TABLES, _NO_TABLE]}
    for one in results:
        kinds[kind(one.name) or _NO_TABLE].append(one)
    parts = [text]
    for name, found in kinds.items():
        if not found:
            continue
        parts.append(f"## {name[0].upper()}{name[1:]}\n\n")
        lines = [("architecture", *_HEADS, "why not"), ["---"] * (len(_HEADS) + 2)]
        lines += [(f"`{one.name}`", *(cell(one, column) for column in COLUMNS), why(one)) for one in found]
        parts += ["| " + " | ".join(part.replace("|", "\\|") for part in line) + " |\n" for line in lines]
        parts.append("\n")
    others = [f"- `{name}`: `{architecture}`\n" for name, architecture in sorted(other_names().items())]
    return "".join([*parts, _OTHERS.lstrip("\n"), *others]).rstrip("\n") + "\n"


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Returns the number of each result, and the reasons of the others."""
    counted: dict[str, Any] = {"architectures": len(results)}
    counted |= {column: sum(bool(getattr(one, column)) for one in results) for column in COLUMNS}
    counted["ties"] = sum(len(one.ties) for one in results)
    counted["texts"] = sum(one.texts for one in results)
    counted["reasons"] = {
        column: {one.name: _reason(one, column) for one in results if not getattr(one, column)} for column in COLUMNS
    }
    return counted


def _reason(result: Result, column: str) -> str:
    return result.reasons.get(column) or result.reasons.get("served") or "it was not tried"
