"""The ops of strangers_a.h as jax.custom_vjp functions, each right and with its mistake.

CASES maps a name to Case(make, inputs): make(wrong) gives a callable on arrays (which returns an array, or a tuple of
arrays), inputs(rng) a list of (numpy array, requires_grad). NOT_EXPRESSIBLE maps the other names to the reason.
What each mistake is stands at the op in the headers. 64-bit numbers are switched on, as the inputs are such.
"""

import math
from dataclasses import dataclass
from typing import Callable

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)


@dataclass
class Case:
    make: Callable
    inputs: Callable


NO_LAYOUT = "arrays have no strides and no storage that a function could see"
CASES = {}
NOT_EXPRESSIBLE = {
    "silu_gate": NO_LAYOUT,
    "row_logsumexp": NO_LAYOUT,
    "cosine_rows": NO_LAYOUT,
    "running_sum": NO_LAYOUT,
    "sloped_tanh": NO_LAYOUT,
    "edge_product": NO_LAYOUT,
    "remaining_sum": "the mistake needs chunks that run at the same time",
    "row_entropy": "the mistake needs scratch buffers of worker threads",
    "running_product": "the mistake writes to a kept value, and arrays cannot be written to",
}


def op(forward, backward):
    """The op with these two functions: forward(*inputs) gives (outputs, kept), backward(kept, cotangents) gradients."""

    @jax.custom_vjp
    def function(*inputs):
        return forward(*inputs)[0]

    function.defvjp(forward, backward)
    return function


def case(inputs):
    """Enters a make_NAME function into CASES."""

    def enter(make):
        CASES[make.__name__.removeprefix("make_")] = Case(make, inputs)
        return make

    return enter


def normals(*shapes, stddev=1.0):
    return lambda rng: [(stddev * rng.normal(size=s), True) for s in shapes]


def positives(rng, shape, low=0.5, high=2.0):
    return rng.uniform(low, high, size=shape)


def away_from_zero(rng, shape, low=0.5, high=2.0):
    return rng.choice([-1.0, 1.0], size=shape) * rng.uniform(low, high, size=shape)


def ids(values):
    return np.array(values, dtype=np.int64)


# --- Not linear in the cotangent -------------------------------------------------------------------------------------


@case(normals((3, 5)))
def make_swish(wrong):
    def forward(x):
        return x * jax.nn.sigmoid(x), x

    def backward(x, dy):
        s = jax.nn.sigmoid(x)
        dx = dy * (s + x * s * (1 - s))
        return (jnp.clip(dx, -10, 10) if wrong else dx,)

    return op(forward, backward)


@case(lambda rng: [(rng.normal(size=(3, 5)), True), (rng.normal(size=(3, 5)), True), (positives(rng, (5,)), True)])
def make_row_error(wrong):
    def forward(x, t, w):
        return (w * (x - t) ** 2).mean(1), (x, t, w)

    def backward(kept, dy):
        x, t, w = kept
        if wrong:
            dy = jnp.where(jnp.abs(dy) < 1e-4, 0, dy)
        g = dy[:, None] / x.shape[1]
        dx = 2 * g * w * (x - t)
        return dx, -dx, (g * (x - t) ** 2).sum(0)

    return op(forward, backward)


@case(normals((3, 5)))
def make_moving_average(wrong):
    a = 0.9

    def forward(x):
        state, y = jnp.zeros_like(x[..., 0]), []
        for t in range(x.shape[-1]):
            state = a * state + (1 - a) * x[..., t]
            y.append(state)
        return jnp.stack(y, -1), None

    def backward(_, dy):
        g, dx = jnp.zeros_like(dy[..., 0]), []
        for t in reversed(range(dy.shape[-1])):
            skip = (dy[..., t] == 0) & wrong
            g = jnp.where(skip, g, dy[..., t] + a * g)
            dx.insert(0, jnp.where(skip, 0, (1 - a) * g))
        return (jnp.stack(dx, -1),)

    return op(forward, backward)


@case(normals((3, 5)))
def make_tempered_log_softmax(wrong):
    temperature = 1.0

    def forward(x):
        y = jax.nn.log_softmax(x / temperature, -1)
        return y, y

    def backward(y, dy):
        total = dy.sum(-1, keepdims=True)
        dx = (dy - jnp.exp(y) * total) / temperature
        return (jnp.where(total == 0, 0, dx) if wrong else dx,)

    return op(forward, backward)


