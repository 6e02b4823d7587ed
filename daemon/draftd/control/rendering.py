"""A frozen prompt, put as the model that is loaded takes it."""

from __future__ import annotations

from draftd.canaries.prompts import FrozenPrompt
from draftd.control.seams import ChatTokenizer


def render(prompt: FrozenPrompt, tokenizer: ChatTokenizer) -> tuple[int, ...]:
    """Token ids, ready for the answer: by the model's chat template; as plain text where it has none, or where its
    template takes neither a system message nor what it says before the user's own."""
    system = "\n\n".join(said for role, said in prompt.messages if role == "system")
    rest = [(role, said) for role, said in prompt.messages if role != "system"]
    if tokenizer.has_chat_template:
        folded = [(rest[0][0], f"{system}\n\n{rest[0][1]}"), *rest[1:]] if system else rest
        for messages in (prompt.messages, tuple(folded)):
            try:
                return tuple(tokenizer.render_chat([{"role": role, "content": said} for role, said in messages]))
            except Exception:  # templates raise on what they do not take, each in its own way
                continue
    return tuple(tokenizer.encode("".join(f"{said}\n\n" for said in (system, *(said for _, said in rest)) if said)))
