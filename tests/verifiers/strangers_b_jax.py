"""The cases of strangers_b.h with jax.custom_vjp, where JAX can express them.

CASES maps a name to Case(make, inputs): make(wrong) is a function of arrays (some take settings by keyword, with the
defaults of an ordinary sample), inputs(rng) gives numpy arrays with whether each requires a gradient. For f64, 64-bit
numbers must be on: jax.config.update("jax_enable_x64", True).
"""

import math
from typing import NamedTuple, Callable

import jax
import jax.numpy as jnp
import numpy as np


class Case(NamedTuple):
    make: Callable
    inputs: Callable


CASES = {}
NOT_EXPRESSIBLE = {
    **{
        name: "about work that the framework's own parallel_for cuts into chunks"
        for name in ("moving_average", "noisy_rows", "cosine_power", "group_scale", "roughness")
    },
    **{
        name: "about strides and offsets, which arrays of JAX do not have"
        for name in ("pseudo_huber", "pair_cosine", "sharp_softplus", "soft_round", "causal_linear")
    },
    "list_ranking": "about a saved array that is written to, which JAX does not allow",
}


def case(name, forward, backward, inputs):
    """backward(wrong, inputs, cotangents, **settings) returns one gradient, or None, per input."""

    def make(wrong):
        def call(*arrays, **settings):
            fn = jax.custom_vjp(lambda *a: forward(*a, **settings))

            def back(kept, dy):
                dy = dy if isinstance(dy, tuple) else (dy,)
                return tuple(backward(wrong, kept, dy, **settings))

            fn.defvjp(lambda *a: (forward(*a, **settings), a), back)
            return fn(*arrays)

        return call

    CASES[name] = Case(make, inputs)


def normal(*shapes, scale=1.0):
    return lambda rng: [(rng.standard_normal(s) * scale, True) for s in shapes]


def positive(rng, *shape, low=0.5, high=2.0):
    return rng.uniform(low, high, shape)


def constant(array, like):
    return jnp.asarray(np.asarray(array), dtype=like.dtype)


def counting(n):
    return jnp.arange(n)


def one_hot(index, n, like):
    return (index[..., None] == counting(n)).astype(like.dtype)


def single(x):
    return x.dtype == jnp.float32


def zeros(x):
    return jnp.zeros_like(x)


def join(parts, axis):
    return jnp.concatenate(parts, axis)


def log_sum(x, axis=-1):
    return jax.nn.logsumexp(x, axis)


def log_softmax(x):
    return x - log_sum(x)[..., None]


def later(x, k):
    """x moved k steps to later positions of the last axis."""
    return x if k == 0 else join([zeros(x[..., :k]), x[..., :-k]], -1)


def sooner(x, k):
    return x if k == 0 else join([x[..., k:], zeros(x[..., :k])], -1)


def lower_solve(l, b):
    return jax.scipy.linalg.solve_triangular(l, b, lower=True)


def upper_solve(u, b):
    return jax.scipy.linalg.solve_triangular(u, b, lower=False)


# -- Not linear in the cotangent ---------------------------------------------------------------------------------------


def running_lse(x):
    return jnp.stack([log_sum(x[..., : j + 1]) for j in range(x.shape[-1])], -1)


def running_lse_back(wrong, inputs, cotangents):
    (x,), (dy,) = inputs, cotangents
    n = x.shape[-1]
    seen = counting(n)[:, None] <= counting(n)
    power = jnp.where(seen, x[..., :, None] - running_lse(x)[..., None, :], -math.inf)
    if not wrong:
        return [(dy[..., None, :] * jnp.exp(power)).sum(-1)]
    up, down = (jnp.log(jnp.where(g > 1e-8, g, 1e-8))[..., None, :] for g in (dy, -dy))
    return [(jnp.exp(up + power) - jnp.exp(down + power)).sum(-1)]


case("running_lse", running_lse, running_lse_back, normal((3, 5)))


def anchor_loss(a, c, tau=0.5):
    s = a @ c.T / tau
    return log_sum(s) - s.diagonal()


