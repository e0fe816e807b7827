"""Writes the golden data of tests/golden, or compares them with what this computes now (pip install torch numpy).

    golden.py write [FOLDER]      golden.py check [FOLDER]      FOLDER: tests/golden beside this script's folder

Language models and attention layers in plain PyTorch, f64, on one thread: formulas by hand, gradients by
torch.autograd, updates by torch.optim.AdamW. Weights are part of the data, so that nothing depends on how either side
draws them. The names of arrays are those of Boostgrad's parameters. All gradients of a case are one vector, one
parameter after the other by rising name, because every array of an .npz costs some 250 bytes.

    lm_NAME.npz   ids, targets (steps, B, T); w/PATH; of the first batch: logits, loss, grad; losses (steps + 1): of
                  each batch before its update, and of the first one after the last
    layers.npz    CASE/in/NAME for each input, CASE/dy, CASE/y, CASE/grad
"""

import argparse
import io
import math
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F

STEPS, LR, DECAY = 10, 1e-2, 0.1
IGNORED = -100  # a target that does not count


class Draw:
    """Random inputs on a grid of 2^-8, which keeps the files small."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def normal(self, *shape, sd=1.0):
        x = np.round(self.rng.standard_normal(shape) * sd * 256) / 256
        return torch.tensor(x, dtype=torch.float64, requires_grad=True)

    def integers(self, low, high, *shape):
        return torch.tensor(self.rng.integers(low, high, shape))


def joined_gradients(leaves):
    return torch.cat([leaves[name].grad.flatten() for name in sorted(leaves)])


# -- Attention --------------------------------------------------------------------------------------------------------


def weights(q, k, heads, scale, causal, lengths):
    """log P and P (B, H, Tq, Tk) of softmax(scale q k^T), 0 where a key is hidden, and the entropy (B, Tq)."""
    q = q.unflatten(-1, (heads, -1))
    k = k.unflatten(-1, (heads, -1)).expand(q.shape[0], -1, -1, -1)
    logits = scale * torch.einsum("bihc,bjhc->bhij", q, k)
    queries, keys = logits.shape[-2:]
    hidden = torch.zeros(logits.shape, dtype=torch.bool)
    if causal:
        hidden |= torch.arange(keys)[None, :] > torch.arange(queries)[:, None] + keys - queries
    if lengths is not None:
        hidden |= torch.arange(keys)[None, None, None, :] >= lengths[:, None, None, None]
    log_p = torch.log_softmax(logits.masked_fill(hidden, -math.inf), -1).masked_fill(hidden, 0)
    p = log_p.exp().masked_fill(hidden, 0)
    return p, -(p * log_p).sum(-1).mean(1)


def average(p, v, heads):
    v = v.unflatten(-1, (heads, -1)).expand(p.shape[0], -1, -1, -1)
    return torch.einsum("bhij,bjhc->bihc", p, v).flatten(-2)


def affine(x, w, prefix, suffix, bias=True):
    y = x @ w[prefix + "w_" + suffix]
    name = prefix + "b_" + suffix
    return y + w[name] if bias and name in w else y


def attend(w, m, z, s, heads, causal, lengths):
    """Round m: q from z, k and v from s. Returns the output, and P and its entropy and the values."""
    r = f"rounds.{m}."
    q, k, v = affine(z, w, r, "q"), affine(s, w, r, "k"), affine(s, w, r, "v")
    if r + "log_scale" in w:
        scale = w[r + "log_scale"].exp()
    else:
        scale = 1 / math.sqrt(q.shape[-1] // heads)
    p, entropy = weights(q, k, heads, scale, causal, lengths)
    return average(p, v, heads), p, entropy, v


def gate_of(w, m, f, c, entropy):
    r = f"rounds.{m}."
    if r + "gate" in w:
        return torch.sigmoid(w[r + "gate"])
    if r + "w_g" in w:
        return torch.sigmoid(affine(torch.cat([f, c], -1), w, r, "g"))
    if r + "w_1" in w:
        hidden = F.gelu(affine(torch.cat([f, c, entropy[..., None]], -1), w, r, "1"))
        return torch.sigmoid(affine(hidden, w, r, "2"))
    return 1.0


def attention(w, x, kind, heads, causal=False, rounds=1, kv="input", memory=None, lengths=None):
    """y of any of the three kinds; w holds the layer's parameters."""
    s = x if memory is None else memory
    f, p, entropy, v = attend(w, 0, x, s, heads, causal, lengths)
    if kind == "twicing":
        p_twice = 2 * p - p @ p
        f = average(p_twice, v, heads)
    for m in range(1, rounds):
        r = x - f
        c = attend(w, m, r, r if memory is None and kv == "residual" else s, heads, causal, lengths)[0]
        f = f + gate_of(w, m, f, c, entropy) * c
    return affine(f, w, "", "out") if "w_out" in w else f


