"""Parses server-sent events as far as completions need it:
https://html.spec.whatwg.org/multipage/server-sent-events.html."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

DONE = "[DONE]"  # the last event of a completion of OpenAI's API, and of servers like it


def events(lines: Iterable[bytes]) -> Iterator[str]:
    """Yields the data of each event when its blank line arrives. Skips comments, other fields, and an event that the
    stream's end cuts short. Ends with `lines`, or at `[DONE]`, which it does not yield."""
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