def anchor_loss_back(wrong, inputs, cotangents, tau=0.5):
    (a, c), (dy,) = inputs, cotangents
    if wrong:  # nothing after the first zero
        dy = dy * jnp.cumprod(jnp.where(dy == 0, 0, 1), 0)
    n = dy.shape[0]
    ds = dy[:, None] * (jnp.exp(log_softmax(a @ c.T / tau)) - one_hot(counting(n), n, a)) / tau
    return [ds @ c, ds.T @ a]


case("anchor_loss", anchor_loss, anchor_loss_back, normal((4, 3), (4, 3)))


def causal_conv(x, w, dilation=1):
    return sum(w[:, k : k + 1] * later(x, k * dilation) for k in range(w.shape[1]))


def causal_conv_back(wrong, inputs, cotangents, dilation=1):
    (x, w), (dy,) = inputs, cotangents
    if wrong:
        dy = jnp.where(jnp.abs(dy) < 1e-3 * jnp.abs(dy).max(), 0.0, dy)
    taps = range(w.shape[1])
    dx = sum(w[:, k : k + 1] * sooner(dy, k * dilation) for k in taps)
    return [dx, jnp.stack([(later(x, k * dilation) * dy).sum(-1) for k in taps], -1)]


case("causal_conv", causal_conv, causal_conv_back, normal((2, 7), (2, 3)))


def lower_solve_back(wrong, inputs, cotangents):
    (l, b), (dy,) = inputs, cotangents
    if wrong:
        largest = jnp.abs(dy).max()
        db = upper_solve(l.T, dy / jnp.where(largest > 1, largest, 1.0)) * largest
    else:
        db = upper_solve(l.T, dy)
    return [-jnp.tril(db @ lower_solve(l, b).T), db]


case(
    "lower_solve",
    lower_solve,
    lower_solve_back,
    lambda rng: [
        (0.5 * np.tril(rng.standard_normal((4, 4)), -1) + np.diag(rng.uniform(1, 2, 4)), True),
        (rng.standard_normal((4, 3)), True),
    ],
)


def gated_scan(k, c, h0):
    h, out = h0, []
    for t in range(k.shape[0]):
        z = 1 / (1 + jnp.exp(-k[t]))
        h = (1 - z) * h + z * c[t]
        out.append(h)
    return jnp.stack(out, 0)


def gated_scan_back(wrong, inputs, cotangents):
    (k, c, h0), (dy,) = inputs, cotangents
    y, carry, dk, dc = gated_scan(k, c, h0), zeros(h0), [], []
    for t in reversed(range(k.shape[0])):
        z, before = 1 / (1 + jnp.exp(-k[t])), y[t - 1] if t > 0 else h0
        g = dy[t] + carry
        if wrong:
            g = jnp.where(g > 8, 8.0, jnp.where(g < -8, -8.0, g))
        dk.append(g * (c[t] - before) * z * (1 - z))
        dc.append(g * z)
        carry = g * (1 - z)
    return [jnp.stack(dk[::-1], 0), jnp.stack(dc[::-1], 0), carry]


case("gated_scan", gated_scan, gated_scan_back, normal((5, 3), (5, 3), (3,)))


def tempered_log_probs(x, tau=1.0):
    return log_softmax(x / tau)


def tempered_log_probs_back(wrong, inputs, cotangents, tau=1.0):
    (x,), (dy,) = inputs, cotangents
    total = dy.sum(-1)[..., None]
    dx = (dy - jnp.exp(log_softmax(x / tau)) * total) / tau
    return [jnp.where(total == 0, 0.0, dx) if wrong else dx]


case("tempered_log_probs", tempered_log_probs, tempered_log_probs_back, normal((3, 5)))

# -- Wrong in f32 alone ------------------------------------------------------------------------------------------------


def log_one_minus_exp(x):
    return jnp.log(-jnp.expm1(-x))


def log_one_minus_exp_back(wrong, inputs, cotangents):
    (x,), (dy,) = inputs, cotangents
    return [dy / (jnp.exp(x) - 1 if wrong and single(x) else jnp.expm1(x))]


