"""Generates structured text other than Python: JSON objects, SQL, log lines, CSV."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from training.generator import tables_words as w
from training.generator.base import Document, chat, join_and
from training.generator.tables_tools import TABLES

_TEXT_FIELDS = {
    "name": w.NAMES,
    "city": w.CITIES,
    "color": w.COLOURS,
    "job": w.JOBS,
    "fruit": w.FRUITS,
    "sport": w.SPORTS,
    "pet": w.ANIMALS,
    "language": w.LANGS,
    "surname": w.SURNAMES,
    "vehicle": w.VEHICLES,
}
_NUMBER_FIELDS = {
    "age": (5, 90),
    "year": (1950, 2030),
    "price": (1, 500),
    "count": (0, 99),
    "size": (1, 50),
    "id": (1, 9999),
}


def _field(rng: Random, name: str) -> Any:
    if name in _TEXT_FIELDS:
        return rng.choice(_TEXT_FIELDS[name])
    if name == "active":
        return rng.random() < 0.5
    return rng.randint(*_NUMBER_FIELDS[name])


def json_object(rng: Random) -> Document:
    names = rng.sample([*_TEXT_FIELDS, *_NUMBER_FIELDS, "active"], rng.randrange(2, 6))
    values = {n: _field(rng, n) for n in names}
    said = ", ".join(f"{k} {json.dumps(v) if isinstance(v, bool) else v}" for k, v in values.items())
    asked = rng.choice(("Write a JSON object with {}.", "Give me JSON with {}.", "As JSON: {}"))
    indent = rng.choice((None, 2))
    if indent:
        asked = (
            asked.replace("a JSON", "an indented JSON")
            .replace("me JSON", "me indented JSON")
            .replace("As JSON", "As indented JSON")
        )
    return chat("json", "tool_call", asked.format(said), json.dumps(values, indent=indent))


_COLUMNS = [
    "id",
    "name",
    "email",
    "age",
    "city",
    "price",
    "status",
    "created_at",
    "total",
    "quantity",
    "country",
    "title",
]


def sql(rng: Random) -> Document:
    table = rng.choice(TABLES)
    columns = rng.sample(_COLUMNS, rng.randrange(1, 4))
    listed = ", ".join(columns)
    kind = rng.randrange(6)
    if kind == 0:
        where, n = rng.choice(("age", "price", "total", "quantity")), rng.randrange(1, 500)
        word, sign = rng.choice((("greater than", ">"), ("less than", "<"), ("equal to", "=")))
        asked = f"select {join_and(columns)} from {table} where {where} is {word} {n}"
        answer = f"SELECT {listed} FROM {table} WHERE {where} {sign} {n};"
    elif kind == 1:
        asked, answer = (
            f"count the rows of {table} for each {columns[0]}",
            (f"SELECT {columns[0]}, COUNT(*) FROM {table} GROUP BY {columns[0]};"),
        )
    elif kind == 2:
        n = rng.randrange(1, 100)
        asked = f"show the first {n} rows of {table} ordered by {columns[0]}"
        answer = f"SELECT * FROM {table} ORDER BY {columns[0]} LIMIT {n};"
    elif kind == 3:
        n = rng.randrange(1, 9999)
        asked, answer = f"delete the row with id {n} from {table}", f"DELETE FROM {table} WHERE id = {n};"
    elif kind == 4:
        name, city = rng.choice(w.NAMES), rng.choice(w.CITIES)
        asked = f"insert {name} from {city} into {table}"
        answer = f"INSERT INTO {table} (name, city) VALUES ('{name}', '{city}');"
    else:
        n, city = rng.randrange(1, 9999), rng.choice(w.CITIES)
        asked = f"set the city to {city} in {table} where id is {n}"
        answer = f"UPDATE {table} SET city = '{city}' WHERE id = {n};"
    said = rng.choice(("Write SQL to {}.", "Give me an SQL query to {}.", "SQL: {}"))
    return chat("sql", "code", said.format(asked), answer)


_LEVELS = ("INFO", "INFO", "INFO", "DEBUG", "WARNING", "ERROR")
_EVENTS = (
    "request id={i} path=/{a}/{b} status={s} ms={m}",
    "user {n} logged in from 10.0.{o}.{p}",
    "cache miss key={a}:{i}",
    "job {i} finished in {m} ms",
    "connection to {a} lost, retry {r}",
    "worker {r} started",
    "saved {i} rows to {a}",
    "disk usage {q} percent",
)


def _log_line(rng: Random, seconds: int) -> str:
    event = rng.choice(_EVENTS).format(
        i=rng.randrange(1, 9999),
        a=rng.choice(TABLES),
        b=rng.randrange(1, 999),
        s=rng.choice((200, 200, 200, 201, 404, 500)),
        m=rng.randrange(1, 900),
        n=rng.choice(w.NAMES).lower(),
        o=rng.randrange(256),
        p=rng.randrange(256),
        r=rng.randrange(1, 6),
        q=rng.randrange(10, 99),
    )
    return f"{seconds // 3600 % 24:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d} {rng.choice(_LEVELS)} {event}"


def logs(rng: Random) -> Document:
    n, service, start = rng.randrange(3, 7), rng.choice(TABLES), rng.randrange(86400)
    lines = []
    for _ in range(n):
        start += rng.randrange(1, 20)
        lines.append(_log_line(rng, start))
    minutes = f"{start // 3600 % 24:02d}:{start // 60 % 60:02d}"
    asked = rng.choice(
        (
            f"Show {n} log lines of the {service} service around {minutes}.",
            f"Write {n} log lines for {service} at {minutes}.",
        )
    )
    return chat("logs", "prose", asked, "\n".join(lines))


def csv(rng: Random) -> Document:
    names = rng.sample([*_TEXT_FIELDS, *_NUMBER_FIELDS], rng.randrange(2, 5))
    n = rng.randrange(3, 7)
    rows = [",".join(str(_field(rng, f)) for f in names) for _ in range(n)]
    asked = rng.choice(
        (
            f"Write a CSV table with {n} rows and the columns {join_and(names)}.",
            f"Make a CSV file with {n} rows: {join_and(names)}.",
        )
    )
    return chat("csv", "prose", asked, ",".join(names) + "\n" + "\n".join(rows))
