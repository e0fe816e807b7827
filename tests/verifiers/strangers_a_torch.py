"""The ops of strangers_a.h as torch.autograd.Functions, each right and with its mistake.

CASES maps a name to Case(make, inputs): make(wrong) gives a callable on tensors (which returns a tensor, or a tuple of
tensors), inputs(rng) a list of (numpy array, requires_grad). NOT_EXPRESSIBLE maps the other names to the reason.
What each mistake is stands at the op in the headers.
"""

import math
from dataclasses import dataclass
from typing import Callable

import numpy as np
import torch


@dataclass
class Case:
    make: Callable
    inputs: Callable


CASES = {}
NOT_EXPRESSIBLE = {
    "remaining_sum": "the mistake needs chunks that run at the same time",
    "row_entropy": "the mistake needs scratch buffers of worker threads",
}


def op(forward, backward):
    """The op with these two functions: forward(ctx, *inputs), backward(ctx, *cotangents)."""
    return type(
        "Op", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    ).apply


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


def dense_strides(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return strides


def unrepeated(t):
    return t.clone() if any(n > 1 and s == 0 for n, s in zip(t.shape, t.stride())) else t


# --- Not linear in the cotangent -------------------------------------------------------------------------------------


@case(normals((3, 5)))
def make_swish(wrong):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        dx = dy * (s + x * s * (1 - s))
        return dx.clamp(-10, 10) if wrong else dx

    return op(forward, backward)


@case(lambda rng: [(rng.normal(size=(3, 5)), True), (rng.normal(size=(3, 5)), True), (positives(rng, (5,)), True)])
def make_row_error(wrong):
    def forward(ctx, x, t, w):
        ctx.save_for_backward(x, t, w)
        return (w * (x - t) ** 2).mean(1)

    def backward(ctx, dy):
        x, t, w = ctx.saved_tensors
        if wrong:
            dy = torch.where(dy.abs() < 1e-4, torch.zeros_like(dy), dy)
        g = dy[:, None] / x.shape[1]
        dx = 2 * g * w * (x - t)
        return dx, -dx, (g * (x - t) ** 2).sum(0)

    return op(forward, backward)


@case(normals((3, 5)))
def make_moving_average(wrong):
    a = 0.9

    def forward(ctx, x):
        state, y = torch.zeros_like(x[..., 0]), []
        for t in range(x.shape[-1]):
            state = a * state + (1 - a) * x[..., t]
            y.append(state)
        return torch.stack(y, -1)

    def backward(ctx, dy):
        g, dx = torch.zeros_like(dy[..., 0]), []
        for t in reversed(range(dy.shape[-1])):
            if wrong:
                skip = dy[..., t] == 0
                g = torch.where(skip, g, dy[..., t] + a * g)
                dx.insert(0, torch.where(skip, torch.zeros_like(g), (1 - a) * g))
            else:
                g = dy[..., t] + a * g
                dx.insert(0, (1 - a) * g)
        return torch.stack(dx, -1)

    return op(forward, backward)


@case(normals((3, 5)))
def make_tempered_log_softmax(wrong):
    temperature = 1.0

    def forward(ctx, x):
        y = torch.log_softmax(x / temperature, -1)
        ctx.save_for_backward(y)
        return y

    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        total = dy.sum(-1, keepdim=True)
        dx = (dy - y.exp() * total) / temperature
        return torch.where(total == 0, torch.zeros_like(dx), dx) if wrong else dx

    return op(forward, backward)


@case(lambda rng: [(rng.normal(size=(5, 3)), True), (ids([4, 0, 2, 0]), False), (rng.normal(size=4), True)])
def make_scaled_rows(wrong):
    def forward(ctx, table, index, s):
        ctx.save_for_backward(table, index, s)
        return s[:, None] * table[index]

    def backward(ctx, dy):
        table, index, s = ctx.saved_tensors
        if wrong:
            dy = torch.where(dy[:, :1] == 0, torch.zeros_like(dy), dy)
        dtable = torch.zeros_like(table).index_add(0, index, s[:, None] * dy)
        return dtable, None, (dy * table[index]).sum(1)

    return op(forward, backward)


@case(normals((3, 5)))
def make_mean_variance(wrong):
    def forward(ctx, x):
        m = x.mean(-1)
        ctx.save_for_backward(x, m)
        return m, ((x - m[..., None]) ** 2).mean(-1)

    def backward(ctx, dm, dv):
        x, m = ctx.saved_tensors
        dx = (dm[..., None] + 2 * dv[..., None] * (x - m[..., None])) / x.shape[-1]
        skip = (dm == 0) | (dv == 0) if wrong else (dm == 0) & (dv == 0)
        return torch.where(skip[..., None], torch.zeros_like(dx), dx)

    return op(forward, backward)


# --- Memory layout ---------------------------------------------------------------------------------------------------


@case(normals((3, 4)))
def make_silu_gate(wrong):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        a, b = x.chunk(2, -1)
        return a * torch.sigmoid(a) * b

    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        dy = dy.contiguous()
        if wrong:
            dy = dy.as_strided(dy.shape, dense_strides(dy.shape), 0)
        a, b = x.chunk(2, -1)
        s = torch.sigmoid(a)
        return torch.cat([dy * b * s * (1 + a * (1 - s)), dy * a * s], -1)

    return op(forward, backward)


@case(normals((3, 5)))
def make_row_logsumexp(wrong):
    def forward(ctx, x):
        y = torch.logsumexp(x, 1)
        ctx.save_for_backward(x, y)
        return y

    def backward(ctx, dy):
        x, y = ctx.saved_tensors
        d = x.shape[1]
        if wrong and x.stride(1) == 1 and x.stride(0) >= d:
            x = x.as_strided(x.shape, (d, 1))
        return dy[:, None] * torch.exp(x - y[:, None])

    return op(forward, backward)


@case(normals((4, 4), (4, 4)))
def make_cosine_rows(wrong):
    def forward(ctx, a, b):
        ctx.save_for_backward(unrepeated(a), unrepeated(b))
        return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))

    def backward(ctx, dy):
        a, b = ctx.saved_tensors
        if wrong and a.is_contiguous():
            b = b.as_strided(b.shape, dense_strides(b.shape))
        aa, bb = (a * a).sum(1, keepdim=True), (b * b).sum(1, keepdim=True)
        norms = (aa * bb).sqrt()
        y, g = (a * b).sum(1, keepdim=True) / norms, dy[:, None]
        return g * (b / norms - y * a / aa), g * (a / norms - y * b / bb)

    return op(forward, backward)


