"""`draftd prefix pin|list|drop`: beginnings of texts whose keys and values a daemon keeps on disk."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer
from google.protobuf import json_format

from draftd.cli import options, output
from draftd.cli.figures import size
from draftd.errors import ConfigError
from draftd.v1 import control_pb2 as pb
from draftd.v1 import inference_pb2 as inference

Name = Annotated[str, typer.Argument(help="Name of the pin: at most 64 letters, digits, underscores, dots and dashes.")]
Source = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="File with the text of the prefix, used without a chat template."),
]
Chat = Annotated[
    Path | None,
    typer.Option("--chat", metavar="FILE.json", help='File of messages: [{"role": "system", "content": "…"}, …]'),
]
_MESSAGES = 'JSON: a list of messages, each {"role": "…", "content": "…"}, or {"messages": […]}'


@options.with_options(
    "draftd prefix pin support --chat system.json", 'draftd prefix pin terms --prompt "These are the terms: …"'
)
def pin(
    daemon: options.DaemonOptions,
    name: Name,
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="Text of the prefix, used without a chat template.")
    ] = None,
    file: Source = None,
    chat: Chat = None,
    json: options.Json = False,
    timeout: options.Patience = options.PATIENCE,
) -> None:
    """Compute a prefix once, and keep its keys and values on disk under a name.

    Requests that begin with the same text read the prefix instead of computing it, also after a restart. With --chat,
    this applies to chats that begin with the same messages. An existing pin of that name is replaced.
    """
    sources = [source for source in (prompt, file, chat) if source is not None]
    if len(sources) != 1:
        raise ConfigError("draftd prefix pin", ", ".join(map(str, sources)), "exactly one of --prompt, --file, --chat")
    request = pb.PinPrefixRequest(name=name)
    if chat is not None:
        request.chat.CopyFrom(_chat(chat))
    else:
        request.prompt = prompt if prompt is not None else _read(file, "--file")
    with daemon.connect() as client:
        pinned = client.pin_prefix(request, timeout=timeout)
    if json:
        output.print_json(pinned)
    else:
        print(f"{pinned.name}: {pinned.tokens} tokens, {size(pinned.bytes)} on disk")


@options.with_options("draftd prefix list")
def list_(daemon: options.DaemonOptions, json: options.Json = False) -> None:
    """List pinned prefixes, the oldest first."""
    with daemon.connect() as client:
        reply = client.prefixes()
    if json:
        output.print_json(reply)
        return
    if not reply.prefixes:
        print("no prefix is pinned")
        return
    rows = [
        (
            prefix.name,
            f"{prefix.tokens} tokens, {size(prefix.bytes)}{' (of another model)' if prefix.other_model else ''}",
        )
        for prefix in reply.prefixes
    ]
    output.print_fields(rows, max(len(name) for name, _ in rows) + 1)


@options.with_options("draftd prefix drop support")
def drop(daemon: options.DaemonOptions, name: Name) -> None:
    """Drop a pin. Its files are deleted, unless engine.prefix_disk_bytes has room to keep them as unpinned prefixes."""
    with daemon.connect() as client:
        client.drop_prefix(name)
    print(f"{name}: dropped")


def _read(path: Path | None, option: str) -> str:
    try:
        assert path is not None
        return path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(option, str(path), f"a text file in UTF-8 ({error})") from None


def _chat(path: Path) -> inference.ChatInput:
    try:
        document: Any = json_module.loads(_read(path, "--chat"))
        return json_format.ParseDict(
            {"messages": document} if isinstance(document, list) else document, inference.ChatInput()
        )
    except (ValueError, json_format.ParseError) as error:
        raise ConfigError("--chat", str(path), f"{_MESSAGES} ({error})") from None


GROUP = {"pin": pin, "list": list_, "drop": drop}
