"""Gives the same planted faults to Boostgrad's verifier and to others, and prints who catches what, and how fast.

    compare_verifiers.py --build build [--seeds 3] [--json]     (pip install numpy torch jax; what is absent is skipped)

The faults are described once, in verifiers/faults.json, and implemented by each side on its own: planted.cpp,
torch_side.py, jax_side.py. Every verifier also gets each op without the fault; to reject that one is a false alarm.
Verifiers, each as it comes:

    verify       bg::verify<Op>(): an op with its reference and one sample, inputs of the specified shapes
    gradcheck    bg::gradcheck(f): a function, no reference
    torch        torch.autograd.gradcheck on f64 inputs, defaults
    torch fast   the same with fast_mode=True
    jax f32      jax.test_util.check_grads, order=1, modes=["rev"] (there is no default order, and functions with a
                 custom_vjp refuse the default's forward mode) in JAX's default precision
    jax f64      the same with 64-bit numbers switched on

Exit 1 if one of ours misses a fault or raises a false alarm.
"""

import argparse
import functools
import json
import pathlib
import platform
import subprocess
import sys
import time

try:
    import numpy as np
except ImportError:
    np = None

HERE = pathlib.Path(__file__).parent / "verifiers"
SPECIFICATION = HERE / "faults.json"
sys.path.insert(0, str(HERE))


def inputs_of(specification, fault):
    given = fault["inputs"]
    return specification[given]["inputs"] if isinstance(given, str) else given


def draw(specification, fault, seed):
    rng = np.random.default_rng(seed)
    return [
        np.array(i["values"]) if "values" in i else i.get("stddev", 1) * rng.standard_normal(i["shape"])
        for i in inputs_of(specification, fault)
    ]


def timed(ask):
    start = time.perf_counter()
    rejected = ask()
    return {"rejected": rejected, "seconds": time.perf_counter() - start}


def run_ours(tool, seeds):
    """verifier -> fault -> [(wrong, right) of every seed]"""
    columns = {"verify": {}, "gradcheck": {}}
    for seed in seeds:
        done = subprocess.run([tool, SPECIFICATION, "--seed", str(seed), "--json"], capture_output=True, text=True)
        if not done.stdout or done.stderr:
            sys.exit(f"{tool}: {done.stderr}")
        for line in done.stdout.splitlines():
            row = json.loads(line)
            for name, results in columns.items():
                results.setdefault(row["fault"], []).append((row[name], row["right_" + name]))
    return columns


def run_peer(rejects, specification, seeds):
    """fault -> [(wrong, right) of every seed]; rejects(fault, wrong, arrays, seed)"""
    results = {}
    for fault in specification["faults"]:
        for seed in seeds:
            arrays = draw(specification, fault, seed)
            pair = tuple(timed(lambda w=w: rejects(fault["id"], w, arrays, seed)) for w in (True, False))
            results.setdefault(fault["id"], []).append(pair)
    return results


def peers():
    """name -> rejects or None where its package is absent; and the versions."""
    columns, versions = {}, {}
    names = {"torch": ["torch", "torch fast"], "jax": ["jax f32", "jax f64"]}
    try:
        import torch
        import torch_side

        torch.set_num_threads(1)  # the tensors are tiny, and idle threads that spin would only slow it down
        versions["torch"] = torch.__version__
        columns["torch"] = torch_side.rejects
        columns["torch fast"] = functools.partial(torch_side.rejects, fast_mode=True)
    except ImportError as e:
        print(f"torch is skipped: {e}", file=sys.stderr)
    try:
        import jax
        import jax_side

        versions["jax"] = jax.__version__
        columns["jax f32"] = lambda fault, wrong, arrays, seed: jax_side.rejects(fault, wrong, arrays, x64=False)
        columns["jax f64"] = lambda fault, wrong, arrays, seed: jax_side.rejects(fault, wrong, arrays, x64=True)
    except ImportError as e:
        print(f"jax is skipped: {e}", file=sys.stderr)
    return {name: columns.get(name) for pair in names.values() for name in pair}, versions


def check_same_faults(specification):
    """Both peers' sides must have planted the same fault: the same wrong gradients for one cotangent."""
    import jax_side
    import torch_side

    for fault in specification["faults"]:
        arrays = draw(specification, fault, 1)
        for wrong in (False, True):
            a, b = torch_side.gradients(fault["id"], wrong, arrays), jax_side.gradients(fault["id"], wrong, arrays)
            if b is not None and not all(np.allclose(x, y, rtol=1e-10, atol=1e-12) for x, y in zip(a, b, strict=True)):
                sys.exit(f"{fault['id']}: torch_side and jax_side disagree about the {'wrong' if wrong else 'right'} rule")


