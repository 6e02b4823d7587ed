"""Chats and the parts of answers: the contract's messages to the service's values and back.

What has no meaning there raises InvalidRequest, which names the field.
"""

from __future__ import annotations

from draftd.errors import InvalidRequest
from draftd.protocol import member
from draftd.service.messages import Chat, Message, Tool, ToolCall, ToolMode, json_object
from draftd.service.request import Delta, ReasoningDelta, TextDelta, ToolCallArguments, ToolCallBegun
from draftd.v1 import inference_pb2 as pb

_MODES = {
    pb.ToolChoice.MODE_UNSPECIFIED: ToolMode.AUTO,
    pb.ToolChoice.MODE_NONE: ToolMode.NONE,
    pb.ToolChoice.MODE_AUTO: ToolMode.AUTO,
    pb.ToolChoice.MODE_REQUIRED: ToolMode.REQUIRED,
}


def chat_of(given: pb.ChatInput) -> Chat:
    """Raises InvalidRequest."""
    parallel = given.parallel_tool_calls if given.HasField("parallel_tool_calls") else True
    arguments = given.template_arguments
    return Chat(
        tuple(_message(message, f"chat.messages[{i}]") for i, message in enumerate(given.messages)),
        tuple(Tool(tool.name, tool.description, tool.parameters) for tool in given.tools),
        _choice(given.tool_choice),
        parallel,
        json_object(arguments, "chat.template_arguments") if arguments else {},
        given.continue_final_message,
    )


def _message(given: pb.ChatMessage, field: str) -> Message:
    for i, part in enumerate(given.parts):
        if part.WhichOneof("kind") is None:
            raise InvalidRequest(f"{field}.parts[{i}]", "nothing", "text")
    return Message(
        given.role,
        given.content + "".join(part.text for part in given.parts),
        tuple(ToolCall(call.id, call.name, call.arguments) for call in given.tool_calls),
        given.tool_call_id,
        given.name,
        given.reasoning,
    )


def _choice(given: pb.ToolChoice) -> ToolMode | str:
    if given.WhichOneof("choice") == "name":
        return given.name
    return member(_MODES, given.mode, "chat.tool_choice.mode", pb.ToolChoice.Mode.keys())


def delta_of(told: Delta) -> pb.Delta:
    if isinstance(told, TextDelta):
        return pb.Delta(text=told.text)
    if isinstance(told, ReasoningDelta):
        return pb.Delta(reasoning=told.text)
    if isinstance(told, ToolCallBegun):
        return pb.Delta(tool_call_begun=pb.ToolCallBegun(index=told.index, id=told.id, name=told.name))
    if isinstance(told, ToolCallArguments):
        return pb.Delta(tool_call_arguments=told.text)
    return pb.Delta(tool_call=pb.ToolCall(**told.call._asdict()))
