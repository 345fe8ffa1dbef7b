"""The drafter: from the target's features and an anchor to a block of greedy drafts."""

from collections.abc import Mapping
from pathlib import Path

import mlx.core as mx

from dflash2_core.checkpoint import open_checkpoint
from dflash2_core.config import DrafterConfig
from dflash2_core.drafter.model import OWN_EMBEDDING, OWN_HEAD, OWN_MASK
from dflash2_core.drafter.rotary import inverse_frequencies
from mlx_backend.context import MlxContext
from mlx_backend.math import best_candidates, greedy_walk, grouped_dynamic_conv, rotate, rotation, visible

SELECTOR = "candidate_selector."


def load(path: str | Path, dtype: mx.Dtype = mx.float32) -> "MlxDrafter":
    """The drafter in the folder `path`, z-lab or speculators layout, its weights as `dtype`.

    Raises what `open_checkpoint` raises: every tensor and key is used, or refused by name.
    """
    checkpoint = open_checkpoint(path)
    files = {file: mx.load(str(file)) for file in checkpoint.files}
    weights = {name: files[entry.file][entry.stored_name].astype(dtype) for name, entry in checkpoint.entries.items()}
    mx.eval(weights)
    return MlxDrafter(checkpoint.config, weights)


class MlxDrafter:
    """config: what it is; weights: by canonical name."""

    def __init__(self, config: DrafterConfig, weights: Mapping[str, mx.array]) -> None:
        self.config, self.weights = config, weights
        speeds, self._scale = inverse_frequencies(config.head_dim, config.rope_parameters, config.max_position_embeddings)
        self._frequencies = mx.array(speeds.numpy())

    def new_context(self) -> MlxContext:
        return MlxContext(self)

    def context_keys_values(self, taps: mx.array, start: int) -> list[tuple[mx.array, mx.array]]:
        """taps [T, n_taps * H_target] at positions from `start` -> of each layer k and v [kv_heads, T, head_dim]."""
        features = self._norm(self._linear(taps.astype(self._dtype), "fc"), "hidden_norm")
        turn = rotation(mx.arange(start, start + taps.shape[0]), self._frequencies, self._scale)
        return [self._keys_values(features, f"layers.{i}.self_attn", turn) for i in range(self.config.num_hidden_layers)]

    def draft(self, context: MlxContext, anchor: int, embedding: mx.array, head: mx.array) -> list[int]:
        """The block's num_drafts greedy drafts after `anchor`, the last committed token, at position context.length.

        embedding, head  [>= V, H], the target's; unused where the drafter brings its own
        None at all where features, hidden states or logits are not finite, as in the core.
        """
        hidden = self.hidden(context, self._rows(anchor, embedding))[1:]
        logits = self.logits(hidden, head)
        if not (mx.isfinite(logits).all() & mx.isfinite(hidden).all()).item():
            return []
        if self.config.selector_top_k is None:
            return [int(token) for token in mx.argmax(logits, axis=-1).tolist()]
        candidates = best_candidates(logits, self.config.selector_top_k)
        return greedy_walk(
            mx.take_along_axis(logits, candidates, axis=-1),
            candidates,
            self._linear(hidden, f"{SELECTOR}hidden_projection"),
            self.weights[f"{SELECTOR}predecessor_codebook"],
            self.weights[f"{SELECTOR}successor_codebook"],
            anchor,
        )

    def hidden(self, context: MlxContext, rows: mx.array) -> mx.array:
        """A block's input rows [L, H] at positions from context.length -> final hidden states [L, H]."""
        turn = rotation(mx.arange(context.length, context.length + rows.shape[0]), self._frequencies, self._scale)
        for i in range(self.config.num_hidden_layers):
            layer = f"layers.{i}"
            u, after = self._before(self._norm(rows, f"{layer}.input_layernorm"), f"{layer}.attention_conv")
            rows = rows + self._after(self._attention(u, i, context, turn), f"{layer}.attention_conv", after)
            u, after = self._before(self._norm(rows, f"{layer}.post_attention_layernorm"), f"{layer}.mlp_conv")
            rows = rows + self._after(self._mlp(u, f"{layer}.mlp"), f"{layer}.mlp_conv", after)
        return self._norm(rows, "norm")

    def logits(self, hidden: mx.array, head: mx.array) -> mx.array:
        """hidden [L, H] -> [L, V], scaled and capped."""
        logits = (hidden @ self.weights.get(OWN_HEAD, head).astype(hidden.dtype).T)[:, : self.config.vocab_size]
        logits = logits * self.config.output_multiplier
        cap = self.config.final_logit_softcapping
        return logits if cap is None else cap * mx.tanh(logits / cap)

    @property
    def _dtype(self) -> mx.Dtype:
        return self.weights["fc.weight"].dtype

    def _rows(self, anchor: int, embedding: mx.array) -> mx.array:
        """[anchor, MASK, ...] as input rows [B, H]."""
        ids = mx.array([anchor] + [self.config.mask_token_id] * self.config.num_drafts)
        rows = self.weights.get(OWN_EMBEDDING, embedding)[ids].astype(self._dtype)
        if OWN_MASK in self.weights:
            rows = mx.where((ids == self.config.mask_token_id)[:, None], self.weights[OWN_MASK], rows)
        return rows * self.config.input_embedding_scale

    def _attention(self, u: mx.array, i: int, context: MlxContext, turn: tuple[mx.array, mx.array]) -> mx.array:
        name, L = f"layers.{i}.self_attn", u.shape[0]
        q = rotate(self._norm(self._heads(self._linear(u, f"{name}.q_proj")), f"{name}.q_norm"), turn)
        k, v = self._keys_values(u, name, turn)
        if context.length:
            k, v = mx.concatenate([context.keys[i], k], axis=1), mx.concatenate([context.values[i], v], axis=1)
        mask = visible(L, context.length, self.config.layer_windows[i], self.config.layer_causal[i])
        scale = self.config.head_dim**-0.5
        o = mx.fast.scaled_dot_product_attention(q[None], k[None], v[None], scale=scale, mask=mask)[0]
        return self._linear(o.transpose(1, 0, 2).reshape(L, -1), f"{name}.o_proj")

    def _keys_values(self, x: mx.array, name: str, turn: tuple[mx.array, mx.array]) -> tuple[mx.array, mx.array]:
        k = self._norm(self._heads(self._linear(x, f"{name}.k_proj")), f"{name}.k_norm")
        return rotate(k, turn), self._heads(self._linear(x, f"{name}.v_proj"))

    def _mlp(self, u: mx.array, name: str) -> mx.array:
        gate = self._linear(u, f"{name}.gate_proj")
        return self._linear(gate * mx.sigmoid(gate) * self._linear(u, f"{name}.up_proj"), f"{name}.down_proj")

    def _before(self, u: mx.array, name: str) -> tuple[mx.array, mx.array | None]:
        """u [L, H] -> the sublayer's input, and the kernels for its output; both come from u."""
        base = self.weights.get(f"{name}.base_kernel")
        if base is None:  # DFlash 1
            return u, None
        delta = self._linear(u, f"{name}.kernel_projection").reshape(u.shape[0], 2, base.shape[1], -1)
        return grouped_dynamic_conv(u, base[0], delta[:, 0]), delta[:, 1]

    def _after(self, o: mx.array, name: str, delta: mx.array | None) -> mx.array:
        return o if delta is None else grouped_dynamic_conv(o, self.weights[f"{name}.base_kernel"][1], delta)

    def _linear(self, x: mx.array, name: str) -> mx.array:
        return x @ self.weights[f"{name}.weight"].T

    def _norm(self, x: mx.array, name: str) -> mx.array:
        return mx.fast.rms_norm(x, self.weights[f"{name}.weight"], self.config.rms_norm_eps)

    def _heads(self, x: mx.array) -> mx.array:
        """[T, heads * d] -> [heads, T, d]"""
        return x.reshape(x.shape[0], -1, self.config.head_dim).transpose(1, 0, 2)
