"""The cases of strangers_c.h as torch.autograd.Functions, where torch can express them.

CASES maps a name to Case(make, inputs): make(wrong) is a function of tensors (some take settings by keyword, with the
defaults of an ordinary sample), inputs(rng) gives numpy arrays with whether each requires a gradient.
"""

import math
from typing import NamedTuple, Callable

import numpy as np
import torch


class Case(NamedTuple):
    make: Callable
    inputs: Callable


CASES = {}
NOT_EXPRESSIBLE = {
    name: "about work that the framework's own parallel_for cuts into chunks"
    for name in ("polynomial", "charges", "weighted_run", "taxi_norm", "frames")
}


def case(name, forward, backward, inputs, wrong_forward=None):
    """backward(wrong, inputs, cotangents, **settings) returns one gradient, or None, per input.

    wrong_forward is for an op whose mistake is in its forward.
    """

    def make(wrong):
        ahead = wrong_forward if wrong and wrong_forward else forward

        class Fn(torch.autograd.Function):
            @staticmethod
            def forward(ctx, settings, *tensors):
                ctx.settings = settings
                ctx.save_for_backward(*tensors)
                return ahead(*tensors, **settings)

            @staticmethod
            def backward(ctx, *cotangents):
                return (None, *backward(wrong, ctx.saved_tensors, cotangents, **ctx.settings))

        return lambda *tensors, **settings: Fn.apply(settings, *tensors)

    CASES[name] = Case(make, inputs)


def normal(*shapes, scale=1.0):
    return lambda rng: [(rng.standard_normal(s) * scale, True) for s in shapes]


def positive(rng, *shape, low=0.5, high=2.0):
    return rng.uniform(low, high, shape)


def counting(n):
    return torch.arange(n)


def one_hot(index, n, like):
    return (index[..., None] == counting(n)).to(like.dtype)


def double(x):
    return x.to(torch.float64)


def zeros(x):
    return torch.zeros_like(x)


def held(x, low, high):
    return torch.where(x < low, low, torch.where(x > high, high, x))


# -- Not linear in the cotangent ---------------------------------------------------------------------------------------


def pinball(x, t, q=0.5):
    e = t - x
    return torch.where(e > 0, q * e, (q - 1) * e).mean(-1)


def pinball_back(wrong, inputs, cotangents, q=0.5):
    (x, t), (dy,) = inputs, cotangents
    if wrong:
        dy = torch.where(dy > 0, dy, 0.0)
    g = dy[:, None] / x.shape[1]
    dt = torch.where(t - x > 0, q * g, (q - 1) * g)
    return [-dt, dt]


case("pinball", pinball, pinball_back, normal((4, 3), (4, 3)))


def count_sketch(x, w, bucket, m=4):
    return (w * x) @ one_hot(bucket, m, x)


def count_sketch_back(wrong, inputs, cotangents, m=4):
    (x, w, bucket), (dy,) = inputs, cotangents
    g = dy[:, bucket]
    if wrong:  # nothing of a row after its first zero
        g = g * torch.cumprod(torch.where(g == 0, 0, 1), 1)
    return [w * g, (x * g).sum(0), None]


case(
    "count_sketch",
    count_sketch,
    count_sketch_back,
    lambda rng: [
        (rng.standard_normal((2, 6)), True),
        (rng.choice([-1.0, 1.0], 6) * positive(rng, 6), True),
        (np.array([1, 3, 0, 1, 2, 3]), False),
    ],
)


def log_cosh(x, t):
    e = torch.abs(x - t)
    near = torch.sinh(torch.where(e < 1, e, 0.0))
    return torch.where(e < 1, 0.5 * torch.log1p(near * near), e + torch.log1p(torch.exp(-2 * e)) - math.log(2))


def log_cosh_back(wrong, inputs, cotangents):
    (x, t), (dy,) = inputs, cotangents
    dx = (dy.to(torch.bfloat16).to(dy.dtype) if wrong else dy) * torch.tanh(x - t)
    return [dx, -dx]


case("log_cosh", log_cosh, log_cosh_back, normal((3, 4), (3, 4)))


def saturate(x, low=-1.0, high=1.0):
    return held(x, low, high)