@case(normals((3, 5)))
def make_running_sum(wrong):
    def forward(ctx, x):
        return x.cumsum(-1)

    def backward(ctx, dy):
        n = dy.shape[-1]
        if wrong and dy.stride(0) == 0:
            left = torch.arange(n, 0, -1, dtype=dy.dtype)
            return (dy.flatten()[0] * left).expand(dy.shape).contiguous()
        return dy.flip(-1).cumsum(-1).flip(-1)

    return op(forward, backward)


@case(lambda rng: [(rng.normal(size=(3, 5)), True), (positives(rng, ()), True)])
def make_sloped_tanh(wrong):
    def forward(ctx, x, s):
        y = torch.tanh(s * x)
        ctx.save_for_backward(x, s, y)
        return y

    def backward(ctx, dy):
        x, s, y = ctx.saved_tensors
        slope = s.as_strided(s.shape, s.stride(), 0) if wrong else s
        g = dy * (1 - y * y)
        return slope * g, (x * g).sum().reshape(s.shape)

    return op(forward, backward)


@case(lambda rng: [(rng.normal(size=(4, 3)), True), (ids([0, 1, 3, 2, 0]), False), (ids([1, 2, 0, 3, 3]), False)])
def make_edge_product(wrong):
    def forward(ctx, x, src, dst):
        ctx.save_for_backward(x, unrepeated(src), unrepeated(dst))
        return x[src] * x[dst]

    def backward(ctx, dy):
        x, src, dst = ctx.saved_tensors
        if wrong:
            src, dst = src.as_strided(src.shape, (1,)), dst.as_strided(dst.shape, (1,))
        dx = torch.zeros_like(x).index_add(0, src, dy * x[dst]).index_add(0, dst, dy * x[src])
        return dx, None, None

    return op(forward, backward)


