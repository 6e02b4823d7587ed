"""Generates prose whose next word is truly uncertain: a grammar over large tables, with sentences and plots in any
order."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from training.generator import tables_prose as p
from training.generator import tables_words as w
from training.generator.base import Document, article, chat

_JOINERS = ("and", "but", "while", "because", "although", "until", "so")
_SAID = ("said", "whispered", "cried", "muttered", "answered")


class _Unrepeated(Random):
    """Random choices that a text does not repeat: otherwise its likeliest continuation would be a repetition."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng.getrandbits(48))
        self._used: set[str] = set()
        self._decks: dict[int, list[int]] = {}

    def choice(self, seq: Sequence[Any]) -> Any:
        for _ in range(8):
            picked = super().choice(seq)
            if len(seq) < 9 or picked not in self._used:
                break
        self._used.add(picked)
        return picked

    def card(self, count: int) -> int:
        """Returns a number below `count`; all occur equally often."""
        deck = self._decks.setdefault(count, [])
        if not deck:
            deck.extend(range(count))
            self.shuffle(deck)
        return deck.pop()


class _Scene:
    """The few people, animals and things that a story repeats."""

    def __init__(self, rng: Random, varied: bool) -> None:
        fresh = _Unrepeated(rng) if varied else None
        self.card = fresh.card if fresh else rng.randrange
        self.own = 0.25 if varied else 0.45
        self.rng = rng = fresh or rng
        self.name = rng.choice(w.NAMES)
        self.pronoun = rng.choice(("she", "he"))
        self.person = rng.choice(p.PEOPLE)
        self.beast = rng.choice(p.BEASTS)
        self.object = rng.choice(p.OBJECTS)
        self.place = rng.choice(p.PLACES)

    def noun(self, table: list[str], usual: str) -> str:
        """Returns a noun, often the scene's own (`usual`), with or without an adjective."""
        noun = usual if self.rng.random() < self.own else self.rng.choice(table)
        return f"{self.rng.choice(p.ADJECTIVES)} {noun}" if self.rng.random() < 0.55 else noun

    def someone(self) -> str:
        roll = self.rng.random()
        if roll < 0.3:
            return self.name
        if roll < 0.55:
            return self.pronoun
        if roll < 0.8:
            return "the " + self.noun(p.PEOPLE, self.person)
        return "the " + self.noun(p.BEASTS, self.beast)

    def thing(self) -> str:
        noun = self.noun(p.OBJECTS, self.object)
        return self.rng.choice(("the {}", "the {}", "a {}", "his {}", "her {}", "another {}", "that {}")).format(noun)

    def where(self) -> str:
        how = self.rng.choice(
            ("in", "near", "behind", "beside", "beyond", "outside", "above", "below", "across from", "by")
        )
        return f"{how} the {self.noun(p.PLACES, self.place)}"

    def clause(self) -> str:
        r = self.rng
        kind = self.card(9)
        if kind < 3:
            tail = r.choice(
                (" " + self.where(), " " + r.choice(p.ADVERBS), "", "", " for the " + self.noun(p.PEOPLE, self.person))
            )
            return f"{self.someone()} {r.choice(p.PAST_VERBS)} {self.thing()}{tail}"
        if kind < 5:
            return f"{self.someone()} {r.choice(p.MOTION)} {r.choice((r.choice(p.ADVERBS) + ' ', '', ''))}{self.to()}"
        if kind == 5:
            return f"the {r.choice(p.WEATHER)} {r.choice(p.WEATHER_VERBS)} {self.where()}"
        if kind == 6:
            return f"{self.someone()} felt {r.choice(p.FEELINGS)} and {r.choice(p.FEELINGS)}"
        if kind == 7:
            return f"there was {article(r.choice(p.ADJECTIVES))} {r.choice(p.OBJECTS)} {self.where()}"
        return f"{self.someone()} thought of the {self.noun(p.PLACES, self.place)} and {self.thing()}"

    def to(self) -> str:
        how = self.rng.choice(("to", "toward", "through", "past", "into", "around", "away from"))
        return f"{how} the {self.noun(p.PLACES, self.place)}"

    def sentence(self) -> str:
        r = self.rng
        kind = self.card(12)
        if kind < 3:
            text = self.clause()
        elif kind < 5:
            text = f"{r.choice(p.TIMES)}, {self.clause()}"
        elif kind < 7:
            text = f"{self.clause()}, {r.choice(_JOINERS)} {self.clause()}"
        elif kind == 7:
            return f'"{r.choice(p.SPEECH)}," {r.choice(_SAID)} {self.someone()}.'
        elif kind == 8:
            text = f"{r.choice(('when', 'after', 'before', 'if', 'as'))} {self.clause()}, {self.clause()}"
        elif kind == 9:
            text = (
                f"it was {article(r.choice(p.ADJECTIVES))} {r.choice(p.PLACES)}, "
                f"{r.choice(p.ADJECTIVES)} and {r.choice(p.ADJECTIVES)}"
            )
        elif kind == 10:
            text = f"nobody knew why {self.clause()}"
        else:
            text = f"{self.pronoun} asked whether {self.clause()}"
        return text[0].upper() + text[1:] + "."