def saturate_back(wrong, inputs, cotangents, low=-1.0, high=1.0):
    (x,), (dy,) = inputs, cotangents
    passes = (x >= low) & (x <= high)
    if wrong:
        passes = passes | ((x > high) & (dy > 0)) | ((x < low) & (dy < 0))
    return [torch.where(passes, dy, 0.0)]


case("saturate", saturate, saturate_back, normal((3, 6)))


def bilinear_score(x, w, z):
    return ((x @ w) * z).sum(-1)


def bilinear_score_back(wrong, inputs, cotangents):
    (x, w, z), (dy,) = inputs, cotangents
    g = dy[:, None]
    dw = (g * x).T @ z
    if wrong:
        factor = 20 / torch.sqrt((dw * dw).sum() + 1e-12)
        dw = dw * torch.where(factor < 1, factor, 1.0)
    return [g * (z @ w.T), dw, g * (x @ w)]


case("bilinear_score", bilinear_score, bilinear_score_back, normal((3, 4), (4, 2), (3, 2)))


def student(x, m, nu=3.0):
    return -(nu + 1) / 2 * torch.log1p((x - m) ** 2 / nu)


def student_back(wrong, inputs, cotangents, nu=3.0):
    (x, m), (dy,) = inputs, cotangents
    e = x - m
    dx = -dy * (nu + 1) * e / (nu + e * e)
    if wrong:
        dx = torch.where(torch.abs(dx) < 6.1e-5, 0.0, dx)
    return [dx, -dx]


case("student", student, student_back, normal((2, 6), (2, 6)))

# -- Memory layout -----------------------------------------------------------------------------------------------------


def as_packed(t, offset=None):
    """What lies one after another from the first element on, or from the offset, in t's shape."""
    strides = [math.prod(t.shape[d + 1 :]) for d in range(t.ndim)]
    return t.as_strided(t.shape, strides, t.storage_offset() if offset is None else offset)


def unrepeated(t):
    return t.contiguous() if any(n > 1 and s == 0 for n, s in zip(t.shape, t.stride())) else t


def roll(x, shift=1):
    return torch.roll(x, shift, -1)


def roll_back(wrong, inputs, cotangents, shift=1):
    (dy,) = cotangents
    return [torch.roll(as_packed(unrepeated(dy)) if wrong else dy, -shift, -1)]


case("roll", roll, roll_back, normal((3, 5)))


def outer_rows(a, b):
    return a[:, :, None] * b[:, None]


def outer_rows_back(wrong, inputs, cotangents):
    (a, b), (dy,) = inputs, cotangents
    right = as_packed(b.contiguous(), 0) if wrong else b
    return [(dy * right[:, None]).sum(2), (dy * a[:, :, None]).sum(1)]


case("outer_rows", outer_rows, outer_rows_back, normal((3, 2), (3, 4)))


def factor_pairs(x, v):
    p = x[:, :, None] * v
    return ((torch.cumsum(p, 1) - p) * p).sum(-1).sum(-1)


def factor_pairs_back(wrong, inputs, cotangents):
    (x, v), (dy,) = inputs, cotangents
    if wrong and v.stride(1) == 1:
        v = as_packed(unrepeated(v))
    rest = dy[:, None, None] * ((x @ v)[:, None] - x[:, :, None] * v)
    return [(rest * v).sum(-1), (rest * x[:, :, None]).sum(0)]


case("factor_pairs", factor_pairs, factor_pairs_back, normal((3, 4), (4, 2)))


def channel_scale(x, s):
    return x * s[:, None, None]


def channel_scale_back(wrong, inputs, cotangents):
    (x, s), (dy,) = inputs, cotangents
    if wrong and dy.stride(0) == math.prod(x.shape[1:]):
        dy = as_packed(unrepeated(dy))
    return [dy * s[:, None, None], (dy * x).sum(-1).sum(-1).sum(0)]


case("channel_scale", channel_scale, channel_scale_back, normal((2, 3, 4, 4), (3,)))


def squared_relu_gate(x, z):
    return torch.where(x > 0, x * x * z, 0.0)


def squared_relu_gate_wrong(x, z):
    a, b = unrepeated(x), unrepeated(z)
    if a.stride() == b.stride():
        x, z = as_packed(a), as_packed(b)
    return squared_relu_gate(x, z).contiguous()


def squared_relu_gate_back(wrong, inputs, cotangents):
    (x, z), (dy,) = inputs, cotangents
    h = torch.where(x > 0, x, 0.0)
    return [2 * dy * h * z, dy * h * h]


