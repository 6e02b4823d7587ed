"""Checks on every request: token, origin, model's name, body; also keep-alive and clients that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import aiohttp
import pytest
from yarl import URL

from draftd.errors import InvalidRequest
from draftd.fronts.http.errors import Names, openai_error
from draftd.fronts.http.store import ResponseStore, StoredAnswer
from tests.http_front import Fronted, Says, fronted, said

CHAT: dict[str, Any] = {"model": "scripted", "messages": [{"role": "user", "content": "x"}]}
PATH = "/v1/chat/completions"


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def refused(response: aiohttp.ClientResponse) -> tuple[int, str | None, str]:
    """Returns the status, field and message of a refusal."""
    error = (await response.json())["error"]
    return response.status, error["param"], error["message"]


@pytest.mark.parametrize("header", [{"Authorization": "Bearer abcdefgh12345678"}, {"X-Api-Key": "abcdefgh12345678"}])
async def test_http_requires_the_token_except_for_health(
    session: aiohttp.ClientSession, header: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    async with fronted(Says(said("ok")), token="abcdefgh12345678") as front:
        for wrong in ({}, {"Authorization": "Bearer abcdefgh1234567"}, {"X-Api-Key": ""}):
            for path in ("/v1/models", "/metrics"):
                response = await session.get(front.url + path, headers=wrong)
                assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert (await session.get(f"{front.url}/health")).status == 200
        assert (await session.post(front.url + PATH, json=CHAT, headers=header)).status == 200
    (line,) = [line for line in caplog.messages if "was refused" in line]  # of six, from one host
    assert line.startswith("GET /v1/models of 127.0.0.1:")
    assert "abcdefgh1234567" not in caplog.text


async def test_http_caller_is_known_by_a_required_token_alone(session: aiohttp.ClientSession) -> None:
    """A name that the client gives, or a token that is not required, identifies no one."""
    first, second = "abcdefgh12345678", "12345678abcdefgh"
    shown = [
        {"Authorization": f"Bearer {first}"},
        {"X-Api-Key": first},
        {"Authorization": f"bearer  {first}", "X-Api-Key": "another"},
        {"X-Api-Key": second},
    ]

    async def identities(front: Fronted) -> list[str]:
        front.service.obliging = True
        for i, headers in enumerate(shown):
            body = {**CHAT, "user": f"user {i}", "draftd": {"caller": f"caller {i}"}}
            assert (await session.post(front.url + PATH, json=body, headers=headers)).status == 200
        return [request.identity for request in front.service.requests]

    async with fronted(token=f"{first} {second}") as front:
        *same, other = await identities(front)
        assert len(set(same)) == 1
        assert other != same[0] != ""
        assert first not in str(front.service.requests)
    async with fronted() as front:
        assert await identities(front) == [""] * len(shown)


async def test_health_endpoint_shows_load_progress_only_with_the_token(session: aiohttp.ClientSession) -> None:
    own = {"Authorization": "Bearer abcdefgh12345678"}
    async with fronted(token="abcdefgh12345678") as front:
        front.server.serving(False)
        front.service.load_progress = "downloading a/b: 1 of 4 GB"
        for headers, told in ((own, {"progress": "downloading a/b: 1 of 4 GB"}), ({}, {})):
            response = await session.get(f"{front.url}/health", headers=headers)
            assert (response.status, await response.json()) == (503, {"status": "loading", **told})


async def test_http_refuses_browser_origins_that_are_not_listed(session: aiohttp.ClientSession) -> None:
    async with fronted(Says(said("ok")), http_origins="https://chat.example") as front:
        response = await session.post(front.url + PATH, json=CHAT, headers={"Origin": "https://evil.example"})
        assert (await refused(response))[0] == 403
        assert "Access-Control-Allow-Origin" not in response.headers
        plain = {"Content-Type": "text/plain"}  # which a page may send without asking
        assert (await session.post(front.url + PATH, data=json.dumps(CHAT), headers=plain)).status == 415
        listed = {"Origin": "https://chat.example"}
        preflight = await session.options(front.url + PATH, headers=listed)
        assert (preflight.status, preflight.headers["Access-Control-Allow-Origin"]) == (204, "https://chat.example")
        response = await session.post(front.url + PATH, json=CHAT, headers=listed)
        assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (200, "https://chat.example")
        assert front.service.requests, "only the last was asked"


async def test_http_model_answers_to_its_names_and_aliases_only(session: aiohttp.ClientSession) -> None:
    names = ["org/scripted", "scripted", "gpt-4o"]
    async with fronted(*(Says(said("ok")) for _ in names), http_aliases="gpt-4o") as front:
        listed = (await (await session.get(f"{front.url}/v1/models")).json())["data"]
        assert [one["id"] for one in listed] == names
        for name in names:
            answer = await session.post(front.url + PATH, json={**CHAT, "model": name})
            assert (await answer.json())["model"] == "org/scripted"
            assert (await (await session.get(f"{front.url}/v1/models/{name}")).json())["id"] == name
        status, field, message = await refused(await session.post(front.url + PATH, json={**CHAT, "model": "gpt-5"}))
        assert (status, field) == (404, "model")
        assert "org/scripted, scripted, gpt-4o" in message
        assert (await session.get(f"{front.url}/v1/models/gpt-5")).status == 404


async def test_structured_output_choice_must_be_a_list_of_strings(session: aiohttp.ClientSession) -> None:
    async with fronted() as front:
        for wrong in (5, True, "5", [1], [["a"]], {"a": 1}):
            body = {**CHAT, "structured_outputs": {"choice": wrong}}
            response = await session.post(front.url + PATH, json=body)
            assert (await refused(response))[:2] == (400, "structured_outputs.choice"), wrong


async def test_http_unknown_path_model_or_method_gets_a_specific_error_status(session: aiohttp.ClientSession) -> None:
    async with fronted() as front:
        assert (await refused(await session.post(f"{front.url}/v1/embeddings", json={})))[0] == 501
        assert (await refused(await session.get(f"{front.url}/v1/audio/speech")))[0] == 404
        for name in ("%252F", "..%2F..%2Fx"):
            assert (await session.get(URL(f"{front.url}/v1/models/{name}", encoded=True))).status == 404
        response = await session.delete(front.url + PATH)
        assert (response.status, response.headers["Allow"]) == (405, "POST")
        front.service.draining = True
        assert (await session.get(f"{front.url}/health")).status == 503


async def test_silent_http_stream_sends_keep_alives_and_ends_with_done(session: aiohttp.ClientSession) -> None:
    async with fronted(Says(said("late"), pause=0.3), keep_alive_seconds=0.05) as front:
        response = await session.post(front.url + PATH, json={**CHAT, "stream": True})
        text = await response.text()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert 2 <= text.count(": keep-alive\n") <= 6
        assert text.endswith("data: [DONE]\n\n")
        front.will_say(Says(said("late"), pause=0.3))
        message = {**CHAT, "max_tokens": 5, "stream": True}
        text = await (await session.post(f"{front.url}/v1/messages", json=message)).text()
        assert "event: ping" in text


@pytest.mark.parametrize("stream", [True, False])
async def test_http_client_disconnect_cancels_its_request(session: aiohttp.ClientSession, stream: bool) -> None:
    async with fronted(Says(said("never"), pause=60)) as front:
        asking = asyncio.create_task(post_and_read(session, front, {**CHAT, "stream": stream}))
        await eventually(lambda: front.service.requests)
        asking.cancel()
        await asyncio.wait([asking])
        await session.close()
        await eventually(lambda: front.service.cancelled)


async def post_and_read(session: aiohttp.ClientSession, front: Fronted, body: dict[str, Any]) -> str:
    return await (await session.post(front.url + PATH, json=body)).text()


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_http_server_stop_without_grace_cancels_the_running_request(session: aiohttp.ClientSession) -> None:
    async with fronted(Says(said("never"), pause=60)) as front:
        asking = asyncio.create_task(post_and_read(session, front, CHAT))
        await eventually(lambda: front.service.requests)
        async with asyncio.timeout(5):
            await front.server.stop(0)
        assert front.service.cancelled == 1
        with pytest.raises(aiohttp.ClientError):
            await asking


async def exchange(front: Fronted, sent: Sequence[bytes], *, half: bool = False) -> bytes:
    """Returns the answer to these raw bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", front.server.port)
    for part in sent:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.02)
    if half:
        writer.write_eof()
    try:
        async with asyncio.timeout(5):
            return await reader.read()
    finally:
        writer.close()


