"""Generates word tasks, lists and small talk for the category `chat`."""

from __future__ import annotations

from random import Random

from training.generator import tables_words as w
from training.generator.base import Document, article, chat, join_and
from training.generator.tables_facts import NUMBERS


def _synonym(rng: Random) -> tuple[str, str, str]:
    a, b = rng.choice(list(w.SYNONYMS.items()))
    asked = rng.choice((f"Give me a synonym for {a}.", f'What is another word for "{a}"?', f"Name a synonym of {a}."))
    return asked, f"A synonym for {a} is {b}.", b


def _translate(rng: Random) -> tuple[str, str, str]:
    language = rng.choice(list(w.TRANSLATIONS))
    a, b = rng.choice(list(w.TRANSLATIONS[language].items()))
    asked = rng.choice(
        (f"How do you say {a} in {language}?", f'Translate "{a}" into {language}.', f"What is {a} in {language}?")
    )
    return asked, f"In {language}, {a} is {b}.", b


def _first_letter(rng: Random) -> tuple[str, str, str]:
    a = rng.choice(w.WORDS)
    if rng.random() < 0.5:
        return f'What is the first letter of "{a}"?', f'The first letter of "{a}" is {a[0]}.', f"is {a[0]}"
    return f'How many letters does "{a}" have?', f'The word "{a}" has {NUMBERS[len(a)]} letters.', NUMBERS[len(a)]


def _spell(rng: Random) -> tuple[str, str, str]:
    a = rng.choice(w.WORDS)
    spelled = "-".join(a.upper())
    return rng.choice((f'Spell "{a}".', f"How do you spell {a}?", f"Spell the word {a}.")), spelled, spelled


def _case(rng: Random) -> tuple[str, str, str]:
    picked = rng.sample(w.WORDS, rng.randrange(1, 4))
    if rng.random() < 0.5:
        return f"Write in upper case: {' '.join(picked)}", " ".join(picked).upper(), " ".join(picked).upper()
    return f"Write with capitals: {' '.join(picked)}", " ".join(picked).title(), " ".join(picked).title()


def _sort(rng: Random) -> tuple[str, str, str]:
    if rng.random() < 0.5:
        picked = rng.sample(range(1, 60), rng.randrange(3, 6))
        answer = ", ".join(map(str, sorted(picked)))
        return f"Sort these numbers: {', '.join(map(str, picked))}", answer, answer
    picked_words = rng.sample(w.FRUITS + w.COLOURS[:8], rng.randrange(3, 5))
    answer = ", ".join(sorted(picked_words))
    return f"Sort these words: {', '.join(picked_words)}", answer, answer


def _category(rng: Random) -> tuple[str, str, str]:
    name = rng.choice(["fruit", "vegetable", "colour", "sport", "metal", "tree", "flower", "bird", "insect"])
    table = w.CATEGORIES[name + "s"]
    yes = rng.random() < 0.5
    if yes:
        a = rng.choice(table)
        return f"Is {a} {article(name)}?", f"Yes, {a} is {article(name)}.", "Yes"
    others = [x for c in ("fruits", "vegetables", "colours", "sports", "metals", "vehicles") for x in w.CATEGORIES[c]]
    a = rng.choice([x for x in others if x not in table])
    return f"Is {a} {article(name)}?", f"No, {a} is not {article(name)}.", "No"


_TASKS = (_synonym, _translate, _first_letter, _spell, _case, _sort, _category)


def words(rng: Random) -> Document:
    asked, answer, short = rng.choice(_TASKS)(rng)
    return chat("words", "chat", asked, answer, expect=short)


def lists(rng: Random) -> Document:
    """Builds a list of n different things. The count is a word or a number, and the answer keeps to it."""
    name = rng.choice(list(w.CATEGORIES))
    table = w.CATEGORIES[name]
    n = rng.randrange(2, min(8, len(table)) + 1)
    # A fixed order with a random start lets a small model avoid repetitions.
    start = rng.randrange(len(table)) if rng.random() < 0.3 else 0
    items = [table[(start + i) % len(table)] for i in range(n)]
    count = NUMBERS[n] if rng.random() < 0.7 else str(n)
    topped = rng.choice(
        (
            "",
            "",
            "",
            " please",
            " in a numbered list",
            " in a numbered list",
            " as a bullet list",
            " separated by commas",
        )
    )
    asked = rng.choice(
        (f"List {count} {name}{topped}.", f"Name {count} {name}{topped}.", f"Give me {count} {name}{topped}.")
    )
    if "comma" in topped:
        answer = ", ".join(items)
    elif "bullet" in topped:
        answer = "\n".join(f"- {i}" for i in items)
    else:
        answer = "\n".join(f"{i}. {x}" for i, x in enumerate(items, 1))
    return chat("lists", "chat", asked, answer)


_TALK = (
    (
        ("Hello", "Hello!", "Hi", "Hi!", "Hi there!", "Hey", "Good morning!", "Good evening!"),
        "Hello! How can I help you?",
    ),
    (("Thank you!", "Thanks!", "Thanks a lot.", "Thank you very much."), "You are welcome!"),
    (("Goodbye!", "Bye!", "See you later."), "Goodbye! Have a nice day."),
    (("How are you?", "How are you today?", "How do you do?"), "I am well, thank you. How can I help you?"),
    (
        ("Who made you?", "Where do you come from?"),
        "I was trained from scratch by a small script on two processor cores.",
    ),
    (("Can you help me?", "I need help."), "Of course. What do you need?"),
    (("Tell me a joke.", "Do you know a joke?"), "Why did the byte cross the bus? To get to the other cache line."),
)


def talk(rng: Random) -> Document:
    """Builds greetings, introductions, and questions about what was just said."""
    kind = rng.random()
    if kind < 0.35:
        asked, answer = rng.choice(_TALK)
        return chat("talk", "chat", rng.choice(asked), answer)
    name, city = rng.choice(w.NAMES), rng.choice(w.CITIES)
    if kind < 0.6:
        asked = rng.choice((f"My name is {name}.", f"Hello, I am {name}.", f"Hi, I'm {name}."))
        return chat("talk", "chat", asked, f"Hello {name}! How can I help you?", expect=name)
    thing, colour = rng.choice(w.CLOTHES + w.VEHICLES + w.FURNITURE), rng.choice(w.COLOURS)
    facts = [
        (f"{name} lives in {city}.", f"Where does {name} live?", f"{name} lives in {city}.", city),
        (f"The {thing} is {colour}.", f"What colour is the {thing}?", f"The {thing} is {colour}.", colour),
        (f"{name} has {article(thing)}.", f"Who has {article(thing)}?", f"{name} has {article(thing)}.", name),
    ]
    picked = rng.sample(facts, rng.randrange(1, 3))
    _, asked, answer, short = rng.choice(picked)
    return chat("talk", "chat", " ".join(p[0] for p in picked) + " " + asked, answer, expect=short)


def summary(rng: Random) -> Document:
    """Builds a sentence from what the user gave, to train copying from the prompt."""
    name, job = rng.choice(w.NAMES), rng.choice(w.JOBS)
    city, likes = rng.choice(w.CITIES), rng.sample(w.SPORTS + w.INSTRUMENTS, rng.randrange(2, 4))
    asked = f"Write one sentence about {name}: job {job}, city {city}, likes {', '.join(likes)}."
    return chat("talk", "chat", asked, f"{name} is {article(job)} from {city} who likes {join_and(likes)}.")
