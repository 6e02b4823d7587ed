"""What a pair is and can do, for people: of a daemon's `GetModel`, or foreseen from the models' files."""

from __future__ import annotations

from draftd.cli.figures import size
from draftd.v1 import inference_pb2 as pb


def fields(model: pb.GetModelResponse) -> list[tuple[str, str]]:
    """Name and value."""
    return [
        ("layers", layers(model)),
        ("context", context(model)),
        ("prefix reuse", "any beginning" if model.partial_prefixes else "whole texts only"),
        ("end tokens", ", ".join(f"{text} ({i})" for i, text in sorted(model.end_tokens.items())) or "none"),
        ("template", template(model)),
    ]


def layers(model: pb.GetModelResponse) -> str:
    kinds = ", ".join(f"{count} × {kind}" for kind, count in sorted(model.layers.items()))
    text = f"; text only, without its {model.left_out}" if model.left_out else ""
    return (f"{model.architecture}: {kinds}" if model.architecture else kinds) + text


def context(model: pb.GetModelResponse) -> str:
    """How long a text may be, and what it takes."""
    whole, fits = model.context_length, model.largest_context
    room = "" if fits >= whole else f", of which the memory has room for {fits:,}"
    each = f", {size(model.sequence_bytes)} per request" if model.sequence_bytes else ""
    return f"{whole:,} tokens{room}; KV cache: {size(1000 * model.position_bytes)} per 1,000 tokens{each}"


def template(model: pb.GetModelResponse) -> str:
    has = {"chat": model.chat_template, "tools": model.tools, "thinking": model.thinking}
    return ", ".join(name if there else f"no {name}" for name, there in has.items())
