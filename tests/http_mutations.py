"""Request bodies for every HTTP endpoint, and random mutations of them from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
WRONG: list[Any] = [
    None, True, -1, 10**30, 1.5, 1e308, "", "x", "\x00\ud7ff", [], [[]], [None], {}, {"type": 3}, {"": {"": []}},
    ["x"] * 50,
]  # fmt: skip
JSON_HEADERS = {"Content-Type": "application/json"}


def bodies(model: str) -> dict[str, dict[str, Any]]:
    """Returns a valid body for each kind of request, by its path."""
    chat: dict[str, Any] = {
        "model": model,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}]},
        ],
        "max_tokens": 1,
        "temperature": 0.5,
        "stop": ["a"],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": "none",  # the scripted model's template takes none
        "logit_bias": {"5": 1},
        "draftd": {"mode": "auto"},
        "stream_options": {"include_usage": True},
    }
    completion = {"model": model, "prompt": ["x", "y"], "max_tokens": 1, "n": 1, "seed": 3, "stop": "q"}
    response: dict[str, Any] = {
        "model": model,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "y"},
        ],
        "max_output_tokens": 1,
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "tool_choice": "none",
        "text": {"format": {"type": "text"}},
        "store": False,
    }
    message: dict[str, Any] = {
        "model": model,
        "system": "s",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "none"},
    }
    return {CHAT: chat, COMPLETIONS: completion, RESPONSES: response, MESSAGES: message}


def more_bodies(model: str, stored: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns bodies with the remaining fields, and the paths that take the same bodies. `stored` is a stored answer's
    id."""
    plain = bodies(model)
    chat = {
        **plain[CHAT],
        "stream": True,
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"name": "f"}]}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        "n": 1,
        "logprobs": True,
        "top_logprobs": 2,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "repetition_penalty": 1.1,
        "stop_token_ids": [1, 2],
        "chat_template_kwargs": {"enable_thinking": False},
        "user": "ann",
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
        "modalities": ["text"],
    }
    response = {
        **plain[RESPONSES],
        "stream": True,
        "instructions": "s",
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
        "include": ["message.output_text.logprobs"],
        "metadata": {"a": "b"},
        "top_logprobs": 1,
    }
    message = {
        **plain[MESSAGES],
        "stream": True,
        "stop_sequences": ["q"],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "metadata": {"user_id": "ann"},
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}, "effort": "low"},
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "y"}]},
        ],
    }
    items = [
        {"role": "user", "content": "x"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]},
        {"type": "custom_tool_call", "call_id": "c", "name": "g", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "x"}]},
        {"type": "item_reference", "id": f"item_{stored.removeprefix('resp_')}0"},
    ]
    later = {
        "model": model,
        "previous_response_id": stored,
        "input": items,
        "tools": [
            {"type": "custom", "name": "g"},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
            {"type": "web_search"},
        ],
        "tool_choice": {"type": "custom", "name": "g"},
        "structured_outputs": {"choice": ["a", "b"]},
    }
    tokens = {"prompt": [1, 2], "stream": True, "logprobs": 1, "best_of": 1, "guided_regex": "a"}
    return [
        *plain.items(),
        (CHAT, chat),
        (COMPLETIONS, {**plain[COMPLETIONS], **tokens}),
        (RESPONSES, response),
        (RESPONSES, {"input": "x", "store": True}),
        (RESPONSES, later),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "structured_outputs": {"json": SCHEMA}, "seed": -1}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "guided_choice": ["a", "b"], "stop": "a"}),
        (COMPLETIONS, {"prompt": [[1, 2], [3]], "grammar": 'root ::= "a"', "echo": True, "prompt_logprobs": 1}),
        (MESSAGES, message),
        (f"{MESSAGES}/count_tokens", plain[MESSAGES]),
        (f"{RESPONSES}/input_tokens", plain[RESPONSES]),
    ]


def mangled(body: Any, rng: random.Random) -> Any:
    """Returns the body with one random value replaced by another type."""
    return changed(body, rng, lambda value: rng.choice(WRONG), 0.25)


