"""Any model can be asked the frozen prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from draftd.canaries.prompts import CanaryMessage, FrozenPrompt
from draftd.core import WorkloadClass
from draftd.fallback.probe_requests import render

MESSAGES = (CanaryMessage(role="system", content="Be brief."), CanaryMessage(role="user", content="Hello?"))
PROMPT = FrozenPrompt(id="one", workload=WorkloadClass.CHAT, messages=MESSAGES, max_tokens=8)


class Templates:
    """A tokenizer of characters; `takes` are the roles that its template knows."""

    def __init__(self, *takes: str) -> None:
        self.has_chat_template = bool(takes)
        self.template = None
        self._takes = takes

    def encode(self, text: str) -> list[int]:
        return [ord(sign) for sign in text]

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        if not {message["role"] for message in messages} <= set(self._takes):
            raise ValueError("Conversation roles must be known")
        return self.encode("".join(f"<{message['role']}>{message['content']}" for message in messages))

    def encode_rendered(self, text: str) -> list[int]:
        raise NotImplementedError

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))


@pytest.mark.parametrize(
    ("takes", "rendered"),
    [
        (("system", "user"), "<system>Be brief.<user>Hello?"),
        (("user",), "<user>Be brief.\n\nHello?"),
        (("person",), "Be brief.\n\nHello?\n\n"),
        ((), "Be brief.\n\nHello?\n\n"),
    ],
)
def test_probe_prompt_is_rendered_with_the_roles_that_the_chat_template_accepts(
    takes: tuple[str, ...], rendered: str
) -> None:
    assert "".join(map(chr, render(PROMPT, Templates(*takes)))) == rendered
