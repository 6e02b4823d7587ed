"""Server-sent events, as far as completions need them: https://html.spec.whatwg.org/multipage/server-sent-events.html."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

DONE = "[DONE]"  # how the completions of OpenAI's API, and of servers like it, say that no more will come


def events(lines: Iterable[bytes]) -> Iterator[str]:
    """The data of each event, as soon as its blank line is there. Comments and other fields are left out; an event that
    the stream's end cut short is none. Ends at the end of `lines`, or with `[DONE]`, which is not given."""
    data: list[str] = []
    for raw in lines:
        line = raw.decode("utf-8").rstrip("\r\n")
        if line:
            field, _, value = line.partition(":")
            if field == "data":
                data.append(value.removeprefix(" "))
        elif data:
            whole, data = "\n".join(data), []
            if whole == DONE:
                return
            yield whole