def changed(body: Any, rng: random.Random, change: Callable[[Any], Any], stop: float = 0.15) -> Any:
    """Returns the body with `change` applied to one random value. Each level of nesting is the last with probability
    `stop`."""
    if not isinstance(body, (dict, list)) or not body or rng.random() < stop:
        return change(body)
    made: Any = body.copy()
    key = rng.choice(list(made)) if isinstance(made, dict) else rng.randrange(len(made))
    made[key] = changed(made[key], rng, change, stop)
    return made


@dataclass(frozen=True)
class Sent:
    """One request. `how` describes its mutation for people; `is_json` says whether its body can be read as a JSON
    object."""

    how: str
    method: str
    path: str
    data: bytes
    headers: dict[str, str] = field(default_factory=lambda: dict(JSON_HEADERS))
    is_json: bool = True


_MARK = "spoilt here"
_LITERALS = (
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"1e-999", b"1" * 5000, b"0.0" + b"1" * 5000,
    b"-0", b"9223372036854775808", b"1.0", b'"' + b"x" * 70_000 + b'"', b'"\\u0000"',
    rb'"\ud800"', rb'"a\udc00b"', rb'"\ud83d\ude00"', b'"\xed\xa0\x80"',
    b"[" * 900 + b"]" * 900, b'{"a":' * 900 + b"1" + b"}" * 900, b"[" * 9000 + b"]" * 9000,
)  # fmt: skip


def _other_kind(body: Any, rng: random.Random) -> Any:
    return mangled(body, rng)


def _without(body: Any, rng: random.Random) -> Any:
    def drop(value: Any) -> Any:
        if isinstance(value, dict) and value:
            gone = rng.choice(list(value))
            return {key: one for key, one in value.items() if key != gone}
        return value[1:] if isinstance(value, list) else None

    return changed(body, rng, drop, 0.3)


def _with_junk(body: Any, rng: random.Random) -> Any:
    junk = rng.choice(WRONG)

    def add(value: Any) -> Any:
        if isinstance(value, dict):
            return {**value, rng.choice(["", "x", "type", "name", "schema", "role", "content", "ключ", "a.b"]): junk}
        return [*value, junk] if isinstance(value, list) else junk

    return changed(body, rng, add, 0.3)


def _emptied(body: Any, rng: random.Random) -> Any:
    return changed(body, rng, lambda value: type(value)() if value is not None else [], 0.3)


def _swapped(body: Any, rng: random.Random) -> Any:
    """Returns the value with another type: a list for an object or the reverse, a number as text."""

    def swap(value: Any) -> Any:
        if isinstance(value, dict):
            return list(value.items())
        return {str(i): one for i, one in enumerate(value)} if isinstance(value, list) else str(value)

    return changed(body, rng, swap, 0.3)


def _other_word(body: Any, rng: random.Random) -> Any:
    words = ["robot", "json", "image_url", "input_image", "tool", "AUTO", "system", "developer", "required", "custom"]
    return changed(body, rng, lambda value: rng.choice(words) if isinstance(value, str) else value, 0.0)


def _far_number(body: Any, rng: random.Random) -> Any:
    far = [2**31, -(2**31) - 1, 2**63, 2**64, -(2**63) - 1, 10**400, 1e-320, -1e300, 0]
    return changed(body, rng, lambda value: rng.choice(far), 0.0)


_CHANGES = (_other_kind, _without, _with_junk, _emptied, _swapped, _other_word, _far_number)


def spoilt(model: str, stored: str, count: int, seed: int) -> Iterator[Sent]:
    """Yields `count` mutated requests. `stored` is a stored answer's id."""
    rng = random.Random(seed)
    asking = more_bodies(model, stored)
    ways = (*[_changed_body] * 6, _literal, _literal, _twice, _text, _text, _envelope, _path)
    for _ in range(count):
        path, body = rng.choice(asking)
        yield rng.choice(ways)(path, body, rng, stored)


def _changed_body(path: str, body: Any, rng: random.Random, stored: str) -> Sent:
    how = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change = rng.choice(_CHANGES)
        body = change(body, rng)
        how.append(change.__name__)
    return Sent(" ".join(how), "POST", path, json.dumps(body).encode(), is_json=isinstance(body, dict))


def _literal(path: str, body: Any, rng: random.Random, stored: str) -> Sent:
    literal = rng.choice(_LITERALS)
    data = (
        json.dumps(changed(body, rng, lambda value: _MARK, 0.1)).encode().replace(json.dumps(_MARK).encode(), literal)
    )
    is_json = data.startswith(b"{") and b'{"a":{"a":' not in data and b"[[[" not in data
    return Sent(f"literal {literal[:12]!r}", "POST", path, data, is_json=is_json)


