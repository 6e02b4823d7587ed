"""The engine's own guard: what would corrupt a batch, or has no target, never enters it. Imports no MLX."""

from __future__ import annotations

from collections.abc import Sequence

from draftd.core import PEER, DecodeRequest
from draftd.engine.remote.verifier_link import RemoteModel, VerifierLink
from draftd.errors import InvalidRequest, NotServing
from draftd.model_info import ModelInfo


def check_request(request: DecodeRequest, info: ModelInfo, verifier: RemoteModel | None = None) -> None:
    """Raises InvalidRequest, as all here. `verifier`: whose target decodes it, where that is another."""
    check_tokens("prompt", request.prompt, info, None if verifier is None else verifier.context_length)
    if request.max_tokens < 0:
        raise InvalidRequest("max_tokens", request.max_tokens, "at least 0")
    check_ids("stop_ids", tuple(request.stop_ids), info)
    check_ids("sampling.logit_bias", [token for token, _ in request.sampling.logit_bias], info)
    drafter = request.plan.drafter
    offered = (*info.drafters, PEER) if request.peer is not None else info.drafters
    if drafter is not None and drafter not in offered:
        raise InvalidRequest("plan.drafter", drafter, ", ".join(offered) or "none")


def check_tokens(field: str, tokens: Sequence[int], info: ModelInfo, context_length: int | None = None) -> None:
    """`context_length`: of another model than this daemon's."""
    context = info.context_length if context_length is None else context_length
    if not 0 < len(tokens) < context:
        raise InvalidRequest(field, f"{len(tokens)} tokens", f"1 to {context - 1} tokens")
    check_ids(field, tokens, info)


def check_ids(field: str, tokens: Sequence[int], info: ModelInfo) -> None:
    bad = next((token for token in tokens if not 0 <= token < info.vocab_size), None)
    if bad is not None:
        raise InvalidRequest(field, bad, f"token ids from 0 to {info.vocab_size - 1}")


def verifier_of(link: VerifierLink | None) -> RemoteModel | None:
    """What the other daemon serves; None before it was reached. Raises NotServing where there is none, or where its
    tokens are others."""
    if link is None:
        raise NotServing("no other daemon verifies for this one (remote.enabled)")
    model = link.state.model
    if model is not None and not model.shared_tokenizer:
        raise NotServing(f"the other daemon's model has another tokenizer: {model.difference}")
    return model