def _opening(scene: _Scene) -> str:
    r = scene.rng

    def some(noun: str) -> str:
        return f"{article(r.choice(p.ADJECTIVES))} {noun}"

    def the(noun: str) -> str:
        return f"the {r.choice(p.ADJECTIVES)} {noun}"

    # Builds all four before it chooses one: the random numbers used must not depend on the choice.
    return r.choice(
        (
            f"{r.choice(p.TIMES)}, {some(scene.person)} called {scene.name} lived {scene.where()}.",
            f"{scene.name} was {some(scene.person)} with {some(scene.object)}.",
            f"there was once {some(scene.beast)} {scene.where()}.",
            f"{the(scene.person)} and {the(scene.beast)} {r.choice(p.MOTION)} {scene.to()}.",
        )
    )


def _ending(scene: _Scene) -> str:
    r = scene.rng
    if r.random() < 0.5:
        return f"And {scene.name} learned that {r.choice(p.SAYINGS)}."
    return f"{r.choice(p.TIMES).capitalize()}, {scene.name} {r.choice(p.MOTION)} home with {scene.thing()}."


def tell(scene: _Scene, sentences: int) -> str:
    opening = _opening(scene)
    middle = " ".join(scene.sentence() for _ in range(sentences))
    return f"{opening[0].upper()}{opening[1:]} {middle} {_ending(scene)}"


def stories(rng: Random, varied: bool = True) -> Document:
    scene = _Scene(rng, varied)
    text = tell(scene, rng.randrange(3, 8))
    if rng.random() < 0.12:
        return Document("stories", "prose", raw=text, key="story")
    about = rng.choice(
        (
            f"{article(scene.person)} and {article(scene.object)}",
            f"{article(scene.beast)} in the {scene.place}",
            f"{scene.name}, {article(scene.person)}",
            f"{scene.name} and {article(scene.beast)}",
            f"{article(scene.object)} in the {scene.place}",
            f"{article(scene.person)} and {article(scene.beast)}",
        )
    )
    asked = rng.choice(
        ("Tell me a story about {}.", "Write a short story about {}.", "Write a story about {}.", "Tell a tale of {}.")
    )
    return chat("stories", "prose", asked.format(about), text)


def scenes(rng: Random, varied: bool = True) -> Document:
    """Builds descriptions, letters and continuations: prose without a plot."""
    scene = _Scene(rng, varied)
    body = " ".join(scene.sentence() for _ in range(rng.randrange(3, 7)))
    kind = rng.randrange(3)
    if kind == 0:
        return chat("scenes", "prose", f"Describe the {scene.place} {rng.choice(p.TIMES)}.", body)
    if kind == 1:
        asked = f"Write a letter from {scene.name} to {article(scene.person)} about the {scene.object}."
        return chat("scenes", "prose", asked, f"Dear {scene.person}, {body} Yours, {scene.name}")
    asked = f"Continue this text: {scene.sentence()}"
    return chat("scenes", "prose", asked, body)
