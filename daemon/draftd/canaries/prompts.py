"""The frozen prompts that lie in this package: read, and checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from draftd.canaries.checkers import Check, ToolCall
from draftd.core import WorkloadClass
from draftd.errors import FieldError, wrong_field

MOST_PROMPTS = 256  # of one file: their autoregressive answers are kept in memory
MOST_TOKENS = 256  # of one answer

Messages = tuple[tuple[str, str], ...]


class PromptError(FieldError):
    """A prompt, or a file of them, is not as it should be: says which file, line and field."""


@dataclass(frozen=True, slots=True)
class FrozenPrompt:
    """One prompt. `messages` are (role, content)."""

    id: str
    workload: WorkloadClass
    messages: Messages
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Canary:
    """A prompt whose answer is checked."""

    prompt: FrozenPrompt
    check: Check


@dataclass(frozen=True, slots=True)
class FrozenPrompts:
    """All that the daemon asks by itself."""

    probe: tuple[FrozenPrompt, ...]
    canaries: tuple[Canary, ...]

    @classmethod
    def shipped(cls) -> FrozenPrompts:
        """Those of the package. Raises PromptError where the installation is broken."""
        return cls(parse_probe(*_read("probe.jsonl")), parse_canaries(*_read("quality.jsonl")))


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


_Text = Annotated[str, Field(min_length=1)]


class _Message(_Part):
    role: Literal["system", "user", "assistant"]
    content: _Text


def _ends_with_a_users(messages: list[_Message]) -> list[_Message]:
    if messages[-1].role != "user":
        raise ValueError("a user's message as the last one: it is what is answered")
    return messages


def _callable(check: Check) -> Check:
    if isinstance(check, ToolCall) and check.name not in check.allowed:
        raise ValueError(f"a name that is among those allowed: {', '.join(sorted(check.allowed))}")
    return check


class _Line(_Part):
    id: _Text
    workload: WorkloadClass
    messages: Annotated[list[_Message], Field(min_length=1), AfterValidator(_ends_with_a_users)]
    max_tokens: int = Field(ge=1, le=MOST_TOKENS)

    def prompt(self) -> FrozenPrompt:
        messages = tuple((one.role, one.content) for one in self.messages)
        return FrozenPrompt(self.id, self.workload, messages, self.max_tokens)


class _CanaryLine(_Line):
    check: Annotated[Check, Field(discriminator="kind"), AfterValidator(_callable)]


M = TypeVar("M", bound=BaseModel)
Line = TypeVar("Line", bound=_Line)


def parse_probe(text: str, source: str) -> tuple[FrozenPrompt, ...]:
    """Raises PromptError, naming `source`, line and field."""
    return tuple(line.prompt() for line in _lines(text, source, _Line))


def parse_canaries(text: str, source: str) -> tuple[Canary, ...]:
    """Raises PromptError, naming `source`, line and field."""
    return tuple(Canary(line.prompt(), line.check) for line in _lines(text, source, _CanaryLine))


def json_lines(text: str, source: str, kind: type[M]) -> Iterator[tuple[str, M]]:
    """The objects of a file with one a line, each with its place; empty lines are skipped. Raises PromptError, naming
    `source`, line and field."""
    for number, written in enumerate(text.splitlines(), 1):
        if written.strip():
            place = f"{source}, line {number}"
            try:
                yield place, kind.model_validate_json(written)
            except ValidationError as error:
                raise PromptError(*wrong_field(error, f"{place}: ")) from None


def _lines(text: str, source: str, kind: type[Line]) -> list[Line]:
    found: dict[str, Line] = {}
    for place, line in json_lines(text, source, kind):
        if line.id in found:
            raise PromptError(f"{place}: id", line.id, "one that no line above has")
        found[line.id] = line
    if not 1 <= len(found) <= MOST_PROMPTS:
        raise PromptError(source, f"{len(found)} prompts", f"1 to {MOST_PROMPTS}")
    return list(found.values())


def _read(name: str) -> tuple[str, str]:
    source = f"draftd/canaries/{name}"
    try:
        return (resources.files("draftd.canaries") / name).read_text(encoding="utf-8"), source
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(source, None, f"a file of the package that can be read ({error})") from None
