"""Writes the held-out prompts of the four categories (classes).

`python -m training.prompts --out daemon/draftd/models/nano/prompts`

Only documents whose key is held out are drawn, so that no prompt was ever trained on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from training.generator import documents

SEED = 7_001
# Number of prompts by category (class) and family; below, the maximum tokens of an answer.
CLASSES: dict[str, dict[str, int]] = {
    "code": {"functions": 52, "classes": 20, "sql": 8},
    "tool_call": {"tool_call": 80},
    "chat": {"facts": 30, "arithmetic": 12, "words": 10, "lists": 8, "talk": 6, "tool_question": 14},
    "prose": {"stories": 50, "scenes": 30},
}
MAX_TOKENS = {"code": 192, "tool_call": 96, "chat": 96, "prose": 160}


def held_out(family: str, count: int) -> list[dict[str, object]]:
    """Returns `count` held-out prompts of one family with different user texts."""
    seen: set[str] = set()
    rows: list[dict[str, object]] = []
    for document in documents(SEED, held_out=True, families=[family]):
        text = document.user_text()
        # Raw texts have no prompt, sheets of sums no single answer, and a request without a tool is no question.
        if (
            not document.messages
            or text in seen
            or (family in ("arithmetic", "tool_question") and document.expect is None)
        ):
            continue
        seen.add(text)
        row: dict[str, object] = {"messages": document.prompt()}
        if document.expect is not None:
            row["expect"] = document.expect
        rows.append(row)
        if len(rows) == count:
            return rows
    raise AssertionError("unreachable: the stream of documents never ends")


def rows_of(workload: str) -> list[dict[str, object]]:
    rows = []
    for family, count in CLASSES[workload].items():
        for i, row in enumerate(held_out(family, count)):
            head = {"id": f"{workload}-{family}-{i:02d}", "workload": workload}
            rows.append(
                {
                    **head,
                    "messages": row["messages"],
                    "max_tokens": MAX_TOKENS[workload],
                    **({"expect": row["expect"]} if "expect" in row else {}),
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for workload in CLASSES:
        lines = (json.dumps(row, ensure_ascii=False) for row in rows_of(workload))
        (args.out / f"{workload}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
