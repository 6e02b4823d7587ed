"""Generates questions with one right answer, in several wordings."""

from __future__ import annotations

from random import Random

from training.generator import tables_facts as t
from training.generator.base import Document, article, chat

# Words before or after a question. They change nothing, which the model must learn.
_OPENERS = (
    "",
    "",
    "",
    "",
    "",
    "",
    "Please tell me: ",
    "Quick question: ",
    "Hello! ",
    "Hi, ",
    "I wonder: ",
    "Question: ",
)
_CLOSERS = ("", "", "", "", "", "", " Answer briefly.", " Thanks.", " Answer in one sentence.")


def _capital(rng: Random) -> tuple[str, str, str]:
    country, capital = rng.choice(list(t.CAPITALS.items()))
    if rng.random() < 0.2:
        question = rng.choice(
            (f"Which country has {capital} as its capital?", f"{capital} is the capital of which country?")
        )
        return question, f"{capital} is the capital of {country}.", country
    question = rng.choice(
        (
            f"What is the capital of {country}?",
            f"What is the capital of {country}?",
            f"What is the capital city of {country}?",
            f"Which city is the capital of {country}?",
            f"Name the capital of {country}.",
            f"Tell me the capital of {country}.",
            f"What's {country}'s capital?",
        )
    )
    return question, f"The capital of {country} is {capital}.", capital


def _language(rng: Random) -> tuple[str, str, str]:
    country, language = rng.choice(list(t.LANGUAGES.items()))
    question = rng.choice((f"What language is spoken in {country}?", f"Which language do people speak in {country}?"))
    return question, f"People in {country} speak {language}.", language


def _opposite(rng: Random) -> tuple[str, str, str]:
    a, b = rng.choice(list(t.OPPOSITES.items()))
    question = rng.choice(
        (f"What is the opposite of {a}?", f'What is the antonym of "{a}"?', f"Give the opposite of {a}.")
    )
    return question, f"The opposite of {a} is {b}.", b


def _plural(rng: Random) -> tuple[str, str, str]:
    a, b = rng.choice(list(t.PLURALS.items()))
    question = rng.choice((f"What is the plural of {a}?", f'What is the plural of "{a}"?', f"Give the plural of {a}."))
    return question, f"The plural of {a} is {b}.", b


def _past(rng: Random) -> tuple[str, str, str]:
    a, b = rng.choice(list(t.PAST.items()))
    question = rng.choice(
        (f"What is the past tense of {a}?", f'What is the past tense of "{a}"?', f"Give the past tense of {a}.")
    )
    return question, f"The past tense of {a} is {b}.", b


def _animal(rng: Random) -> tuple[str, str, str]:
    kind = rng.randrange(3)
    if kind == 0:
        a, b = rng.choice(list(t.YOUNG.items()))
        return f"What is a young {a} called?", f"A young {a} is called {article(b)}.", b
    if kind == 1:
        a, b = rng.choice(list(t.SOUNDS.items()))
        return f"What sound does {article(a)} make?", f"{article(a).capitalize()} {b}.", b
    a, n = rng.choice(list(t.LEGS.items()))
    word = "no" if n == 0 else t.NUMBERS[n]
    return f"How many legs does {a} have?", f"{a.capitalize()} has {word} legs.", word


def _thing(rng: Random) -> tuple[str, str, str]:
    kind = rng.randrange(3)
    if kind == 0:
        a, b = rng.choice(list(t.COLOURS_OF.items()))
        return rng.choice((f"What colour is {a}?", f"Which colour does {a} have?")), f"{a.capitalize()} is {b}.", b
    if kind == 1:
        a, b = rng.choice(list(t.SYMBOLS.items()))
        return f"What is the chemical symbol for {a}?", f"The chemical symbol for {a} is {b}.", b
    a, b = rng.choice(list(t.WORKERS.items()))
    verb = "fly" if b == "planes" else "make"
    verb = "grow" if a == "a farmer" else verb
    return f"What does {a} {verb}?", f"{a.capitalize()} {verb.replace('fly', 'flie')}s {b}.", b


def _calendar(rng: Random) -> tuple[str, str, str]:
    kind = rng.randrange(5)
    i, m = rng.randrange(7), rng.randrange(12)
    if kind == 0:
        return (
            f"Which day comes after {t.DAYS[i]}?",
            f"{t.DAYS[(i + 1) % 7]} comes after {t.DAYS[i]}.",
            t.DAYS[(i + 1) % 7],
        )
    if kind == 1:
        return f"Which day comes before {t.DAYS[i]}?", f"{t.DAYS[i - 1]} comes before {t.DAYS[i]}.", t.DAYS[i - 1]
    after, before = t.MONTHS[(m + 1) % 12], t.MONTHS[m - 1]
    if kind == 2:
        return f"Which month comes after {t.MONTHS[m]}?", f"{after} comes after {t.MONTHS[m]}.", after
    if kind == 3:
        return f"Which month comes before {t.MONTHS[m]}?", f"{before} comes before {t.MONTHS[m]}.", before
    days = str(t.MONTH_DAYS[m])
    return f"How many days are there in {t.MONTHS[m]}?", f"There are {days} days in {t.MONTHS[m]}.", days


_KINDS = (_capital, _language, _opposite, _plural, _past, _animal, _thing, _calendar, lambda r: r.choice(t.SINGLE))
_WEIGHTS = (34, 6, 9, 8, 8, 8, 11, 9, 16)


def question(rng: Random) -> tuple[str, str, str]:
    """Returns a question, its full answer, and the word or words that a checker looks for."""
    asked, answer, short = rng.choices(_KINDS, _WEIGHTS)[0](rng)
    return rng.choice(_OPENERS) + asked + rng.choice(_CLOSERS), answer, short


def facts(rng: Random) -> Document:
    asked, answer, short = question(rng)
    system = "You are a helpful assistant." if rng.random() < 0.12 else ""
    return chat("facts", "chat", asked, answer, system=system, expect=short)