# --- Wrong in f32 only -----------------------------------------------------------------------------------------------


@case(normals((3, 5)))
def make_standardise(wrong):
    eps = 1e-5

    def forward(ctx, x):
        wide = x.double()
        c = wide - wide.mean(-1, keepdim=True)
        y = (c / ((c * c).mean(-1, keepdim=True) + eps).sqrt()).to(x.dtype)
        ctx.save_for_backward(x, y)
        return y

    def backward(ctx, dy):
        x, y = ctx.saved_tensors
        if wrong:
            variance = (x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2
            r = 1 / (variance.clamp(min=0) + eps).sqrt()
        else:
            r = (1 / (x.double().var(-1, unbiased=False, keepdim=True) + eps).sqrt()).to(x.dtype)
        return r * (dy - dy.mean(-1, keepdim=True) - y * (dy * y).mean(-1, keepdim=True))

    return op(forward, backward)


@case(normals((3, 5)))
def make_unit_rows(wrong):
    def forward(ctx, x):
        y = x / (x * x).sum(-1, keepdim=True).sqrt()
        ctx.save_for_backward(x, y)
        return y

    def backward(ctx, dy):
        x, y = ctx.saved_tensors
        square = (x * x).sum(-1, keepdim=True)
        if wrong and x.dtype == torch.float32:
            guess = (0x5F3759DF - (square.view(torch.int32) >> 1)).view(torch.float32)
            inverse = guess * (1.5 - 0.5 * square * guess * guess)
        else:
            inverse = 1 / square.sqrt()
        return inverse * (dy - y * (y * dy).sum(-1, keepdim=True))

    return op(forward, backward)


@case(normals((3, 4), (5, 4), (5, 2)))
def make_small_attention(wrong):
    def forward(ctx, q, k, v):
        p = torch.softmax(q @ k.T / math.sqrt(q.shape[1]), -1)
        kept = p.to(torch.bfloat16) if wrong and p.dtype == torch.float32 else p
        ctx.save_for_backward(q, k, v, kept)
        return p @ v

    def backward(ctx, dy):
        q, k, v, p = ctx.saved_tensors
        p = p.to(q.dtype)
        dp = dy @ v.T
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) / math.sqrt(q.shape[1])
        return ds @ k, ds.T @ q, p.T @ dy

    return op(forward, backward)


@case(normals((2, 4, 6)))
def make_smooth_step(wrong):
    c, temperature = 0.3, 0.5

    def forward(ctx, x):
        y = torch.sigmoid((x - c) / temperature)
        ctx.save_for_backward(y)
        return y

    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        dx = dy * y * (1 - y)
        return dx if wrong and y.dtype == torch.float32 else dx / temperature

    return op(forward, backward)