case(
    "squared_relu_gate",
    squared_relu_gate,
    squared_relu_gate_back,
    normal((4, 3), (4, 3)),
    wrong_forward=squared_relu_gate_wrong,
)


def softsign(x):
    return x / (1 + torch.abs(x))


def softsign_back(wrong, inputs, cotangents):
    (x,), (dy,) = inputs, cotangents
    dx = dy.contiguous() if wrong else dy.clone()
    return [dx.div_((1 + torch.abs(x)) ** 2)]


case("softsign", softsign, softsign_back, normal((2, 5)))

# -- Wrong in f32 alone ------------------------------------------------------------------------------------------------


def inverse_softplus(x):
    return x + torch.log(-torch.expm1(-x))


def inverse_softplus_back(wrong, inputs, cotangents):
    (x,), (dy,) = inputs, cotangents
    return [dy / (1 - torch.exp(-x) if wrong else -torch.expm1(-x))]


case("inverse_softplus", inverse_softplus, inverse_softplus_back, lambda rng: [(positive(rng, 3, 4), True)])


def gram_distance(x, c):
    return ((double(x)[:, None] - double(c)) ** 2).sum(-1).to(x.dtype)


def gram_distance_wrong(x, c):
    y = (x * x).sum(-1)[:, None] + (c * c).sum(-1) - 2 * x @ c.T
    return torch.where(y > 0, y, 0.0)


def gram_distance_back(wrong, inputs, cotangents):
    (x, c), (dy,) = inputs, cotangents
    g = 2 * dy[..., None] * (x[:, None] - c)
    return [g.sum(1), -g.sum(0)]


case("gram_distance", gram_distance, gram_distance_back, normal((4, 3), (2, 3)), wrong_forward=gram_distance_wrong)


def global_gain(x, g):
    return g * x


def one_by_one(terms):
    """Sum in the terms' own dtype, one after another."""
    total = zeros(terms[0])
    for term in terms:
        total = total + term
    return total


def global_gain_back(wrong, inputs, cotangents):
    (x, g), (dy,) = inputs, cotangents
    dg = one_by_one((x * dy).flatten()) if wrong else (double(x) * double(dy)).sum().to(x.dtype)
    return [g * dy, dg]


case("global_gain", global_gain, global_gain_back, normal((3, 7), ()))


def power_norm(x, p=4.0):
    size = torch.abs(x)
    top = torch.amax(size, -1)
    return top * ((size / top[:, None]) ** p).sum(-1) ** (1 / p)


def power_norm_back(wrong, inputs, cotangents, p=4.0):
    (x,), (dy,) = inputs, cotangents
    size, y, q = torch.abs(x), power_norm(x, p)[:, None], p - 1
    slope = size**q / y**q if wrong else (size / y) ** q
    return [dy[:, None] * torch.where(x < 0, -slope, slope)]


case("power_norm", power_norm, power_norm_back, normal((3, 5)))


def kinetic_energy(p, m):
    return p * (p / (torch.hypot(p, m) + m))


def kinetic_energy_back(wrong, inputs, cotangents):
    (p, m), (dy,) = inputs, cotangents
    e = torch.hypot(p, m)
    return [dy * (p / e), dy * (m / e - 1 if wrong else -(p / e) * (p / (e + m)))]


case(
    "kinetic_energy",
    kinetic_energy,
    kinetic_energy_back,
    lambda rng: [(rng.standard_normal((3, 4)), True), (positive(rng, 3, 4), True)],
)

# -- A forgotten gradient ----------------------------------------------------------------------------------------------


def gaussian_kernel(x, z, length=1.0):
    return torch.exp(-((x[:, None] - z) ** 2).sum(-1) / (2 * length**2))


def gaussian_kernel_back(x, z, dy, length):
    g = (dy * gaussian_kernel(x, z, length))[..., None] * (z - x[:, None]) / length**2
    return g.sum(1), -g.sum(0)


def make_gaussian_kernel(wrong):
    class GaussianKernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx, length, x, z):
            ctx.length = length
            ctx.save_for_backward(x, z)
            return gaussian_kernel(x, z, length)

        @staticmethod
        def backward(ctx, dy):
            _, need_x, _ = ctx.needs_input_grad
            dx, dz = gaussian_kernel_back(*ctx.saved_tensors, dy, ctx.length)
            return None, dx, None if wrong and not need_x else dz

    return lambda x, z, length=1.0: GaussianKernel.apply(length, x, z)


