"""Two thousand spoilt requests to every HTTP endpoint: each is answered in time, or refused by the field's name."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from typing import Any
from urllib.parse import unquote

import aiohttp
import pytest
from pydantic import BaseModel
from yarl import URL

from draftd.fronts.http.chat import ChatBody
from draftd.fronts.http.completions import CompletionBody
from draftd.fronts.http.messages import MessageBody
from draftd.fronts.http.responses import ResponseBody
from tests.http_front import Fronted, fronted
from tests.http_mutations import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Sent, more_bodies, spoilt

MODEL = "scripted"
COUNT = 2000
SECONDS = 10.0
NOT_OFFERED = ("/v1/embeddings", f"{RESPONSES}/compact")
BODIES: dict[str, type[BaseModel]] = {
    CHAT: ChatBody,
    COMPLETIONS: CompletionBody,
    RESPONSES: ResponseBody,
    f"{RESPONSES}/input_tokens": ResponseBody,
    MESSAGES: MessageBody,
    f"{MESSAGES}/count_tokens": MessageBody,
}
#: Names that a refusal may use and that are in no body.
ELSEWHERE = {"body", "path", "method", "Content-Type", "Content-Encoding", "Origin", "limit", "order", "after"}


async def answer(session: aiohttp.ClientSession, front: Fronted, sent: Sent) -> tuple[int, str]:
    async with asyncio.timeout(SECONDS):
        url = URL(front.url + sent.path, encoded=True)
        data = sent.data if sent.method not in ("GET", "HEAD", "TRACE") else None
        async with session.request(sent.method, url, data=data, headers=sent.headers) as response:
            return response.status, await response.text()


def fault_of(sent: Sent, status: int, text: str) -> str:
    """Returns the fault of an answer; empty if there is none."""
    route = unquote(sent.path.partition("?")[0]).rstrip("/")
    if status == 501:
        return "" if route in NOT_OFFERED else "501 for what is offered"
    if status >= 500:
        return "a 5xx"
    if status < 300:
        if sent.method == "POST" and not sent.is_json:
            return "a body that is no JSON object was served"
        return "an error in a stream" if '"error":{' in text else ""
    if sent.method == "HEAD":
        return ""
    document = json.loads(text)
    error = document["error"]
    if route.startswith(MESSAGES):
        if (document["type"], set(error)) != ("error", {"type", "message"}) or not document["request_id"]:
            return "not the shape of Anthropic's errors"
    elif set(document) != {"error"} or set(error) != {"message", "type", "param", "code"}:
        return "not the shape of OpenAI's errors"
    name, separator, _ = error["message"].partition(":")
    if not separator:
        return "no field is named"
    root = re.split(r"[.\[]", name)[0]
    model = BODIES.get(route)
    model_fields = {} if model is None else model.model_fields
    if root not in model_fields and root not in ELSEWHERE and not (root == "model" and route.startswith("/v1/models/")):
        return f"{root} is no field of the body"
    # The names in these two may have dots.
    looked_for = "not set" not in error["message"] and root not in ("logit_bias", "structured_outputs")
    if root in model_fields and sent.is_json and looked_for and not is_place(name, json.loads(sent.data)):
        return f"{name} is no place in the body"
    if error.get("param") not in (None, name) or (status == 400 and "param" in error and error["param"] is None):
        return "param is another field than the message's"
    if sent.method == "POST" and status == 400 and sent.is_json is False and name != "body":
        return "a body that is no JSON object is not called so"
    return ""


def is_place(name: str, body: Any) -> bool:
    """Whether the body has a value there, or could have: all but the last step must be there. A text stands for a list
    of its parts."""
    *steps, last = re.findall(r"[^.\[\]]+|\[\d+\]", name)
    for step in steps:
        if isinstance(body, list) and step.startswith("[") and int(step[1:-1]) < len(body):
            body = body[int(step[1:-1])]
        elif isinstance(body, dict) and step in body:
            body = body[step]
        else:
            return isinstance(body, str)
    return isinstance(body, (str, list if last.startswith("[") else dict))


@pytest.mark.timeout(60)
async def test_mutated_http_requests_are_answered_or_refused_naming_the_field() -> None:
    faults: list[str] = []
    statuses: Counter[int] = Counter()
    async with fronted(max_message_bytes=64 * 1024) as front, aiohttp.ClientSession() as session:
        front.service.obliging = front.service.checks = True
        kept = await answer(session, front, Sent("", "POST", RESPONSES, b'{"input": "x"}'))
        gate = asyncio.Semaphore(8)

        async def judge(sent: Sent) -> None:
            async with gate:
                try:
                    status, text = await answer(session, front, sent)
                except Exception as error:
                    faults.append(f"{error!r}: {sent}"[:600])
                    return
            statuses[status] += 1
            if fault := fault_of(sent, status, text):
                faults.append(f"{fault}: {status} {text[:300]} {sent}"[:900])

        stored = json.loads(kept[1])["id"]
        await asyncio.gather(*map(judge, spoilt(MODEL, stored, COUNT, seed=1)))
        for path, body in more_bodies(MODEL, stored):
            status, text = await answer(session, front, Sent("whole", "POST", path, json.dumps(body).encode()))
            assert status == 200, text
    assert faults == []
    assert statuses.total() == COUNT
    assert statuses[200] > 200
    assert statuses[400] > 800
    assert {403, 404, 405, 413, 415, 501} <= set(statuses)
