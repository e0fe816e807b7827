"""The faults of faults.json as functions with a jax.custom_vjp, given to jax.test_util.check_grads.

Every op is made from its slip: None for the right backward, the fault's id for the wrong one. JAX's arrays have no
strides, so a backward cannot misread them: that fault does not exist here.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.test_util import check_grads


def with_backward(forward, backward, symbolic_zeros=False):
    """forward(*x) gives (y, kept); backward(kept, dy) the gradients of x."""
    f = jax.custom_vjp(lambda *x: forward(*x)[0])
    f.defvjp(forward, backward, symbolic_zeros=symbolic_zeros)
    return f


def through_softmax(y, dy):
    return y * (dy - jnp.sum(y * dy, axis=-1, keepdims=True))


def softmax(slip):
    def forward(x):
        y = jax.nn.softmax(x)
        return y, y

    factor = -7 if slip else 1
    return with_backward(forward, lambda y, dy: (factor * through_softmax(y, dy),))


def log_softmax(slip):
    def forward(x):
        y = jax.nn.log_softmax(x)
        return y, y

    def backward(y, dy):
        dx = dy - jnp.exp(y) * jnp.sum(dy, axis=-1, keepdims=True)
        return (dx * 1.001 if slip else dx,)

    return with_backward(forward, backward)


def tempered_softmax(slip):
    def forward(x):
        y = jax.nn.softmax(x / 0.7)
        return y, y

    return with_backward(forward, lambda y, dy: (through_softmax(y, dy) / (1 if slip else 0.7),))


def attention(slip, causal=False, lengths=None):
    def weights(q, k, slip):
        s = jnp.einsum("bid,bjd->bij", q, k) / math.sqrt(q.shape[-1])
        i, j = jnp.arange(q.shape[1])[:, None], jnp.arange(k.shape[1])
        seen = jnp.ones(s.shape, bool)
        if causal:
            seen &= j <= i + (0 if slip == "causal_mask_off_by_one" else k.shape[1] - q.shape[1])
        if lengths is not None and slip != "padding_mask_ignored":
            seen &= j < jnp.asarray(lengths)[:, None, None]
        return jax.nn.softmax(jnp.where(seen, s, -jnp.inf))

    def forward(q, k, v):
        return weights(q, k, None) @ v, (q, k, v)

    def backward(kept, do):
        q, k, v = kept
        p = weights(q, k, slip)
        dp = jnp.einsum("bid,bjd->bij", do, v)
        ds = p * dp if slip == "attention_row_sum_dropped" else through_softmax(p, dp)
        ds = ds / math.sqrt(q.shape[-1])
        return ds @ k, jnp.einsum("bij,bid->bjd", ds, q), jnp.einsum("bij,bid->bjd", p, do)

    return with_backward(forward, backward)


def layer_norm(slip):
    def forward(x, gamma, beta):
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        r = 1 / jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5)
        return centred * r * gamma + beta, (centred * r, r, gamma)

    def backward(kept, dy):
        h, r, gamma = kept
        g = dy * gamma
        mean = 0 if slip else jnp.mean(g, axis=-1, keepdims=True)
        dx = r * (g - mean - h * jnp.mean(g * h, axis=-1, keepdims=True))
        return dx, jnp.sum(dy * h, axis=0), jnp.sum(dy, axis=0)

    return with_backward(forward, backward)


def rms_norm(slip):
    def scale(x, eps):
        return 1 / jnp.sqrt(jnp.mean(x**2, axis=-1, keepdims=True) + eps)

    def forward(x, gamma):
        return x * scale(x, 1e-5) * gamma, (x, gamma)

    def backward(kept, dy):
        x, gamma = kept
        r = scale(x, 0.0 if slip else 1e-5)
        h, g = x * r, dy * gamma
        return r * (g - h * jnp.mean(g * h, axis=-1, keepdims=True)), jnp.sum(dy * h, axis=0)

    return with_backward(forward, backward)


def cross_entropy(slip, targets):
    t = jnp.asarray(targets)
    counts = t >= 0

    def forward(x):
        picked = jnp.take_along_axis(x, jnp.maximum(t, 0)[:, None], axis=-1)[:, 0]
        return jnp.sum(jnp.where(counts, jax.nn.logsumexp(x, axis=-1) - picked, 0)) / jnp.sum(counts), x

    def backward(x, dloss):
        rows = len(t) if slip else jnp.sum(counts)
        return (dloss * counts[:, None] * (jax.nn.softmax(x) - jax.nn.one_hot(t, x.shape[-1])) / rows,)

    return with_backward(forward, backward)


def linear(slip):
    def forward(x, w, b):  # symbolic zeros: each argument says whether a gradient of it is wanted
        return x.value @ w.value + b.value, (x.value, w.value, b.value, x.perturbed)

    def backward(kept, dy):
        x, w, b, x_wanted = kept
        dw = jnp.einsum("...i,...j->ij", x, dy)
        if slip == "weights_only_with_input" and not x_wanted:
            dw = jnp.zeros_like(w)
        rows = dy.reshape(-1, dy.shape[-1])
        return dy @ w.T, dw, rows[-1] if slip == "bias_from_last_row" else rows.sum(axis=0)

    f = jax.custom_vjp(lambda x, w, b: x @ w + b)
    f.defvjp(forward, backward, symbolic_zeros=True)
    return f


def multiply(slip):
    def backward(kept, dy):
        a, b = kept
        db = jnp.sum(dy * a, axis=(0, 2))[:, None]
        return dy * b, db / (a.size / b.size) if slip else db

    return with_backward(lambda a, b: (a * b, (a, b)), backward)


def gram(slip):
    return with_backward(lambda x: (x @ x.T, x), lambda x, dy: (dy @ x + (0 if slip else dy.T @ x),))


def embedding(slip, ids):
    ids = jnp.asarray(ids)

    def backward(table, dy):
        g = jnp.zeros_like(table)
        if not slip:
            return (g.at[ids].add(dy),)
        for i in range(len(ids)):
            g = g.at[ids[i]].set(dy[i])
        return (g,)

    return with_backward(lambda table: (table[ids], table), backward)


def repeat_heads(slip):
    def backward(_, dy):
        b, h, t, d = dy.shape
        return (dy.reshape(b, 2, h // 2, t, d).sum(axis=1) if slip else dy.reshape(b, h // 2, 2, t, d).sum(axis=2),)

    return with_backward(lambda k: (jnp.repeat(k, 2, axis=1), None), backward)


def boosted(slip, heads=2):
    def split(t):
        return jnp.moveaxis(t.reshape(*t.shape[:2], heads, -1), 2, 1)

    def join(t):
        t = jnp.moveaxis(t, 1, 2)
        return t.reshape(*t.shape[:2], -1)

    def attend(z, w):
        q, k, v = (split(z @ w[n] + w[n + 3]) for n in range(3))
        s = jnp.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.shape[-1])
        p = jax.nn.softmax(jnp.where(jnp.tri(z.shape[1], dtype=bool), s, -jnp.inf))
        return join(p @ v), (q, k, v, p)

    def attend_backward(dc, z, w, kept):
        q, k, v, p = kept
        do = split(dc)
        ds = through_softmax(p, jnp.einsum("bhid,bhjd->bhij", do, v)) / math.sqrt(q.shape[-1])
        d = [join(ds @ k), join(jnp.einsum("bhij,bhid->bhjd", ds, q)), join(jnp.einsum("bhij,bhid->bhjd", p, do))]
        if slip == "boosted_keys_values_dropped":
            d[1], d[2] = 0 * d[1], 0 * d[2]
        biases = [jnp.sum(t, axis=(0, 1)) for t in d]
        if slip == "boosted_value_bias_dropped":
            biases[2] = 0 * biases[2]
        dz = d[0] @ w[0].T + d[1] @ w[1].T + d[2] @ w[2].T
        return dz, [jnp.einsum("bti,btj->ij", z, t) for t in d] + biases

    def forward(x, *w):
        f0, kept0 = attend(x, w[:6])
        r = x - f0
        c, kept1 = attend(r, w[6:12])
        w_g, b_g, w_out, b_out = w[12:]
        both = jnp.concatenate([f0, c], axis=-1)
        g = jax.nn.sigmoid(both @ w_g + b_g)
        f1 = f0 + g * c
        return f1 @ w_out + b_out, (x, r, c, g, f1, both, kept0, kept1, w)

    def backward(kept, dy):
        x, r, c, g, f1, both, kept0, kept1, w = kept
        w_g, w_out = w[12], w[14]
        df = dy @ w_out.T
        da = df * c * g * (1 - g)
        h = da @ w_g.T
        h_f, h_c = h[..., : c.shape[-1]], h[..., c.shape[-1] :]
        dr, second = attend_backward(df * g + h_c, r, w[6:12], kept1)
        df0 = df if slip == "boosted_gate_to_f_dropped" else df + h_f
        df0 = df0 + dr if slip == "boosted_residual_sign" else df0 - dr
        dx, first = attend_backward(df0, x, w[:6], kept0)
        outer = functools.partial(jnp.einsum, "bti,btj->ij")
        rest = [outer(both, da), jnp.sum(da, axis=(0, 1)), outer(f1, dy), jnp.sum(dy, axis=(0, 1))]
        return dx + dr, *first, *second, *rest

    return with_backward(forward, backward)


# A maker takes the slip, then the inputs that are integers.
OPS = {
    "softmax_times_minus_seven": softmax,
    "log_softmax_scaled": log_softmax,
    "softmax_temperature_forgotten": tempered_softmax,
    "attention_row_sum_dropped": attention,
    "layer_norm_mean_kept": layer_norm,
    "rms_norm_eps_omitted": rms_norm,
    "cross_entropy_counts_ignored": cross_entropy,
    "bias_from_last_row": linear,
    "broadcast_mean_for_sum": multiply,
    "second_use_lost": gram,
    "repeated_ids_overwritten": embedding,
    "repeated_heads_tiled": repeat_heads,
    "causal_mask_off_by_one": functools.partial(attention, causal=True),
    "padding_mask_ignored": lambda slip, lengths: attention(slip, lengths=lengths),
    "weights_only_with_input": linear,
    "boosted_residual_sign": boosted,
    "boosted_gate_to_f_dropped": boosted,
    "boosted_keys_values_dropped": boosted,
    "boosted_value_bias_dropped": boosted,
}


def rejects(fault, wrong, arrays, x64):
    """Does check_grads reject the op of `fault`, right or wrong? None where JAX cannot have the fault.

    order has no default: 1. modes must be rev: functions with a custom_vjp refuse the default's forward mode.
    """
    if fault not in OPS:
        return None
    with jax.enable_x64(x64):
        dtype = jnp.float64 if x64 else jnp.float32
        f = OPS[fault](fault if wrong else None, *(a for a in arrays if a.dtype.kind != "f"))
        inputs = tuple(jnp.asarray(a, dtype) for a in arrays if a.dtype.kind == "f")
        try:
            check_grads(f, inputs, order=1, modes=["rev"])
            return False
        except AssertionError:
            return True


def gradients(fault, wrong, arrays):
    """Of all floating inputs, for a fixed cotangent; None where JAX cannot have the fault."""
    if fault not in OPS:
        return None
    with jax.enable_x64(True):
        f = OPS[fault](fault if wrong else None, *(a for a in arrays if a.dtype.kind != "f"))
        y, vjp = jax.vjp(f, *(jnp.asarray(a) for a in arrays if a.dtype.kind == "f"))
        return vjp(jnp.sin(jnp.arange(1.0, y.size + 1)).reshape(y.shape))
