"""The faults of faults.json as torch.autograd.Functions, given to torch.autograd.gradcheck.

Every op's first argument is its slip: None for the right backward, the fault's id for the wrong one.
"""

import math

import torch
from torch.autograd import Function
from torch.autograd.gradcheck import GradcheckError


def softmax_gradient(y, dy):
    return y * (dy - (y * dy).sum(-1, keepdim=True))


def as_if_contiguous(t):
    """What a kernel reads that ignores strides: the elements from the first one on."""
    last = t.untyped_storage().nbytes() // t.element_size() - t.storage_offset() - 1
    memory = torch.as_strided(t, (last + 1,), (1,), t.storage_offset())
    return memory[torch.arange(t.numel()).clamp(max=last)].reshape(t.shape)


class Softmax(Function):
    @staticmethod
    def forward(ctx, slip, x):
        y = torch.softmax(x, -1)
        ctx.slip = slip
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        if ctx.slip == "cotangent_taken_for_contiguous":
            dy = as_if_contiguous(dy)
        dx = softmax_gradient(y, dy)
        return None, -7 * dx if ctx.slip == "softmax_times_minus_seven" else dx


class LogSoftmax(Function):
    @staticmethod
    def forward(ctx, slip, x):
        y = torch.log_softmax(x, -1)
        ctx.slip = slip
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        dx = dy - y.exp() * dy.sum(-1, keepdim=True)
        return None, 1.001 * dx if ctx.slip else dx


class TemperedSoftmax(Function):
    @staticmethod
    def forward(ctx, slip, x):
        y = torch.softmax(x / 0.7, -1)
        ctx.slip = slip
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        dx = softmax_gradient(y, dy)
        return None, dx if ctx.slip else dx / 0.7


class Attention(Function):
    """One head; keys of row b hidden from lengths[b] on; causal with the last query at the last key."""

    @staticmethod
    def weights(q, k, hidden):
        return torch.softmax((q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(hidden, -math.inf), -1)

    @staticmethod
    def hidden(q, k, causal, lengths, slip=None):
        hidden = torch.zeros(q.shape[0], q.shape[1], k.shape[1], dtype=torch.bool)
        keys = torch.arange(k.shape[1])
        if lengths is not None and slip != "padding_mask_ignored":
            hidden |= keys >= lengths[:, None, None]
        if causal:
            ahead = 0 if slip == "causal_mask_off_by_one" else k.shape[1] - q.shape[1]
            hidden |= keys > torch.arange(q.shape[1])[:, None] + ahead
        return hidden

    @staticmethod
    def forward(ctx, slip, causal, q, k, v, lengths=None):
        ctx.slip, ctx.causal, ctx.lengths = slip, causal, lengths
        ctx.save_for_backward(q, k, v)
        return Attention.weights(q, k, Attention.hidden(q, k, causal, lengths)) @ v

    @staticmethod
    def backward(ctx, do):
        q, k, v = ctx.saved_tensors
        p = Attention.weights(q, k, Attention.hidden(q, k, ctx.causal, ctx.lengths, ctx.slip))
        dp = do @ v.mT
        ds = p * dp if ctx.slip == "attention_row_sum_dropped" else softmax_gradient(p, dp)
        ds = ds / math.sqrt(q.shape[-1])
        return None, None, ds @ k, ds.mT @ q, p.mT @ do, None


class LayerNorm(Function):
    @staticmethod
    def forward(ctx, slip, x, gamma, beta):
        r = torch.rsqrt(x.var(-1, correction=0, keepdim=True) + 1e-5)
        h = (x - x.mean(-1, keepdim=True)) * r
        ctx.slip = slip
        ctx.save_for_backward(h, r, gamma)
        return h * gamma + beta

    @staticmethod
    def backward(ctx, dy):
        h, r, gamma = ctx.saved_tensors
        g = dy * gamma
        dx = g - h * (g * h).mean(-1, keepdim=True)
        if not ctx.slip:
            dx = dx - g.mean(-1, keepdim=True)
        return None, r * dx, (dy * h).sum(0), dy.sum(0)


class RmsNorm(Function):
    @staticmethod
    def forward(ctx, slip, x, gamma):
        ctx.slip = slip
        ctx.save_for_backward(x, gamma)
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * gamma

    @staticmethod
    def backward(ctx, dy):
        x, gamma = ctx.saved_tensors
        r = torch.rsqrt((x * x).mean(-1, keepdim=True) + (0 if ctx.slip else 1e-5))
        h, g = x * r, dy * gamma
        return None, r * (g - h * (g * h).mean(-1, keepdim=True)), (dy * h).sum(0)


class CrossEntropy(Function):
    @staticmethod
    def forward(ctx, slip, x, t):
        ctx.slip, ctx.t = slip, t
        ctx.save_for_backward(x)
        kept = t >= 0
        rows = x.logsumexp(-1) - x.gather(-1, t.clamp(min=0)[:, None])[:, 0]
        return rows[kept].sum() / kept.sum()

    @staticmethod
    def backward(ctx, dloss):
        (x,) = ctx.saved_tensors
        kept = ctx.t >= 0
        target = torch.nn.functional.one_hot(ctx.t.clamp(min=0), x.shape[-1])
        count = len(ctx.t) if ctx.slip else kept.sum()
        return None, dloss * kept[:, None] * (torch.softmax(x, -1) - target) / count, None


class Linear(Function):
    @staticmethod
    def forward(ctx, slip, x, w, b):
        ctx.slip = slip
        ctx.save_for_backward(x, w)
        return x @ w + b

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        need_x, need_w, need_b = ctx.needs_input_grad[1:]
        rows = dy.reshape(-1, dy.shape[-1])
        dx = dy @ w.T if need_x else None
        need_w = need_w and (need_x or ctx.slip != "weights_only_with_input")
        dw = x.reshape(-1, x.shape[-1]).T @ rows if need_w else None
        db = (rows[-1].clone() if ctx.slip == "bias_from_last_row" else rows.sum(0)) if need_b else None
        return None, dx, dw, db


class Multiply(Function):
    @staticmethod
    def forward(ctx, slip, a, b):
        ctx.slip = slip
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, dy):
        a, b = ctx.saved_tensors
        reduce = torch.mean if ctx.slip else torch.sum
        return None, dy * b, reduce(dy * a, (0, 2))[:, None]


