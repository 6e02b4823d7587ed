"""Computes what the draft head of Qwen3-Next, Qwen3.5, 3.6 and 3.8 says, in NumPy's float64.

Written after vLLM's qwen3_next_mtp.py and qwen3_5_mtp.py and SGLang's files of those names; they agree:

- pair i is (the target's state at position i after its final norm, the token at i + 1), and has position i;
- fc takes the embedding first: fc [norm_e(embedding); norm_h(state)];
- one layer of full attention, with its own cache, and a final norm, whose output makes logits and is the next state;
- all norms hold w of (1 + w); no embedding is zeroed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
FIXTURES = Path(__file__).with_name("fixtures.npz")


def rms_normed(values: Array, weight: Array, epsilon: float) -> Array:
    """Returns RMS-normed values times 1 + weight."""
    return values / np.sqrt(np.square(values).mean(-1, keepdims=True) + epsilon) * (1.0 + weight)


def sigmoid(values: Array) -> Array:
    """Returns the logistic function."""
    return 1.0 / (1.0 + np.exp(-values))


def silu(values: Array) -> Array:
    """Returns values times their logistic function."""
    return values * sigmoid(values)


def softmax(values: Array) -> Array:
    """Returns probabilities along the last axis."""
    powers = np.exp(values - values.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def rotated(values: Array, positions: Array, dimensions: int, base: float) -> Array:
    """Returns values (positions, heads, size) with rotary embeddings on the first dimensions, in halves.

    With text only, the three positions of Qwen3.5's mRoPE are the same, and it is this.
    """
    half = dimensions // 2
    frequencies = base ** (-np.arange(half) * 2.0 / dimensions)
    angles = positions[:, None, None] * frequencies
    cosine, sine = np.cos(angles), np.sin(angles)
    first, second, rest = values[..., :half], values[..., half:dimensions], values[..., dimensions:]
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine, rest], axis=-1)


@dataclass
class Cache:
    """Keys and values (positions, heads, size) of the pairs so far."""

    keys: Array
    values: Array

    @property
    def length(self) -> int:
        """Returns how many pairs were taken in."""
        return len(self.keys)


class ReferenceHead:
    """A head. `tensors` has the vendor's names, which begin with `mtp.`, and values."""

    takes_normed_states = True

    def __init__(self, config: dict[str, Any], tensors: dict[str, Array], embedding: Array, lm_head: Array) -> None:
        text = config.get("text_config", config)
        rope = text.get("rope_parameters") or text
        self._tensors = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
        self._embedding = np.asarray(embedding, np.float64)
        self._lm_head = np.asarray(lm_head, np.float64)
        self._epsilon = float(text["rms_norm_eps"])
        self._heads = int(text["num_attention_heads"])
        self._kv_heads = int(text["num_key_value_heads"])
        self._size = int(text.get("head_dim") or text["hidden_size"] // self._heads)
        self._rotary_dimensions = int(self._size * rope["partial_rotary_factor"])
        self._rotary_base = float(rope["rope_theta"])
        self._chosen = int(text.get("num_experts_per_tok", 0))
        self._experts = int(text.get("num_experts", 0))
        self._normalizes_scores = bool(text.get("norm_topk_prob", True))
        self.least_router_margin = np.inf  # between the last expert that was chosen and the first that was not

    def empty_cache(self) -> Cache:
        """Returns a cache of no pairs."""
        empty = np.zeros((0, self._kv_heads, self._size))
        return Cache(empty, empty)

    def states(self, hidden: Array, tokens: Array, cache: Cache) -> Array:
        """Returns the head's states (pairs, hidden) after its final norm, and adds the pairs to `cache`."""
        mixed = np.concatenate(
            [
                self._normed(self._embedding[np.asarray(tokens)], "mtp.pre_fc_norm_embedding"),
                self._normed(np.asarray(hidden, np.float64), "mtp.pre_fc_norm_hidden"),
            ],
            axis=-1,
        )
        entered = self._projected(mixed, "mtp.fc")
        return self._normed(self.layer(entered, cache), "mtp.norm")

    def layer(self, entered: Array, cache: Cache, prefix: str = "mtp.layers.0") -> Array:
        """Returns what the decoder layer makes of `entered` (pairs, hidden)."""
        attended = entered + self._attention(
            self._normed(entered, f"{prefix}.input_layernorm"), cache, f"{prefix}.self_attn"
        )
        normed = self._normed(attended, f"{prefix}.post_attention_layernorm")
        is_mixture = f"{prefix}.mlp.gate.weight" in self._tensors
        made = self._mixture(normed, f"{prefix}.mlp") if is_mixture else self._glu(normed, f"{prefix}.mlp")
        return attended + made

    def logits(self, hidden: Array, next_tokens: Array, steps: int = 3) -> Array:
        """Returns the logits (steps, vocabulary) of what follows the last pair, each step after the likeliest token.

        `hidden` has the target's states of positions 0 to T - 1, `next_tokens` the tokens at 1 to T.
        """
        cache = self.empty_cache()
        state = self.states(hidden, next_tokens, cache)[-1:]
        rows = [self._lm_head @ state[0]]
        while len(rows) < steps:
            state = self.states(state, np.array([rows[-1].argmax()]), cache)
            rows.append(self._lm_head @ state[0])
        return np.stack(rows)

    def _normed(self, values: Array, name: str) -> Array:
        return rms_normed(values, self._tensors[f"{name}.weight"], self._epsilon)

    def _projected(self, values: Array, name: str) -> Array:
        return values @ self._tensors[f"{name}.weight"].T

    def _attention(self, entered: Array, cache: Cache, prefix: str) -> Array:
        length = len(entered)
        positions = np.arange(cache.length, cache.length + length)
        # each head's query and gate lie side by side
        both = self._projected(entered, f"{prefix}.q_proj").reshape(length, self._heads, 2 * self._size)
        queries, gates = both[..., : self._size], both[..., self._size :]
        keys = self._projected(entered, f"{prefix}.k_proj").reshape(length, self._kv_heads, self._size)
        values = self._projected(entered, f"{prefix}.v_proj").reshape(length, self._kv_heads, self._size)
        queries = self._rotated(self._normed(queries, f"{prefix}.q_norm"), positions)
        keys = self._rotated(self._normed(keys, f"{prefix}.k_norm"), positions)
        cache.keys = np.concatenate([cache.keys, keys])
        cache.values = np.concatenate([cache.values, values])

        shared_by = self._heads // self._kv_heads
        all_keys, all_values = (np.repeat(part, shared_by, axis=1) for part in (cache.keys, cache.values))
        scores = np.einsum("qhd,khd->hqk", queries, all_keys) / np.sqrt(self._size)
        is_later = np.arange(cache.length) > positions[:, None]
        weights = softmax(np.where(is_later, -np.inf, scores))
        attended = np.einsum("hqk,khd->qhd", weights, all_values) * sigmoid(gates)
        return self._projected(attended.reshape(length, -1), f"{prefix}.o_proj")

    def _rotated(self, values: Array, positions: Array) -> Array:
        return rotated(values, positions, self._rotary_dimensions, self._rotary_base)

    def _glu(self, entered: Array, prefix: str) -> Array:
        inner = silu(self._projected(entered, f"{prefix}.gate_proj")) * self._projected(entered, f"{prefix}.up_proj")
        return self._projected(inner, f"{prefix}.down_proj")

    def _mixture(self, entered: Array, prefix: str) -> Array:
        probabilities = softmax(self._projected(entered, f"{prefix}.gate"))
        shared_gate = sigmoid(self._projected(entered, f"{prefix}.shared_expert_gate"))
        result = shared_gate * self._glu(entered, f"{prefix}.shared_expert")
        for row, chances in enumerate(probabilities):
            order = np.argsort(-chances)
            chosen = order[: self._chosen]
            margin = chances[order[self._chosen - 1]] - chances[order[self._chosen]]
            self.least_router_margin = min(self.least_router_margin, float(margin))
            scores = chances[chosen]
            if self._normalizes_scores:
                scores = scores / scores.sum()
            for expert, score in zip(chosen, scores, strict=True):
                result[row] += score * self._expert(entered[row], f"{prefix}.experts", int(expert))
        return result

    def _expert(self, entered: Array, prefix: str, number: int) -> Array:
        if f"{prefix}.gate_up_proj" not in self._tensors:
            return self._glu(entered, f"{prefix}.{number}")
        gate, up = np.split(self._tensors[f"{prefix}.gate_up_proj"][number] @ entered, 2)
        return self._tensors[f"{prefix}.down_proj"][number] @ (silu(gate) * up)


@dataclass(frozen=True)
class Fixture:
    """The figures that a layout was computed to give: `logits` is ReferenceHead.logits(hidden[:-1], tokens[1:])."""

    tokens: Array  # (24,)
    hidden: Array  # (24, hidden): the target's states as the head takes them, by mlx-lm in fp32
    logits: Array  # (3, vocabulary)


def fixtures() -> dict[str, Fixture]:
    """Returns the fixtures by the layouts' names."""
    with np.load(FIXTURES) as stored:
        targets = {name.removeprefix("target/"): str(stored[name]) for name in stored if name.startswith("target/")}
        return {
            layout: Fixture(stored[f"tokens/{target}"], stored[f"hidden/{target}"], stored[f"logits/{layout}"])
            for layout, target in targets.items()
        }