CASES["gaussian_kernel"] = Case(make_gaussian_kernel, normal((3, 2), (4, 2)))


def table_cell(table, u):
    """The cell of u, held to the table, and the place in it."""
    n = table.shape[0]
    whole = held(u, 0.0, n - 1.0)
    i = torch.floor(held(whole, 0.0, n - 2.0))
    return i, whole - i


def read_table(table, u):
    (i, f), n = table_cell(table, u), table.shape[0]
    return (one_hot(i, n, u) @ table) * (1 - f) + (one_hot(i + 1, n, u) @ table) * f


def read_table_back(wrong, inputs, cotangents):
    (table, u), (dy,) = inputs, cotangents
    (i, f), n = table_cell(table, u), table.shape[0]
    left, right = one_hot(i, n, u), one_hot(i + 1, n, u)
    du = torch.where((u < 0) | (u > n - 1), 0.0, dy * (right @ table - left @ table))
    return [(dy * (1 - f)) @ left + (dy * f) @ right, None if wrong else du]


case(
    "read_table",
    read_table,
    read_table_back,
    lambda rng: [(rng.standard_normal(6), True), (np.array([0.3, 4.6, 2.2, 2.8]), True)],
)


def attention_weights(q, k, slope):
    distance = torch.abs(counting(q.shape[0])[:, None] - counting(k.shape[0])).to(q.dtype)
    s = q @ k.T / math.sqrt(q.shape[1]) - slope * distance
    return torch.exp(s - torch.logsumexp(s, -1)[:, None]), distance


def sloped_attention(q, k, v, slope):
    return attention_weights(q, k, slope)[0] @ v


def sloped_attention_back(wrong, inputs, cotangents):
    (q, k, v, slope), (dy,) = inputs, cotangents
    (p, distance), root = attention_weights(q, k, slope), math.sqrt(q.shape[1])
    a = dy @ v.T
    t = p * (a - (p * a).sum(-1)[:, None])
    return [t @ k / root, t.T @ q / root, p.T @ dy, None if wrong else -(t * distance).sum()]


case(
    "sloped_attention",
    sloped_attention,
    sloped_attention_back,
    lambda rng: [
        (rng.standard_normal((4, 3)), True),
        (rng.standard_normal((4, 3)), True),
        (rng.standard_normal((4, 2)), True),
        (np.array(0.5), True),
    ],
)


def turned(x, angle):
    """Rows x turned by the angle."""
    cos, sin = torch.cos(angle), torch.sin(angle)
    return torch.stack([cos * x[:, 0] - sin * x[:, 1], sin * x[:, 0] + cos * x[:, 1]], -1)


def turn_about(x, c, angle):
    return turned(x - c, angle) + c


def turn_about_back(wrong, inputs, cotangents):
    (x, c, angle), (dy,) = inputs, cotangents
    dx = turned(dy, -angle)
    dangle = (dy * turned(x - c, angle + math.pi / 2)).sum()
    return [dx, (-dx if wrong else dy - dx).sum(0), dangle]


case("turn_about", turn_about, turn_about_back, normal((5, 2), (2,), ()))


def gaussian_sample(m, l, e):
    return m + torch.exp(l / 2) * e, ((torch.expm1(l) - l + m * m) / 2).sum(-1)


def gaussian_sample_back(wrong, inputs, cotangents):
    (m, l, e), (dz, dk) = inputs, cotangents
    s, g = torch.exp(l / 2), dk[:, None]
    return [dz if wrong else dz + g * m, dz * e * s / 2 + g * torch.expm1(l) / 2, dz * s]


case(
    "gaussian_sample",
    gaussian_sample,
    gaussian_sample_back,
    lambda rng: [(rng.standard_normal((3, 4)) * scale, True) for scale in (1, 0.5, 1)],
)

# -- Wrong away from the author's points -------------------------------------------------------------------------------


def sinc(x):
    near = torch.abs(x) < 1e-5
    far = torch.where(near, 1.0, x)
    return torch.where(near, 1 - x * x / 6, torch.sin(far) / far)


