"""Requests are sent as they were asked."""

from __future__ import annotations

import pytest

from draftd.client.client import Ask
from draftd.errors import InvalidRequest
from draftd.v1 import inference_pb2 as pb


def test_client_request_accepts_arbitrary_generate_request_fields() -> None:
    asked = Ask(messages=(("user", "a"), pb.ChatMessage(role="tool", content="b")), json_schema="{}", max_tokens=3)
    request = asked.message(n=2)
    assert [(one.role, one.content) for one in request.chat.messages] == [("user", "a"), ("tool", "b")]
    assert (request.max_tokens, request.n, request.response_format.json_schema) == (3, 2, "{}")
    assert not request.HasField("prompt")


def test_client_request_with_prompt_and_messages_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="prompt: got 'b'; allowed: only one of prompt, messages"):
        Ask("b", messages=(("user", "a"),)).message()