async def test_malformed_or_oversized_http_headers_get_400() -> None:
    async with fronted() as front:
        assert b" 400 " in (await exchange(front, [b"\x16\x03\x01 no HTTP\r\n\r\n"]))[:13]
        many = b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(200)) + b"\r\n"
        assert b" 400 " in (await exchange(front, [many]))[:13]
        large = b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 20_000 + b"\r\n\r\n"
        assert b" 400 " in (await exchange(front, [large]))[:13]


async def test_http_server_times_out_slow_headers_and_bodies() -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n"
    async with fronted(body_seconds=0.2, request_seconds=0.2) as front:
        assert await exchange(front, [b"GET /hea"]) == b""
        answer = await exchange(front, [head + b"\r\n", b"{"])
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"all of it within 0.2 s" in answer
        assert await exchange(front, [head + b"\r\n", b"{"], half=True) == b"", "a client that hangs up gets nothing"
        expecting = head.replace(b"99", b"2") + b"Expect: 100-continue\r\nConnection: close\r\n\r\n"
        assert (await exchange(front, [expecting, b"{}"], half=False)).startswith(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 400"
        )


async def test_http_connection_over_the_limit_closes_an_idle_connection() -> None:
    async with fronted(Says(said("x"), pause=60), http_connections=2) as front:
        port = front.server.port
        busy, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps(CHAT).encode()
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        idle, second = await asyncio.open_connection("127.0.0.1", port)
        await eventually(lambda: front.service.requests)
        async with asyncio.timeout(5):
            reader, third = await asyncio.open_connection("127.0.0.1", port)
            third.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
            assert await idle.read() == b""
        for connection in (writer, second, third):
            connection.close()
        assert busy.at_eof() is False


