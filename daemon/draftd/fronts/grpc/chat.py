"""Converts chats and parts of answers between the contract's messages and the service's values.

A value without a meaning raises InvalidRequest, which names the field.
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


def chat_of(chat_input: pb.ChatInput) -> Chat:
    """Converts a chat from its message. Raises InvalidRequest."""
    parallel = chat_input.parallel_tool_calls if chat_input.HasField("parallel_tool_calls") else True
    arguments = chat_input.template_arguments
    return Chat(
        tuple(_message(message, f"chat.messages[{i}]") for i, message in enumerate(chat_input.messages)),
        tuple(Tool(tool.name, tool.description, tool.parameters) for tool in chat_input.tools),
        _choice(chat_input.tool_choice),
        parallel,
        json_object(arguments, "chat.template_arguments") if arguments else {},
        chat_input.continue_final_message,
    )


def _message(message: pb.ChatMessage, field: str) -> Message:
    for i, part in enumerate(message.parts):
        if part.WhichOneof("kind") is None:
            raise InvalidRequest(f"{field}.parts[{i}]", "nothing", "text")
    return Message(
        message.role,
        message.content + "".join(part.text for part in message.parts),
        tuple(ToolCall(call.id, call.name, call.arguments) for call in message.tool_calls),
        message.tool_call_id,
        message.name,
        message.reasoning,
    )


def _choice(choice: pb.ToolChoice) -> ToolMode | str:
    if choice.WhichOneof("choice") == "name":
        return choice.name
    return member(_MODES, choice.mode, "chat.tool_choice.mode", pb.ToolChoice.Mode.keys())


def delta_of(delta: Delta) -> pb.Delta:
    if isinstance(delta, TextDelta):
        return pb.Delta(text=delta.text)
    if isinstance(delta, ReasoningDelta):
        return pb.Delta(reasoning=delta.text)
    if isinstance(delta, ToolCallBegun):
        return pb.Delta(tool_call_begun=pb.ToolCallBegun(index=delta.index, id=delta.id, name=delta.name))
    if isinstance(delta, ToolCallArguments):
        return pb.Delta(tool_call_arguments=delta.text)
    return pb.Delta(tool_call=pb.ToolCall(**delta.call._asdict()))
