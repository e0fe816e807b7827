#!/usr/bin/env python3
"""One training step here and in other frameworks, in turns: the same model, weights, tokens and optimizer.

    python tests/bench/peers.py --boostgrad build/release/boostgrad [--python PATH]... [--shape paper|char] [--json]

Every peer is a process of its own with its own threads and memory. `boostgrad bench step --serve` and the peer take
steps in turns, A B A B; printed are medians, their ratio and the largest resident size of each process. Before any
time counts, the peer has to reproduce our losses: it starts from our weights and tokens, and without dropout its first
steps - forward, backward, clipping at norm 1, AdamW - must lead to the same losses to 1e-3.

The interpreter that runs this script is the first to be asked for PyTorch (eager and torch.compile) and JAX (jit);
each --python PATH is asked for its PyTorch too, with one thread and with all. What one lacks is skipped. PyTorch runs
with the C library's malloc as it is and tuned to keep freed memory, and with `--preload LIBRARY` under another malloc.

The model: token + learned position embeddings, pre-norm blocks, exact GELU, tied output, mean cross-entropy over all
tokens, dropout of embeddings, attention weights, after GELU and after the second linear layer. The peers' boosted
attention is written from its equations; what can share a matrix product does, as here.
"""
import argparse
import json
import math
import os
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time

SHAPES = {
    "paper": dict(d=256, layers=4, heads=4, seq_len=256, batch=32, vocab=16384, steps=1),
    "char": dict(d=128, layers=4, heads=4, seq_len=64, batch=12, vocab=65, steps=20),
}
LR, BETA1, BETA2, EPS, DECAY, CLIP = 1e-4, 0.9, 0.999, 1e-8, 0.01, 1.0
CHECKED_STEPS = 3  # whose losses are compared, which also warm up
# Keep what was freed instead of giving it back and faulting it in again: one arena that only grows. (glibc ignores a
# threshold for mmap above 32 MB, and the logits alone are larger.)
TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
         "MALLOC_TOP_PAD_": str(64 << 20)}


# -- Weights and tokens of ours --------------------------------------------------------------------------------------

def read_snapshot(path):
    """name -> (dtype, shape, bytes) of a safetensors file, with nothing but the standard library."""
    with open(path, "rb") as f:
        data = f.read()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    out = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        out[name] = (entry["dtype"], entry["shape"], bytearray(data[8 + size + begin:8 + size + end]))
    return out


def later_rounds(spec):
    return spec["rounds"] - 1 if spec["model"] == "boosted" else 0


# -- PyTorch ---------------------------------------------------------------------------------------------------------

