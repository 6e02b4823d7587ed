"""Reads and checks the package's frozen prompts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from draftd.canaries.checkers import Check, ExpectedToolCall
from draftd.core import WorkloadClass
from draftd.errors import FieldError, wrong_field

MOST_PROMPTS = 256  # prompts per file: their autoregressive answers are kept in memory
MOST_TOKENS = 256  # tokens per answer

Messages = tuple[tuple[str, str], ...]  # (role, content)


class PromptError(FieldError):
    """The error for a faulty prompt or file: the file, line and field."""


class _CanaryModel(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


_Text = Annotated[str, Field(min_length=1)]


class CanaryMessage(_CanaryModel):
    role: Literal["system", "user", "assistant"]
    content: _Text


def _ends_with_a_users(messages: tuple[CanaryMessage, ...]) -> tuple[CanaryMessage, ...]:
    if messages[-1].role != "user":
        raise ValueError("messages that end with a message of the user, which the model answers")
    return messages


def _callable(check: Check) -> Check:
    if isinstance(check, ExpectedToolCall) and check.name not in check.allowed:
        raise ValueError(f"one of the tools in `allowed`: {', '.join(sorted(check.allowed))}")
    return check


class FrozenPrompt(_CanaryModel):
    """One prompt: a line of a file."""

    id: _Text
    workload: WorkloadClass
    messages: Annotated[tuple[CanaryMessage, ...], Field(min_length=1), AfterValidator(_ends_with_a_users)]
    max_tokens: int = Field(ge=1, le=MOST_TOKENS)

    @property
    def chat(self) -> Messages:
        return tuple((message.role, message.content) for message in self.messages)


class Canary(FrozenPrompt):
    """A prompt whose answer is checked."""

    check: Annotated[Check, Field(discriminator="kind"), AfterValidator(_callable)]


@dataclass(frozen=True, slots=True)
class FrozenPrompts:
    """The prompts that the daemon asks by itself."""

    probe: tuple[FrozenPrompt, ...]
    canaries: tuple[Canary, ...]

    @classmethod
    def of_package(cls) -> FrozenPrompts:
        """Reads the package's prompts. Raises PromptError if the installation is broken."""
        return cls(parse(*_read("probe.jsonl"), FrozenPrompt), parse(*_read("quality.jsonl"), Canary))


M = TypeVar("M", bound=BaseModel)
P = TypeVar("P", bound=FrozenPrompt)


def fold_system(chat: Messages) -> Messages:
    """Prepends the system messages to the first other message, for chat templates without a system role."""
    system = "\n\n".join(said for role, said in chat if role == "system")
    (role, said), *others = (message for message in chat if message[0] != "system")
    return ((role, f"{system}\n\n{said}" if system else said), *others)


def parse(text: str, source: str, kind: type[P]) -> tuple[P, ...]:
    """Reads a file's prompts. Raises PromptError, naming `source`, line and field."""
    prompts: dict[str, P] = {}
    for place, prompt in json_lines(text, source, kind):
        if prompt.id in prompts:
            raise PromptError(f"{place}: id", prompt.id, "an id that no earlier line has")
        prompts[prompt.id] = prompt
    if not 1 <= len(prompts) <= MOST_PROMPTS:
        raise PromptError(source, f"{len(prompts)} prompts", f"1 to {MOST_PROMPTS}")
    return tuple(prompts.values())


def json_lines(text: str, source: str, kind: type[M]) -> Iterator[tuple[str, M]]:
    """Yields the objects of a JSON-lines file with their places; skips empty lines. Raises PromptError, naming
    `source`, line and field."""
    for number, written in enumerate(text.splitlines(), 1):
        if written.strip():
            place = f"{source}, line {number}"
            try:
                yield place, kind.model_validate_json(written)
            except ValidationError as error:
                raise PromptError(*wrong_field(error, f"{place}: ")) from None


def _read(name: str) -> tuple[str, str]:
    source = f"draftd/canaries/{name}"
    try:
        return (resources.files("draftd.canaries") / name).read_text(encoding="utf-8"), source
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(source, None, f"a readable file of the package draftd: install it again ({error})") from None