def test_http_errors_rename_service_fields_to_body_fields() -> None:
    names = Names({"sampling.": "", "chat.messages": "messages", "chat": "messages"}, ["system", "messages[0]"])
    assert names.of("sampling.top_p") == "top_p"
    assert names.of("chat.messages[1].role") == "messages[0].role"
    assert names.of("chat.messages") == names.of("chat") == "messages"
    long = names.rename(InvalidRequest("chat", "5000 tokens", "1 to 4095 tokens"))
    assert openai_error(long)["error"]["code"] == "context_length_exceeded"


def test_response_store_evicts_the_least_recently_used_response() -> None:
    store = ResponseStore(most_bytes=30, most=3)
    for name in "abc":
        store.put(name, StoredAnswer({}, (), 10))
    assert store.get("a") is not None
    store.put("d", StoredAnswer({}, (), 10))
    assert [store.get(name) is not None for name in "abcd"] == [True, False, True, True]
    store.put("e", StoredAnswer({}, (), 25))
    assert (len(store), store.bytes) == (1, 25)
    store.put("f", StoredAnswer({}, (), 31))
    assert store.get("f") is None
    assert store.drop("e")
    assert store.bytes == 0


def test_response_store_keeps_an_item_until_no_stored_response_has_it() -> None:
    store, said, again = ResponseStore(most_bytes=100), {"id": "msg_1", "content": "a"}, {"id": "msg_1", "content": "b"}
    store.put("first", StoredAnswer({"output": [said]}, (), 10))
    store.put("second", StoredAnswer({"output": []}, (), 10, (again, again)))
    assert store.item("msg_1") == again
    assert store.drop("second")
    assert store.item("msg_1") == said
    assert store.drop("first")
    assert store.item("msg_1") is None
