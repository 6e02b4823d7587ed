"""Writes the schemas of Python's generators to standard output, one JSON object a line: see README.md."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

from fastapi import FastAPI
from mcp.server import MCPServer
from openai import pydantic_function_tool
from openai.lib._pydantic import to_strict_json_schema
from pydantic import (
    AnyUrl,
    AwareDatetime,
    Base64Bytes,
    BaseModel,
    ConfigDict,
    Discriminator,
    EmailStr,
    Field,
    HttpUrl,
    IPvAnyAddress,
    Json,
    RootModel,
    SecretStr,
    StringConstraints,
    Tag,
    TypeAdapter,
    computed_field,
)
from typing_extensions import TypedDict


def write(name: str, by: str, schema: Any, valid: Sequence[Any], invalid: Sequence[Any]) -> None:
    line = {"name": name, "by": by, "schema": schema, "valid": valid, "invalid": invalid}
    print(json.dumps(line, ensure_ascii=False))


UUID_TEXT = "5f0c1f6e-8a53-4c0f-9c0e-2f1d7a6b3c4d"

# pydantic


class Address(BaseModel):
    """Where somebody lives."""

    street: str = Field(min_length=1, max_length=80)
    city: str
    postcode: Annotated[str, StringConstraints(pattern=r"^\d{5}$")]
    country: str = Field("DE", examples=["DE", "FR"], description="ISO 3166-1 alpha-2", max_length=2)


class Role(StrEnum):
    admin = "admin"
    editor = "editor"
    viewer = "viewer"


class Priority(IntEnum):
    low = 1
    high = 2


class User(BaseModel):
    id: UUID
    name: str
    email: EmailStr | None = None
    role: Role = Role.viewer
    priority: Priority = Priority.low
    born: date | None = None
    home: Address
    work: Address | None = Field(None, description="Where they work, if they do.")
    tags: list[str] = Field(default_factory=list, max_length=10)


HOME = {"street": "Long Lane 1", "city": "Köln", "postcode": "50667"}
write(
    "user",
    "pydantic, validation",
    User.model_json_schema(),
    [
        {"id": UUID_TEXT, "name": "Ann", "home": HOME},
        {
            "id": UUID_TEXT, "name": "Ann", "email": "ann@example.org", "role": "admin", "priority": 2,
            "born": "1990-02-28", "home": {**HOME, "country": "FR"}, "work": None, "tags": ["a"],
        },
    ],
    [
        {"name": "Ann", "home": HOME},
        {"id": UUID_TEXT, "name": "Ann", "role": "owner", "home": HOME},
        {"id": UUID_TEXT, "name": "Ann", "home": {**HOME, "postcode": "5066"}},
        {"id": "five", "name": "Ann", "home": HOME},
    ],
)  # fmt: skip


class Line(BaseModel):
    sku: str
    amount: int = Field(ge=1, le=99)
    price: Decimal = Field(max_digits=8, decimal_places=2, ge=0)


class Invoice(BaseModel):
    model_config = ConfigDict(extra="forbid")

    number: int
    issued: datetime
    due: date
    lines: list[Line] = Field(min_length=1)
    paid: bool = False

    @computed_field
    def total(self) -> Decimal:
        return sum((line.price * line.amount for line in self.lines), Decimal())


ITEM = {"sku": "a", "amount": 3, "price": "1.50"}
INVOICE = {"number": 7, "issued": "2024-05-06T07:08:09Z", "due": "2024-06-06", "lines": [ITEM]}
write(
    "invoice",
    "pydantic, validation",
    Invoice.model_json_schema(),
    [INVOICE, {**INVOICE, "lines": [{**ITEM, "price": 1.5}, ITEM], "paid": True}],
    [{**INVOICE, "total": "4.50"}, {**INVOICE, "lines": []}, {**INVOICE, "lines": [{**ITEM, "amount": 100}]}],
)
write(
    "invoice answered",
    "pydantic, serialization",
    Invoice.model_json_schema(mode="serialization"),
    [{**INVOICE, "paid": True, "total": "4.50"}],
    [INVOICE, {**INVOICE, "paid": True, "total": 4.5}],
)


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(9, gt=0, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    barks: bool


class Fish(BaseModel):
    kind: Literal["fish"]
    depth: float = Field(gt=0, lt=11_000)


class Owner(BaseModel):
    pet: Annotated[Cat | Dog | Fish, Field(discriminator="kind")]
    others: list[Annotated[Cat | Dog | Fish, Field(discriminator="kind")]] = []


write(
    "pets",
    "pydantic, discriminated union",
    Owner.model_json_schema(),
    [{"pet": {"kind": "cat"}}, {"pet": {"kind": "dog", "barks": True}, "others": [{"kind": "fish", "depth": 0.5}]}],
    [{"pet": {"kind": "bird"}}, {"pet": {"kind": "fish", "depth": 0}}, {"pet": {"kind": "dog", "barks": 1}}],
)


class Node(BaseModel):
    value: int | str | None
    left: Node | None = None
    right: Node | None = None


write(
    "tree",
    "pydantic, recursive",
    Node.model_json_schema(),
    [{"value": None}, {"value": 1, "left": {"value": "a", "right": {"value": 2}}}],
    [{"left": None}, {"value": 1, "left": {"value": 1.5}}],
)


class Point(NamedTuple):
    x: float
    y: float
    label: str = ""


class Shape(BaseModel):
    origin: tuple[float, float]
    corners: list[Point]
    colour: tuple[int, int, int] | str
    anything: Any = None
    scores: dict[str, float] = {}
    by_number: dict[int, str] = {}


write(
    "shape",
    "pydantic, tuples and maps",
    Shape.model_json_schema(),
    [
        {"origin": [0, 1.5], "corners": [[1, 2, "a"]], "colour": "red"},
        {"origin": [0, 0], "corners": [], "colour": [1, 2, 3], "anything": {"a": [None]}, "scores": {"a": 1}},
        {"origin": [0, 0], "corners": [], "colour": "red", "scores": {}, "by_number": {"-7": "a"}},
    ],
    [
        {"origin": [0], "corners": [], "colour": "red"},
        {"origin": [0, 0], "corners": [[1]], "colour": "red"},
        {"origin": [0, 0], "corners": [], "colour": [1, 2]},
        {"origin": [0, 0], "corners": [], "colour": "red", "scores": {"a": "b"}},
    ],
)


class Index(BaseModel):
    by_id: dict[UUID, list[int]]
    by_day: dict[date, int] = {}


write(
    "index",
    "pydantic, keys of a map by a format",
    Index.model_json_schema(),
    [{"by_id": {}}, {"by_id": {UUID_TEXT: [1]}, "by_day": {"2024-02-28": 1}}],
    [{"by_id": {"a": [1]}}, {"by_id": {}, "by_day": {"2024-02-31": 1}}],
)


class Mailboxes(BaseModel):
    unread: dict[EmailStr, int]


write("mailboxes", "pydantic, keys of a map by another format", Mailboxes.model_json_schema(), [], [])


class Quota(BaseModel):
    by_role: dict[Role, int]


write(
    "quota",
    "pydantic, keys of a map by a reference",
    Quota.model_json_schema(),
    [{"by_role": {"admin": 1, "viewer": 2}}, {"by_role": {}}],
    [{"by_role": {"owner": 1}}, {"by_role": {"admin": "a"}}],
)


class Event(BaseModel):
    at: AwareDatetime
    on: time
    took: timedelta
    page: HttpUrl
    link: AnyUrl | None = None
    address: IPvAnyAddress
    secret: SecretStr
    blob: Base64Bytes
    raw: bytes = b""
    payload: Json[dict[str, int]] | None = None


EVENT = {
    "at": "2024-05-06T07:08:09+02:00", "on": "07:08:09Z", "took": "PT1H", "page": "https://example.org/a?b=c",
    "address": "10.0.0.1", "secret": "s", "blob": "YQ==",
}  # fmt: skip
write(
    "event",
    "pydantic, formats",
    Event.model_json_schema(),
    [EVENT, {**EVENT, "raw": "a", "payload": '{"a": 1}'}],
    [{**EVENT, "at": "yesterday"}, {**EVENT, "page": ""}, {**EVENT, "raw": 1}],
)


class Tagged(BaseModel):
    labels: set[str]
    numbers: frozenset[int] = frozenset()


write(
    "labels",
    "pydantic, sets",
    Tagged.model_json_schema(),
    [{"labels": ["a", "b"]}, {"labels": [], "numbers": [1]}],
    [{"labels": ["a", "a"]}],
)


class Sensor(BaseModel):
    step: float = Field(multiple_of=0.25, ge=-10, le=10)
    percent: int = Field(ge=0, le=100, multiple_of=5)
    ratio: float = Field(gt=0, lt=1)
    code: str = Field(pattern=r"^[A-Z]{2}-[0-9]{3,}$")
    ascii: str = Field(pattern=r"^[\x20-\x7e]*$", max_length=5)
    word: str = Field("a", pattern=r"\w+", min_length=2)
    size: int = Field(0, json_schema_extra={"format": "int64", "minimum": -(2**63), "maximum": 2**63 - 1})


SENSOR = {"step": -0.25, "percent": 95, "ratio": 0.5, "code": "AB-123", "ascii": "ok"}
write(
    "sensor",
    "pydantic, bounds and patterns",
    Sensor.model_json_schema(),
    [SENSOR, {**SENSOR, "word": "a-b", "size": 4611686018427387904}],
    [
        {**SENSOR, "step": 0.3}, {**SENSOR, "percent": 7}, {**SENSOR, "ratio": 1}, {**SENSOR, "code": "xAB-123"},
        {**SENSOR, "ascii": "ä"}, {**SENSOR, "word": "-"}, {**SENSOR, "word": "--"},
        {**SENSOR, "size": 9223372036854775808},
    ],
)  # fmt: skip


class Profile(BaseModel):
    model_config = ConfigDict(extra="allow", title="A profile", json_schema_extra={"examples": [{"userName": "ann"}]})

    user_name: str = Field(alias="userName")
    nick: str | None = Field(..., deprecated=True)
    kind: Literal["a", 1, True, None] = "a"
    __pydantic_extra__: dict[str, int]


write(
    "profile",
    "pydantic, further properties",
    Profile.model_json_schema(by_alias=True),
    [{"userName": "ann", "nick": None}, {"userName": "ann", "nick": "a", "kind": 1, "more": 3}],
    [{"userName": "ann"}, {"userName": "ann", "nick": None, "more": "x"}, {"userName": "a", "nick": "b", "kind": 2}],
)


class Rows(RootModel[list[Cat] | dict[str, Dog]]):
    pass


write(
    "rows",
    "pydantic, root union",
    Rows.model_json_schema(),
    [[{"kind": "cat"}], {"a": {"kind": "dog", "barks": False}}, []],
    [{"a": {"kind": "cat"}}, "a"],
)


class Movie(TypedDict, total=False):
    title: str
    year: int


@dataclass
class Cinema:
    movies: list[Movie]
    pet: Annotated[Annotated[Cat, Tag("cat")] | Annotated[Dog, Tag("dog")], Discriminator(lambda value: value["kind"])]
    sizes: dict[Literal["small", "large"], int] = field(default_factory=dict)


CAT = {"kind": "cat"}
write(
    "cinema",
    "pydantic, keys of a map by literals",
    TypeAdapter(Cinema).json_schema(),
    [{"movies": [{"title": "a"}], "pet": CAT}, {"movies": [], "pet": CAT, "sizes": {"small": 1}}],
    [{"movies": [], "pet": CAT, "sizes": {"medium": 1}}],
)


class Amount(BaseModel):
    value: Annotated[
        Annotated[int, Tag("whole")] | Annotated[float, Tag("part")], Discriminator(lambda value: type(value).__name__)
    ]


write("amount", "pydantic, a union whose members overlap", Amount.model_json_schema(), [], [])

# openai-python


class Step(BaseModel):
    explanation: str
    output: str


class Reasoning(BaseModel):
    steps: list[Step]
    final: Step | None = Field(None, description="The last one.")
    mood: Role = Field(Role.viewer, description="How it feels.")


STEP = {"explanation": "a", "output": "b"}
write(
    "reasoning",
    "openai-python, to_strict_json_schema",
    to_strict_json_schema(Reasoning),
    [{"steps": [STEP], "final": None, "mood": "admin"}, {"steps": [], "final": STEP, "mood": "viewer"}],
    [{"steps": []}, {"steps": [], "final": {**STEP, "more": 1}, "mood": "admin"}],
)
write(
    "linked list",
    "openai-python, to_strict_json_schema",
    to_strict_json_schema(Node),
    [{"value": 1, "left": None, "right": {"value": "a", "left": None, "right": None}}],
    [{"value": 1, "left": None}, {"value": [], "left": None, "right": None}],
)
write(
    "search",
    "openai-python, pydantic_function_tool",
    pydantic_function_tool(Owner)["function"]["parameters"],
    [{"pet": {"kind": "cat", "lives": 1}, "others": []}],
    [{"pet": {"kind": "cat", "lives": 10}, "others": []}, {"pet": {"kind": "cat"}, "others": []}],
)

# FastAPI

app = FastAPI()


class Order(BaseModel):
    id: int = Field(json_schema_extra={"readOnly": True, "format": "int64"})
    user: User
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    note: str | None = Field(None, json_schema_extra={"x-order": 3, "example": "soon"})
    state: Literal["open", "paid"] = "open"


@app.post("/orders")
def order(given: Order) -> Invoice:
    raise NotImplementedError


ORDER = {"id": 1, "user": {"id": UUID_TEXT, "name": "Ann", "home": HOME}, "pet": {"kind": "dog", "barks": True}}
components = app.openapi()["components"]
write(
    "order",
    "FastAPI, a reference into components",
    {"$ref": "#/components/schemas/Order", "components": components},
    [ORDER, {**ORDER, "note": None, "state": "paid"}],
    [{**ORDER, "state": "lost"}, {**ORDER, "pet": {"kind": "cat", "lives": 0}}],
)
write(
    "validation error",
    "FastAPI, a reference into components",
    {"$ref": "#/components/schemas/HTTPValidationError", "components": components},
    [{"detail": [{"loc": ["body", 0], "msg": "a", "type": "b"}]}, {}],
    [{"detail": [{"loc": [True], "msg": "a", "type": "b"}]}, {"detail": {}}],
)
write(
    "order alone",
    "FastAPI, one component without the others",
    components["schemas"]["Order"],
    [],
    [],
)

# MCP

server = MCPServer("library")


@server.tool()
def borrow(
    title: str,
    days: Annotated[int, Field(ge=1, le=30, description="How long.")] = 14,
    copies: list[Literal["paper", "audio"]] | None = None,
    where: Address | None = None,
) -> str:
    """Borrows a book."""
    raise NotImplementedError


(tool,) = asyncio.run(server.list_tools())
write(
    "borrow",
    "MCP, a tool of the Python SDK",
    tool.model_dump(by_alias=True)["inputSchema"],
    [{"title": "a"}, {"title": "a", "days": 30, "copies": ["audio"], "where": HOME}],
    [{"days": 1}, {"title": "a", "days": 31}, {"title": "a", "copies": ["film"]}],
)