@case(lambda rng: [(rng.normal(size=(5, 3)), True), (ids([4, 0, 2, 0]), False), (rng.normal(size=4), True)])
def make_scaled_rows(wrong):
    def forward(table, index, s):
        return s[:, None] * table[index], (table, index, s)

    def backward(kept, dy):
        table, index, s = kept
        if wrong:
            dy = jnp.where(dy[:, :1] == 0, 0, dy)
        return jnp.zeros_like(table).at[index].add(s[:, None] * dy), None, (dy * table[index]).sum(1)

    return op(forward, backward)


@case(normals((3, 5)))
def make_mean_variance(wrong):
    def forward(x):
        m = x.mean(-1)
        return (m, ((x - m[..., None]) ** 2).mean(-1)), (x, m)

    def backward(kept, cotangents):
        (x, m), (dm, dv) = kept, cotangents
        dx = (dm[..., None] + 2 * dv[..., None] * (x - m[..., None])) / x.shape[-1]
        skip = (dm == 0) | (dv == 0) if wrong else (dm == 0) & (dv == 0)
        return (jnp.where(skip[..., None], 0, dx),)

    return op(forward, backward)


# --- Wrong in f32 only -----------------------------------------------------------------------------------------------


@case(normals((3, 5)))
def make_standardise(wrong):
    eps = 1e-5

    def forward(x):
        wide = x.astype(jnp.float64)
        c = wide - wide.mean(-1, keepdims=True)
        y = (c / jnp.sqrt((c * c).mean(-1, keepdims=True) + eps)).astype(x.dtype)
        return y, (x, y)

    def backward(kept, dy):
        x, y = kept
        if wrong:
            variance = (x * x).mean(-1, keepdims=True) - x.mean(-1, keepdims=True) ** 2
            r = 1 / jnp.sqrt(jnp.maximum(variance, 0) + eps)
        else:
            r = (1 / jnp.sqrt(x.astype(jnp.float64).var(-1, keepdims=True) + eps)).astype(x.dtype)
        return (r * (dy - dy.mean(-1, keepdims=True) - y * (dy * y).mean(-1, keepdims=True)),)

    return op(forward, backward)


@case(normals((3, 5)))
def make_unit_rows(wrong):
    def forward(x):
        y = x / jnp.sqrt((x * x).sum(-1, keepdims=True))
        return y, (x, y)

    def backward(kept, dy):
        x, y = kept
        square = (x * x).sum(-1, keepdims=True)
        if wrong and x.dtype == jnp.float32:
            bits = jax.lax.bitcast_convert_type(square, jnp.int32)
            guess = jax.lax.bitcast_convert_type(jnp.int32(0x5F3759DF) - (bits >> 1), jnp.float32)
            inverse = guess * (1.5 - 0.5 * square * guess * guess)
        else:
            inverse = 1 / jnp.sqrt(square)
        return (inverse * (dy - y * (y * dy).sum(-1, keepdims=True)),)

    return op(forward, backward)


@case(normals((3, 4), (5, 4), (5, 2)))
def make_small_attention(wrong):
    def forward(q, k, v):
        p = jax.nn.softmax(q @ k.T / math.sqrt(q.shape[1]), -1)
        kept = p.astype(jnp.bfloat16) if wrong and p.dtype == jnp.float32 else p
        return p @ v, (q, k, v, kept)

    def backward(kept, dy):
        q, k, v, p = kept
        p = p.astype(q.dtype)
        dp = dy @ v.T
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / math.sqrt(q.shape[1])
        return ds @ k, ds.T @ q, p.T @ dy

    return op(forward, backward)


@case(normals((2, 4, 6)))
def make_smooth_step(wrong):
    c, temperature = 0.3, 0.5

    def forward(x):
        y = jax.nn.sigmoid((x - c) / temperature)
        return y, y

    def backward(y, dy):
        dx = dy * y * (1 - y)
        return (dx if wrong and y.dtype == jnp.float32 else dx / temperature,)

    return op(forward, backward)