def torch_step(spec):
    """Returns a function that does one step and gives the loss, the number of parameters, and a name."""
    import torch
    import torch.nn.functional as F
    if spec["peer"] == "torch.compile" and not hasattr(torch, "compile"):
        raise ImportError("no torch.compile in PyTorch " + torch.__version__)
    torch.set_num_threads(spec["threads"])
    d, heads, p = spec["d"], spec["heads"], spec["dropout"]
    raw = read_snapshot(spec["snapshot"])

    def tensor(name):
        dtype, shape, data = raw[name]
        return torch.frombuffer(data, dtype={"F32": torch.float32, "I64": torch.int64}[dtype]).reshape(shape)

    class Linear(torch.nn.Linear):
        """Weights of ours, (in, out) each, side by side."""

        def __init__(self, pairs):
            w = torch.cat([tensor(w) for w, _ in pairs], dim=1)
            super().__init__(w.shape[0], w.shape[1])
            with torch.no_grad():
                self.weight.copy_(w.t())
                self.bias.copy_(torch.cat([tensor(b) for _, b in pairs]))

    def norm(path):
        n = torch.nn.LayerNorm(d)
        with torch.no_grad():
            n.weight.copy_(tensor(path + ".gamma"))
            n.bias.copy_(tensor(path + ".beta"))
        return n

    fused_attention = hasattr(F, "scaled_dot_product_attention")
    future = torch.ones(spec["seq_len"], spec["seq_len"], dtype=torch.bool).triu(1)

    def attend(q, k, v):
        q, k, v = (t.view(t.shape[0], t.shape[1], heads, d // heads).transpose(1, 2) for t in (q, k, v))
        if fused_attention:
            o = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        else:
            a = (q @ k.transpose(-2, -1) / math.sqrt(d // heads)).masked_fill(future, -math.inf)
            o = F.dropout(F.softmax(a, dim=-1), p) @ v
        return o.transpose(1, 2).reshape(o.shape[0], o.shape[2], d)

    class Attention(torch.nn.Module):
        def __init__(self, path):
            super().__init__()
            rounds = 1 + later_rounds(spec)

            def pair(m, which):
                return (f"{path}.rounds.{m}.w_{which}", f"{path}.rounds.{m}.b_{which}")

            self.source = Linear([pair(0, "q")] + [pair(m, which) for m in range(rounds) for which in "kv"])
            self.queries = torch.nn.ModuleList([Linear([pair(m, "q")]) for m in range(1, rounds)])
            self.gates = torch.nn.ModuleList([Linear([pair(m, "g")]) for m in range(1, rounds)])
            self.out = Linear([(path + ".w_out", path + ".b_out")])

        def forward(self, x):
            q, *kv = self.source(x).split(d, dim=-1)
            f = attend(q, kv[0], kv[1])
            for m, (query, gate) in enumerate(zip(self.queries, self.gates), 1):
                c = attend(query(x - f), kv[2 * m], kv[2 * m + 1])
                f = f + torch.sigmoid(gate(torch.cat([f, c], dim=-1))) * c
            return self.out(f)

    class Block(torch.nn.Module):
        def __init__(self, path):
            super().__init__()
            self.norm1, self.norm2 = norm(path + ".norm1"), norm(path + ".norm2")
            self.attn = Attention(path + ".attn")
            self.up = Linear([(path + ".mlp.up.w", path + ".mlp.up.b")])
            self.down = Linear([(path + ".mlp.down.w", path + ".mlp.down.b")])

        def forward(self, x):
            x = x + self.attn(self.norm1(x))
            h = F.dropout(F.gelu(self.up(self.norm2(x))), p)
            return x + F.dropout(self.down(h), p)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = torch.nn.Parameter(tensor("tokens.w").clone())
            self.positions = torch.nn.Parameter(tensor("positions.w").clone())
            self.blocks = torch.nn.ModuleList([Block(f"blocks.{i}") for i in range(spec["layers"])])
            self.norm = norm("norm")

        def forward(self, ids, targets):
            x = F.dropout(F.embedding(ids, self.tokens) + self.positions[:ids.shape[1]], p)
            for block in self.blocks:
                x = block(x)
            logits = F.linear(self.norm(x), self.tokens)
            return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))

    model = Model()
    parameters = list(model.parameters())
    count = sum(t.numel() for t in parameters)
    settings = dict(lr=LR, betas=(BETA1, BETA2), eps=EPS, weight_decay=DECAY)
    try:
        optimizer = torch.optim.AdamW(parameters, fused=True, **settings)
    except (RuntimeError, TypeError):  # older: not on a CPU
        optimizer = torch.optim.AdamW(parameters, foreach=True, **settings)
    ids, targets = tensor("inputs").clone(), tensor("targets").clone()
    compute = torch.compile(model) if spec["peer"] == "torch.compile" else model

    def step():
        loss = compute(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step, count, "PyTorch " + torch.__version__.split("+")[0]


# -- JAX -------------------------------------------------------------------------------------------------------------

def jax_step(spec):
    import jax
    import jax.numpy as jnp
    import numpy as np
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_default_prng_impl", "unsafe_rbg")  # its fastest
    d, heads, p = spec["d"], spec["heads"], spec["dropout"]
    raw = read_snapshot(spec["snapshot"])
    arrays = {name: np.frombuffer(data, dtype={"F32": np.float32, "I64": np.int64}[dtype]).reshape(shape)
              for name, (dtype, shape, data) in raw.items()}
    ids, targets = (jnp.asarray(arrays.pop(n).astype(np.int32)) for n in ("inputs", "targets"))
    rounds = 1 + later_rounds(spec)
    weights = {}
    for name, a in arrays.items():
        if ".rounds." not in name or name.rsplit(".", 1)[1] in ("w_g", "b_g"):
            weights[name] = a
    for i in range(spec["layers"]):  # what is projected from one source is one product
        at = f"blocks.{i}.attn.rounds."
        for kind, axis in (("w", 1), ("b", 0)):
            pieces = [arrays[f"{at}0.{kind}_q"]]
            pieces += [arrays[f"{at}{m}.{kind}_{which}"] for m in range(rounds) for which in "kv"]
            weights[f"{at}source.{kind}"] = np.concatenate(pieces, axis=axis)
            for m in range(1, rounds):
                weights[f"{at}{m}.{kind}_q"] = arrays[f"{at}{m}.{kind}_q"]
    weights = {name: jnp.asarray(a) for name, a in weights.items()}
    count = sum(a.size for a in weights.values())
    seen = jnp.tril(jnp.ones((spec["seq_len"], spec["seq_len"]), dtype=bool))

    def dropout(key, x):
        return x if p == 0 else jnp.where(jax.random.bernoulli(key, 1 - p, x.shape), x / (1 - p), 0)

    def attend(key, q, k, v):
        q, k, v = (t.reshape(t.shape[0], t.shape[1], heads, d // heads) for t in (q, k, v))
        if p == 0:
            return jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(*q.shape[:2], d)
        s = jnp.einsum("bthc,bshc->bhts", q, k) / math.sqrt(d // heads)
        a = dropout(key, jax.nn.softmax(jnp.where(seen, s, -jnp.inf), axis=-1))
        return jnp.einsum("bhts,bshc->bthc", a, v).reshape(*q.shape[:2], d)

    def norm(w, path, x):
        mean = x.mean(-1, keepdims=True)
        var = jnp.square(x - mean).mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(var + 1e-5) * w[path + ".gamma"] + w[path + ".beta"]

    def attention(w, path, x, keys):
        at = path + ".rounds."
        parts = jnp.split(x @ w[at + "source.w"] + w[at + "source.b"], 1 + 2 * rounds, axis=-1)
        f = attend(keys[0], parts[0], parts[1], parts[2])
        for m in range(1, rounds):
            q = (x - f) @ w[f"{at}{m}.w_q"] + w[f"{at}{m}.b_q"]
            c = attend(keys[m], q, parts[1 + 2 * m], parts[2 + 2 * m])
            g = jax.nn.sigmoid(jnp.concatenate([f, c], axis=-1) @ w[f"{at}{m}.w_g"] + w[f"{at}{m}.b_g"])
            f = f + g * c
        return f @ w[path + ".w_out"] + w[path + ".b_out"]

    def loss_of(w, key):
        keys = iter(jax.random.split(key, 1 + spec["layers"] * (rounds + 2)))
        x = dropout(next(keys), w["tokens.w"][ids] + w["positions.w"][:ids.shape[1]])
        for i in range(spec["layers"]):
            at = f"blocks.{i}"
            x = x + attention(w, at + ".attn", norm(w, at + ".norm1", x), [next(keys) for _ in range(rounds)])
            h = jax.nn.gelu(norm(w, at + ".norm2", x) @ w[at + ".mlp.up.w"] + w[at + ".mlp.up.b"], approximate=False)
            h = dropout(next(keys), h) @ w[at + ".mlp.down.w"] + w[at + ".mlp.down.b"]
            x = x + dropout(next(keys), h)
        logits = norm(w, "norm", x) @ w["tokens.w"].T
        chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        return (jax.nn.logsumexp(logits, axis=-1) - chosen).mean()

    def update(w, m, v, t, key):
        key, now = jax.random.split(key)
        loss, g = jax.value_and_grad(loss_of)(w, now)
        total = jnp.sqrt(sum(jnp.sum(jnp.square(x)) for x in jax.tree_util.tree_leaves(g)))
        scale = jnp.minimum(1.0, CLIP / total)
        t = t + 1

        def one(w, g, m, v):
            g = g * scale
            m = BETA1 * m + (1 - BETA1) * g
            v = BETA2 * v + (1 - BETA2) * g * g
            w = w * (1 - LR * DECAY)
            return w - LR / (1 - BETA1**t) * m / (jnp.sqrt(v / (1 - BETA2**t)) + EPS), m, v

        all_three = {name: one(w[name], g[name], m[name], v[name]) for name in w}
        return loss, *({name: x[i] for name, x in all_three.items()} for i in range(3)), t, key

    jitted = jax.jit(update, donate_argnums=(0, 1, 2))
    zeros = {name: jnp.zeros_like(a) for name, a in weights.items()}
    state = [weights, zeros, {name: jnp.zeros_like(a) for name, a in weights.items()}, jnp.float32(0),
             jax.random.key(1)]

    def step():
        loss, *state[:] = jitted(*state)
        jax.block_until_ready(state)
        return float(loss)

    return step, count, "JAX " + jax.__version__


# -- A peer's process ------------------------------------------------------------------------------------------------

def child(spec):
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cpus[:spec["threads"]])  # what the peer's own pools go by
    try:
        step, count, name = (jax_step if spec["peer"] == "jax" else torch_step)(spec)
    except ImportError as e:
        print(json.dumps({"missing": str(e)}), flush=True)
        return
    print(json.dumps({"name": name, "parameters": count}), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        loss = step()
        took = time.perf_counter() - start
        rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"step_s": took, "loss": loss, "peak_rss_bytes": rss}), flush=True)


# -- In turns --------------------------------------------------------------------------------------------------------

class Failed(Exception):
    pass


class Process:
    def __init__(self, command, extra_environment=None):
        self.errors = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
                                        text=True, env={**os.environ, **(extra_environment or {})})
        self.about = self.read()

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            lines = [text.strip() for text in self.errors.read().splitlines() if text.strip()]
            raise Failed(lines[-1] if lines else f"exit code {self.process.returncode}")
        return json.loads(line)

    def steps(self, n):
        self.process.stdin.write("\n" * n)
        self.process.stdin.flush()
        return [self.read() for _ in range(n)]

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.errors.close()


def compare(options, spec, ours_command, peer_command, environment):
    """Medians of both sides, taken in turns."""
    ours = peer = None
    try:
        ours = Process(ours_command)  # writes the snapshot
        peer = Process(peer_command, environment)
        if "missing" in peer.about:
            return {"skipped": peer.about["missing"]}
        if ours.about["parameters"] != peer.about["parameters"]:
            raise Failed(f"{peer.about['parameters']} parameters instead of our {ours.about['parameters']}")
        first = [ours.steps(CHECKED_STEPS), peer.steps(CHECKED_STEPS)]
        difference = max(abs(a["loss"] - b["loss"]) for a, b in zip(*first))
        # with dropout the masks differ: the first loss is near log(vocab) on both sides, and that is all
        if difference > (1e-3 if spec["dropout"] == 0 else 0.1):
            losses = [[round(step["loss"], 5) for step in side] for side in first]
            raise Failed(f"losses {losses[1]} instead of our {losses[0]}")
        times, last = ([], []), None
        for _ in range(options.rounds):
            last = [side.steps(spec["steps"]) for side in (ours, peer)]
            for side, replies in zip(times, last):
                side += [reply["step_s"] for reply in replies]
        a, b = (statistics.median(side) for side in times)
        memory_a, memory_b = (replies[-1]["peak_rss_bytes"] for replies in last)
        return {"name": peer.about["name"], "parameters": peer.about["parameters"], "step_s": b, "ours_step_s": a,
                "ratio": b / a, "peak_rss_bytes": memory_b, "ours_peak_rss_bytes": memory_a,
                "memory_ratio": memory_b / memory_a, "loss_difference": difference}
    except Failed as e:
        return {"failed": str(e)}
    finally:
        for process in (ours, peer):
            if process:
                process.close()


def variants(options):
    """(interpreter, peer, threads, malloc) of everything to compare with."""
    cpus = len(os.sched_getaffinity(0))
    threads = options.threads or cpus
    mallocs = ["default", "tuned"] + (["preload"] if options.preload else [])
    for peer in ("torch", "torch.compile"):
        for malloc in mallocs:
            yield sys.executable, peer, threads, malloc
    yield sys.executable, "jax", threads, "default"
    for python in options.python:
        for n in sorted({1, threads}):
            for malloc in mallocs:
                yield python, "torch", n, malloc


def environment_of(options, threads, malloc):
    e = {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    if malloc == "tuned":
        e.update(TUNED)
    if malloc == "preload":
        e["LD_PRELOAD"] = options.preload
    return e


def report(options, row, out):
    if options.json:
        print(json.dumps(row), file=out, flush=True)
        return
    label = f"{row['model']:9} {row['dropout']:<4} {row['peer']:14} {row['threads']} {row['malloc']:8}"
    if "ratio" not in row:
        print(f"{label} {'skipped' if 'skipped' in row else 'FAILED'}: {row.get('skipped', row.get('failed'))}", file=out,
              flush=True)
        return
    print(f"{label} {row['name']:16} {1e3 * row['step_s']:9.1f} ms {1e3 * row['ours_step_s']:9.1f} ms "
          f"{row['ratio']:6.2f} x {row['peak_rss_bytes'] / 1e6:7.0f} MB {row['ours_peak_rss_bytes'] / 1e6:7.0f} MB "
          f"{row['memory_ratio']:6.2f} x", file=out, flush=True)


def best_rows(rows):
    """The fastest variant of every framework and version, per model and dropout."""
    best = {}
    for row in rows:
        if "ratio" in row:
            key = (row["model"], row["dropout"], row["name"])
            if key not in best or row["ratio"] < best[key]["ratio"]:
                best[key] = row
    return list(best.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boostgrad", default="build/release/boostgrad", help="the program")
    parser.add_argument("--python", action="append", default=[], help="another interpreter, asked for its PyTorch")
    parser.add_argument("--preload", help="another malloc's library, such as libmimalloc.so")
    parser.add_argument("--shape", choices=SHAPES, default="paper")
    parser.add_argument("--model", action="append", choices=["standard", "boosted"], help="default: both")
    parser.add_argument("--dropout", action="append", type=float, help="default: 0.1 and 0")
    parser.add_argument("--peer", action="append", choices=["torch", "torch.compile", "jax"], help="default: all")
    parser.add_argument("--malloc", action="append", choices=["default", "tuned", "preload"], help="default: all")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side (default 5)")
    parser.add_argument("--threads", type=int, help="default: all")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(json.loads(options.child))
    if options.rounds < 1 or not os.access(options.boostgrad, os.X_OK):
        parser.error("--rounds must be 1 or more, and --boostgrad the program")
    if not options.json:
        print(f"{'model':9} {'drop':4} {'peer':14} {'threads, malloc':10} {'version':16} {'its step':>12} {'ours':>12} "
              f"{'ratio':>8} {'memory':>10} {'ours':>10} {'ratio':>8}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model in options.model or ["standard", "boosted"]:
            for dropout in options.dropout or [0.1, 0.0]:
                for python, peer, threads, malloc in variants(options):
                    if (options.peer and peer not in options.peer) or (options.malloc and malloc not in options.malloc):
                        continue
                    spec = dict(SHAPES[options.shape], model=model, rounds=2, dropout=dropout, threads=threads,
                                peer=peer, snapshot=os.path.join(folder, "first.safetensors"))
                    ours = [options.boostgrad, "bench", "step", "--serve", "--snapshot", spec["snapshot"], "--model",
                            model, "--rounds", "2", "--dropout", str(dropout)]
                    for flag, key in (("--d-model", "d"), ("--layers", "layers"), ("--heads", "heads"),
                                      ("--seq-len", "seq_len"), ("--batch-size", "batch"), ("--vocab", "vocab")):
                        ours += [flag, str(spec[key])]
                    if options.threads:
                        ours += ["--threads", str(options.threads)]
                    print(f"{model}, dropout {dropout}: {peer} of {python}, {threads} threads, {malloc} malloc",
                          file=sys.stderr, flush=True)
                    row = {"bench": "peers", "shape": options.shape, "model": model, "dropout": dropout, "peer": peer,
                           "python": python, "threads": threads, "malloc": malloc}
                    row.update(compare(options, spec, ours, [python, os.path.abspath(__file__), "--child",
                                                             json.dumps(spec)],
                                       environment_of(options, threads, malloc)))
                    report(options, row, sys.stdout)
                    rows.append(row)
    if not options.json and best_rows(rows):
        print("\nThe best of each:")
    for row in best_rows(rows):
        report(options, dict(row, best=True), sys.stdout)
    return 1 if any("failed" in row and row["peer"] != "torch.compile" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