def fastest(runs):
    """Seconds to reject, or not, the wrong op; of all seeds the fastest: machines are noisy, and JAX compiles once."""
    return min(w["seconds"] for w, _ in runs)


def summary(results):
    """What became of one verifier's faults and right ops."""
    if results is None:
        return None
    caught = {f: [w["rejected"] for w, _ in runs] for f, runs in results.items()}
    return {
        "caught": [f for f, c in caught.items() if all(c)],
        "sometimes": [f for f, c in caught.items() if any(c) and not all(c)],
        "missed": [f for f, c in caught.items() if c[0] is not None and not any(c)],
        "not_possible": [f for f, c in caught.items() if c[0] is None],
        "false_alarms": [f for f, runs in results.items() if any(right["rejected"] for _, right in runs)],
        "seconds": sum(fastest(runs) for runs in results.values()),
    }


def cell(runs):
    if runs is None:
        return "absent"
    caught = [w["rejected"] for w, _ in runs]
    if caught[0] is None:
        return "n/a"
    word = "caught" if all(caught) else "MISSED" if not any(caught) else f"{sum(caught)} of {len(caught)}"
    alarm = "!" if any(right["rejected"] for _, right in runs) else ""
    return f"{word}{alarm} {1000 * fastest(runs):.1f} ms"


def print_table(specification, columns, summaries, seeds):
    def line(first, cells, last=""):
        print(f"{first:32}" + "".join(f"{c:>18}" for c in cells) + "  " + last)

    line("fault", columns, "rejected by verify's steps")
    group = None
    for fault in specification["faults"]:
        if fault["group"] != group:
            group = fault["group"]
            print(f"-- {group}")
        steps = columns["verify"][fault["id"]][0][0]["by"]
        line(fault["id"], [cell(r and r[fault["id"]]) for r in columns.values()], " ".join(steps))
    print()

    def totals(label, of):
        line(label, ["absent" if s is None else of(s) for s in summaries.values()])

    faults = len(specification["faults"])
    totals("caught at every seed", lambda s: f"{len(s['caught'])} of {faults - len(s['not_possible'])}")
    totals("caught at some seeds", lambda s: str(len(s["sometimes"])))
    totals("false alarms on right ops", lambda s: f"{len(s['false_alarms'])} of {faults - len(s['not_possible'])}")
    totals("time for all", lambda s: f"{s['seconds']:.2f} s")
    print(f"\nSeeds {seeds}; times are the fastest of them. n/a: the fault cannot be written there. !: false alarm.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=pathlib.Path, help="Boostgrad's build folder")
    parser.add_argument("--seeds", type=int, default=3, help="how many draws of inputs and directions (3)")
    parser.add_argument("--json", action="store_true", help="one JSON object in place of the table")
    args = parser.parse_args()
    tool = args.build / "tests" / "planted_faults"
    if not tool.exists():
        parser.error(f"{tool} is not there: build the target planted_faults first")
    specification = json.loads(SPECIFICATION.read_text())
    seeds = list(range(1, args.seeds + 1))

    columns = run_ours(tool, seeds)
    versions = {"python": platform.python_version()}
    if np is None:
        print("torch and jax are skipped: their inputs are drawn with numpy, which is absent", file=sys.stderr)
        verifiers = dict.fromkeys(["torch", "torch fast", "jax f32", "jax f64"])
    else:
        verifiers, found = peers()
        versions |= {"numpy": np.__version__} | found
        if "torch" in found and "jax" in found:
            check_same_faults(specification)
    for name, rejects in verifiers.items():
        columns[name] = rejects and run_peer(rejects, specification, seeds)
    summaries = {name: summary(results) for name, results in columns.items()}

    if args.json:
        print(json.dumps({"versions": versions, "seeds": seeds, "summary": summaries, "results": columns}))
    else:
        print_table(specification, columns, summaries, seeds)
        print(", ".join(f"{k} {v}" for k, v in versions.items()))
    for ours in (summaries["verify"], summaries["gradcheck"]):
        if len(ours["caught"]) < len(specification["faults"]) or ours["false_alarms"]:
            sys.exit(1)


if __name__ == "__main__":
    main()
