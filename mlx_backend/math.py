"""The drafter's formulas (sections 2 to 5 of the project's notes on DFlash 2), on arrays of one block."""

import mlx.core as mx

Rotation = tuple[mx.array, mx.array]


def grouped_dynamic_conv(x: mx.array, base: mx.array, delta: mx.array) -> mx.array:
    """y_t[c] = sum_tau (base[tau, c] + delta_t[tau, c // g]) * x_{t - tau}[c], rows before the block zero.

    x [L, H], base [taps, H], delta [L, taps, H / g] -> [L, H]
    """
    L, H = x.shape
    kernels = base + mx.repeat(delta, H // delta.shape[-1], axis=-1)  # [L, taps, H]
    y = kernels[:, 0] * x
    for tau in range(1, min(base.shape[0], L)):
        y = y + kernels[:, tau] * mx.concatenate([mx.zeros((tau, H), x.dtype), x[:-tau]])
    return y


def rotation(positions: mx.array, frequencies: mx.array, scale: float) -> Rotation:
    """positions [T] and speeds [d / 2] (radians a position) -> cos and sin [T, d / 2], float32."""
    angles = positions[:, None].astype(mx.float32) * frequencies
    return mx.cos(angles) * scale, mx.sin(angles) * scale


def rotate(x: mx.array, by: Rotation) -> mx.array:
    """x [heads, T, d], channel i paired with channel i + d / 2 -> the same, rotated."""
    cos, sin = (part.astype(x.dtype) for part in by)
    first, second = mx.split(x, 2, axis=-1)
    return mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def visible(block: int, committed: int, window: int | None, causal: bool) -> mx.array:
    """Which keys the rows of a block see, committed tokens first: [block, committed + block] bool."""
    queries = mx.arange(committed, committed + block)[:, None]
    ahead = mx.arange(committed + block)[None] - queries
    seen = mx.ones_like(ahead).astype(mx.bool_)
    if causal:
        seen = ahead <= 0
    if window is not None:
        seen = seen & (mx.abs(ahead) < window)
    return seen


def best_candidates(logits: mx.array, k: int) -> mx.array:
    """logits [L, V] -> the ids of the k best of each row, ascending [L, k]. Among equal logits the lower id wins.

    One argmax a candidate: MLX's argmax takes the first of equal values, its topk leaves their order open.
    """
    L, ids = logits.shape[0], mx.arange(logits.shape[-1])
    found = []
    for _ in range(k):
        best = mx.argmax(logits, axis=-1)
        found.append(best)
        logits = mx.where(ids[None] == best[:, None], -mx.inf, logits)
    return mx.sort(mx.stack(found, axis=-1), axis=-1).reshape(L, k)


def greedy_walk(
    unary: mx.array, candidates: mx.array, gate: mx.array, predecessor: mx.array, successor: mx.array, anchor: int
) -> list[int]:
    """The best candidate of each row after the one before, from the anchor on; ties to the lowest id.

        S_t(a, b) = U_t(b) + < A[a] * gate_t, B[b] >

    unary [L, K], candidates [L, K] ascending, gate [L, r], predecessor and successor [V, r]
    """
    path, before = [], anchor
    for t in range(unary.shape[0]):
        context = predecessor[before].astype(mx.float32) * gate[t].astype(mx.float32)
        scores = unary[t].astype(mx.float32) + successor[candidates[t]].astype(mx.float32) @ context
        before = int(candidates[t][mx.argmax(scores)].item())
        path.append(before)
    return path