def sinc_back(wrong, inputs, cotangents):
    (x,), (dy,) = inputs, cotangents
    near, q = torch.abs(x) < 0.1, x * x
    far = torch.where(near, 1.0, x)
    series = x * (-1 / 3 + q * (1 / 30 + q * (-1 / 840 + q * (1 / 45360 - q / 3991680))))
    slope = (torch.cos(far) - torch.sin(far) / far) / far
    return [dy * torch.where(near, -x / 3 if wrong else series, slope)]


case("sinc", sinc, sinc_back, normal((2, 4), scale=2.0))


def celu(x, alpha=1.0):
    return torch.where(x > 0, x, alpha * torch.expm1(torch.where(x > 0, 0.0, x) / alpha))


def celu_back(wrong, inputs, cotangents, alpha=1.0):
    (x,), (dy,) = inputs, cotangents
    below = torch.where(x > 0, 0.0, x)
    return [dy * torch.where(x > 0, 1.0, torch.exp(below if wrong else below / alpha))]


case("celu", celu, celu_back, normal((3, 5)))


def biweight(x, c=4.685):
    q = (x / c) ** 2
    return torch.where(q > 1, c * c / 6, x * x / 6 * (3 - 3 * q + q * q))


def biweight_back(wrong, inputs, cotangents, c=4.685):
    (x,), (dy,) = inputs, cotangents
    q = (x / c) ** 2
    dx = dy * x * (1 - q) ** 2
    return [dx if wrong else torch.where(q > 1, 0.0, dx)]


case("biweight", biweight, biweight_back, normal((4, 4)))


def triangle_wave(phase):
    return torch.abs(phase - 2 * torch.floor(phase / 2) - 1)


def triangle_wave_back(wrong, inputs, cotangents):
    (x,), (dy,) = inputs, cotangents
    w = torch.fmod(x, 2.0) if wrong else x - 2 * torch.floor(x / 2)
    return [torch.where(w >= 1, dy, -dy)]


case("triangle_wave", triangle_wave, triangle_wave_back, lambda rng: [(positive(rng, 3, 5, low=0.0, high=6.0), True)])


def spline_weights(f):
    return [0.5 * w for w in (-f + 2 * f**2 - f**3, 2 - 5 * f**2 + 3 * f**3, f + 4 * f**2 - 3 * f**3, f**3 - f**2)]


def spline_slopes(f):
    return [0.5 * s for s in (-1 + 4 * f - 3 * f**2, -10 * f + 9 * f**2, 1 + 8 * f - 9 * f**2, 3 * f**2 - 2 * f)]


def spline(p, u):
    (i, f), n = table_cell(p, u), p.shape[0]
    return sum(w * (one_hot(held(i - 1 + k, 0.0, n - 1.0), n, u) @ p) for k, w in enumerate(spline_weights(f)))


def spline_back(wrong, inputs, cotangents):
    (p, u), (dy,) = inputs, cotangents
    (i, f), n = table_cell(p, u), p.shape[0]
    dp, du = zeros(p), zeros(u)
    for k, (w, s) in enumerate(zip(spline_weights(f), spline_slopes(f))):
        at = i - 1 + k
        spot = one_hot(held(at, 0.0, n - 1.0), n, u)
        du = du + dy * s * (spot @ p)
        dp = dp + (dy * w) @ (one_hot(at, n, u) if wrong else spot)  # nothing beyond the ends
    return [dp, torch.where((u < 0) | (u > n - 1), 0.0, du)]


case(
    "spline",
    spline,
    spline_back,
    lambda rng: [(rng.standard_normal(7), True), (np.array([2.3, 4.6, 1.2, 3.8]), True)],
)


def box_cox(x, power):
    log = torch.log(x)
    z = power * log
    return log * torch.where(z == 0, 1.0, torch.expm1(z) / torch.where(z == 0, 1.0, z))


def ratio_slope(z):
    """The derivative of (exp(z) - 1) / z."""
    near = torch.abs(z) <= 0.5
    far, small = torch.where(near, 1.0, z), torch.where(near, z, 0.0)
    term, total = 1.0, 0.5
    for k in range(1, 18):
        term = term * small / k
        total = total + term / (k + 2)
    return torch.where(near, total, (torch.exp(far) - torch.expm1(far) / far) / far)


