"""Checks a sequence that another daemon opens here, and turns it into a request to the engine."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Executor
from dataclasses import replace

from draftd.core import PEER, DecodeMode, DecodePlan, DecodeRequest, DepthMode, FallbackLevel, Proposals
from draftd.engine.remote.verifier_link import OpenSequence
from draftd.errors import InvalidRequest, OtherWeights
from draftd.model_info import ModelInfo
from draftd.models.grammar import CompiledGrammar, Grammars
from draftd.models.tokenizer import Tokenizer
from draftd.service.formats import MAX_FORMAT_BYTES
from draftd.service.request import Request, ServedModel, TokenIds, validate_request

MAX_GRAMMAR = 4 * MAX_FORMAT_BYTES
"""Characters of a grammar in the form that is compiled, which is longer than the client's."""


def check_text(message: OpenSequence, info: ModelInfo, tokenizer: Tokenizer) -> int:
    """Returns how many tokens may follow those given. Raises InvalidRequest for a field that is wrong."""
    options, tokens = message.options, len(message.tokens)
    answered, longest = tokens - options.prompt, info.context_length - 1
    if not 0 < options.prompt <= tokens <= longest:
        raise InvalidRequest("open.tokens", f"{tokens} tokens", f"1 to {longest} tokens, including the prompt")
    most = info.context_length - options.prompt
    if not answered < message.max_tokens <= most:
        allowed = f"{answered + 1} to {most}: the answer has {answered}, and the context {info.context_length}"
        raise InvalidRequest("open.max_tokens", message.max_tokens, allowed)
    if not options.sampling.deterministic:
        raise InvalidRequest("open.sampling.seed", None, "a seed, if the temperature is above 0")
    request = Request(
        TokenIds(message.tokens),
        message.max_tokens,
        options.sampling,
        logprobs=options.logprobs,
        min_tokens=options.min_tokens,
        stop_token_ids=tuple(token for token in options.ends if token not in tokenizer.eos_ids),
    )
    try:
        validate_request(request, ServedModel(info, message.max_tokens, 0, DepthMode.FIXED, chat_template=False))
    except InvalidRequest as error:
        named = error.field.replace("tokens.ids", "tokens").replace("stop_token_ids", "end_tokens")
        raise InvalidRequest(f"open.{named}", error.value, error.allowed) from None
    return message.max_tokens - answered


def check_model(fingerprint: str, served: str, info: ModelInfo) -> None:
    """Raises OtherWeights for a text that another model began: a text never mixes the tokens of two models."""
    if fingerprint and fingerprint != served:
        allowed = f"{served}, the fingerprint of {info.model}: another model began the text"
        raise OtherWeights("open.model_fingerprint", fingerprint, allowed)


async def compile_grammar(grammar: str, compiler: Grammars | None, executor: Executor) -> CompiledGrammar | None:
    """Compiles the grammar; the returned object keeps it compiled. Returns None for an empty grammar. Raises
    InvalidRequest."""
    if not grammar:
        return None
    if len(grammar) > MAX_GRAMMAR:
        raise InvalidRequest("open.grammar", f"{len(grammar)} characters", f"at most {MAX_GRAMMAR}")
    if compiler is None:
        raise InvalidRequest("open.grammar", grammar, "no value: this model's tokenizer does not support grammars")
    try:
        grammar_of_text, _ = await asyncio.get_running_loop().run_in_executor(executor, compiler.compile, grammar)
    except ValueError as error:
        raise InvalidRequest("open.grammar", grammar, f"a grammar that can be enforced: {error}") from None
    return grammar_of_text


def decode_request(
    message: OpenSequence,
    remaining: int,
    name: str,
    share_key: str,
    proposals: Proposals,
    own_plan: DecodePlan,
    *,
    deepest: int,
    priority: int,
) -> DecodeRequest:
    """Returns the request to the engine. `remaining`: tokens that may follow. `deepest`: most tokens that a step takes
    of the edge's guess. `own_plan`: how this daemon drafts if the edge proposes nothing."""
    options = message.options
    if own_plan.drafter is not None:
        plan = replace(
            own_plan, alternatives=own_plan.alternatives | {PEER}, reason=f"another daemon drafts; {own_plan.reason}"
        )
    else:
        plan = DecodePlan(
            DecodeMode.SPECULATIVE if deepest else DecodeMode.AUTOREGRESSIVE,
            deepest,
            PEER if deepest else None,
            FallbackLevel.FULL,
            "peer",
            "another daemon drafts",
        )
    return DecodeRequest(
        id=name,
        prompt=message.tokens,
        max_tokens=remaining,
        plan=plan,
        arrival=time.monotonic(),
        sampling=options.sampling,
        client=f"peer {share_key}",
        priority=priority,
        min_tokens=options.min_tokens,
        ignore_eos=True,
        stop_ids=frozenset(options.ends),
        logprobs=options.logprobs,
        grammar=options.grammar,
        peer=proposals,
        answered=len(message.tokens) - options.prompt,
        skip_prefix_cache=message.skip_prefix_cache,
    )