@case(lambda rng: [(rng.normal(size=(3, 8)), True), (ids([17, 4095, 131071]), False)])
def make_turn_pairs(wrong):
    def angles(positions, d, dtype):
        frequency = 10000.0 ** (-2.0 * np.arange(d // 2) / d)
        return positions.astype(dtype)[:, None] * frequency.astype(dtype)

    def turn(x, a):
        c, s = jnp.cos(a).astype(x.dtype), jnp.sin(a).astype(x.dtype)
        even, odd = x[:, 0::2], x[:, 1::2]
        return jnp.stack([even * c - odd * s, even * s + odd * c], -1).reshape(x.shape)

    def forward(x, positions):
        return turn(x, angles(positions, x.shape[1], jnp.float64)), positions

    def backward(positions, dy):
        return turn(dy, -angles(positions, dy.shape[1], dy.dtype if wrong else jnp.float64)), None

    return op(forward, backward)


@case(normals((3, 5)))
def make_sloped_softplus(wrong):
    beta = 1.0

    def forward(x):
        z = beta * x
        return (jnp.maximum(z, 0) + jnp.log1p(jnp.exp(-jnp.abs(z)))) / beta, x

    def backward(x, dy):
        if wrong and x.dtype == jnp.float32:
            e = jnp.exp(beta * x)
            return (dy * e / (1 + e),)
        return (dy * jax.nn.sigmoid(beta * x),)

    return op(forward, backward)


# --- A forgotten gradient --------------------------------------------------------------------------------------------


@case(normals((3, 5), (3, 5), (3, 5)))
def make_normal_loss(wrong):
    def forward(mean, target, log_variance):
        y = 0.5 * (log_variance + (target - mean) ** 2 * jnp.exp(-log_variance))
        return y, (mean, target, log_variance)

    def backward(kept, dy):
        mean, target, log_variance = kept
        e, inverse = target - mean, jnp.exp(-log_variance)
        dt = dy * e * inverse
        return -dt, None if wrong else dt, dy * 0.5 * (1 - e * e * inverse)

    return op(forward, backward)


@case(
    lambda rng: [
        (rng.normal(size=(5, 4)), True),
        (ids([[4, 0, 2], [0, 1, 1]]), False),
        (positives(rng, (2, 3)), True),
    ]
)
def make_row_bag(wrong):
    def forward(table, index, weights):
        return (weights[..., None] * table[index]).sum(1), (table, index, weights)

    def backward(kept, dy):
        table, index, weights = kept
        dtable = jnp.zeros_like(table).at[index].add(weights[..., None] * dy[:, None])
        return dtable, None, None if wrong else (dy[:, None] * table[index]).sum(-1)

    return op(forward, backward)


@case(normals((2, 12), (2, 3)))
def make_lstm_cell(wrong):
    def parts(gates):
        i, f, g, o = jnp.split(gates, 4, 1)
        return jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)

    def forward(gates, c):
        i, f, g, o = parts(gates)
        after = f * c + i * g
        return (o * jnp.tanh(after), after), (gates, c, after)

    def backward(kept, cotangents):
        (gates, c, after), (dh, dafter) = kept, cotangents
        i, f, g, o = parts(gates)
        t = jnp.tanh(after)
        e = dh * o * (1 - t * t)
        if not wrong:
            e = e + dafter
        d = [e * g * i * (1 - i), e * c * f * (1 - f), e * i * (1 - g * g), dh * t * o * (1 - o)]
        return jnp.concatenate(d, 1), e * f

    return op(forward, backward)


@case(lambda rng: [(rng.normal(size=(2, 3)), True), (rng.normal(size=(2, 3)), True), (rng.uniform(0.1, 0.9, ()), True)])
def make_lerp(wrong):
    def forward(a, b, w):
        return a + w * (b - a), (a, b, w)

    def backward(kept, dy):
        a, b, w = kept
        dw = dy * (b - a)
        if jnp.size(w) == 1:
            dw = None if wrong else dw.sum().reshape(jnp.shape(w))
        return dy * (1 - w), dy * w, dw

    return op(forward, backward)


@case(normals((3, 4), (3, 4), (3,)))
def make_gated_scan(wrong):
    reverse = True

    def order(n):
        return list(reversed(range(n))) if reverse else list(range(n))

    def forward(a, x, start):
        state, h = start, [None] * x.shape[1]
        for t in order(x.shape[1]):
            h[t] = state = a[:, t] * state + x[:, t]
        h = jnp.stack(h, 1)
        return h, (a, start, h)

    def backward(kept, dy):
        a, start, h = kept
        steps = order(a.shape[1])
        carried, da, dx = jnp.zeros_like(start), jnp.zeros_like(a), jnp.zeros_like(a)
        for s in reversed(range(len(steps))):
            t = steps[s]
            g = dy[:, t] + carried
            dx = dx.at[:, t].set(g)
            da = da.at[:, t].set(g * (h[:, steps[s - 1]] if s > 0 else start))
            carried = a[:, t] * g
        return da, dx, jnp.zeros_like(start) if wrong and reverse else carried

    return op(forward, backward)


# --- Wrong away from the author's points -----------------------------------------------------------------------------


@case(normals((3, 5)))
def make_exact_gelu(wrong):
    def below(x):
        return 0.5 * (1 + jax.lax.erf(x / math.sqrt(2)))

    def forward(x):
        return x * below(x), x

    def backward(x, dy):
        slope = below(x) + x * jnp.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        if wrong:
            slope = jnp.where(jnp.abs(x) > 3, (x > 0).astype(x.dtype), slope)
        return (dy * slope,)

    return op(forward, backward)


@case(lambda rng: [(away_from_zero(rng, (3, 5)), True)])
def make_exp_ratio(wrong):
    def forward(x):
        return jnp.where(x == 0, 1, jnp.expm1(x) / jnp.where(x == 0, 1, x)), x

    def backward(x, dy):
        term, series = jnp.full_like(x, 0.5), jnp.zeros_like(x)
        for n in range(1, 21):
            series = series + n * term
            term = term * x / (n + 2)
        near = jnp.abs(x) < 1
        far = jnp.where(near, 1, x)
        slope = jnp.where(near, series, (jnp.exp(far) * (far - 1) + 1) / far**2)
        if wrong:
            slope = jnp.where(jnp.abs(x) < 0.1, 0.5 + x / 6 + x * x / 8, slope)
        return (dy * slope,)

    return op(forward, backward)


@case(normals((3, 5), (3, 5), stddev=0.5))
def make_angle_loss(wrong):
    def near(e):
        return e - 2 * math.pi * jnp.round(e / (2 * math.pi))

    def forward(a, b):
        return near(a - b) ** 2 / 2, (a, b)

    def backward(kept, dy):
        a, b = kept
        e = a - b if wrong else near(a - b)
        return dy * e, -dy * e

    return op(forward, backward)


@case(lambda rng: [(positives(rng, (3, 5), 0.1, 0.8), True), (positives(rng, (3, 5)), True)])
def make_oscillator(wrong):
    w = 2.0

    def parts(z, t):
        q = w * w * (z * z - 1)
        k, under = jnp.sqrt(jnp.abs(q)), q < 0
        s = jnp.where(under, jnp.sin(k * t), jnp.sinh(k * t)) / k
        return q, s, jnp.where(under, jnp.cos(k * t), jnp.cosh(k * t))

    def forward(z, t):
        return jnp.exp(-z * w * t) * parts(z, t)[1], (z, t)

    def backward(kept, dy):
        z, t = kept
        q, s, c = parts(z, t)
        g = dy * jnp.exp(-z * w * t)
        dz = g * (-w * t * s + w * w * z * (t * c - s) / (-jnp.abs(q) if wrong else q))
        return dz, g * (c - z * w * s)

    return op(forward, backward)


@case(lambda rng: [(positives(rng, (3, 5)), True)])
def make_signed_power(wrong):
    p = 1.5

    def forward(x):
        return jnp.sign(x) * jnp.abs(x) ** p, x

    def backward(x, dy):
        slope = p * jnp.abs(x) ** (p - 1)
        return (dy * slope * jnp.sign(x) if wrong else dy * slope,)

    return op(forward, backward)


# --- Threads and chunks: the chunks as a loop ------------------------------------------------------------------------


@case(normals((5, 3), (3,), (3,)))
def make_column_affine(wrong):
    def forward(x, gamma, beta):
        return x * gamma + beta, (x, gamma)

    def backward(kept, dy):
        x, gamma = kept
        rows, grads = x.reshape(-1, x.shape[-1]), dy.reshape(-1, x.shape[-1])
        dgamma, dbeta = jnp.zeros_like(gamma), jnp.zeros_like(gamma)
        for begin in range(0, len(rows), 64):
            some, g = rows[begin : begin + 64], grads[begin : begin + 64]
            dgamma = (0 if wrong else dgamma) + (g * some).sum(0)
            dbeta = (0 if wrong else dbeta) + g.sum(0)
        return dy * gamma, dgamma, dbeta

    return op(forward, backward)


@case(normals((9,)))
def make_neighbour_difference(wrong):
    w = 1.0

    def forward(x):
        return w * (x[1:] - x[:-1]), None

    def backward(_, dy):
        zero = jnp.zeros_like(dy[:1])
        left = jnp.concatenate([zero, dy])
        if wrong:
            left = left.at[::128].set(0)
        return (w * (left - jnp.concatenate([dy, zero])),)

    return op(forward, backward)


@case(lambda rng: [(rng.normal(size=(6, 3)), True), (ids([5, 0, 2, 0, 3]), False)])
def make_threaded_rows(wrong):
    def forward(table, index):
        return table[index], (table, index)

    def backward(kept, dy):
        table, index = kept
        dtable = jnp.zeros_like(table)
        for begin in range(0, len(index), 32):
            some = index[begin : begin + 32]
            if wrong:
                dtable = dtable.at[some].set(0)
            dtable = dtable.at[some].add(dy[begin : begin + 32])
        return dtable, None

    return op(forward, backward)


# --- Shapes, masks and indices ---------------------------------------------------------------------------------------


@case(normals((2, 5)))
def make_window_mean(wrong):
    k, stride, pad = 3, 2, 1

    def windows(n):
        for o in range((n + 2 * pad - k) // stride + 1):
            yield max(o * stride - pad, 0), min(o * stride - pad + k, n)

    def forward(x):
        return jnp.stack([x[:, begin:end].mean(1) for begin, end in windows(x.shape[1])], 1), x

    def backward(x, dy):
        dx = jnp.zeros_like(x)
        for o, (begin, end) in enumerate(windows(x.shape[1])):
            dx = dx.at[:, begin:end].add(dy[:, o : o + 1] / (k if wrong else end - begin))
        return (dx,)

    return op(forward, backward)


def axis_softmax_at(axis):
    def make(wrong):
        def forward(x):
            y = jax.nn.softmax(x, axis)
            return y, y

        def backward(y, dy):
            at = axis % y.ndim
            along, outer, inner = y.shape[at], math.prod(y.shape[:at]), math.prod(y.shape[at + 1 :])
            py, pdy, pdx = y.reshape(-1), dy.reshape(-1), jnp.zeros(y.size, y.dtype)
            for o in range(outer):
                for i in range(inner):
                    first = o * inner * (1 if wrong and inner > 1 else along) + i
                    line = slice(first, first + along * inner, inner)
                    pdx = pdx.at[line].set(py[line] * (pdy[line] - (py[line] * pdy[line]).sum()))
            return (pdx.reshape(y.shape),)

        return op(forward, backward)

    return make


CASES["axis_softmax"] = Case(axis_softmax_at(0), normals((4, 3)))


@case(normals((2, 32)))
def make_row_length(wrong):
    eps = 1e-6

    def forward(x):
        y = jnp.sqrt((x * x).sum(-1) + eps)
        return y, (x, y)

    def backward(kept, dy):
        x, y = kept
        dx = (dy / y)[..., None] * x
        d = x.shape[-1]
        if wrong and d > 16:
            dx = dx.at[..., d // 16 * 16 :].set(0)
        return (dx,)

    return op(forward, backward)


def segment_largest_in(count):
    def make(wrong):
        def forward(x, segments):
            members = segments[None] == jnp.arange(count)[:, None]
            filled, where = members.any(1), jnp.where(members, x[None], -jnp.inf).argmax(1)
            return jnp.where(filled, x[where], 0), (x, filled, where)

        def backward(kept, dy):
            x, filled, where = kept
            return jnp.zeros_like(x).at[where].add(dy if wrong else jnp.where(filled, dy, 0)), None

        return op(forward, backward)

    return make


CASES["segment_largest"] = Case(
    segment_largest_in(3), lambda rng: [(rng.normal(size=7), True), (ids([0, 0, 0, 1, 1, 2, 2]), False)]
)


@case(normals((1, 2, 6), (3, 2, 3)))
def make_convolve_1d(wrong):
    def forward(x, w):
        steps = x.shape[2] - w.shape[2] + 1
        y = sum(jnp.einsum("bil,oi->bol", x[:, :, k : k + steps], w[:, :, k]) for k in range(w.shape[2]))
        return y, (x, w)

    def backward(kept, dy):
        x, w = kept
        dx, dw, steps = jnp.zeros_like(x), jnp.zeros_like(w), dy.shape[2]
        for b in range(len(x)):
            for k in range(w.shape[2]):
                dx = dx.at[b, :, k : k + steps].add(w[:, :, k].T @ dy[b])
                total = dy[b] @ x[b, :, k : k + steps].T
                dw = dw.at[:, :, k].set(total if wrong else dw[:, :, k] + total)
        return dx, dw

    return op(forward, backward)


# --- Slips in a formula ----------------------------------------------------------------------------------------------


@case(lambda rng: [(rng.normal(size=(3, 5)), True), (positives(rng, (5,)), True)])
def make_root_mean_square_norm(wrong):
    eps = 1e-6

    def forward(x, gamma):
        return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + eps) * gamma, (x, gamma)

    def backward(kept, dy):
        x, gamma = kept
        square = (x * x).mean(-1, keepdims=True)
        r = 1 / (jnp.sqrt(square) + eps) if wrong else 1 / jnp.sqrt(square + eps)
        h, g = x * r, dy * gamma
        return r * (g - h * (g * h).mean(-1, keepdims=True)), (dy * h).reshape(-1, x.shape[-1]).sum(0)

    return op(forward, backward)


@case(lambda rng: [(away_from_zero(rng, (3, 5), 0.1, 2), True)])
def make_selu(wrong):
    exact = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717

    def forward(x):
        return jnp.where(x > 0, exact[0] * x, exact[0] * exact[1] * jnp.expm1(x)), x

    def backward(x, dy):
        scale, a = (1.0507, 1.6733) if wrong else exact
        return (dy * jnp.where(x > 0, scale, scale * a * jnp.exp(x)),)

    return op(forward, backward)


def focal_loss_with(gamma):
    def make(wrong):
        def forward(x, labels):
            z = labels.astype(x.dtype) * x
            return -(jax.nn.sigmoid(-z) ** gamma) * jax.nn.log_sigmoid(z), (x, labels)

        def backward(kept, dy):
            x, sign = kept[0], kept[1].astype(kept[0].dtype)
            p, q = jax.nn.sigmoid(sign * x), jax.nn.sigmoid(-sign * x)
            return dy * sign * q**gamma * ((2 if wrong else gamma) * p * jax.nn.log_sigmoid(sign * x) - q), None

        return op(forward, backward)

    return make


CASES["focal_loss"] = Case(
    focal_loss_with(2.0), lambda rng: [(rng.normal(size=5), True), (ids([1, -1, -1, 1, 1]), False)]
)


_windows = {}


@case(normals((3, 8)))
def make_blur(wrong):
    def window(radius, sigma):
        k = np.arange(-radius, radius + 1)
        w = np.exp(-(k**2) / (2 * sigma**2))
        return (w / w.sum()).tolist()

    def blur(x, w, radius):
        padded = jnp.pad(x, ((0, 0), (radius, radius)))
        return sum(each * padded[:, i : i + x.shape[1]] for i, each in enumerate(w))

    def with_sigma(radius, sigma):
        def forward(x):
            return blur(x, window(radius, sigma), radius), None

        def backward(_, dy):
            key = (radius, None if wrong else sigma)
            if key not in _windows:
                _windows[key] = window(radius, sigma)
            return (blur(dy, _windows[key], radius),)

        return op(forward, backward)

    narrow, wide = with_sigma(2, 1.0), with_sigma(2, 1.5)
    return lambda x: (narrow(x), wide(x))


def metric(rng, d):
    root = rng.normal(size=(d, d))
    return root @ root.T


@case(lambda rng: [(rng.normal(size=(5, 3)), True), (rng.normal(size=3), True), (metric(rng, 3), True)])
def make_metric_distance(wrong):
    def forward(x, m, A):
        return (((x - m) @ A) * (x - m)).sum(1), (x, m, A)

    def backward(kept, dy):
        x, m, A = kept
        e = x - m
        dx = dy[:, None] * (e @ (2 * A.T if wrong else A + A.T))
        return dx, -dx.sum(0), (dy[:, None] * e).T @ e

    return op(forward, backward)