def box_cox_back(wrong, inputs, cotangents):
    (x, power), (dy,) = inputs, cotangents
    log = torch.log(x)
    dpower = (dy * log * log * ratio_slope(power * log)).sum()
    if wrong:
        dpower = torch.where(torch.abs(power) < 1e-3, 0.0, dpower)
    return [dy * torch.exp((power - 1) * log), dpower]


case("box_cox", box_cox, box_cox_back, lambda rng: [(positive(rng, 3, 4), True), (np.array(0.5), True)])

# -- Shapes and indices ------------------------------------------------------------------------------------------------


def window_places(x, size, stride):
    return np.arange(0, x.shape[1] - size + 1, stride)[:, None] + np.arange(size)


def max_window(x, size=2, stride=2):
    return torch.amax(x[:, window_places(x, size, stride)], -1)


def max_window_back(wrong, inputs, cotangents, size=2, stride=2):
    (x,), (dy,) = inputs, cotangents
    chosen = torch.argmax(x[:, window_places(x, size, stride)], -1) + stride * counting(dy.shape[1])
    spots, dx = one_hot(chosen, x.shape[1], x), zeros(x)
    for o in range(dy.shape[1]):
        g = dy[:, o, None]
        dx = torch.where(spots[:, o] > 0, g if wrong else dx + g, dx)
    return [dx]


case("max_window", max_window, max_window_back, normal((2, 8)))


def triplet_logits(e, triplets, margin):
    a, p, n = (e[triplets[:, k]] for k in range(3))
    return a, p, n, ((a - p) ** 2).sum(-1) - ((a - n) ** 2).sum(-1) + margin


def triplets(e, triplets, margin=0.2):
    z = triplet_logits(e, triplets, margin)[-1]
    return torch.where(z > 0, z, 0.0) + torch.log1p(torch.exp(-torch.abs(z)))


def triplets_back(wrong, inputs, cotangents, margin=0.2):
    (e, triplets), (dy,) = inputs, cotangents
    a, p, n, z = triplet_logits(e, triplets, margin)
    g = (2 * dy * torch.sigmoid(z))[:, None]
    parts, de = (g * (n - p), -g * (a - p), g * (a - n)), zeros(e)
    for t in range(dy.shape[0]):
        for k, part in enumerate(parts):
            here = one_hot(triplets[t, k], e.shape[0], e)[:, None] > 0
            de = torch.where(here, part[t] if wrong else de + part[t], de)
    return [de, None]


case(
    "triplets",
    triplets,
    triplets_back,
    lambda rng: [(0.7 * rng.standard_normal((6, 3)), True), (np.array([[0, 1, 2], [3, 4, 5]]), False)],
)


def row_metric(x, m):
    return (x[:, :, None] * m * x[:, None]).sum(-1).sum(-1)


def row_metric_back(wrong, inputs, cotangents):
    (x, m), (dy,) = inputs, cotangents
    dx = dy[:, None] * ((m + m.mT) * x[:, None]).sum(-1)
    dm = dy[:, None, None] * x[:, :, None] * x[:, None]
    if m.ndim == 2:  # one for all rows
        dm = dm[-1] if wrong else dm.sum(0)
    return [dx, dm]


case("row_metric", row_metric, row_metric_back, normal((3, 4), (3, 4, 4)))


def channel_power(x):
    return (x * x).mean(-1).mean(-1)


def channel_power_back(wrong, inputs, cotangents):
    (x,), (dy,) = inputs, cotangents
    h, w = x.shape[2:]
    return [2 * dy[..., None, None] * x / (w * w if wrong else h * w)]


case("channel_power", channel_power, channel_power_back, normal((2, 3, 4, 4)))


def cauchy_rows(x, w):
    return (w * torch.log1p(x * x)).sum(-1)


def cauchy_rows_back(wrong, inputs, cotangents):
    (x, w), (dy,) = inputs, cotangents
    d = x.shape[1]
    done = d // 16 * 16 if wrong and d >= 16 else d
    g = torch.where(counting(d) < done, dy[:, None], 0.0)
    return [2 * g * w * x / (1 + x * x), (g * torch.log1p(x * x)).sum(0)]


case("cauchy_rows", cauchy_rows, cauchy_rows_back, normal((3, 5), (5,)))