def _twice(path: str, body: Any, rng: random.Random, stored: str) -> Sent:
    """Builds a request with a duplicate key at the top."""
    key, other = rng.choice(list(body)), rng.choice([*WRONG, *body.values()])
    first = json.dumps({key: other})[1:-1]
    data = json.dumps(body)
    text = "{" + first + ", " + data[1:] if rng.random() < 0.5 else data[:-1] + ", " + first + "}"
    return Sent(f"{key} twice", "POST", path, text.encode())


def _text(path: str, body: Any, rng: random.Random, stored: str) -> Sent:
    """Builds a request whose body is no JSON any more, or may be none."""
    data = json.dumps(body).encode()
    at = rng.randrange(len(data))
    junk = rng.choice([b"\xff", b"\xc3\x28", b"\x00", b"'", b"//", b",", b"\x80" * 9, b"\xf5\x80\x80\x80"])
    data = rng.choice(
        [data[:at], data[:at] + junk + data[at:], b"\xef\xbb\xbf" + data, data + b"{}", data.replace(b'"', b"'")]
    )
    data = rng.choice([data, data, b"", b"null", b"[]", b'"x"', b"1", data.decode(errors="replace").encode("utf-16")])
    return Sent("text", "POST", path, data, is_json=_is_object(data))


def _is_object(data: bytes) -> bool:
    try:
        return isinstance(json.loads(data.decode()), dict)
    except ValueError:
        return False


def _envelope(path: str, body: Any, rng: random.Random, stored: str) -> Sent:
    """Builds a request with a wrong content type, encoding or method, but a good body."""
    data = json.dumps(body).encode()
    headers = rng.choice(
        [
            {"Content-Type": "text/plain"},
            {"Content-Type": "application/x-www-form-urlencoded"},
            {"Content-Type": "application/json; charset=utf-16"},
            {"Content-Type": "application/json;;;"},
            {"Content-Type": ""},
            {"Content-Type": "multipart/form-data; boundary=x"},
            {**JSON_HEADERS, "Content-Encoding": "gzip"},
            {**JSON_HEADERS, "Content-Encoding": "x" * 200},
            {**JSON_HEADERS, "Accept": "image/png"},
            {**JSON_HEADERS, "Origin": "https://elsewhere.example"},
        ]
    )
    if rng.random() < 0.5:
        method = rng.choice(["GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE"])
        return Sent(f"method {method}", method, path, data)
    return Sent(f"headers {headers}", "POST", path, data, headers)


def _path(path: str, body: Any, rng: random.Random, stored: str) -> Sent:
    """Builds a request with a slightly wrong path or query, or a path that is not offered."""
    name = rng.choice([stored, "", "x", "..", "%00", "%2F", "%F0%9F%98%80", "a" * 3000, "resp_" + "0" * 32, "%ff"])
    query = rng.choice(
        ["", "?limit=0", "?limit=-1", "?limit=9999999999", "?limit=x", "?order=up", "?after=", "?after=%00",
         "?limit=%F0%9F%98%80", "?limit=1&limit=2", "?order", "?&&==", "?limit=1.5", "?limit=%D9%A3"]
    )  # fmt: skip
    made = rng.choice(
        [
            ("GET", f"{RESPONSES}/{name}{query}"),
            ("GET", f"{RESPONSES}/{name}/input_items{query}"),
            ("GET", f"{RESPONSES}/{stored}/input_items{query}"),
            ("DELETE", f"{RESPONSES}/{name}x"),
            ("POST", f"{RESPONSES}/{name}/cancel"),
            ("POST", f"{RESPONSES}/{name}"),
            ("GET", f"/v1/models/{name}"),
            ("GET", f"/v1/models{query}"),
            ("POST", f"{RESPONSES}/compact"),
            ("POST", "/v1/embeddings"),
            ("POST", f"{path}/{name}"),
            ("POST", f"/{name}"),
            ("POST", "/tokenize"),
            ("GET", path),
        ]
    )
    return Sent("path", made[0], made[1], json.dumps(body).encode() if made[0] == "POST" else b"")