@case(lambda rng: [(rng.normal(size=(3, 8)), True), (ids([17, 4095, 131071]), False)])
def make_turn_pairs(wrong):
    def angles(positions, d, dtype):
        frequency = 10000.0 ** (-2.0 * torch.arange(d // 2, dtype=torch.float64) / d)
        return positions.to(dtype)[:, None] * frequency.to(dtype)

    def turn(x, a):
        c, s = a.cos().to(x.dtype), a.sin().to(x.dtype)
        even, odd = x[:, 0::2], x[:, 1::2]
        return torch.stack([even * c - odd * s, even * s + odd * c], -1).reshape(x.shape)

    def forward(ctx, x, positions):
        ctx.save_for_backward(positions)
        return turn(x, angles(positions, x.shape[1], torch.float64))

    def backward(ctx, dy):
        (positions,) = ctx.saved_tensors
        return turn(dy, -angles(positions, dy.shape[1], dy.dtype if wrong else torch.float64)), None

    return op(forward, backward)


@case(normals((3, 5)))
def make_sloped_softplus(wrong):
    beta = 1.0

    def forward(ctx, x):
        ctx.save_for_backward(x)
        z = beta * x
        return (z.clamp(min=0) + torch.log1p(torch.exp(-z.abs()))) / beta

    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        if wrong and x.dtype == torch.float32:
            e = torch.exp(beta * x)
            return dy * e / (1 + e)
        return dy * torch.sigmoid(beta * x)

    return op(forward, backward)


# --- A forgotten gradient --------------------------------------------------------------------------------------------


@case(normals((3, 5), (3, 5), (3, 5)))
def make_normal_loss(wrong):
    def forward(ctx, mean, target, log_variance):
        ctx.save_for_backward(mean, target, log_variance)
        return 0.5 * (log_variance + (target - mean) ** 2 * torch.exp(-log_variance))

    def backward(ctx, dy):
        mean, target, log_variance = ctx.saved_tensors
        e, inverse = target - mean, torch.exp(-log_variance)
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
    def forward(ctx, table, index, weights):
        ctx.save_for_backward(table, index, weights)
        return (weights[..., None] * table[index]).sum(1)

    def backward(ctx, dy):
        table, index, weights = ctx.saved_tensors
        each = (weights[..., None] * dy[:, None]).reshape(-1, table.shape[1])
        dtable = torch.zeros_like(table).index_add(0, index.reshape(-1), each)
        return dtable, None, None if wrong else (dy[:, None] * table[index]).sum(-1)

    return op(forward, backward)


@case(normals((2, 12), (2, 3)))
def make_lstm_cell(wrong):
    def parts(gates):
        i, f, g, o = gates.chunk(4, 1)
        return torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)

    def forward(ctx, gates, c):
        i, f, g, o = parts(gates)
        after = f * c + i * g
        ctx.save_for_backward(gates, c, after)
        return o * torch.tanh(after), after

    def backward(ctx, dh, dafter):
        gates, c, after = ctx.saved_tensors
        i, f, g, o = parts(gates)
        t = torch.tanh(after)
        e = dh * o * (1 - t * t)
        if not wrong:
            e = e + dafter
        d = [e * g * i * (1 - i), e * c * f * (1 - f), e * i * (1 - g * g), dh * t * o * (1 - o)]
        return torch.cat(d, 1), e * f

    return op(forward, backward)


@case(lambda rng: [(rng.normal(size=(2, 3)), True), (rng.normal(size=(2, 3)), True), (rng.uniform(0.1, 0.9, ()), True)])
def make_lerp(wrong):
    def forward(ctx, a, b, w):
        ctx.save_for_backward(a, b, w)
        return a + w * (b - a)

    def backward(ctx, dy):
        a, b, w = ctx.saved_tensors
        dw = dy * (b - a)
        if w.numel() == 1:
            dw = None if wrong else dw.sum().reshape(w.shape)
        return dy * (1 - w), dy * w, dw

    return op(forward, backward)


@case(normals((3, 4), (3, 4), (3,)))
def make_gated_scan(wrong):
    reverse = True

    def order(n):
        return list(reversed(range(n))) if reverse else list(range(n))

    def forward(ctx, a, x, start):
        state, h = start, [None] * x.shape[1]
        for t in order(x.shape[1]):
            h[t] = state = a[:, t] * state + x[:, t]
        h = torch.stack(h, 1)
        ctx.save_for_backward(a, start, h)
        return h

    def backward(ctx, dy):
        a, start, h = ctx.saved_tensors
        steps = order(a.shape[1])
        carried, da, dx = torch.zeros_like(start), torch.zeros_like(a), torch.zeros_like(a)
        for s in reversed(range(len(steps))):
            t = steps[s]
            g = dy[:, t] + carried
            dx[:, t] = g
            da[:, t] = g * (h[:, steps[s - 1]] if s > 0 else start)
            carried = a[:, t] * g
        return da, dx, torch.zeros_like(start) if wrong and reverse else carried

    return op(forward, backward)


# --- Wrong away from the author's points -----------------------------------------------------------------------------


@case(normals((3, 5)))
def make_exact_gelu(wrong):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))

    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        slope = 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        if wrong:
            slope = torch.where(x.abs() > 3, (x > 0).to(x.dtype), slope)
        return dy * slope

    return op(forward, backward)