def draw_layer(draw, d, rounds=1, gate="none", e=None, d_q=None, d_v=None, d_out=None, bias=True, out=True,
               learned_scale=False, hidden=3):
    e, d_q, d_v, d_out = e or d, d_q or d, d_v or d, d_out or d
    w = {}

    def weight(name, rows, cols):
        w[name] = draw.normal(rows, cols, sd=1.5 / math.sqrt(rows))

    def offset(name, size):
        w[name] = draw.normal(size, sd=0.5)

    for m in range(rounds):
        r = f"rounds.{m}."
        for name, rows, cols in [("q", d, d_q), ("k", e, d_q), ("v", e, d_v)]:
            weight(r + "w_" + name, rows, cols)
            if bias:
                offset(r + "b_" + name, cols)
        if learned_scale:
            offset(r + "log_scale", 1)
        if m == 0:
            continue
        if gate == "scalar":
            offset(r + "gate", 1)
        if gate == "linear":
            weight(r + "w_g", 2 * d, d)
            offset(r + "b_g", d)
        if gate == "mlp":
            weight(r + "w_1", 2 * d + 1, hidden)
            offset(r + "b_1", hidden)
            weight(r + "w_2", hidden, d)
            offset(r + "b_2", d)
    if out:
        weight("w_out", d_v, d_out)
        if bias:
            offset("b_out", d_out)
    return w


def layer_case(draw, sizes, lengths=None, memory=None, batch=2, time=5, **options):
    """One layer: all inputs, the output, a random cotangent and the gradients of <dy, y>."""
    leaves = {"x": draw.normal(batch, time, sizes["d"])}
    if memory:
        leaves["memory"] = draw.normal(*memory)
    leaves |= draw_layer(draw, **sizes)
    lengths = None if lengths is None else torch.tensor(lengths)
    w = {name: leaf for name, leaf in leaves.items() if name not in ("x", "memory")}
    y = attention(w, leaves["x"], memory=leaves.get("memory"), lengths=lengths, **options)
    dy = draw.normal(*y.shape)
    y.backward(dy.detach())
    out = {"in/" + name: leaf for name, leaf in leaves.items()}
    if lengths is not None:
        out["in/lengths"] = lengths
    return out | {"dy": dy, "y": y, "grad": joined_gradients(leaves)}


def layers():
    draw = Draw(7)
    cases = {
        "standard_memory": layer_case(draw, dict(d=6, e=5, d_q=4, d_v=8, d_out=3, learned_scale=True), [7, 3],
                                      (2, 7, 5), kind="standard", heads=2),
        "standard_shared_memory": layer_case(draw, dict(d=4, e=6, bias=False, out=False), None, (1, 6, 6),
                                             kind="standard", heads=1, batch=3),
        "standard_causal_memory": layer_case(draw, dict(d=4, e=3), [8, 6], (2, 8, 3), kind="standard", heads=2,
                                             causal=True),
        "twicing": layer_case(draw, dict(d=6, learned_scale=True), [5, 2], kind="twicing", heads=2),
        "twicing_causal": layer_case(draw, dict(d=4), kind="twicing", heads=1, causal=True),
    }
    for gate in ("none", "scalar", "linear", "mlp"):
        cases["boosted_memory_" + gate] = layer_case(
            draw, dict(d=4, e=5, d_q=6, rounds=3, gate=gate, learned_scale=True), [6, 1], (2, 6, 5), kind="boosted",
            heads=2, rounds=3)
    for kv, gate in [("input", "mlp"), ("residual", "linear"), ("residual", "none")]:
        cases[f"boosted_{kv}_{gate}"] = layer_case(
            draw, dict(d=4, rounds=2, gate=gate), [5, 4], kind="boosted", heads=2, rounds=2, kv=kv, causal=True)
    return {f"{case}/{name}": array for case, arrays in cases.items() for name, array in arrays.items()}


# -- Language models --------------------------------------------------------------------------------------------------

VOCAB, WIDTH, HEADS, POSITIONS, BATCH, TIME = 13, 8, 2, 7, 2, 6


def draw_model(draw, kind, norm, blocks, rounds, gate, tied):
    w = {"tokens.w": draw.normal(VOCAB, WIDTH, sd=0.5), "positions.w": draw.normal(POSITIONS, WIDTH, sd=0.5)}

    def layer_norm(name):
        w[name + ".gamma"] = draw.normal(WIDTH, sd=0.5)
        w[name + ".beta"] = draw.normal(WIDTH, sd=0.5)

    for i in range(blocks):
        b = f"blocks.{i}."
        layer_norm(b + "norm1")
        sizes = dict(d=WIDTH, rounds=rounds, gate=gate, hidden=32)  # the program's width of the gate's hidden layer
        w |= {b + "attn." + name: leaf for name, leaf in draw_layer(draw, **sizes).items()}
        layer_norm(b + "norm2")
        for name, rows, cols in [("up", WIDTH, 2 * WIDTH), ("down", 2 * WIDTH, WIDTH)]:
            w[b + f"mlp.{name}.w"] = draw.normal(rows, cols, sd=1 / math.sqrt(rows))
            w[b + f"mlp.{name}.b"] = draw.normal(cols, sd=0.5)
    if norm == "pre":
        layer_norm("norm")
    if not tied:
        w["head"] = draw.normal(VOCAB, WIDTH, sd=0.5)
    return w