case(
    "log_one_minus_exp",
    log_one_minus_exp,
    log_one_minus_exp_back,
    lambda rng: [(positive(rng, 3, 5), True)],
)


def row_contrast(x):
    m = x.mean(-1)
    return jnp.sqrt(((x - m[..., None]) ** 2).mean(-1)) / m


def row_contrast_back(wrong, inputs, cotangents):
    (x,), (dy,) = inputs, cotangents
    n, m = x.shape[-1], x.mean(-1)[..., None]
    c = x - m
    if not wrong:
        c = c - c.mean(-1)[..., None]  # what rounding left of the mean
    if wrong and single(x):
        v = (x * x).mean(-1)[..., None] - m * m
        v = jnp.where(v > 1e-12, v, 1e-12)
    else:
        v = (c * c).mean(-1)[..., None]
    s = jnp.sqrt(v)
    return [dy[..., None] * (c / (n * s * m) - s / (n * m * m))]


case("row_contrast", row_contrast, row_contrast_back, lambda rng: [(positive(rng, 3, 5), True)])


def modulate(x, gamma, beta):
    return x * (1 + gamma[:, None]) + beta[:, None]


def half_sum(terms):
    """Sum over the first axis with a running sum in bf16."""
    total = zeros(terms[0])
    for term in terms:
        total = (total + term).astype(jnp.bfloat16).astype(jnp.float32)
    return total


def modulate_back(wrong, inputs, cotangents):
    (x, gamma, beta), (dy,) = inputs, cotangents
    add = half_sum if wrong and single(x) else lambda terms: terms.sum(0)
    by_channel = lambda t: join([*t], -1).T
    return [dy * (1 + gamma[:, None]), add(by_channel(dy * x)), add(by_channel(dy))]


case("modulate", modulate, modulate_back, normal((2, 3, 4), (3,), (3,)))


def soft_cap(x, cap=30.0):
    return cap * jnp.tanh(x / cap)


def soft_cap_back(wrong, inputs, cotangents, cap=30.0):
    (x,), (dy,) = inputs, cotangents
    t = x / cap
    if wrong and single(x):
        tanh = t * (15 + t * t) / (15 + 6 * t * t)
        return [dy * (1 - tanh * tanh)]
    return [dy / jnp.cosh(t) / jnp.cosh(t)]


case("soft_cap", soft_cap, soft_cap_back, normal((3, 5)))


def log_cosh(p, t):
    size = jnp.abs(p - t)
    return size + jnp.log1p(jnp.exp(-2 * size)) - math.log(2)


def log_cosh_back(wrong, inputs, cotangents):
    (p, t), (dy,) = inputs, cotangents
    if wrong and single(p):
        up, down = jnp.exp(p - t), jnp.exp(t - p)
        slope = (up - down) / (up + down)
    else:
        slope = jnp.tanh(p - t)
    return [dy * slope, -dy * slope]


case("log_cosh", log_cosh, log_cosh_back, normal((3, 5), (3, 5)))


def turned(x, c, s):
    u, v = x[:, 0::2], x[:, 1::2]
    return jnp.stack([u * c - v * s, u * s + v * c], -1).reshape(x.shape)