@case(lambda rng: [(away_from_zero(rng, (3, 5)), True)])
def make_exp_ratio(wrong):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        one = torch.ones_like(x)
        return torch.where(x == 0, one, torch.expm1(x) / torch.where(x == 0, one, x))

    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        term, series = torch.full_like(x, 0.5), torch.zeros_like(x)
        for n in range(1, 21):
            series = series + n * term
            term = term * x / (n + 2)
        far = torch.where(x.abs() < 1, torch.ones_like(x), x)
        slope = torch.where(x.abs() < 1, series, (far.exp() * (far - 1) + 1) / far**2)
        if wrong:
            slope = torch.where(x.abs() < 0.1, 0.5 + x / 6 + x * x / 8, slope)
        return dy * slope

    return op(forward, backward)


@case(normals((3, 5), (3, 5), stddev=0.5))
def make_angle_loss(wrong):
    def near(e):
        return e - 2 * math.pi * torch.round(e / (2 * math.pi))

    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return near(a - b) ** 2 / 2

    def backward(ctx, dy):
        a, b = ctx.saved_tensors
        e = a - b if wrong else near(a - b)
        return dy * e, -dy * e

    return op(forward, backward)


@case(lambda rng: [(positives(rng, (3, 5), 0.1, 0.8), True), (positives(rng, (3, 5)), True)])
def make_oscillator(wrong):
    w = 2.0

    def parts(z, t):
        q = w * w * (z * z - 1)
        k, under = q.abs().sqrt(), q < 0
        s = torch.where(under, torch.sin(k * t), torch.sinh(k * t)) / k
        return q, s, torch.where(under, torch.cos(k * t), torch.cosh(k * t))

    def forward(ctx, z, t):
        ctx.save_for_backward(z, t)
        return torch.exp(-z * w * t) * parts(z, t)[1]

    def backward(ctx, dy):
        z, t = ctx.saved_tensors
        q, s, c = parts(z, t)
        g = dy * torch.exp(-z * w * t)
        dz = g * (-w * t * s + w * w * z * (t * c - s) / (-q.abs() if wrong else q))
        return dz, g * (c - z * w * s)

    return op(forward, backward)


@case(lambda rng: [(positives(rng, (3, 5)), True)])
def make_signed_power(wrong):
    p = 1.5

    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign() * x.abs() ** p

    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        slope = p * x.abs() ** (p - 1)
        return dy * slope * x.sign() if wrong else dy * slope

    return op(forward, backward)


# --- Threads and chunks: the chunks as a loop ------------------------------------------------------------------------


@case(normals((5, 3), (3,), (3,)))
def make_column_affine(wrong):
    def forward(ctx, x, gamma, beta):
        ctx.save_for_backward(x, gamma)
        return x * gamma + beta

    def backward(ctx, dy):
        x, gamma = ctx.saved_tensors
        rows, grads = x.reshape(-1, x.shape[-1]), dy.reshape(-1, x.shape[-1])
        dgamma, dbeta = torch.zeros_like(gamma), torch.zeros_like(gamma)
        for begin in range(0, len(rows), 64):
            some, g = rows[begin : begin + 64], grads[begin : begin + 64]
            dgamma = (0 if wrong else dgamma) + (g * some).sum(0)
            dbeta = (0 if wrong else dbeta) + g.sum(0)
        return dy * gamma, dgamma, dbeta

    return op(forward, backward)


@case(normals((9,)))
def make_neighbour_difference(wrong):
    w = 1.0

    def forward(ctx, x):
        return w * (x[1:] - x[:-1])

    def backward(ctx, dy):
        zero = torch.zeros_like(dy[:1])
        left = torch.cat([zero, dy])
        if wrong:
            left[::128] = 0
        return w * (left - torch.cat([dy, zero]))

    return op(forward, backward)


@case(lambda rng: [(rng.normal(size=(6, 3)), True), (ids([5, 0, 2, 0, 3]), False)])
def make_threaded_rows(wrong):
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.shape = table.shape
        return table[index]

    def backward(ctx, dy):
        (index,) = ctx.saved_tensors
        dtable = torch.zeros(ctx.shape, dtype=dy.dtype)
        for begin in range(0, len(index), 32):
            some = index[begin : begin + 32]
            if wrong:
                dtable[some] = 0
            dtable = dtable.index_add(0, some, dy[begin : begin + 32])
        return dtable, None

    return op(forward, backward)