def group_scale(x, groups, eps):
    """x with each group in a row of its own, and what it is multiplied by."""
    v = x.reshape(x.shape[0], groups, -1)
    return v, 1 / torch.sqrt((v * v).mean(-1) + eps)


def group_power(x, groups=2, eps=1e-5):
    v, h = group_scale(x, groups, eps)
    return (v * h[..., None]).reshape(x.shape)


def group_power_back(wrong, inputs, cotangents, groups=2, eps=1e-5):
    (x,), (dy,) = inputs, cotangents
    v, h = group_scale(x, groups, eps)
    y, g = v * h[..., None], dy.reshape(v.shape)
    if wrong:  # read as (groups, n)
        h = h.reshape(groups, x.shape[0]).T
    return [(h[..., None] * (g - y * (g * y).mean(-1)[..., None])).reshape(x.shape)]


case("group_power", group_power, group_power_back, normal((1, 4, 5)))

# -- Slips in formulas -------------------------------------------------------------------------------------------------


def mirror(x, v):
    return x - 2 * (x @ v)[:, None] * v / (v @ v)


def mirror_back(wrong, inputs, cotangents):
    (x, v), (dy,) = inputs, cotangents
    square, vx, vg = v @ v, (x @ v)[:, None], (dy @ v)[:, None]
    dv = (-2 * (vg * x + vx * dy) / square + 4 * vx * vg * v / (square if wrong else square * square)).sum(0)
    return [dy - 2 * v * vg / square, dv]


def unit(rng, n):
    v = rng.standard_normal(n)
    return v / np.linalg.norm(v)


case("mirror", mirror, mirror_back, lambda rng: [(rng.standard_normal((3, 4)), True), (unit(rng, 4), True)])


def solve(a, b):
    return torch.linalg.solve(a, b)


def solve_back(wrong, inputs, cotangents):
    (a, b), (dy,) = inputs, cotangents
    db = solve(a if wrong else a.T, dy)
    return [-db @ solve(a, b).T, db]


def stiffness(rng, n):
    a = 0.2 * rng.standard_normal((n, n))
    return a + a.T + 2 * np.eye(n)


case("solve", solve, solve_back, lambda rng: [(stiffness(rng, 3), True), (rng.standard_normal((3, 2)), True)])


def centred(x):
    return x - x.mean(-1)[:, None]


def deviation(x, eps=1e-6):
    return torch.sqrt((centred(x) ** 2).sum(-1) / (x.shape[1] - 1) + eps)


def deviation_back(wrong, inputs, cotangents, eps=1e-6):
    (x,), (dy,) = inputs, cotangents
    d = x.shape[1]
    return [dy[:, None] * centred(x) / ((d if wrong else d - 1) * deviation(x, eps)[:, None])]


case("deviation", deviation, deviation_back, normal((2, 100)))


def dice_parts(p, t):
    return (2 * p * t).sum(-1), (p * p + t * t).sum(-1)


def dice(p, t, smooth=0.1):
    top, low = dice_parts(p, t)
    return 1 - (top + smooth) / (low + smooth)


def dice_back(wrong, inputs, cotangents, smooth=0.1):
    (p, t), (dy,) = inputs, cotangents
    top, low = dice_parts(p, t)
    ratio = ((top + smooth) / (torch.where(low > 1e-12, low, 1e-12) if wrong else low + smooth))[:, None]
    g = (2 * dy / (low + smooth))[:, None]
    return [g * (p * ratio - t), g * (t * ratio - p)]


case("dice", dice, dice_back, lambda rng: [(positive(rng, 2, 16, low=0.0, high=1.0), True) for _ in range(2)])


def midpoint_rates(x, w, h):
    first = torch.tanh(w * x)
    return first, torch.tanh(w * (x + h / 2 * first))


def midpoint(x, w, h=0.1):
    return x + h * midpoint_rates(x, w, h)[1]


def midpoint_back(wrong, inputs, cotangents, h=0.1):
    (x, w), (dy,) = inputs, cotangents
    u, v = midpoint_rates(x, w, h)
    if wrong:  # overwritten before it is saved
        u = v
    g = dy * h * (1 - v * v)
    dx = dy + g * w * (1 + h / 2 * w * (1 - u * u))
    return [dx, (g * (x + h / 2 * (u + w * (1 - u * u) * x))).sum()]


case("midpoint", midpoint, midpoint_back, normal((3, 4), ()))
