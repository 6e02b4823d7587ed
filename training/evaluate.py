"""Measures a pair on the held-out prompts with mlx-lm: acceptance, speed, abilities, held-out loss.

`python -m training.evaluate --pair daemon/draftd/models/nano --prompts daemon/draftd/models/nano/prompts`

Greedy acceptance needs no speculative loop. While a draft's tokens are accepted, its context is the target's own text.
So one forward pass of the draft over that text shows for each position whether its token would be accepted. Blocks of
any length follow from that.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training.measure import Pair

WORKLOADS = ("code", "tool_call", "chat", "prose")
DEPTHS = (2, 4, 6)


def rounds(agree: list[bool], depth: int) -> tuple[int, int]:
    """Returns (drafted, accepted) tokens if every step drafts `depth` tokens, up to the end of the text."""
    at, drafted, accepted = 0, 0, 0
    while at < len(agree):
        tried = agree[at : at + depth]
        run = next((i for i, ok in enumerate(tried) if not ok), len(tried))
        drafted += len(tried)
        accepted += run
        at += run + 1
    return drafted, accepted


def is_call(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[") and '"arguments"' in text


def judge(workload: str, expect: Any, said: str) -> dict[str, bool]:
    """Returns the checks of one answer that a program can make, by name."""
    if workload == "tool_call":
        try:
            parsed = json.loads(said)
        except json.JSONDecodeError:
            return {"parses": False, "exact": False}
        return {"parses": isinstance(parsed, dict) and {"name", "arguments"} <= set(parsed), "exact": parsed == expect}
    verdict = {"false_call": is_call(said)} if workload == "chat" else {}
    if workload == "chat" and expect is not None:
        verdict["right"] = expect.lower() in said.lower()
    if workload == "code":
        try:
            compile(said, "answer", "exec")
            verdict["compiles"] = True
        except SyntaxError:
            verdict["compiles"] = said.rstrip().endswith(";") and said.split()[0] in (
                "SELECT",
                "INSERT",
                "UPDATE",
                "DELETE",
            )
    return verdict


def workload_report(pair: Pair, rows: list[dict[str, Any]], samples: list[dict[str, str]]) -> dict[str, Any]:
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    verdicts: dict[str, list[bool]] = defaultdict(list)
    tokens = 0
    for row in rows:
        prompt = pair.prompt(row["messages"])
        said = pair.greedy(prompt, row["max_tokens"])
        agree = pair.agreement(prompt, said)
        tokens += len(said)
        counts["alpha"][0] += len(agree)
        counts["alpha"][1] += sum(agree)
        for depth in DEPTHS:
            drafted, accepted = rounds(agree, depth)
            counts[f"k{depth}"][0] += drafted
            counts[f"k{depth}"][1] += accepted
        text = pair.text(said)
        for name, ok in judge(row["workload"], row.get("expect"), text).items():
            verdicts[name].append(ok)
        family = row["id"].split("-")[1]
        if "right" in verdicts and row.get("expect") is not None and family == "arithmetic":
            verdicts["arithmetic"].append(row["expect"].lower() in text.lower())
        samples.append({"id": row["id"], "said": text})
    report: dict[str, Any] = {name: round(a / max(1, n), 3) for name, (n, a) in counts.items()}
    report |= {name: round(sum(v) / len(v), 3) for name, v in verdicts.items()}
    return {"prompts": len(rows), "tokens": tokens, **report}


def speed_report(pair: Pair, rows: list[dict[str, Any]], depth: int) -> dict[str, float]:
    """Runs mlx-lm's plain and speculative loops over the same prompts. Returns the ratio of their processor times
    (`speed_up`) and whether all texts were equal (`identical`).

    It uses processor time, because a shared machine makes the wall clock unreliable. Run it with
    OPENBLAS_NUM_THREADS=1: threads that spin while they wait count as working.
    """
    plain, speculative, same = 0.0, 0.0, True
    for depth_ in (0, depth):  # the first call of each loop is slower: warm-up
        pair.mlx_lm(pair.prompt(rows[0]["messages"]), 16, depth_)
    for row in rows:
        prompt = pair.prompt(row["messages"])
        started = time.process_time()
        a = pair.mlx_lm(prompt, row["max_tokens"], 0)
        middle = time.process_time()
        b = pair.mlx_lm(prompt, row["max_tokens"], depth)
        plain += middle - started
        speculative += time.process_time() - middle
        same &= a == b
    return {"speed_up": round(plain / speculative, 2), "identical": same}


def sums_report(pair: Pair) -> dict[str, float]:
    """Returns the share of right sums and of right differences, over 68 pairs of numbers below 100, held out or not."""
    right: dict[str, list[bool]] = defaultdict(list)
    for i in range(0, 10_000, 149):
        a, b = i // 100, i % 100
        high, low = max(a, b), min(a, b)
        for name, p, result in (("sums", f"{a} + {b}", a + b), ("differences", f"{high} - {low}", high - low)):
            said = pair.text(pair.greedy(pair.prompt([{"role": "user", "content": f"What is {p}?"}]), 24))
            right[name].append(said.strip().rstrip(".").split()[-1:] == [str(result)])
    return {name: round(sum(v) / len(v), 3) for name, v in right.items()}


def refusal_report(pair: Pair, count: int = 24) -> dict[str, float]:
    """Measures how often the answer to a request that no listed tool can serve is words, as trained, and not a call."""
    from training.generator import documents
    from training.generator.tools import NO_TOOL

    stream = documents(9_002, held_out=True, families=["tool_question"])
    wishes = [d for d in (next(stream) for _ in range(40 * count)) if d.messages[-1]["content"] == NO_TOOL][:count]
    refused = [not is_call(pair.text(pair.greedy(pair.prompt(d.prompt()), 48))) for d in wishes]
    return {"wishes": len(refused), "refused": round(sum(refused) / len(refused), 3)}


def loss_report(pair: Pair, per_family: int) -> dict[str, float]:
    """Returns the held-out loss per token of the assistant's text, by family, and the loss on held-out library files,
    in bits per byte and in nats per token."""
    from training.generator import FAMILIES, LAST_STAGE, documents

    losses = {}
    for family in (name for name, (_, weights) in FAMILIES.items() if weights[LAST_STAGE]):
        stream = documents(9_001, held_out=True, families=[family])
        total, count = 0.0, 0
        for _ in range(per_family):
            document = next(stream)
            while not document.messages:
                document = next(stream)
            loss, tokens = pair.answer_loss(document.prompt(), document.messages[-1]["content"])
            total, count = total + loss, count + tokens
        losses[family] = round(total / count, 3)
    from training.measure import python_files

    bits, n_bytes, nats, n_tokens = 0.0, 0, 0.0, 0
    for text in python_files():
        loss, tokens = pair.text_loss(text)
        bits += loss / math.log(2)
        n_bytes += len(text.encode())
        nats += loss
        n_tokens += tokens
    return {"python_bits_per_byte": round(bits / n_bytes, 3), "python": round(nats / n_tokens, 3), **losses}


def table(report: dict[str, Any]) -> str:
    columns = [
        "prompts",
        "tokens",
        "alpha",
        *(f"k{d}" for d in DEPTHS),
        "speed_up",
        "parses",
        "exact",
        "right",
        "arithmetic",
        "false_call",
        "compiles",
    ]
    lines = [f"{'workload':10}" + "".join(f"{c:>11}" for c in columns)]
    for workload in WORKLOADS:
        row = report["workloads"].get(workload, {})
        lines.append(f"{workload:10}" + "".join(f"{row.get(c, ''):>11}" for c in columns))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", type=Path, required=True, help="a folder with target/ and draft/")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="where to write the report as JSON, and the answers beside it")
    parser.add_argument("--limit", type=int, default=1000, help="prompts a class")
    parser.add_argument("--speed-prompts", type=int, default=10, help="prompts a class for the timed comparison")
    parser.add_argument("--losses", type=int, default=20, help="held-out documents a family; 0 leaves losses out")
    args = parser.parse_args()
    from training.measure import load_pair

    pair = load_pair(args.pair)
    samples: list[dict[str, str]] = []
    report: dict[str, Any] = {"workloads": {}}
    for workload in WORKLOADS:
        lines = (args.prompts / f"{workload}.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        rows = rows[:: max(1, len(rows) // args.limit)] if args.limit < len(rows) else rows
        found = workload_report(pair, rows, samples)
        if args.speed_prompts:
            found |= speed_report(pair, rows[:: max(1, len(rows) // args.speed_prompts)], 4)
        report["workloads"][workload] = found
        print(workload, json.dumps(found), flush=True)
    report["sums"] = sums_report(pair)
    report["refusals"] = refusal_report(pair)
    if args.losses:
        report["losses"] = loss_report(pair, args.losses)
    print(table(report))
    print(json.dumps({k: v for k, v in report.items() if k != "workloads"}))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n")
        text = "\n".join(json.dumps(s, ensure_ascii=False) for s in samples) + "\n"
        args.out.with_suffix(".answers.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
