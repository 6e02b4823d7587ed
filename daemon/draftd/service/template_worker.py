"""The process that renders chat templates: `python -P -m draftd.service.template_worker`.

A template comes with a model. It may loop forever, or render a text that fills the memory; here it can end only this
process.

Requests come on the standard input and replies go to the standard output, as JSON, one a line. A request is either a
template, with its variables and the seconds that a text may take, or messages, with tools and arguments. The reply to a
template says that it is ready. The reply to messages has their text, or the error. The process ends with its input, so
it never outlives the daemon.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import psutil

from draftd.models.conversation import Messages, TemplateShape, ToolsIgnored, render_unfinished

_MEMORY = 1 << 30  # bytes that rendering may take, beyond the process itself


class _Renderer:
    """Renders texts with the template that it was given last."""

    def __init__(self, render_jinja_template: Callable[..., Any]) -> None:
        """`render_jinja_template`: the function of transformers."""
        self._render_jinja_template = render_jinja_template
        self._template: dict[str, Any] = {}
        self._shape = TemplateShape(self._render, "")

    def use(self, template: dict[str, Any]) -> None:
        """Takes a template, with its variables and the seconds that a text may take."""
        self._template = template
        source = template["source"] + (template["with_tools"] or "")
        self._shape = TemplateShape(self._render, source, generic_tools=template["generic_tools"])

    def reply(self, question: dict[str, Any]) -> dict[str, Any]:
        """Returns the text of the messages, or the error."""
        # The signal ends the process, whatever the template does. It counts processor time, so that a text has as long
        # on a busy machine as on an idle one.
        signal.setitimer(signal.ITIMER_PROF, self._template["seconds"])
        reply: dict[str, Any]
        try:
            text = self._text(question)
            reply = {"text": text} if len(text) <= question["most"] else {"characters": len(text)}
        except ToolsIgnored:
            reply = {"no_tools": True}
        except MemoryError:
            reply = {"error": "the text takes too much memory"}
        except Exception as error:
            reply = {"error": str(error)}
        signal.setitimer(signal.ITIMER_PROF, 0)
        return reply

    def _text(self, question: dict[str, Any]) -> str:
        tools, arguments = question["tools"], question["arguments"]
        messages, tools = self._shape.fit(question["messages"], tools)
        if question["continues"]:
            return render_unfinished(messages, partial(self._render, tools=tools, arguments=arguments, answer=False))
        return self._render(messages, tools, arguments)

    def _render(
        self, messages: Messages, tools: Messages, arguments: Mapping[str, Any] | None = None, *, answer: bool = True
    ) -> str:
        """`answer`: the text ends with the beginning of the answer's message."""
        template = self._template
        rendered: Any = self._render_jinja_template(
            conversations=[[dict(one) for one in messages]],
            tools=[dict(one) for one in tools] or None,
            chat_template=(template["with_tools"] if tools else None) or template["source"],
            add_generation_prompt=answer,
            **template["variables"] | (arguments or {}),
        )
        return str(rendered[0][0])  # of the first chat; the rest is for training


def main() -> None:
    # The daemon handles these signals and ends this process, even if a supervisor sends them to all processes.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    from transformers.utils.chat_template_utils import render_jinja_template  # takes seconds

    if sys.platform == "linux":  # macOS does not support this limit
        most = psutil.Process().memory_info().vms + _MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    renderer = _Renderer(render_jinja_template)
    for line in sys.stdin.buffer:
        question = json.loads(line)
        if "source" in question:
            renderer.use(question)
            _say({"ready": True})
        else:
            _say(renderer.reply(question))


def _say(reply: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
