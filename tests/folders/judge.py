"""Judges whether a folder is served as other programs compute it, or refused in a line that says what to do.

Ids come from the tokenizers library, logits and texts from mlx-lm's own loop over the clean folder, a chat from Jinja.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import mlx.core as mx
from tokenizers import Tokenizer as Fast

from draftd.cli.findings import Finding, Severity
from draftd.core import DRAFT_MODEL, FinishReason
from draftd.engine.handle import check_request
from draftd.engine.pair import LoadedModels, load_models
from draftd.errors import InvalidRequest, ModelLoadError
from draftd.models.mlx_lm import load_adapters, load_model
from draftd.settings import load_settings
from tests.doctor_findings import check_models
from tests.folders.place import SAMPLES, Asked, Case, Place, samples
from tests.models.scene import near_tie
from tests.rig import Rig, autoregressive, request, speculative

_TOKENS = 14
_CLOSE = 1e-3  # of the largest logit: other kernels multiply here than in mlx-lm's own load
_PYTHON = re.compile(r"\b[A-Z]\w*(Error|Exception)\b|NoneType|Traceback|positional argument|object has no")
_LONGEST = 500  # characters of a line besides the folder


@dataclass(frozen=True)
class Result:
    """Result for one folder. `wrong` says what is wrong, empty if nothing is."""

    item: str
    name: str
    served: bool
    line: str
    wrong: str
    seconds: float


def judged(case: Case, root: Path, like: str) -> Result:
    """Judges a case. Errors of draftd do not raise; they are in the result."""
    began = time.monotonic()
    asked = case.make(Place(root, like))
    served, line = False, ""
    try:
        findings = _doctor(asked)
        models = load_models(
            str(asked.model),
            None if asked.draft is None else str(asked.draft),
            adapter=asked.adapter,
            max_context=asked.max_context,
            progress=lambda line: None,
        )
        served = True
        wrong = f"it is served, and must be refused: {asked.refused}" if asked.refused else ""
        wrong = wrong or _served(models, asked, findings)
    except ModelLoadError as error:
        line = error.message
        wrong = _refused(error, asked, findings)
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    return Result(case.item, case.name, served, line, wrong, time.monotonic() - began)


def _doctor(asked: Asked) -> list[Finding]:
    named = {"path": asked.model, "draft_path": asked.draft, "adapter_path": asked.adapter}
    flags = {f"model.{name}": str(path) for name, path in named.items() if path is not None}
    return check_models(load_settings(None, flags | {"model.max_context": asked.max_context}, {}))


def _refused(error: ModelLoadError, asked: Asked, findings: list[Finding]) -> str:
    bad = [one for one in findings if one.verdict is Severity.BAD and one.subject != "memory"]
    line = error.message
    if not asked.refused:
        return f"it is refused, and must be served: {line}"
    if asked.refused not in line:
        return f"it is refused in other words than {asked.refused!r}"
    if "\n" in line or len(line) > _LONGEST + 2 * len(str(asked.model)) or not error.cure:
        return "it is not refused in one line that says what to do"
    if found := _PYTHON.search(line):
        return f"it is refused in Python's words: {found[0]}"
    if not asked.unread and not any(one.text in line and one.mend == error.cure for one in bad):
        return "doctor does not say so"
    return ""


def _served(models: LoadedModels, asked: Asked, findings: list[Finding]) -> str:
    if bad := [one.text for one in findings if one.verdict is Severity.BAD and one.subject != "memory"]:
        return f"doctor calls it bad: {bad[0]}"
    context = models.info.context_length
    if asked.context not in (None, context):
        return f"its context is {context} tokens, not {asked.context}"
    if asked.ends not in (None, models.tokenizer.eos_ids):
        return f"texts end with {sorted(models.tokenizer.eos_ids)}, not {sorted(asked.ends or ())}"
    clean = asked.clean or asked.model
    fast = Fast.from_file(str(clean / "tokenizer.json"))
    if wrong := _tokenizer(models, asked, fast) or _numbers(models, asked, clean, fast):
        return wrong
    return "" if any(asked.said in one.text for one in findings) else f"doctor does not say {asked.said!r}"


def _tokenizer(models: LoadedModels, asked: Asked, fast: Any) -> str:
    """Compares ids of texts, texts of ids, and ids of a chat."""
    own = models.tokenizer
    for text in samples(fast):
        ids = fast.encode(text).ids
        if own.encode(text) != ids:
            return f"{text!r} has the ids {own.encode(text)[:8]}, not {ids[:8]}"
        stream = own.detokenizer()
        shown = "".join(map(stream.add, ids)) + stream.finish()
        if not shown == own.decode(ids) == fast.decode(ids, skip_special_tokens=False):
            return f"the ids of {text!r} are the text {shown!r}"
    if asked.chat is None:
        return ""
    chat = own.render_chat([{"role": "user", "content": "Hi"}])
    expected = fast.encode(asked.chat, add_special_tokens=False).ids
    if chat != expected:
        return f"a chat has the ids {chat[:8]}, not {expected[:8]}"
    if asked.request:
        try:
            check_request(request(chat, autoregressive()), models.info)
        except InvalidRequest as error:
            return "" if asked.request in error.message else f"a chat is refused: {error.message}"
        return "a chat with an id that the model does not have is taken"
    return ""


def _numbers(models: LoadedModels, asked: Asked, clean: Path, fast: Any) -> str:
    """Compares logits, and greedy texts with or without a draft."""
    plan = speculative(4) if DRAFT_MODEL in models.info.drafters else autoregressive()
    refused_head = models.info.head is not None and models.info.head.refusal
    if asked.draft is not None and DRAFT_MODEL not in models.info.drafters and not refused_head:
        return f"its draft is not used: {models.info.why_no(DRAFT_MODEL)}"
    prompts = [fast.encode(text).ids for text in SAMPLES[:2]]
    sinks = Rig(models).run([request(prompt, plan, max_tokens=_TOKENS) for prompt in prompts])
    if asked.request and asked.chat is None:
        ended = next((sink.done.error for sink in sinks if sink.done.reason is FinishReason.ERROR), "no error")
        return "" if asked.request in ended else f"a request ends with {ended!r}, not {asked.request!r}"
    for prompt, sink in zip(prompts, sinks, strict=True):
        logits, text = _reference(str(clean), str(asked.adapter or ""), tuple(prompt))
        found = models.target(mx.array([prompt]))
        distance = mx.abs(found - logits).max().item()
        if not distance <= _CLOSE * max(1.0, mx.abs(logits).max().item()):
            return f"its logits differ by {distance:.2g}"
        at = next((i for i, pair in enumerate(zip(sink.tokens, text, strict=False)) if pair[0] != pair[1]), None)
        if at is not None and not near_tie(models.target, [*prompt, *text[:at]], at, sink.tokens[at], text[at], None):
            return f"token {at} of a text is {sink.tokens[at]}, not {text[at]}"
        ended = len(sink.tokens) == _TOKENS or sink.done.reason is FinishReason.STOP
        if at is None and not ended:
            return f"a text ends after {len(sink.tokens)} tokens: {sink.done.reason} {sink.done.error}"
    return ""


@lru_cache(maxsize=64)
def _reference(folder: str, adapter: str, prompt: tuple[int, ...]) -> tuple[mx.array, list[int]]:
    """Returns mlx-lm's own logits and greedy text, in fp32 as draftd computes here."""
    from mlx_lm.generate import generate_step

    model = _model(folder, adapter)
    logits = model(mx.array([prompt]))
    tokens = [int(token) for token, _ in generate_step(mx.array(prompt), model, max_tokens=_TOKENS)]
    return logits, tokens


@lru_cache(maxsize=1)
def _model(folder: str, adapter: str) -> Any:
    model, _ = load_model(Path(folder))
    if adapter:
        model = load_adapters(model, adapter)
    model.set_dtype(mx.float32)
    model.eval()
    return model


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences the log lines of transformers and draftd, many of which are expected here."""
    import logging

    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)
