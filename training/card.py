"""Writes `manifest.json` and `MODEL_CARD.md` beside the pair, from the training logs and the evaluation's report.

`python -m training.card --work build/nano --out daemon/draftd/models/nano`

All numbers in the card are computed: what was not measured is not claimed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

from training import prompts, tokenizer
from training.corpus import Mix
from training.draft import KL_SHARE, MIX
from training.evaluate import DEPTHS, WORKLOADS
from training.generator import FAMILIES, LAST_STAGE
from training.generator.base import HELD_OUT_ONE_IN
from training.library import library_files
from training.model import CONTEXT

LICENCE = "Apache-2.0"
FILES = "## Files"
DRAFT_HEAD = (
    "## The target's draft head",
    "",
    "`target/mtp.safetensors` holds a head of one layer (MTP form) that drafts from the target's hidden states. It is "
    "trained after the pair, by `make train-head`; its own card, with text, steps and figures, is "
    "`training/heads/embedded/MODEL_CARD.md` in the repository.",
    "",
)


def parameters(size: dict[str, int]) -> int:
    block = 4 * size["dim"] ** 2 + 3 * size["dim"] * size["ffn"] + 2 * size["dim"]
    return size["vocab"] * size["dim"] + size["layers"] * block + size["dim"]


def files(folder: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name.startswith(("target/", "draft/", "prompts/")):
            data = path.read_bytes()
            found[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return found


def list_files(folder: Path) -> None:
    """Brings the lists of files in the pair's manifest and card up to date."""
    path, card_path = folder / "manifest.json", folder / "MODEL_CARD.md"
    m = json.loads(path.read_text()) | {"files": files(folder)}
    path.write_text(json.dumps(m, indent=1) + "\n")
    before, _, _ = card_path.read_text(encoding="utf-8").partition(FILES)
    card_path.write_text(before + "\n".join(file_table(m)), encoding="utf-8")


def file_table(m: dict[str, Any]) -> list[str]:
    rows = [f"| `{name}` | {f['bytes']:,} | `{f['sha256']}` |" for name, f in m["files"].items()]
    return [FILES, "", "| file | bytes | SHA-256 |", "|---|---|---|", *rows, ""]


