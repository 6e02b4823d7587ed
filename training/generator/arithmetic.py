"""Generates sums and differences of small numbers: all pairs below 100 except the few held out."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from training.generator.base import Document, chat, is_held_out
from training.generator.tables_facts import NUMBERS


def sum_key(a: int, b: int) -> str:
    """Returns the key by which a sum is held out: the pair, whatever its wording and order."""
    return f"sum {min(a, b)} {max(a, b)}"


def difference_key(a: int, b: int) -> str:
    return f"difference {a} {b}"


class Problem(NamedTuple):
    asked: str
    key: str
    result: int
    answer: str
    """Such as `17 + 25 = 30 + 12 = 42`: tens and ones apart, so that a small model can memorise every step."""


def _working(a: int, b: int, sign: str) -> str:
    if sign == "+":
        tens, ones = (a // 10 + b // 10) * 10, a % 10 + b % 10
        return f" = {tens} + {ones}" if tens and ones and (tens, ones) not in ((a, b), (b, a)) else ""
    tens, ones = b // 10 * 10, b % 10
    return f" = {a - tens} - {ones}" if tens and ones else ""


def solve(a: int, b: int, sign: str, worked: bool) -> Problem:
    """Builds a problem, with its steps if `worked` and if it has any."""
    key, result = {
        "+": (sum_key(a, b), a + b),
        "-": (difference_key(a, b), a - b),
        "*": (f"product {a} {b}", a * b),
    }[sign]
    steps = _working(a, b, sign) if worked and sign != "*" else ""
    return Problem(f"{a} {sign} {b}", key, result, f"{a} {sign} {b}{steps} = {result}")


def _number(rng: Random) -> int:
    return rng.randrange(100) if rng.random() < 0.8 else rng.randrange(13)


def problem(rng: Random, worked: bool) -> Problem:
    """Draws a problem. Worked ones are mostly small; plain ones are spread over all pairs below 100."""
    if worked and rng.random() < 0.5:
        a, b = rng.randrange(31), rng.randrange(31)
    else:
        a, b = _number(rng), _number(rng)
    kind = rng.random()
    if kind < 0.66:
        return solve(a, b, "+", worked)
    if kind < 0.92:
        return solve(max(a, b), min(a, b), "-", worked)
    return solve(rng.randrange(11), rng.randrange(11), "*", worked)


_ASK = ("What is {p}?", "What is {p}?", "What is {p}?", "Calculate {p}.", "{p} = ?", "How much is {p}?", "Compute {p}.")
_SYMBOLS = {"+": "plus", "-": "minus", "*": "times"}


def _one(rng: Random, worked: bool) -> Document:
    given = problem(rng, worked)
    p = spoken = given.asked
    if rng.random() < 0.2:
        for symbol, word in _SYMBOLS.items():
            spoken = spoken.replace(f" {symbol} ", f" {word} ")
    asked = rng.choice(_ASK[:4]) if spoken != p else rng.choice(_ASK)
    return chat("arithmetic", "chat", asked.format(p=spoken), given.answer, key=given.key, expect=str(given.result))


def _sheet(rng: Random, worked: bool) -> Document:
    """Builds a document of many problems: the most training per token."""
    picked = [problem(rng, worked) for _ in range(rng.randrange(6, 15))]
    kept = [x for x in picked if not is_held_out(x.key)] or [solve(2, 2, "+", worked)]
    lines = "\n".join(x.answer for x in kept)
    if rng.random() < 0.5:
        return Document("arithmetic", "chat", raw=lines, key="sheet")
    asked = rng.choice(("Solve these:", "Do these sums:", "Calculate:")) + "\n" + "\n".join(x.asked for x in kept)
    return chat("arithmetic", "chat", asked, lines)


def _story(rng: Random, worked: bool) -> Document:
    a, b = rng.randrange(1, 30), rng.randrange(1, 20)
    name = rng.choice(("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Iris", "Jack"))
    thing = rng.choice(("apples", "coins", "books", "marbles", "stamps", "pencils", "cards", "shells"))
    if rng.random() < 0.6:
        asked = f"{name} has {a} {thing} and gets {b} more. How many {thing} does {name} have?"
        return chat(
            "arithmetic",
            "chat",
            asked,
            f"{solve(a, b, '+', worked).answer}, so {name} has {a + b} {thing}.",
            key=sum_key(a, b),
            expect=str(a + b),
        )
    a, b = a + b, b
    asked = f"{name} has {a} {thing} and gives away {b}. How many {thing} are left?"
    return chat(
        "arithmetic",
        "chat",
        asked,
        f"{solve(a, b, '-', worked).answer}, so {a - b} {thing} are left.",
        key=difference_key(a, b),
        expect=str(a - b),
    )


def _compare(rng: Random, worked: bool) -> Document:
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


def arithmetic(rng: Random, worked: bool = True) -> Document:
    return rng.choices((_one, _sheet, _story, _compare), (52, 30, 10, 8))[0](rng, worked)
