"""Chat templates are rendered in a process of their own: the same text, and no harm to others."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from typing import Any

import psutil
import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from draftd.errors import EngineFailure, InvalidRequest
from draftd.models.tokenizer import ChatTemplate, Tokenizer
from draftd.service.chat_template import ChatRenderer
from draftd.service.messages import Chat, Message, Tool, ToolCall, ToolMode, message_dict, tool_dicts
from tests.wait_until import until

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
# As the families have them, in short: what is told of tools, and of calls with their arguments.
TOOLS = (
    "{% for t in tools or [] %}({{ t.function.name }}: {{ t.function.parameters | tojson }}){% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}"
    "{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.id }}={{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}"
    "{% if m.tool_call_id %}{{ m.name }} {{ m.tool_call_id }}{% endif %}{% endfor %}"
    "{% if enable_thinking is false %}<think></think>{% endif %}"
)
TEXT = TOOLS.replace("{{ c.function.arguments | tojson }}", "{{ '' + c.function.arguments }}")
NINE = TOOLS.replace(
    "{{ c.id }}", "{% if c.id | length != 9 %}{{ raise_exception('9 characters') }}{% endif %}{{ c.id }}"
)
FIRST = TOOLS.replace(
    "<{{ m.role }}>",
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}{% endif %}<{{ m.role }}>",
)
CALL = ToolCall("call_0123456789abcdef01234567", "clock", '{"at": {"x": "é"}}')
ASKED = Chat(
    (
        Message("user", "When?"),
        Message("assistant", "", (CALL,), reasoning="Hm."),
        Message("tool", "noon", (), CALL.id, "clock"),
    ),
    (Tool("clock", "", '{"type": "object", "properties": {"at": {}}}'),),
    template_arguments={"enable_thinking": False},
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


async def test_chat_renderer_process_renders_the_same_tokens_as_the_tokenizer(renderer: ChatRenderer) -> None:
    inner = nano()
    for source, chat in (
        (inner.chat_template, TALK),
        *((trick, TALK) for trick in TRICKS),
        (TOOLS, ASKED),
        (TEXT, ASKED),
    ):
        inner.chat_template = source
        tokenizer = Tokenizer(TokenizerWrapper(inner))
        assert tokenizer.template is not None
        rendered = await renderer.render(tokenizer.template, chat, 10_000, "a")
        messages, tools = [message_dict(one) for one in chat.messages], tool_dicts(chat.tools)
        own = tokenizer.render_chat(messages, tools, chat.template_arguments)
        assert tokenizer.encode_rendered(rendered) == own, source


async def test_stopped_chat_renderer_ends_its_started_process() -> None:
    made = ChatRenderer()
    before = set(psutil.Process().children())
    made.start()
    await asyncio.wrap_future(made._executor.submit(lambda: None))
    (process,) = set(psutil.Process().children()) - before
    made.stop()
    await asyncio.wrap_future(made._executor.submit(lambda: None))
    made.close()
    assert not process.is_running()


async def test_closing_the_chat_renderer_while_its_process_starts_logs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = ChatRenderer()
    telling = made._executor.submit(made._prepare, LOOPS)
    until(telling.running)
    made.close()
    telling.result(10)
    made._prepare(None)  # as where its thread comes too late
    assert caplog.messages == []


async def test_chat_template_process_survives_termination_signals(renderer: ChatRenderer) -> None:
    assert await renderer.render(LOOPS, said("hello"), 100, "a") == "hello"
    assert renderer._worker is not None
    pid = renderer._worker._process.pid
    assert os.getsid(pid) == pid  # out of the reach of a Ctrl-C
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    assert await renderer.render(LOOPS, said("hello"), 100, "a") == "hello"
    assert renderer._worker._process.pid == pid


async def test_endless_chat_template_is_stopped_and_the_next_text_is_rendered(renderer: ChatRenderer) -> None:
    assert await renderer.render(LOOPS, said("hello"), 100, "a") == "hello"
    with pytest.raises(InvalidRequest, match=r"chat\.messages: got 'user'; allowed: .* within 0\.3 s; it was stopped"):
        await renderer.render(LOOPS, said("loop"), 100, "a")
    assert await renderer.render(LOOPS, said("hello"), 100, "a") == "hello"


async def test_endless_templates_of_a_client_delay_another_client_by_at_most_two_renders(
    renderer: ChatRenderer,
) -> None:
    loops = [asyncio.create_task(renderer.render(LOOPS, said("loop"), 100, "a")) for _ in range(20)]
    await asyncio.sleep(0)
    assert await renderer.render(LOOPS, said("hello"), 100, "b") == "hello"
    assert sum(one.done() for one in loops) <= 2
    for one in loops:
        one.cancel()
    await asyncio.gather(*loops, return_exceptions=True)


async def test_failing_unsafe_or_oversized_chat_template_is_an_invalid_request(renderer: ChatRenderer) -> None:
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


async def test_closed_chat_renderer_ends_its_process_and_refuses_to_render() -> None:
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


# what templates take


async def rendered(renderer: ChatRenderer, source: str, chat: Chat) -> str:
    return await renderer.render(ChatTemplate(source, {}), chat, 10_000, "a")


async def test_chat_template_gets_tools_calls_and_template_arguments(renderer: ChatRenderer) -> None:
    text = await rendered(renderer, TOOLS, ASKED)
    assert text == (
        '(clock: {"type": "object", "properties": {"at": {}}})<user>When?<assistant>[Hm.]'
        f'{CALL.id}=clock({{"at": {{"x": "é"}}}})<tool>noonclock {CALL.id}<think></think>'
    )
    hidden = await rendered(renderer, TOOLS, replace(ASKED, tool_choice=ToolMode.NONE))
    assert hidden == text[text.index("<user>") :]


async def test_tool_calls_are_rendered_in_the_shape_the_chat_template_accepts(renderer: ChatRenderer) -> None:
    text = await rendered(renderer, TEXT, ASKED)
    assert text == await rendered(renderer, TOOLS, ASKED)
    empty = TEXT.replace("m.tool_calls or []", "m.tool_calls if m.tool_calls and m.content is none")
    assert (await rendered(renderer, empty, ASKED)).replace("None", "") == text
    for source in (NINE, NINE.replace("{{ c.function.arguments | tojson }}", "{{ '' + c.function.arguments }}")):
        text = await rendered(renderer, source, ASKED)
        short = text[text.index("=clock(") - 9 : text.index("=clock(")]
        assert f"clock {short}<think>" in text  # the result's is the call's


async def test_chat_with_tools_uses_the_tool_variant_of_the_template(renderer: ChatRenderer) -> None:
    both = ChatTemplate("plain", {}, f"with {TOOLS}")
    assert await renderer.render(both, said("hi"), 100, "a") == "plain"
    assert (await renderer.render(both, ASKED, 1000, "a")).startswith("with (clock")


async def test_chat_with_tools_is_refused_if_the_template_takes_no_tools(renderer: ChatRenderer) -> None:
    with pytest.raises(
        InvalidRequest, match=r"chat\.tools: got '1 tools'; allowed: none: the model's chat template takes no"
    ):
        await rendered(renderer, PLAIN.source, ASKED)
    kept = await rendered(renderer, PLAIN.source, replace(ASKED, tool_choice=ToolMode.NONE))
    call = '<tool_call>\n{"name": "clock", "arguments": {"at": {"x": "é"}}}\n</tool_call>'
    assert kept == f"user: When?\nassistant: {call}\ntool: noon\n"
    known = PLAIN.source.replace("{{ m.role }}", "{{ {'user': 1, 'assistant': 2}[m.role] + 0 }}")
    kept = await rendered(renderer, known, replace(ASKED, tool_choice=ToolMode.NONE))
    assert kept == f"1: When?\n2: {call}\n1: <tool_response>\nnoon\n</tool_response>\n"


SEVERAL = Chat((Message("system", "a"), Message("developer", "b"), Message("user", "c"), Message("system", "d")))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (TOOLS, "<system>a<system>b<user>c<system>d"),
        (TOOLS + "{# developer #}", "<system>a<developer>b<user>c<system>d"),
        (FIRST, "<system>a\n\nb\n\nd<user>c"),
    ],
)
async def test_system_messages_go_to_the_places_the_chat_template_accepts(
    renderer: ChatRenderer, source: str, text: str
) -> None:
    assert await rendered(renderer, source, SEVERAL) == text


# As Gemma's and Mistral's.
BY_TURNS = "{% set turn = namespace(last='') %}" + TOOLS.replace(
    "<{{ m.role }}>",
    "{% if m.role == turn.last %}{{ raise_exception('roles must alternate') }}{% endif %}{% set turn.last = m.role %}"
    "<{{ m.role }}>",
)


async def test_consecutive_messages_of_a_role_are_joined_for_alternating_templates(renderer: ChatRenderer) -> None:
    said = (("user", "a"), ("user", "b"), ("assistant", "c"), ("assistant", "d"), ("user", "e"))
    chat = Chat(tuple(Message(role, text) for role, text in said))
    assert await rendered(renderer, BY_TURNS, chat) == "<user>a\n\nb<assistant>c\n\nd<user>e"
    assert await rendered(renderer, TOOLS, chat) == "<user>a<user>b<assistant>c<assistant>d<user>e"
    calls = (CALL, CALL._replace(id="call_1"))
    results = tuple(Message("tool", text, (), call.id, "clock") for text, call in zip("xy", calls, strict=True))
    several = replace(ASKED, messages=(ASKED.messages[0], Message("assistant", "", calls), *results))
    assert "<tool>x\n\nyclock" in await rendered(renderer, BY_TURNS, several)
    assert "<tool>xclock" in await rendered(renderer, TOOLS, several)


@pytest.mark.parametrize(
    "source",
    [
        TOOLS.replace("{{ m.content }}", "{% if m.role != 'system' %}{{ m.content }}{% endif %}"),
        BY_TURNS.replace("<{{", "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}<{{"),
    ],
)
async def test_system_text_moves_into_a_user_message_if_the_template_has_no_system(
    renderer: ChatRenderer, source: str
) -> None:
    assert "<user>a\n\nb\n\nd\n\nc" in await rendered(renderer, source, SEVERAL)
    alone = Chat((Message("system", "a"),))
    assert "<user>a" in await rendered(renderer, source, alone)


async def test_generic_tools_are_described_in_text_if_the_template_takes_no_tools(renderer: ChatRenderer) -> None:
    inner = nano()
    inner.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    tokenizer = Tokenizer(TokenizerWrapper(inner))
    assert tokenizer.template is not None
    chat = replace(ASKED, messages=(Message("system", "Be brief."), *ASKED.messages), template_arguments={})
    text = await renderer.render(tokenizer.template, chat, 10_000, "a")
    assert text.startswith("<system>Be brief.\n\nYou may call these tools")
    assert '{"name": "clock", "description": "", "parameters": {"type": "object", "properties": {"at": {}}}}' in text
    said = '<assistant><tool_call>\n{"name": "clock", "arguments": {"at": {"x": "é"}}}\n</tool_call>'
    assert text.endswith(f"<user>When?{said}<user><tool_response>\nnoon\n</tool_response>")
    messages, tools = [message_dict(one) for one in chat.messages], tool_dicts(chat.tools)
    assert tokenizer.encode_rendered(text) == tokenizer.render_chat(messages, tools)
    without = await renderer.render(tokenizer.template, replace(chat, tool_choice=ToolMode.NONE), 10_000, "a")
    assert without == f"<system>Be brief.<user>When?{said}<user><tool_response>\nnoon\n</tool_response>"


BEGUN = Chat((Message("user", "Count."), Message("assistant", " one two")), continues=True)
TURNS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (TURNS, "<user>Count.<end><assistant> one two"),
        (TURNS.replace("m.content", "m.content | trim"), "<user>Count.<end><assistant>one two"),
        (TURNS.replace("m.content", "' ' + m.content.strip() + ' '"), "<user> Count. <end><assistant> one two"),
        (TURNS.replace("{% if add_generation_prompt %}", "{% if true %}"), "<user>Count.<end><assistant> one two"),
        (TOOLS, "<user>Count.<assistant> one two"),
    ],
)
async def test_prompt_of_a_continued_message_ends_with_that_messages_text(
    renderer: ChatRenderer, source: str, text: str
) -> None:
    assert await rendered(renderer, source, BEGUN) == text
    inner = nano()
    inner.chat_template = source
    messages = list(map(message_dict, BEGUN.messages))
    told = inner.apply_chat_template(messages, tokenize=False, continue_final_message=True)
    assert told == text
    tokenizer = Tokenizer(TokenizerWrapper(inner))
    assert tokenizer.render_chat(messages, continues=True) == tokenizer.encode_rendered(text)


async def test_continued_message_keeps_its_trailing_white_space(renderer: ChatRenderer) -> None:
    for content in ("one \n ", "", " "):
        chat = replace(BEGUN, messages=(*BEGUN.messages[:1], Message("assistant", content)))
        for source in (TURNS, TURNS.replace("m.content", "m.content | trim")):
            text = await rendered(renderer, source, chat)
            assert text.removesuffix(content) in ("<user>Count.<end><assistant>", "<user>Count.<end><assistant> ")


@pytest.mark.parametrize("changed", ["m.content | upper", "m.content | tojson | upper", "m.content[:3]", "''"])
async def test_continuation_is_refused_if_the_template_alters_the_last_message(
    renderer: ChatRenderer, changed: str
) -> None:
    source = TURNS.replace("m.content", changed)
    with pytest.raises(
        InvalidRequest, match=r"chat\.messages: got 'user, assistant'; .* the answer cannot continue it"
    ):
        await rendered(renderer, source, BEGUN)
    inner = nano()
    inner.chat_template = source
    with pytest.raises(ValueError, match="the answer cannot continue it"):
        Tokenizer(TokenizerWrapper(inner)).render_chat(list(map(message_dict, BEGUN.messages)), continues=True)


async def test_template_arguments_rejected_by_the_template_are_an_invalid_request(renderer: ChatRenderer) -> None:
    source = "{% if effort != 'low' %}{{ raise_exception('effort must be low') }}{% endif %}"
    with pytest.raises(InvalidRequest, match="effort must be low"):
        await rendered(renderer, source, replace(said("hi"), template_arguments={"effort": "high"}))


def test_python_chat_template_continues_an_assistant_message() -> None:
    from mlx_lm.chat_templates.deepseek_v32 import apply_chat_template

    wrapper = TokenizerWrapper(nano(), chat_template=apply_chat_template)
    ids = Tokenizer(wrapper).render_chat(list(map(message_dict, BEGUN.messages)), continues=True)
    assert wrapper.decode(ids).endswith(" one two")


def test_python_chat_template_renders_tools_and_calls() -> None:
    from mlx_lm.chat_templates.deepseek_v32 import apply_chat_template
    from mlx_lm.tool_parsers.json_tools import parse_tool_call

    calls: Any = {"tool_call_start": "<a>", "tool_call_end": "</a>", "tool_parser": parse_tool_call}
    wrapper = TokenizerWrapper(nano(), chat_template=apply_chat_template, **calls)
    tokenizer = Tokenizer(wrapper)
    assert tokenizer.template is None
    messages, tools = [message_dict(one) for one in ASKED.messages], tool_dicts(ASKED.tools)
    text = wrapper.decode(tokenizer.render_chat(messages, tools, {"enable_thinking": True}))
    assert text.index("functions available") < text.index('"name": "clock"') < text.index("When?")
    assert '<｜DSML｜invoke name="clock">' in text
    assert '"x": "é"' in text
    assert text.rstrip().endswith("<think>")