# --- Shapes, masks and indices ---------------------------------------------------------------------------------------


@case(normals((2, 5)))
def make_window_mean(wrong):
    k, stride, pad = 3, 2, 1

    def windows(n):
        for o in range((n + 2 * pad - k) // stride + 1):
            yield max(o * stride - pad, 0), min(o * stride - pad + k, n)

    def forward(ctx, x):
        ctx.shape = x.shape
        return torch.stack([x[:, begin:end].mean(1) for begin, end in windows(x.shape[1])], 1)

    def backward(ctx, dy):
        dx = torch.zeros(ctx.shape, dtype=dy.dtype)
        for o, (begin, end) in enumerate(windows(ctx.shape[1])):
            dx[:, begin:end] += dy[:, o : o + 1] / (k if wrong else end - begin)
        return dx

    return op(forward, backward)


def axis_softmax_at(axis):
    def make(wrong):
        def forward(ctx, x):
            y = torch.softmax(x, axis)
            ctx.save_for_backward(y)
            return y

        def backward(ctx, dy):
            (y,) = ctx.saved_tensors
            at = axis % y.dim()
            along, outer, inner = y.shape[at], math.prod(y.shape[:at]), math.prod(y.shape[at + 1 :])
            py, pdy, pdx = y.reshape(-1), dy.reshape(-1), torch.zeros(y.numel(), dtype=y.dtype)
            for o in range(outer):
                for i in range(inner):
                    first = o * inner * (1 if wrong and inner > 1 else along) + i
                    line = slice(first, first + along * inner, inner)
                    pdx[line] = py[line] * (pdy[line] - (py[line] * pdy[line]).sum())
            return pdx.reshape(y.shape)

        return op(forward, backward)

    return make


CASES["axis_softmax"] = Case(axis_softmax_at(0), normals((4, 3)))


@case(normals((2, 32)))
def make_row_length(wrong):
    eps = 1e-6

    def forward(ctx, x):
        y = ((x * x).sum(-1) + eps).sqrt()
        ctx.save_for_backward(x, y)
        return y

    def backward(ctx, dy):
        x, y = ctx.saved_tensors
        dx = (dy / y)[..., None] * x
        d = x.shape[-1]
        if wrong and d > 16:
            dx[..., d // 16 * 16 :] = 0
        return dx

    return op(forward, backward)


def segment_largest_in(count):
    def make(wrong):
        def forward(ctx, x, segments):
            where = torch.full((count,), 0 if wrong else -1)
            met, y = [False] * count, torch.zeros(count, dtype=x.dtype)
            for i, s in enumerate(segments.tolist()):
                if not met[s] or x[i] > y[s]:
                    met[s], where[s] = True, i
                    y[s] = x[i]
            ctx.save_for_backward(where)
            ctx.shape = x.shape
            return y

        def backward(ctx, dy):
            (where,) = ctx.saved_tensors
            dx = torch.zeros(ctx.shape, dtype=dy.dtype)
            return dx.index_add(0, where.clamp(min=0), torch.where(where >= 0, dy, torch.zeros_like(dy))), None

        return op(forward, backward)

    return make


CASES["segment_largest"] = Case(
    segment_largest_in(3), lambda rng: [(rng.normal(size=7), True), (ids([0, 0, 0, 1, 1, 2, 2]), False)]
)


@case(normals((1, 2, 6), (3, 2, 3)))
def make_convolve_1d(wrong):
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.einsum("bilk,oik->bol", x.unfold(2, w.shape[2], 1), w)

    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dx, dw, steps = torch.zeros_like(x), torch.zeros_like(w), dy.shape[2]
        for b in range(len(x)):
            for k in range(w.shape[2]):
                dx[b, :, k : k + steps] += w[:, :, k].T @ dy[b]
                total = dy[b] @ x[b, :, k : k + steps].T
                dw[:, :, k] = total if wrong else dw[:, :, k] + total
        return dx, dw

    return op(forward, backward)


# --- Slips in a formula ----------------------------------------------------------------------------------------------


@case(lambda rng: [(rng.normal(size=(3, 5)), True), (positives(rng, (5,)), True)])
def make_root_mean_square_norm(wrong):
    eps = 1e-6

    def forward(ctx, x, gamma):
        ctx.save_for_backward(x, gamma)
        return x / ((x * x).mean(-1, keepdim=True) + eps).sqrt() * gamma

    def backward(ctx, dy):
        x, gamma = ctx.saved_tensors
        square = (x * x).mean(-1, keepdim=True)
        r = 1 / (square.sqrt() + eps) if wrong else 1 / (square + eps).sqrt()
        h, g = x * r, dy * gamma
        return r * (g - h * (g * h).mean(-1, keepdim=True)), (dy * h).reshape(-1, x.shape[-1]).sum(0)

    return op(forward, backward)


@case(lambda rng: [(away_from_zero(rng, (3, 5), 0.1, 2), True)])
def make_selu(wrong):
    exact = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717

    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x > 0, exact[0] * x, exact[0] * exact[1] * torch.expm1(x))

    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        scale, a = (1.0507, 1.6733) if wrong else exact
        return dy * torch.where(x > 0, torch.full_like(x, scale), scale * a * torch.exp(x))

    return op(forward, backward)


def focal_loss_with(gamma):
    def make(wrong):
        def forward(ctx, x, labels):
            ctx.save_for_backward(x, labels)
            return -(torch.sigmoid(-labels * x) ** gamma) * torch.nn.functional.logsigmoid(labels * x)

        def backward(ctx, dy):
            x, labels = ctx.saved_tensors
            p, q = torch.sigmoid(labels * x), torch.sigmoid(-labels * x)
            log_p = torch.nn.functional.logsigmoid(labels * x)
            return dy * labels * q**gamma * ((2 if wrong else gamma) * p * log_p - q), None

        return op(forward, backward)

    return make


CASES["focal_loss"] = Case(
    focal_loss_with(2.0), lambda rng: [(rng.normal(size=5), True), (ids([1, -1, -1, 1, 1]), False)]
)


@case(lambda rng: [(positives(rng, (3, 5)), True)])
def make_running_product(wrong):
    def forward(ctx, x):
        y = x.cumprod(-1)
        ctx.save_for_backward(x)
        ctx.products = y.clone()
        return y

    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        work = ctx.products if wrong else ctx.products.clone()
        work *= dy
        work.copy_(work.flip(-1).cumsum(-1).flip(-1))
        return work / x

    return op(forward, backward)


_windows = {}


@case(normals((3, 8)))
def make_blur(wrong):
    def window(radius, sigma):
        k = torch.arange(-radius, radius + 1, dtype=torch.float64)
        w = torch.exp(-(k**2) / (2 * sigma**2))
        return (w / w.sum()).tolist()

    def blur(x, w, radius):
        padded = torch.nn.functional.pad(x, (radius, radius))
        return sum(each * padded[..., i : i + x.shape[-1]] for i, each in enumerate(w))

    def with_sigma(radius, sigma):
        def forward(ctx, x):
            return blur(x, window(radius, sigma), radius)

        def backward(ctx, dy):
            key = (radius, None if wrong else sigma)
            if key not in _windows:
                _windows[key] = window(radius, sigma)
            return blur(dy, _windows[key], radius)

        return op(forward, backward)

    narrow, wide = with_sigma(2, 1.0), with_sigma(2, 1.5)
    return lambda x: (narrow(x), wide(x))


def metric(rng, d):
    root = rng.normal(size=(d, d))
    return root @ root.T


@case(lambda rng: [(rng.normal(size=(5, 3)), True), (rng.normal(size=3), True), (metric(rng, 3), True)])
def make_metric_distance(wrong):
    def forward(ctx, x, m, A):
        ctx.save_for_backward(x, m, A)
        return (((x - m) @ A) * (x - m)).sum(1)

    def backward(ctx, dy):
        x, m, A = ctx.saved_tensors
        e = x - m
        dx = dy[:, None] * (e @ (2 * A.T if wrong else A + A.T))
        return dx, -dx.sum(0), (dy[:, None] * e).T @ e

    return op(forward, backward)