def run_summary(work: Path, name: str) -> dict[str, Any]:
    log = json.loads((work / name / "log.json").read_text())
    kept = {
        k: log[k] for k in ("steps", "tokens", "seconds", "plan", "size", "torch", "python", "machine", "schedule_jump")
    }
    return {"parameters": parameters(log["size"]), **kept, "curve": log["curve"][:: max(1, len(log["curve"]) // 40)]}


def manifest(work: Path, out: Path) -> dict[str, Any]:
    sources = library_files(held_out=False)
    return {
        "licence": LICENCE,
        "context": CONTEXT,
        "files": files(out),
        "weights_bytes": sum((out / n / "model.safetensors").stat().st_size for n in ("target", "draft")),
        "seeds": {
            "tokenizer": tokenizer.SEED,
            "target": json.loads((work / "target" / "log.json").read_text())["plan"]["seed"],
            "draft": json.loads((work / "draft" / "log.json").read_text())["plan"]["seed"],
            "prompts": prompts.SEED,
        },
        "data": {
            "library_files": len(sources),
            "library_bytes": sum(p.stat().st_size for p in sources),
            "library_held_out_files": len(library_files(held_out=True)),
            "library_share_of_rows": {"target": list(Mix().library), "draft": MIX.library[LAST_STAGE]},
            "families": {name: list(weights) for name, (_, weights) in FAMILIES.items()},
            "held_out_one_in": HELD_OUT_ONE_IN,
            "stage_steps": list(Mix().stage_steps),
            "prompt_weight": list(Mix().prompt_weight),
        },
        "target": run_summary(work, "target"),
        "draft": {**run_summary(work, "draft"), "kl_share": KL_SHARE},
        "evaluation": json.loads((work / "evaluation.json").read_text()),
    }


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _workloads(report: dict[str, Any]) -> list[str]:
    head = ["class", "prompts", "tokens", "position 0", *(f"k={d}" for d in DEPTHS), "speed-up, k=4"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name in WORKLOADS:
        row = report["workloads"][name]
        cells = [f"`{name}`", row["prompts"], row["tokens"], row["alpha"], *(row[f"k{d}"] for d in DEPTHS)]
        lines.append("| " + " | ".join(map(_number, cells)) + f" | {row.get('speed_up', '–')}× |")
    return lines


def _abilities(report: dict[str, Any]) -> list[str]:
    calls, chat, code = (report["workloads"][n] for n in ("tool_call", "chat", "code"))
    return [
        f"- Tool calls: {calls['parses']:.1%} of {calls['prompts']} held-out ones parse, "
        f"{calls['exact']:.1%} are exactly "
        "the call expected, arguments included.",
        f"- Questions: a tool call where a question was asked: {chat['false_call']:.1%} of "
        f"{chat['prompts']}; "
        f"of those with one right answer {chat['right']:.1%} are right.",
        f"- Arithmetic (68 pairs under a hundred, most of them seen in training): sums "
        f"{report['sums']['sums']:.1%}, "
        f"differences {report['sums']['differences']:.1%}; held-out problems among the prompts "
        f"{chat['arithmetic']:.1%}.",
        f"- Asked for something that no listed tool can do, it says so in {report['refusals']['refused']:.1%} of "
        f"{report['refusals']['wishes']} held-out cases, and otherwise calls some tool. These cases are not among the "
        "prompts.",
        f"- Code: {code['compiles']:.1%} of {code['prompts']} answers compile (of SQL only the form is checked).",
    ]


def _losses(report: dict[str, Any]) -> list[str]:
    losses = dict(report["losses"])
    bits, python = losses.pop("python_bits_per_byte"), losses.pop("python")
    listed = " · ".join(f"{name} {loss:.2f}" for name, loss in losses.items())
    return [
        f"Library files never seen: {python:.3f} nats a token, {bits:.3f} bits a byte. Generated families, "
        f"on what the "
        f"assistant says, in nats a token: {listed}.",
    ]


def _trial(report: dict[str, Any], trial: dict[str, Any]) -> list[str]:
    lines = [
        "## Against the trial pair",
        "",
        "An earlier pair of the same two sizes, on the same prompts, by the same script. It was trained on other "
        "wordings than those of the prompts, twice as long and with more library, and may have seen the files held out "
        "here: the comparison says what changed for these prompts, not which recipe is better.",
        "",
        "| class | position 0: this, trial | k=4: this, trial | speed-up at k=4: this, trial |",
        "|---|---|---|---|",
    ]
    for name in WORKLOADS:
        a, b = report["workloads"][name], trial["workloads"][name]
        lines.append(
            f"| `{name}` | {a['alpha']}, {b['alpha']} | {a['k4']}, {b['k4']} | {a['speed_up']}×, {b['speed_up']}× |"
        )
    a, b = report, trial
    lines += [
        "",
        f"Sums {a['sums']['sums']:.1%} against {b['sums']['sums']:.1%}; exact tool calls "
        f"{a['workloads']['tool_call']['exact']:.1%} against {b['workloads']['tool_call']['exact']:.1%}; "
        f"held-out library "
        f"files {a['losses']['python_bits_per_byte']} against {b['losses']['python_bits_per_byte']} bits a "
        f"byte.",
        "",
    ]
    return lines


def _data(m: dict[str, Any]) -> list[str]:
    data = m["data"]
    library, prompt = data["library_share_of_rows"]["target"], data["prompt_weight"]
    second, last = data["stage_steps"]
    weights = ", ".join(f"{name} {'/'.join(f'{w:g}' for w in ws)}" for name, ws in data["families"].items())
    return [
        f"{data['library_files']} modules of the Python {m['target']['python']} standard library "
        f"({data['library_bytes'] / 1e6:.1f} MB; tests, interactive tools and data tables left out, "
        f"{data['library_held_out_files']} more files held out), and documents of a seeded generator. A row of the "
        "target's batch is all library with some probability, else it is packed with documents and filled up with "
        "library.",
        "",
        f"There are three stages. Up to step {second}: library {library[0]}, prompts weigh {prompt[0]} of an answer in "
        f"the loss, sums are given without their working. Up to step {last}: library {library[1]}, prompts weigh "
        f"{prompt[1]:g}, sums are worked in two steps. Then: library {library[2]}, and prose that does not repeat "
        "itself, because a model that is trained on repetitive prose repeats itself. The stages were chosen from "
        "samples taken during training. The draft sees the last stage only, library "
        f"{data['library_share_of_rows']['draft']}. Weights of the families in documents, by stage: {weights}.",
        "",
        f"One in {data['held_out_one_in']} user texts (for arithmetic: pairs of numbers, whatever the wording) is held "
        "out by its hash and never trained on; the prompts in `prompts/` are drawn from those "
        "alone. (A held-out sum may "
        "still occur as a step in another sum's working.)",
    ]


def card(m: dict[str, Any], trial: dict[str, Any] | None) -> str:
    report = m["evaluation"]
    lines = [
        "# nano: the embedded target and draft",
        "",
        "Two Llama-architecture models with one tokenizer and one chat template, small enough to travel "
        "with the package. "
        "They exist so that speculative decoding can be run, tested and measured on any machine without a "
        "download. They "
        "answer simple questions, add small numbers, write small Python functions, emit tool calls and "
        "tell aimless "
        "stories; they know nothing else and should not be relied on for anything.",
        "",
        f"Licence: {m['licence']}, as the project. The training data holds sources of the Python standard "
        f"library (PSF "
        "licence); nothing else was used that the project did not write.",
        "",
        "## Sizes",
        "",
        "| | layers | dim | heads | feed-forward | vocabulary | parameters | weights, bf16 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in ("target", "draft"):
        s, n = m[name]["size"], m["files"][f"{name}/model.safetensors"]["bytes"]
        lines.append(f"| {name} | {s['layers']} | {s['dim']} | {s['heads']} | {s['ffn']} | {s['vocab']}, tied | "
                     f"{m[name]['parameters']:,} | {n / 1e6:.1f} MB |")  # fmt: skip
    lines += [
        "",
        f"Context {m['context']:,} tokens. The target is deep and narrow, the draft shallow: every layer costs "
        "dispatch time, so one forward pass of the target costs as much as many of the draft, and hardly more for five "
        "tokens than for one. On "
        "CPU they run in "
        "fp32.",
        "",
        "## Data",
        "",
        *_data(m),
        "",
        "## Recipe",
        "",
    ]
    for name, text in (
        ("target", "cross-entropy on answers and raw text"),
        ("draft", f"{m['draft']['kl_share']} of the target's full distribution and {1 - m['draft']['kl_share']:.1f} "
                  "cross-entropy, on answers and raw text; it starts from the target's embeddings in their "
                  "first "
                  "principal directions"),
    ):  # fmt: skip
        r, p = m[name], m[name]["plan"]
        lines.append(
            f"- **{name}**: {text}. {r['steps']:,} steps, {r['tokens']:,} tokens, {r['seconds'] / 60:.1f} "
            f"minutes on two "
            f"cores shared with other work ({r['tokens'] / r['seconds']:.0f} tokens/s), seed {p['seed']}. "
            f"Muon "
            f"{p['muon_lr']} on hidden matrices, AdamW {p['adam_lr']} on the rest, {p['tokens_per_batch']} "
            f"tokens a batch, "
            f"{p['warmup_steps']} steps of warm-up, constant, linear decay to nothing from "
            f"{p['decay_from']:.0%} of the "
            "run on; sequence " + ", ".join(f"{n} from {start:.0%}" for start, n in p["lengths"]) + "."
        )
    lines += [
        "",
        f"Seeds: {', '.join(f'{k} {v}' for k, v in m['seeds'].items())}. PyTorch {m['target']['torch']}, "
        f"bf16 autocast on CPU. "
        "The loss curves are in `manifest.json`. The target was stopped where each later stage begins and resumed from "
        "its last checkpoint; the time above leaves out what was lost in between. Its schedule followed the clock of a "
        "busy machine, so that `--target-steps` and `--draft-steps` give a pair of the same kind, "
        "not the same weights.",
        "",
        "## Held-out loss",
        "",
        *_losses(report),
        "",
        "## What it does on held-out prompts",
        "",
        "Greedy, fp32, mlx-lm's own loops. *Position 0* is the share of the target's tokens that the draft "
        "would have "
        "chosen; *k* columns are accepted over drafted when every step drafts k tokens; the speed-up is "
        "mlx-lm's "
        "speculative loop over its plain one for every tenth prompt, in processor time on one busy core, prefill "
        "included.",
        "",
        *_workloads(report),
        "",
        *_abilities(report),
        "",
        *DRAFT_HEAD,
    ]
    if trial:
        lines += _trial(report, trial)
    lines += [
        "## Limits",
        "",
        "English only, facts from one table, sums and differences of numbers under a hundred, about thirty tools "
        "whose arguments are named in the request. Prose comes from a grammar: its sentences are correct, its plots "
        "are not, and decoded greedily it soon repeats itself (sampling at temperature 0.8 shows what it has "
        "learned). Anything outside the families above gets a confident wrong answer. Differences are wrong more "
        "often than right. No safety training of any kind.",
        "",
        *file_table(m),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    m = manifest(args.work, args.out)
    trial_file = args.work / "trial.json"
    trial = json.loads(trial_file.read_text()) if trial_file.exists() else None
    (args.out / "manifest.json").write_text(json.dumps(m, indent=1) + "\n")
    (args.out / "MODEL_CARD.md").write_text(card(m, trial), encoding="utf-8")


if __name__ == "__main__":
    main()
