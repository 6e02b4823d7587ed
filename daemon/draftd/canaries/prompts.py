"""The frozen prompts that lie in this package: read, and checked."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from importlib import resources

from draftd.canaries.checkers import Check, JsonObject, NoToolCall, ToolCall
from draftd.canaries.fields import Fields, FrozenPromptError, lines
from draftd.core import WorkloadClass

MOST_PROMPTS = 256  # of one file: their autoregressive answers are kept in memory
MOST_TOKENS = 256  # of one answer
_ROLES = ("system", "user", "assistant")
_PROMPT_FIELDS = ("id", "workload", "messages", "max_tokens")

Messages = tuple[tuple[str, str], ...]


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
        """Those of the package. Raises FrozenPromptError where the installation is broken."""
        return cls(parse_probe(*_read("probe.jsonl")), parse_canaries(*_read("quality.jsonl")))


def parse_probe(text: str, source: str) -> tuple[FrozenPrompt, ...]:
    """Raises FrozenPromptError, naming `source`, line and field."""
    made: dict[str, FrozenPrompt] = {}
    for line in lines(text, source):
        prompt = _prompt(line.only(*_PROMPT_FIELDS))
        made[_new(prompt, line, made)] = prompt
    _bounded(len(made), source)
    return tuple(made.values())


def parse_canaries(text: str, source: str) -> tuple[Canary, ...]:
    """Raises FrozenPromptError, naming `source`, line and field."""
    made: dict[str, Canary] = {}
    for line in lines(text, source):
        prompt = _prompt(line.only(*_PROMPT_FIELDS, "check"))
        made[_new(prompt, line, made)] = Canary(prompt, _check(line.inner("check")))
    _bounded(len(made), source)
    return tuple(made.values())


def _prompt(line: Fields) -> FrozenPrompt:
    messages = [
        (message.only("role", "content").one_of("role", _ROLES), message.text("content"))
        for message in line.each("messages")
    ]
    if messages[-1][0] != "user":
        raise line.wrong("messages", messages[-1][0], "a user's message as the last one: it is what is answered")
    workload = WorkloadClass(line.one_of("workload", [kind.value for kind in WorkloadClass]))
    return FrozenPrompt(line.text("id"), workload, tuple(messages), line.number("max_tokens", MOST_TOKENS))


def _check(said: Fields) -> Check:
    kind = said.one_of("kind", ("json_object", "tool_call", "no_tool_call"))
    if kind == "json_object":
        keys = said.only("kind", "keys", "values").inner("keys")
        types = {key: keys.one_of(key, tuple(JsonObject.TYPES)) for key in keys.entry}
        return JsonObject(types, dict(said.inner("values").entry))
    if kind == "tool_call":
        allowed = said.only("kind", "allowed", "name", "arguments").texts("allowed")
        return ToolCall(frozenset(allowed), said.one_of("name", allowed), dict(said.inner("arguments").entry))
    allowed = said.only("kind", "allowed", "mentions").texts("allowed")
    return NoToolCall(frozenset(allowed), said.texts("mentions"))


def _new(prompt: FrozenPrompt, line: Fields, made: Container[str]) -> str:
    if prompt.id in made:
        raise line.wrong("id", prompt.id, "one that no line above has")
    return prompt.id


def _bounded(count: int, source: str) -> None:
    if not 1 <= count <= MOST_PROMPTS:
        raise FrozenPromptError(source, f"{count} prompts", f"1 to {MOST_PROMPTS}")


def _read(name: str) -> tuple[str, str]:
    source = f"draftd/canaries/{name}"
    try:
        return (resources.files("draftd.canaries") / name).read_text(encoding="utf-8"), source
    except (OSError, UnicodeDecodeError) as error:
        raise FrozenPromptError(source, None, f"a file of the package that can be read ({error})") from None