def angles(x, offset, base):
    steps, d = x.shape
    return (offset + np.arange(steps))[:, None] * base ** (-2.0 * np.arange(d // 2) / d)


def rotary(x, offset=0, base=10000.0):
    turn = angles(x, offset, base)
    return turned(x, constant(np.cos(turn), x), constant(np.sin(turn), x))


def rotary_back(wrong, inputs, cotangents, offset=0, base=10000.0):
    (x,), (dy,) = inputs, cotangents
    turn = angles(x, offset, base)
    if wrong and single(x):
        speed = np.float32(base) ** (np.float32(-2) * np.arange(x.shape[1] // 2, dtype=np.float32) / x.shape[1])
        turn = (offset + np.arange(x.shape[0])).astype(np.float32)[:, None] * speed.astype(np.float32)
    return [turned(dy, constant(np.cos(turn), x), constant(-np.sin(turn), x))]


case("rotary", rotary, rotary_back, normal((4, 6)))

# -- A forgotten gradient ----------------------------------------------------------------------------------------------


def distill(s, t):
    return -(jnp.exp(log_softmax(t)) * log_softmax(s)).sum(-1)


def distill_back(wrong, inputs, cotangents):
    (s, t), (dy,) = inputs, cotangents
    p, q, g = log_softmax(s), jnp.exp(log_softmax(t)), dy[..., None]
    return [g * (jnp.exp(p) - q), None if wrong else -g * q * (p - (q * p).sum(-1)[..., None])]


case("distill", distill, distill_back, normal((3, 5), (3, 5)))


def logit_stats(x):
    p = log_softmax(x)
    return log_sum(x), -(jnp.exp(p) * p).sum(-1)


def logit_stats_back(wrong, inputs, cotangents):
    (x,), (dz, dh) = inputs, cotangents
    p = log_softmax(x)
    h = -(jnp.exp(p) * p).sum(-1)[..., None]
    dx = jnp.exp(p) * (dz[..., None] - dh[..., None] * (p + h))
    return [jnp.where(dz[..., None] == 0, 0.0, dx) if wrong else dx]


case("logit_stats", logit_stats, logit_stats_back, normal((3, 5)))


def gauss_kernel(x, z, l):
    return jnp.exp(-0.5 * (((x[:, None] - z) / l) ** 2).sum(-1))


def gauss_kernel_back(wrong, inputs, cotangents):
    (x, z, l), (dy,) = inputs, cotangents
    g, c = (dy * gauss_kernel(x, z, l))[..., None], x[:, None] - z
    dc = g * c / l**2
    dl = (g * c * c / l**3).sum(0).sum(0)
    if l.shape[0] == 1:
        dl = None if wrong else dl.sum(0)[None]
    return [-dc.sum(1), dc.sum(0), dl]


case(
    "gauss_kernel",
    gauss_kernel,
    gauss_kernel_back,
    lambda rng: [(rng.standard_normal((3, 2)), True), (rng.standard_normal((4, 2)), True), (positive(rng, 2), True)],
)


def times(steps, reverse):
    return range(steps - 1, -1, -1) if reverse else range(steps)


def diagonal_state(a, u, h0, reverse=False):
    h, out = h0, [None] * u.shape[0]
    for t in times(u.shape[0], reverse):
        out[t] = h = a * h + u[t]
    return jnp.stack(out, 0)


def diagonal_state_back(wrong, inputs, cotangents, reverse=False):
    (a, u, h0), (dy,) = inputs, cotangents
    y, steps = diagonal_state(a, u, h0, reverse), u.shape[0]
    g, da, du = zeros(h0), zeros(a), [None] * steps
    order = list(times(steps, reverse))
    for i in reversed(range(steps)):
        du[order[i]] = g = dy[order[i]] + a * g
        da = da + g * (y[order[i - 1]] if i > 0 else h0)
    return [da, jnp.stack(du, 0), None if wrong and reverse else a * g]


case(
    "diagonal_state",
    diagonal_state,
    diagonal_state_back,
    lambda rng: [
        (0.5 * rng.standard_normal(3), True),
        (rng.standard_normal((4, 3)), True),
        (rng.standard_normal(3), True),
    ],
)


def gem_pool(x, p):
    return (x**p).mean(-1) ** (1 / p)


def gem_pool_back(wrong, inputs, cotangents):
    (x, p), (dy,) = inputs, cotangents
    n, mean = x.shape[-1], (x**p).mean(-1)
    g = dy * mean ** (1 / p)
    dx = (g / (n * mean))[..., None] * x ** (p - 1)
    dp = (g * ((x**p * jnp.log(x)).mean(-1) / (p * mean) - jnp.log(mean) / p**2)).sum()[None]
    return [dx, None if wrong else dp]


case(
    "gem_pool",
    gem_pool,
    gem_pool_back,
    lambda rng: [(positive(rng, 3, 5), True), (positive(rng, 1, low=2.8, high=3.2), True)],
)


def learned_pad(x, value, left=1, right=1):
    v = value[:, None]
    return join([v] * left + [x] + [v] * right, -1)


def learned_pad_back(wrong, inputs, cotangents, left=1, right=1):
    (x, value), (dy,) = inputs, cotangents
    n = x.shape[1]
    dv = dy[:, :left].sum(-1) + dy[:, left + n :].sum(-1)
    return [dy[:, left : left + n], None if wrong and left == 0 else dv]


case("learned_pad", learned_pad, learned_pad_back, normal((3, 4), (3,)))

# -- Wrong away from the author's points -------------------------------------------------------------------------------


def left_ratio(a):
    f = a
    for k in range(120, 0, -1):
        f = a + k / f
    return f


def log_normal_cdf(x):
    a = jnp.where(x < -3, -x, 3.0)
    left = -0.5 * x * x - 0.5 * math.log(2 * math.pi) - jnp.log(left_ratio(a))
    near = jnp.where(x < -3, 0.0, x)
    return jnp.where(x < -3, left, jnp.log(0.5 * erfc(-near / math.sqrt(2))))


def erfc(x):
    return jax.scipy.special.erfc(x)


def log_normal_cdf_back(wrong, inputs, cotangents):
    (x,), (dy,) = inputs, cotangents
    near = jnp.where(x < -3, 0.0, x)
    middle = jnp.exp(-0.5 * near * near) / math.sqrt(2 * math.pi) / (0.5 * erfc(-near / math.sqrt(2)))
    ratio = jnp.where(x < -3, left_ratio(jnp.where(x < -3, -x, 3.0)), middle)
    return [dy * (jnp.where(x < -5, -x, ratio) if wrong else ratio)]


case("log_normal_cdf", log_normal_cdf, log_normal_cdf_back, normal((3, 5)))


def exp_step(x):
    return jnp.where(x == 0, 1.0, jnp.expm1(x) / jnp.where(x == 0, 1.0, x))


def exp_step_back(wrong, inputs, cotangents):
    (x,), (dy,) = inputs, cotangents
    first = 1 / 6 if wrong else 1 / 3
    near = jnp.abs(x) < 0.05
    series = 0.5 + x * (first + x * (1 / 8 + x * (1 / 30 + x * (1 / 144 + x * (1 / 840 + x / 5760)))))
    far = jnp.where(near, 1.0, x)
    return [dy * jnp.where(near, series, (far * jnp.exp(far) - jnp.expm1(far)) / (far * far))]


case(
    "exp_step",
    exp_step,
    exp_step_back,
    lambda rng: [(rng.choice([-1.0, 1.0], (3, 5)) * positive(rng, 3, 5), True)],
)


def angle_loss(a, b):
    d = a - b
    d = d - 2 * math.pi * jnp.round(d / (2 * math.pi))
    return 0.5 * d * d


def angle_loss_back(wrong, inputs, cotangents):
    (a, b), (dy,) = inputs, cotangents
    d = a - b
    if not wrong:
        d = d - 2 * math.pi * jnp.round(d / (2 * math.pi))
    return [dy * d, -dy * d]


case("angle_loss", angle_loss, angle_loss_back, normal((3, 5), (3, 5), scale=0.6))


def table_parts(table, x):
    """The matrix from table values to those with one more at each end, the cell of x and the place in it."""
    n = table.shape[0]
    more = np.eye(n + 2, n, -1)
    more[0, 0], more[0, 1], more[-1, -1], more[-1, -2] = 2, -1, 2, -1
    whole = jnp.where(x < 0, 0.0, jnp.where(x > n - 1, n - 1.0, x))
    i = jnp.floor(jnp.where(whole > n - 2, n - 2.0, whole))
    return constant(more, table), i, whole - i


def smooth_table(table, x):
    more, i, t = table_parts(table, x)
    weights = [-t + 2 * t**2 - t**3, 2 - 5 * t**2 + 3 * t**3, t + 4 * t**2 - 3 * t**3, t**3 - t**2]
    n = table.shape[0]
    y = sum(0.5 * w * (one_hot(i + k, n + 2, x) @ (more @ table)) for k, w in enumerate(weights))
    left, right = jnp.where(x < 0, x, 0.0), jnp.where(x > n - 1, x - (n - 1), 0.0)
    return y + left * (table[1] - table[0]) + right * (table[-1] - table[-2])


def smooth_table_back(wrong, inputs, cotangents):
    (table, x), (dy,) = inputs, cotangents
    more, i, t = table_parts(table, x)
    n = table.shape[0]
    weights = [-t + 2 * t**2 - t**3, 2 - 5 * t**2 + 3 * t**3, t + 4 * t**2 - 3 * t**3, t**3 - t**2]
    slopes = [-1 + 4 * t - 3 * t**2, -10 * t + 9 * t**2, 1 + 8 * t - 9 * t**2, 3 * t**2 - 2 * t]
    spots = [one_hot(i + k, n + 2, x) for k in range(4)]
    dmore = sum((0.5 * w * dy)[..., None] * h for w, h in zip(weights, spots))
    dx = dy * sum(0.5 * s * (h @ (more @ table)) for s, h in zip(slopes, spots))
    left, right = jnp.where(x < 0, x, 0.0) * dy, jnp.where(x > n - 1, x - (n - 1), 0.0) * dy
    ends = np.zeros((2, n))
    ends[0, 0], ends[0, 1], ends[1, -2], ends[1, -1] = -1, 1, -1, 1
    ends = constant(ends, table)
    dtable = dmore.reshape(-1, n + 2).sum(0) @ more + left.sum() * ends[0] + right.sum() * ends[1]
    if wrong:
        dx = jnp.where((x < 0) | (x > n - 1), 0.0, dx)
    return [dtable, dx]


case(
    "smooth_table",
    smooth_table,
    smooth_table_back,
    lambda rng: [(rng.standard_normal(6), True), (rng.uniform(0.1, 4.9, 8), True)],
)


def bessel_terms(x):
    c = constant(np.cos(2 * np.pi * np.arange(256) / 256), x)
    return c, jnp.exp(jnp.abs(x)[..., None] * (c - 1))


def log_bessel(x):
    return jnp.abs(x) + jnp.log(bessel_terms(x)[1].mean(-1))


def log_bessel_back(wrong, inputs, cotangents):
    (x,), (dy,) = inputs, cotangents
    c, e = bessel_terms(x)
    size = (e * c).sum(-1) / e.sum(-1)
    ratio = jnp.where(x < 0, -size, size)
    return [dy * (jnp.where(jnp.abs(x) > 3.75, size, ratio) if wrong else ratio)]


case("log_bessel", log_bessel, log_bessel_back, normal((3, 5)))

# -- Shapes, masks and indices -----------------------------------------------------------------------------------------


def weight_norm(v, g):
    return v * (g / jnp.sqrt((v * v).sum(-1)))[:, None]


def weight_norm_back(wrong, inputs, cotangents):
    (v, g), (dw,) = inputs, cotangents
    end = v.shape[1] // 4 * 4 if wrong else v.shape[1]
    square = (v * v).sum(-1)
    norm, along = jnp.sqrt(square), (dw * v)[:, :end].sum(-1)
    return [(g / norm)[:, None] * (dw - v * (along / square)[:, None]), along / norm]


case("weight_norm", weight_norm, weight_norm_back, normal((3, 4), (3,)))


def picked_phases(x, index):
    return jnp.sin((one_hot(index, x.shape[1], x) * x[:, None]).sum(-1))


def picked_phases_back(wrong, inputs, cotangents):
    (x, index), (dy,) = inputs, cotangents
    spots, dx = one_hot(index, x.shape[1], x), zeros(x)
    for k in range(index.shape[1]):
        g = dy[:, k, None] * jnp.cos(x)
        dx = jnp.where(spots[:, k] > 0, g if wrong else dx + g, dx)
    return [dx, None]


case(
    "picked_phases",
    picked_phases,
    picked_phases_back,
    lambda rng: [(rng.standard_normal((3, 5)), True), (np.array([[0, 3], [4, 1], [2, 0]]), False)],
)


def same_segment(offsets, n):
    s = (counting(n)[:, None] >= offsets[1:]).sum(-1)
    return s[:, None] == s


def ragged_softmax(x, offsets):
    same = same_segment(offsets, x.shape[0])
    return jnp.exp(x - log_sum(jnp.where(same, x, -math.inf)))


def ragged_softmax_back(wrong, inputs, cotangents):
    (x, offsets), (dy,) = inputs, cotangents
    y, same = ragged_softmax(x, offsets), same_segment(offsets, x.shape[0])
    if wrong:  # one step at a border, however many segments begin there
        s, segments = zeros(offsets[0]), []
        for i in range(x.shape[0]):
            s = s + jnp.where(offsets[s + 1] == i, 1, 0)
            segments.append(s)
        same = jnp.stack(segments, 0)[:, None] == jnp.stack(segments, 0)
    return [y * (dy - jnp.where(same, y * dy, 0.0).sum(-1)), None]


case(
    "ragged_softmax",
    ragged_softmax,
    ragged_softmax_back,
    lambda rng: [(rng.standard_normal(9), True), (np.array([0, 3, 5, 9]), False)],
)


def running_product(x, axis=-1):
    return jnp.cumprod(x, axis)


def running_product_back(wrong, inputs, cotangents, axis=-1):
    (x,), (dy,) = inputs, cotangents
    axis %= x.ndim
    shape = (math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]))
    v, g, parts = x.reshape(shape), dy.reshape(shape), []
    for i in range(shape[1]):
        product, part = jnp.prod(v[:, :i], 1), 0.0
        for j in range(i, shape[1]):
            if j > i:
                product = product * v[:, j]
            part = part + g[:, j] * product
        parts.append(part)
    dx = jnp.stack(parts, 1)
    if wrong:
        outer = 1 if axis == 0 else x.shape[0]
        dx = jnp.where(counting(shape[0])[:, None, None] < outer, dx, 0.0)
    return [dx.reshape(x.shape)]


case("running_product", running_product, running_product_back, normal((3, 5)))


def chain_forward(e, a):
    alpha = [e[:, 0]]
    for t in range(1, e.shape[1]):
        alpha.append(e[:, t] + log_sum(alpha[-1][:, :, None] + a, 1))
    return jnp.stack(alpha, 1)


def chain_sum(e, a, lengths):
    last = one_hot(lengths - 1, e.shape[1], e)
    return (last * log_sum(chain_forward(e, a))).sum(-1)


def chain_sum_back(wrong, inputs, cotangents):
    (e, a, lengths), (dy,) = inputs, cotangents
    steps, alpha, y = e.shape[1], chain_forward(e, a), chain_sum(e, a, lengths)
    beta = [zeros(e[:, 0])]
    for t in reversed(range(steps - 1)):
        before = log_sum(a + (e[:, t + 1] + beta[0])[:, None, :], -1)
        beta.insert(0, jnp.where((t >= lengths - 1)[:, None], 0.0, before))
    beta = jnp.stack(beta, 1)
    inside = counting(steps) < lengths[:, None]
    g = dy[:, None, None]
    de = jnp.where(inside[..., None], g * jnp.exp(alpha + beta - y[:, None, None]), 0.0)
    joint = alpha[:, :-1, :, None] + a + (e + beta)[:, 1:, None, :] - y[:, None, None, None]
    pairs = g[..., None] * jnp.exp(joint)
    if not wrong:
        pairs = jnp.where(inside[:, 1:, None, None], pairs, 0.0)
    return [de, pairs.sum(0).sum(0), None]


case(
    "chain_sum",
    chain_sum,
    chain_sum_back,
    lambda rng: [
        (rng.standard_normal((2, 4, 3)), True),
        (rng.standard_normal((3, 3)), True),
        (np.array([4, 4]), False),
    ],
)


def pool_matrix(n, width, stride, pad, full):
    m = np.zeros((n, (n + 2 * pad - width) // stride + 1))
    for o in range(m.shape[1]):
        begin, end = max(o * stride - pad, 0), min(o * stride - pad + width, n)
        m[begin:end, o] = 1 / (width if full else end - begin)
    return m


def border_pool(x, width=3, stride=1, pad=0):
    return x @ constant(pool_matrix(x.shape[1], width, stride, pad, False), x)


def border_pool_back(wrong, inputs, cotangents, width=3, stride=1, pad=0):
    (x,), (dy,) = inputs, cotangents
    return [dy @ constant(pool_matrix(x.shape[1], width, stride, pad, wrong), x).T]


case("border_pool", border_pool, border_pool_back, normal((2, 7)))

# -- Slips in formulas -------------------------------------------------------------------------------------------------


def unit_rows(x, eps=1e-6):
    return x / (jnp.sqrt((x * x).sum(-1)) + eps)[..., None]


def unit_rows_back(wrong, inputs, cotangents, eps=1e-6):
    (x,), (dy,) = inputs, cotangents
    norm, along = jnp.sqrt((x * x).sum(-1))[..., None], (x * dy).sum(-1)[..., None]
    scale = norm + eps
    return [dy / scale - x * along / ((scale if wrong else norm) * scale * scale)]


case("unit_rows", unit_rows, unit_rows_back, normal((3, 5)))


def folded_mean(mu, sigma):
    u = mu / sigma
    return sigma * math.sqrt(2 / math.pi) * jnp.exp(-0.5 * u * u) + mu * (1 - erfc(u / math.sqrt(2)))


def folded_mean_back(wrong, inputs, cotangents):
    (mu, sigma), (dy,) = inputs, cotangents
    u, root = mu / sigma, 0.797885 if wrong else math.sqrt(2 / math.pi)
    return [dy * (1 - erfc(u / math.sqrt(2))), dy * root * jnp.exp(-0.5 * u * u)]


case(
    "folded_mean",
    folded_mean,
    folded_mean_back,
    lambda rng: [(rng.standard_normal((3, 5)), True), (positive(rng, 3, 5), True)],
)


def frame_window(length, alpha):
    return alpha - (1 - alpha) * np.cos(2 * np.pi * np.arange(length) / length)


def frame_places(x, length, hop):
    frames = (x.shape[0] - length) // hop + 1
    return np.arange(frames)[:, None] * hop + np.arange(length)


def frame_energy(x, length=8, hop=4, alpha=0.5):
    v = x[frame_places(x, length, hop)] * constant(frame_window(length, alpha), x)
    return jnp.log(0.001 + (v * v).sum(-1))


KNOWN_WINDOWS = {}


def frame_energy_back(wrong, inputs, cotangents, length=8, hop=4, alpha=0.5):
    (x,), (dy,) = inputs, cotangents
    w = frame_window(length, alpha)
    if wrong:  # kept between calls by the length alone
        w = KNOWN_WINDOWS.setdefault(length, w)
    places, w = frame_places(x, length, hop), constant(w, x)
    v = x[places] * w
    g = dy[:, None] * 2 * w * v / (0.001 + (v * v).sum(-1))[:, None]
    spots = constant((places[..., None] == np.arange(x.shape[0])).astype(float), x)
    return [(g[..., None] * spots).sum(0).sum(0)]


case("frame_energy", frame_energy, frame_energy_back, normal((24,)))


def log_det(a):
    return jnp.linalg.slogdet(a)[1]


def log_det_back(wrong, inputs, cotangents):
    (a,), (dy,) = inputs, cotangents
    inverse = jnp.linalg.inv(a)
    return [dy * (inverse if wrong else inverse.T)]


def covariance(rng, n):
    m = rng.standard_normal((n, n))
    return m @ m.T / n + np.eye(n)


case("log_det", log_det, log_det_back, lambda rng: [(covariance(rng, 3), True)])
