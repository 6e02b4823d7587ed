"""Chat templates are rendered in a process of their own: the same text, and no harm to others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import psutil
import pytest

from draftd.errors import EngineFailure, InvalidRequest
from draftd.models.tokenizer import ChatTemplate, Tokenizer
from draftd.service.chat import ChatRenderer
from draftd.service.messages import Chat, Message, message_dict
from tests.waiting import until

TALK = Chat(
    (Message("system", "Be brief: <|im_end|>"), Message("user", 'Wie heißt "ö"?\n'), Message("assistant", "o…"))
)
PLAIN = ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", {})
LOOPS = ChatTemplate(
    "{% if messages[0].content == 'loop' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}"
    "{% endfor %}{% endif %}{{ messages[0].content }}",
    {},
)
TRICKS = (
    "{{ messages | tojson }}",
    "{{ bos }}{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content | trim }}{% endfor %}",
    "{% generation %}{{ messages[-1].content }}{% endgeneration %}{% if add_generation_prompt %}<a>{% endif %}",
    "{% macro said(m) %}{{ m.role[:1] }}{{ m.content.split(':')[0] }}{% endmacro %}{{ said(messages[0]) }}",
    "{{ strftime_now('%Y') }}{{ messages[0].get('name', 'nobody') }}{{ undefined_variable }}",
)


def said(text: str) -> Chat:
    return Chat((Message("user", text),))


@pytest.fixture(scope="module")
def renderer() -> Iterator[ChatRenderer]:
    made = ChatRenderer(limit_seconds=0.3)
    yield made
    made.close()


def nano() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(files("draftd.models.nano") / "target"))


async def test_the_text_is_what_the_tokenizer_itself_renders(renderer: ChatRenderer) -> None:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    inner = nano()
    for source in (inner.chat_template, *TRICKS):
        inner.chat_template = source
        tokenizer = Tokenizer(TokenizerWrapper(inner))
        assert tokenizer.template is not None
        rendered = await renderer.render(tokenizer.template, TALK, 10_000, "a")
        assert tokenizer.encode_rendered(rendered) == tokenizer.render_chat(
            [message_dict(one) for one in TALK.messages]
        ), source


async def test_a_template_that_loops_is_ended_and_another_text_is_rendered_after_it(renderer: ChatRenderer) -> None:
    assert await renderer.render(LOOPS, said("hello"), 100, "a") == "hello"
    with pytest.raises(InvalidRequest, match=r"chat\.messages: got 'user'; allowed: .* within 0\.3 s; it was stopped"):
        await renderer.render(LOOPS, said("loop"), 100, "a")
    assert await renderer.render(LOOPS, said("hello"), 100, "a") == "hello"


async def test_a_connection_whose_texts_all_loop_delays_another_by_one_of_them(renderer: ChatRenderer) -> None:
    loops = [asyncio.create_task(renderer.render(LOOPS, said("loop"), 100, "a")) for _ in range(20)]
    await asyncio.sleep(0)
    assert await renderer.render(LOOPS, said("hello"), 100, "b") == "hello"
    assert sum(one.done() for one in loops) <= 2
    for one in loops:
        one.cancel()
    await asyncio.gather(*loops, return_exceptions=True)


async def test_what_a_template_refuses_or_makes_too_long_is_the_callers_error(renderer: ChatRenderer) -> None:
    refuses = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        await renderer.render(refuses, TALK, 100, "a")
    for escapes in ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "{% set x = messages.append(1) %}"):
        with pytest.raises(InvalidRequest, match="messages that the model's template accepts .*(unsafe|not safely)"):
            await renderer.render(ChatTemplate(escapes, {}), TALK, 1000, "a")
    with pytest.raises(InvalidRequest, match="got '1000 characters when rendered'; allowed: at most 100"):
        await renderer.render(ChatTemplate("{{ 'x' * 1000 }}", {}), TALK, 100, "a")
    with pytest.raises(InvalidRequest):
        await renderer.render(ChatTemplate("{{ 'x' * 10 ** 10 }}", {}), TALK, 100, "a")
    assert await renderer.render(PLAIN, said("hi"), 100, "a") == "user: hi\n"


async def test_its_process_ends_with_it_and_nothing_is_rendered_after_that() -> None:
    before = set(psutil.Process().children())
    renderer = ChatRenderer()
    renderer.prepare(PLAIN)
    began = time.monotonic()
    await renderer.render(PLAIN, TALK, 1000, "a")
    assert time.monotonic() - began < 60
    (child,) = set(psutil.Process().children()) - before
    renderer.close()
    until(lambda: not child.is_running(), 10, "the process has ended")
    with pytest.raises((EngineFailure, RuntimeError)):
        await renderer.render(PLAIN, TALK, 1000, "a")
