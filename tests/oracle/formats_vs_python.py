"""Compares Boostgrad's tensor files with the libraries that define them (pip install numpy safetensors).

    formats_vs_python.py --tool build/release/tests/convert_tool

Writes files with NumPy and with safetensors, has Boostgrad read them and write them again in each format, and compares
what the libraries then read: every shape, dtype and bit. Also holds that files which only one side supports are refused
with a reason. Prints one line a check and exits with 1 on the first difference.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import warnings

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file


def convert(tool, source, target):
    return subprocess.run([tool, str(source), str(target)], capture_output=True, text=True)


def must_convert(tool, source, target):
    done = convert(tool, source, target)
    if done.returncode != 0:
        sys.exit(f"{source.name} to {target.name}: {done.stderr}")


def compare(what, expected, got):
    if sorted(expected) != sorted(got):
        sys.exit(f"{what}: names differ: {sorted(expected)} and {sorted(got)}")
    for name, a in expected.items():
        b = got[name]
        if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
            sys.exit(f"{what}: '{name}' differs: {a.dtype} {a.shape} and {b.dtype} {b.shape}")
    print(f"{what}: {len(expected)} arrays equal, bit for bit")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True, help="the convert_tool program")
    tool = parser.parse_args().tool
    rng = np.random.default_rng(1)
    arrays = {
        "weight": rng.standard_normal((37, 5)).astype(np.float32),
        "double": rng.standard_normal((2, 3, 4)),
        "ids": rng.integers(-(2**62), 2**62, (7,)),
        "small": rng.integers(-(2**31), 2**31, (3, 1)).astype(np.int32),
        "special": np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324]),
        "scalar": np.array(2.5, dtype=np.float32),
        "empty": np.zeros((0, 3), dtype=np.float32),
        "blocks.0.\u00e9": np.arange(3, dtype=np.float32),
    }
    metadata = {"step": "12", "text": 'line\n"quoted" \u00e9'}

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        save_file(arrays, folder / "in.safetensors", metadata=metadata)
        np.savez(folder / "in.npz", **arrays)
        np.savez_compressed(folder / "packed.npz", **arrays)
        for source in ("in.safetensors", "in.npz", "packed.npz"):
            for target in ("out.safetensors", "out.npz"):
                must_convert(tool, folder / source, folder / target)
                read = load_file(folder / target) if target.endswith("safetensors") else dict(np.load(folder / target))
                compare(f"{source} to {target}", arrays, read)

        must_convert(tool, folder / "in.safetensors", folder / "again.safetensors")
        with safe_open(folder / "again.safetensors", "np") as f:
            got = f.metadata()
        if {k: v for k, v in got.items() if k != "boostgrad.crc32"} != metadata:
            sys.exit(f"metadata differ: {got} and {metadata}")
        save_file(load_file(folder / "again.safetensors"), folder / "resaved.safetensors", metadata=got)
        must_convert(tool, folder / "resaved.safetensors", folder / "out.safetensors")
        print("metadata equal; the checksum stays valid when another program rewrites the file")

        for name, array in {
            "Fortran order": np.asfortranarray(arrays["weight"]),
            "three dimensions, Fortran order": np.asfortranarray(arrays["double"]),
            "C order": arrays["double"],
            "scalar": arrays["scalar"],
        }.items():
            np.save(folder / "in.npy", array)
            must_convert(tool, folder / "in.npy", folder / "out.npy")
            compare(f".npy, {name}", {"array": array}, {"array": np.load(folder / "out.npy")})
        for version in ((1, 0), (2, 0), (3, 0)):
            with open(folder / "in.npy", "wb") as f:
                np.lib.format.write_array(f, arrays["weight"], version=version)
            must_convert(tool, folder / "in.npy", folder / "out.npy")
            compare(f".npy, version {version}", {"array": arrays["weight"]}, {"array": np.load(folder / "out.npy")})

        # What is no dtype of ours becomes one that holds it exactly.
        holds = {"f2": np.float32, "?": np.int32, "i1": np.int32, "u1": np.int32, "i2": np.int32, "u2": np.int32,
                 "u4": np.int64, "u8": np.int64, "f4": np.float32, "f8": np.float64, "i4": np.int32, "i8": np.int64}
        exact = {}
        for kind, held in holds.items():
            dtype = np.dtype(kind)
            if dtype.kind == "f":  # every float of two bytes; NaNs stay NaNs
                values = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(dtype)
                values = values[~np.isnan(values)].reshape(2, -1)
            elif dtype.kind == "b":
                values = np.array([[True, False, True]])
            else:
                ends = np.iinfo(dtype)
                values = np.array([[ends.min, 0, 1, min(ends.max, 2**63 - 1)]]).astype(dtype)
            exact[kind] = (values, values.astype(held))
            for order in "<>":
                for layout in (np.ascontiguousarray, np.asfortranarray):
                    np.save(folder / "in.npy", layout(values.astype(dtype.newbyteorder(order))))
                    must_convert(tool, folder / "in.npy", folder / "out.npy")
                    compare(f".npy, {order}{kind}", {"array": values.astype(held)}, {"array": np.load(folder / "out.npy")})
        save_file({k: np.ascontiguousarray(v) for k, (v, _) in exact.items()}, folder / "in.safetensors")
        must_convert(tool, folder / "in.safetensors", folder / "out.safetensors")
        compare("other types to out.safetensors", {k: v for k, (_, v) in exact.items()}, load_file(folder / "out.safetensors"))

        # Python 2 wrote long integers with an L; NumPy still reads them.
        np.save(folder / "in.npy", np.arange(12, dtype=np.float32).reshape(3, 4))
        content = (folder / "in.npy").read_bytes().replace(b"(3, 4), }  ", b"(3L, 4L), }")
        (folder / "in.npy").write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = np.load(folder / "in.npy")
        must_convert(tool, folder / "in.npy", folder / "out.npy")
        compare(".npy, shape (3L, 4L)", {"array": expected}, {"array": np.load(folder / "out.npy")})

        refused = {
            "complex": np.array([1j]),
            "unsigned beyond 2^63 - 1": np.array([2**64 - 1], dtype=np.uint64),
            "text": np.array(["a"]),
            "date": np.array(["2020-01-01"], dtype="M8[D]"),
            "structured": np.zeros(2, dtype=[("a", "<f4")]),
            "object": np.array([None]),
        }
        for name, array in refused.items():
            np.save(folder / "in.npy", array, allow_pickle=True)
            done = convert(tool, folder / "in.npy", folder / "never.npy")
            if done.returncode != 1 or "[npy]" not in done.stderr or (folder / "never.npy").exists():
                sys.exit(f".npy, {name}: not refused: {done.returncode} {done.stderr}")
        save_file({"c": np.array([1j], dtype=np.complex64)}, folder / "complex.safetensors")
        done = convert(tool, folder / "complex.safetensors", folder / "never.npz")
        if done.returncode != 1 or "'c' has a dtype" not in done.stderr:
            sys.exit(f".safetensors, complex: not refused: {done.returncode} {done.stderr}")
        print(f"{len(refused) + 1} unsupported files refused with a reason")


if __name__ == "__main__":
    main()