def model_logits(w, ids, norm, blocks, **options):
    def layer_norm(x, name):
        mean = x.mean(-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-5) * w[name + ".gamma"] + w[name + ".beta"]

    def attn(x, block):
        start = block + "attn."
        own = {name[len(start):]: leaf for name, leaf in w.items() if name.startswith(start)}
        return attention(own, x, heads=HEADS, causal=True, **options)

    def mlp(x, block):
        hidden = F.gelu(x @ w[block + "mlp.up.w"] + w[block + "mlp.up.b"])
        return hidden @ w[block + "mlp.down.w"] + w[block + "mlp.down.b"]

    x = w["tokens.w"][ids] + w["positions.w"][: ids.shape[1]]
    for i in range(blocks):
        b = f"blocks.{i}."
        if norm == "pre":
            x = x + attn(layer_norm(x, b + "norm1"), b)
            x = x + mlp(layer_norm(x, b + "norm2"), b)
        else:
            x = layer_norm(x + attn(x, b), b + "norm1")
            x = layer_norm(x + mlp(x, b), b + "norm2")
    if norm == "pre":
        x = layer_norm(x, "norm")
    return x @ w.get("head", w["tokens.w"]).T


def language_model(seed, kind, norm="pre", blocks=2, rounds=1, kv="input", gate="none", tied=True):
    draw = Draw(seed)
    w = draw_model(draw, kind, norm, blocks, rounds, gate, tied)
    ids = draw.integers(0, VOCAB, STEPS, BATCH, TIME)
    targets = draw.integers(0, VOCAB, STEPS, BATCH, TIME)
    targets[:, 1, -1] = IGNORED
    out = {"ids": ids, "targets": targets} | {"w/" + name: leaf.detach().clone() for name, leaf in w.items()}

    def logits_and_loss(step):
        logits = model_logits(w, ids[step], norm, blocks, kind=kind, rounds=rounds, kv=kv)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets[step].flatten(), ignore_index=IGNORED)

    optimizer = torch.optim.AdamW(w.values(), lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=DECAY)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        logits, loss = logits_and_loss(step)
        loss.backward()
        if step == 0:
            out |= {"logits": logits, "loss": loss.reshape(1), "grad": joined_gradients(w)}
        losses.append(loss.item())
        optimizer.step()
    losses.append(logits_and_loss(0)[1].item())
    return out | {"losses": torch.tensor(losses, dtype=torch.float64)}


# -- Files ------------------------------------------------------------------------------------------------------------


def all_files():
    return {
        "layers": layers(),
        "lm_standard": language_model(1, "standard", blocks=3, tied=False),
        "lm_twicing": language_model(2, "twicing"),
        "lm_boosted": language_model(3, "boosted", rounds=3, kv="residual", gate="linear"),
        "lm_boosted_post": language_model(4, "boosted", norm="post", rounds=2, kv="input", gate="scalar"),
        "lm_boosted_mlp": language_model(5, "boosted", blocks=1, rounds=2, kv="input", gate="mlp"),
    }


def numpy_of(arrays):
    return {name: np.asarray(array.detach().numpy(), order="C") for name, array in arrays.items()}


def check(path, now):
    """Inputs must be equal; what is computed may differ by rounding, as libraries and machines do."""
    with np.load(path) as kept:
        if sorted(kept.files) != sorted(now):
            sys.exit(f"{path}: names differ: {sorted(set(kept.files) ^ set(now))}")
        worst = 0.0
        for name in kept.files:
            a, b = kept[name], now[name]
            if a.shape != b.shape or a.dtype != b.dtype:
                sys.exit(f"{path}: {name} is {a.dtype} {a.shape}, now {b.dtype} {b.shape}")
            error = np.abs(a - b).max() / max(1, np.abs(a).max())
            given = name in ("ids", "targets") or "w/" in name or "in/" in name or name.endswith("/dy")
            if not error <= (0 if given else 1e-13 if name != "losses" else 1e-11):
                sys.exit(f"{path}: {name} differs by {error}")
            worst = max(worst, error)
    print(f"{path.name}: {len(now)} arrays agree, to {worst:.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["write", "check"])
    parser.add_argument("folder", nargs="?", type=pathlib.Path,
                        default=pathlib.Path(__file__).parent.parent / "golden")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name, arrays in all_files().items():
        path, now = args.folder / f"{name}.npz", numpy_of(arrays)
        if args.mode == "check":
            check(path, now)
        else:
            buffer = io.BytesIO()
            np.savez_compressed(buffer, **now)
            path.write_bytes(buffer.getvalue())
            print(f"{path.name}: {len(now)} arrays, {path.stat().st_size} bytes, torch {torch.__version__}")


if __name__ == "__main__":
    main()