class Gram(Function):
    @staticmethod
    def forward(ctx, slip, x):
        ctx.slip = slip
        ctx.save_for_backward(x)
        return x @ x.T

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return None, dy @ x if ctx.slip else dy @ x + dy.T @ x


class Embedding(Function):
    @staticmethod
    def forward(ctx, slip, ids, table):
        ctx.slip, ctx.ids, ctx.shape = slip, ids, table.shape
        return table[ids]

    @staticmethod
    def backward(ctx, dy):
        g = dy.new_zeros(ctx.shape)
        if ctx.slip:
            for i, v in enumerate(ctx.ids):
                g[v] = dy[i]
        else:
            g.index_add_(0, ctx.ids, dy)
        return None, None, g


class RepeatHeads(Function):
    @staticmethod
    def forward(ctx, slip, k):
        ctx.slip = slip
        return k.repeat_interleave(2, 1)

    @staticmethod
    def backward(ctx, dy):
        b, h, t, d = dy.shape
        if ctx.slip:
            return None, dy.reshape(b, 2, h // 2, t, d).sum(1)
        return None, dy.reshape(b, h // 2, 2, t, d).sum(2)


class Boosted(Function):
    """Two rounds of two heads, causal, keys and values from the residual, a linear gate."""

    HEADS = 2

    @staticmethod
    def split(t):
        return t.reshape(*t.shape[:2], Boosted.HEADS, -1).transpose(1, 2)

    @staticmethod
    def join(t):
        return t.transpose(1, 2).flatten(2)

    @staticmethod
    def attend(z, w_q, w_k, w_v, b_q, b_k, b_v):
        q, k, v = (Boosted.split(z @ w + b) for w, b in ((w_q, b_q), (w_k, b_k), (w_v, b_v)))
        future = torch.ones(z.shape[1], z.shape[1], dtype=torch.bool).triu(1)
        p = torch.softmax((q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(future, -math.inf), -1)
        return Boosted.join(p @ v), (q, k, v, p)

    @staticmethod
    def attend_backward(dc, z, weights, kept, slip):
        """(dz, [dw_q, dw_k, dw_v, db_q, db_k, db_v]) of attend."""
        q, k, v, p = kept
        do = Boosted.split(dc)
        ds = softmax_gradient(p, do @ v.mT) / math.sqrt(q.shape[-1])
        dq, dk, dv = (Boosted.join(t) for t in (ds @ k, ds.mT @ q, p.mT @ do))
        if slip == "boosted_keys_values_dropped":
            dk, dv = torch.zeros_like(dk), torch.zeros_like(dv)
        dz = sum(d @ w.T for d, w in zip((dq, dk, dv), weights))
        dw = [torch.einsum("bti,btj->ij", z, d) for d in (dq, dk, dv)]
        db = [d.sum((0, 1)) for d in (dq, dk, dv)]
        if slip == "boosted_value_bias_dropped":
            db[2] = torch.zeros_like(db[2])
        return dz, dw + db

    @staticmethod
    def forward(ctx, slip, x, *parameters):
        first, second, (w_g, b_g, w_out, b_out) = parameters[:6], parameters[6:12], parameters[12:]
        f0, kept0 = Boosted.attend(x, *first)
        c, kept1 = Boosted.attend(x - f0, *second)
        g = torch.sigmoid(torch.cat([f0, c], -1) @ w_g + b_g)
        f1 = f0 + g * c
        ctx.slip = slip
        ctx.save_for_backward(x, f0, c, g, f1, *kept0, *kept1, *parameters)
        return f1 @ w_out + b_out

    @staticmethod
    def backward(ctx, dy):
        x, f0, c, g, f1 = ctx.saved_tensors[:5]
        kept0, kept1, parameters = ctx.saved_tensors[5:9], ctx.saved_tensors[9:13], ctx.saved_tensors[13:]
        first, second, (w_g, _, w_out, _) = parameters[:6], parameters[6:12], parameters[12:]
        df = dy @ w_out.T
        da = c * df * g * (1 - g)
        h_f, h_c = (da @ w_g.T).chunk(2, -1)
        dr, of_second = Boosted.attend_backward(g * df + h_c, x - f0, second, kept1, ctx.slip)
        if ctx.slip == "boosted_gate_to_f_dropped":
            h_f = torch.zeros_like(h_f)
        df0 = df + h_f + (dr if ctx.slip == "boosted_residual_sign" else -dr)
        dx, of_first = Boosted.attend_backward(df0, x, first, kept0, ctx.slip)
        of_gate = [torch.einsum("bti,btj->ij", torch.cat([f0, c], -1), da), da.sum((0, 1))]
        of_out = [torch.einsum("bti,btj->ij", f1, dy), dy.sum((0, 1))]
        return None, dx + dr, *of_first, *of_second, *of_gate, *of_out


OPS = {
    "softmax_times_minus_seven": Softmax.apply,
    "log_softmax_scaled": LogSoftmax.apply,
    "softmax_temperature_forgotten": TemperedSoftmax.apply,
    "attention_row_sum_dropped": lambda slip, *x: Attention.apply(slip, False, *x),
    "layer_norm_mean_kept": LayerNorm.apply,
    "rms_norm_eps_omitted": RmsNorm.apply,
    "cross_entropy_counts_ignored": CrossEntropy.apply,
    "bias_from_last_row": Linear.apply,
    "broadcast_mean_for_sum": Multiply.apply,
    "second_use_lost": Gram.apply,
    "repeated_ids_overwritten": Embedding.apply,
    "repeated_heads_tiled": RepeatHeads.apply,
    "cotangent_taken_for_contiguous": Softmax.apply,
    "causal_mask_off_by_one": lambda slip, *x: Attention.apply(slip, True, *x),
    "padding_mask_ignored": lambda slip, *x: Attention.apply(slip, False, *x),
    "weights_only_with_input": Linear.apply,
    "boosted_residual_sign": Boosted.apply,
    "boosted_gate_to_f_dropped": Boosted.apply,
    "boosted_keys_values_dropped": Boosted.apply,
    "boosted_value_bias_dropped": Boosted.apply,
}


def rejects(fault, wrong, arrays, seed, **options):
    """Does gradcheck reject the op of `fault`, right or wrong? Inputs are NumPy arrays, in f64 where floating."""
    torch.manual_seed(seed)
    inputs = [torch.from_numpy(a.copy()).requires_grad_(a.dtype.kind == "f") for a in arrays]
    try:
        torch.autograd.gradcheck(lambda *x: OPS[fault](fault if wrong else None, *x), inputs, **options)
        return False
    except GradcheckError:
        return True


def gradients(fault, wrong, arrays):
    """Of all floating inputs, for a fixed cotangent."""
    inputs = [torch.from_numpy(a.copy()).requires_grad_(a.dtype.kind == "f") for a in arrays]
    y = OPS[fault](fault if wrong else None, *inputs)
    dy = torch.arange(1.0, y.numel() + 1, dtype=y.dtype).sin().reshape(y.shape)
    return [g.numpy() for g in torch.autograd.grad(y, [x for x in inputs if x.requires_grad], dy)]
