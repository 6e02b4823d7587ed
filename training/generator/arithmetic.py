"""Sums and differences of small numbers: every pair under a hundred, less the few held out."""

from __future__ import annotations

from random import Random

from training.generator.base import Document, chat, is_held_out
from training.generator.tables_facts import NUMBERS


def sum_key(a: int, b: int) -> str:
    """The construct that is held out: the pair, whatever the wording and the order."""
    return f"sum {min(a, b)} {max(a, b)}"


def difference_key(a: int, b: int) -> str:
    return f"difference {a} {b}"


def _number(rng: Random) -> int:
    return rng.randrange(100) if rng.random() < 0.8 else rng.randrange(13)


def problem(rng: Random) -> tuple[str, str, int]:
    """A problem as `a + b`, its key, and the result."""
    a, b = _number(rng), _number(rng)
    kind = rng.random()
    if kind < 0.66:
        return f"{a} + {b}", sum_key(a, b), a + b
    if kind < 0.92:
        a, b = max(a, b), min(a, b)
        return f"{a} - {b}", difference_key(a, b), a - b
    a, b = rng.randrange(11), rng.randrange(11)
    return f"{a} * {b}", f"product {a} {b}", a * b


_ASK = ("What is {p}?", "What is {p}?", "What is {p}?", "Calculate {p}.", "{p} = ?", "How much is {p}?", "Compute {p}.")
_SYMBOLS = {"+": "plus", "-": "minus", "*": "times"}


def _one(rng: Random) -> Document:
    p, key, result = problem(rng)
    spoken = p
    if rng.random() < 0.2:
        for symbol, word in _SYMBOLS.items():
            spoken = spoken.replace(f" {symbol} ", f" {word} ")
    asked = rng.choice(_ASK[:4]) if spoken != p else rng.choice(_ASK)
    return chat("arithmetic", "chat", asked.format(p=spoken), f"{p} = {result}", key=key, expect=str(result))


def _sheet(rng: Random) -> Document:
    """Many problems in one document: the densest lesson per token."""
    picked = [problem(rng) for _ in range(rng.randrange(6, 15))]
    kept = [(p, r) for p, key, r in picked if not is_held_out(key)] or [("2 + 2", 4)]
    lines = "\n".join(f"{p} = {r}" for p, r in kept)
    if rng.random() < 0.5:
        return Document("arithmetic", "chat", raw=lines, key="sheet")
    asked = rng.choice(("Solve these:", "Do these sums:", "Calculate:")) + "\n" + "\n".join(p for p, _ in kept)
    return chat("arithmetic", "chat", asked, lines)


def _story(rng: Random) -> Document:
    a, b = rng.randrange(1, 30), rng.randrange(1, 20)
    name = rng.choice(("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Iris", "Jack"))
    thing = rng.choice(("apples", "coins", "books", "marbles", "stamps", "pencils", "cards", "shells"))
    if rng.random() < 0.6:
        asked = f"{name} has {a} {thing} and gets {b} more. How many {thing} does {name} have?"
        return chat(
            "arithmetic",
            "chat",
            asked,
            f"{a} + {b} = {a + b}, so {name} has {a + b} {thing}.",
            key=sum_key(a, b),
            expect=str(a + b),
        )
    a, b = a + b, b
    asked = f"{name} has {a} {thing} and gives away {b}. How many {thing} are left?"
    return chat(
        "arithmetic",
        "chat",
        asked,
        f"{a} - {b} = {a - b}, so {a - b} {thing} are left.",
        key=difference_key(a, b),
        expect=str(a - b),
    )


def _compare(rng: Random) -> Document:
    a, b = rng.sample(range(100), 2)
    if rng.random() < 0.4:
        n = rng.randrange(1, 20)
        return chat(
            "arithmetic",
            "chat",
            rng.choice(("What comes after {}?", "Which number comes after {}?")).format(NUMBERS[n]),
            f"The number after {NUMBERS[n]} is {NUMBERS[n + 1]}.",
            expect=NUMBERS[n + 1],
        )
    word = rng.choice(("larger", "smaller"))
    best = max(a, b) if word == "larger" else min(a, b)
    return chat("arithmetic", "chat", f"Which is {word}, {a} or {b}?", f"{best} is {word}.", expect=str(best))


def arithmetic(rng: Random) -> Document:
    return rng.choices((_one, _sheet, _story, _compare), (52, 30, 10, 8))[0](rng)
