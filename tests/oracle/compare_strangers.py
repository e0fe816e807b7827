"""Gives the ops of tests/verifiers (strangers_a, _b and _c) to PyTorch's and JAX's verifiers and to ours, as a table.

    compare_strangers.py --build build/release [--groups a b c] [--seed 1] [--json]     (pip install numpy torch jax)

Every wrong op and its right twin: `torch.autograd.gradcheck` with its defaults on f64 inputs, and
`jax.test_util.check_grads` (order 1, reverse mode, f64), beside what the program `strangers` says of verify<Op>() and
gradcheck(f). What a side cannot express is left out of its count; what is absent is skipped. Exit 1 where `strangers`
fails or one of ours calls a right twin wrong.
"""

import argparse
import importlib
import json
import pathlib
import subprocess
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "verifiers"))


def outcome(check):
    """'passes' or 'rejected'."""
    try:
        check()
    except Exception:  # a verifier's own error, or one of the function's: either way it does not pass
        return "rejected"
    return "passes"


def torch_outcomes(module, seed):
    import torch

    out = {}
    for name, case in module.CASES.items():
        for wrong in (True, False):
            tensors = [
                torch.tensor(x, requires_grad=bool(grad)) for x, grad in case.inputs(np.random.default_rng(seed))
            ]
            out[name, wrong] = outcome(lambda: torch.autograd.gradcheck(case.make(wrong), tensors))
    return out


def jax_outcomes(module, seed):
    import jax

    jax.config.update("jax_enable_x64", True)
    from jax.test_util import check_grads

    out = {}
    for name, case in module.CASES.items():
        for wrong in (True, False):
            given = case.inputs(np.random.default_rng(seed))
            arrays = [jax.numpy.asarray(x) for x, _ in given]
            at = [i for i, (_, grad) in enumerate(given) if grad]

            def function(*moved):
                full = list(arrays)
                for i, x in zip(at, moved):
                    full[i] = x
                return case.make(wrong)(*full)

            out[name, wrong] = outcome(
                lambda: check_grads(function, [arrays[i] for i in at], order=1, modes=["rev"])
            )
    return out


def ours(build, group, seed):
    run = subprocess.run(
        [build / "tests" / "strangers", group, "--seed", str(seed), "--json"], stdout=subprocess.PIPE, text=True
    )
    rows = [json.loads(line) for line in run.stdout.splitlines()]
    if run.returncode not in (0, 1) or not rows:
        sys.exit(f"strangers {group}: exit {run.returncode} after {len(rows)} ops")
    return rows


def loaded(name):
    try:
        return importlib.import_module(name)
    except ImportError as e:
        print(f"{name}: skipped ({e})", file=sys.stderr)
        return None


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=pathlib.Path, required=True)
    p.add_argument("--groups", nargs="+", default=["a", "b", "c"])
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json", action="store_true")
    a = p.parse_args()
    rejected_right = 0
    for group in a.groups:
        rows = ours(a.build, group, a.seed)
        rejected_right += sum("wrong" in (r["verify_right"], r["gradcheck_right"]) for r in rows)
        sides = {}
        for side, run in (("torch", torch_outcomes), ("jax", jax_outcomes)):
            if module := loaded(f"strangers_{group}_{side}"):
                sides[side] = run(module, a.seed)
        for row in rows:
            for side, result in sides.items():
                row[side] = result.get((row["name"], True), "-")
                row[f"{side}_right"] = result.get((row["name"], False), "-")
        if a.json:
            for row in rows:
                print(json.dumps(row))
            continue
        print(f"group {group}")
        for row in rows:
            print(f"  {row['name']:34} {row['kind']:10} verify {row['verify']:12} gradcheck {row['gradcheck']:24}"
                  + "".join(f" {side} {row[side]:9}" for side in sides))
        counts = {
            "verify": (sum(r["verify"] == "wrong" for r in rows), sum(r["verify_right"] == "wrong" for r in rows)),
            "gradcheck(f)": (sum(r["gradcheck"] == "wrong" for r in rows),
                             sum(r["gradcheck_right"] == "wrong" for r in rows)),
        }
        for name, (caught, rejected) in counts.items():
            print(f"  {name:14} {caught} of {len(rows)} caught, {rejected} right rejected")
        for side, result in sides.items():
            names = [r for r in rows if r[side] != "-"]
            print(f"  {side:14} {sum(r[side] == 'rejected' for r in names)} of {len(names)} caught, "
                  f"{sum(r[f'{side}_right'] == 'rejected' for r in names)} right rejected")
    return rejected_right > 0


if __name__ == "__main__":
    sys.exit(main())
