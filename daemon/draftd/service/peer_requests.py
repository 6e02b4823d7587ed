"""A sequence that another daemon opens here: whether it is in order, and the request that it is to the engine."""

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
"""Characters of a grammar as it is compiled, which is longer than what was written."""


def check_text(message: OpenSequence, info: ModelInfo, tokenizer: Tokenizer) -> int:
    """How many tokens may follow those that are given. Raises InvalidRequest for a field that is wrong."""
    options, tokens = message.options, len(message.tokens)
    answered, longest = tokens - options.prompt, info.context_length - 1
    if not 0 < options.prompt <= tokens <= longest:
        raise InvalidRequest("open.tokens", f"{tokens} tokens", f"1 to {longest} tokens, the prompt among them")
    most = info.context_length - options.prompt
    if not answered < message.max_tokens <= most:
        allowed = f"{answered + 1} to {most}: {answered} are there, and the context has {info.context_length}"
        raise InvalidRequest("open.max_tokens", message.max_tokens, allowed)
    if not options.sampling.deterministic:
        raise InvalidRequest("open.sampling.seed", None, "a seed, where the temperature is above 0")
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
    """Raises OtherWeights for a text that another model began: tokens of two are never one text."""
    if fingerprint and fingerprint != served:
        allowed = f"{served}, which {info.model} has: another model began the text"
        raise OtherWeights("open.model_fingerprint", fingerprint, allowed)


async def compile_grammar(grammar: str, compiler: Grammars | None, executor: Executor) -> CompiledGrammar | None:
    """What keeps it compiled for as long as it is held; None for no grammar. Raises InvalidRequest."""
    if not grammar:
        return None
    if len(grammar) > MAX_GRAMMAR:
        raise InvalidRequest("open.grammar", f"{len(grammar)} characters", f"at most {MAX_GRAMMAR}")
    if compiler is None:
        raise InvalidRequest("open.grammar", grammar, "nothing: this model's tokenizer has no grammars")
    try:
        grammar_of_text, _ = await asyncio.get_running_loop().run_in_executor(executor, compiler.compile, grammar)
    except ValueError as error:
        raise InvalidRequest("open.grammar", grammar, f"what can be enforced: {error}") from None
    return grammar_of_text


def decode_request(
    message: OpenSequence,
    remaining: int,
    name: str,
    party: str,
    proposals: Proposals,
    own_plan: DecodePlan,
    *,
    deepest: int,
    priority: int,
) -> DecodeRequest:
    """`remaining`: tokens that may follow; `deepest`: the most that a step takes of a guess. `own_plan`: how this
    daemon drafts where the edge proposes nothing."""
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
        client=f"peer {party}",
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
