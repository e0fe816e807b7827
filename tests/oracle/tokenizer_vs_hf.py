"""Compares Boostgrad's tokenizers with the Hugging Face `tokenizers` library (pip install tokenizers).

    tokenizer_vs_hf.py --tool build/release/tests/encode_tool ids   TOKENIZER.json TEXT...   the same file, the same ids
    tokenizer_vs_hf.py --tool build/release/tests/encode_tool train SIZE TEXT                the same merges from the same text
    tokenizer_vs_hf.py --tool build/release/tests/encode_tool stress TOKENIZER.json          ids of made-up difficult text
    tokenizer_vs_hf.py --tool build/release/tests/encode_tool edits  TOKENIZER.json          unused ids, added tokens, bad ids

Prints one line a text and exits with 1 on the first difference.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def our_ids(tool, spec, text_path, save_as=None):
    command = [tool, spec, str(text_path)] + ([str(save_as)] if save_as else [])
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"encode_tool failed on {text_path}: {done.stderr}")
    return [int(line) for line in done.stdout.split()]


def compare(tool, tokenizer_path, text_path, name=None):
    text = pathlib.Path(text_path).read_bytes().decode("utf-8")  # read_text would change \r\n
    reference = Tokenizer.from_file(str(tokenizer_path))
    expected = reference.encode(text, add_special_tokens=False).ids
    got = our_ids(tool, str(tokenizer_path), text_path)
    name = name or text_path
    for i, (a, b) in enumerate(zip(got, expected)):
        if a != b:
            around = reference.decode(expected[max(0, i - 5) : i + 5], skip_special_tokens=False)
            sys.exit(f"{name}: id {i} differs: got {a}, expected {b}, near {around!r}")
    if len(got) != len(expected):
        sys.exit(f"{name}: got {len(got)} ids, expected {len(expected)}")
    if reference.decode(expected, skip_special_tokens=False) != text:
        sys.exit(f"{name}: the other library does not decode its ids to the text")
    print(f"{name}: {len(text.encode())} bytes, all {len(got)} ids equal")


def compare_training(tool, size, text_path):
    reference = Tokenizer(models.BPE())
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = pathlib.Path(text_path).read_bytes().decode("utf-8")
    reference.train_from_iterator([text], trainer)
    expected = json.loads(reference.to_str())["model"]
    with tempfile.TemporaryDirectory() as folder:
        ours = pathlib.Path(folder) / "tokenizer.json"
        our_ids(tool, f"bpe:{size}", text_path, ours)
        got = json.loads(ours.read_text())["model"]
    merges = [" ".join(m) if isinstance(m, list) else m for m in expected["merges"]]
    for i, (a, b) in enumerate(zip(got["merges"], merges)):
        if a != b:
            sys.exit(f"{text_path}: merge {i} differs: got {a!r}, expected {b!r}")
    if len(got["merges"]) != len(merges) or got["vocab"] != expected["vocab"]:
        sys.exit(f"{text_path}: {len(got['merges'])} merges against {len(merges)}, or the vocabularies differ")
    print(f"{text_path}: all {len(merges)} merges and {len(got['vocab'])} tokens equal")


def stress_text(seed=1, length=400_000):
    """Letters, numbers, spaces, signs and contractions in every order, from all planes of Unicode.

    Characters newer than Unicode 14 are left out: their class depends on the version of each library's tables.
    """
    rng = random.Random(seed)
    assigned = [chr(c) for c in range(0x20000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    spaces = " \t\n\r\x0b\x0c\x85\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000"
    common = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "''", " '", "don't", "\r\n", "  ", "   \n", "\u200b",
              "\ufeff", "\x00", "\x1c", "e\u0301", "\U0001f469\u200d\U0001f4bb", "123", " 4", "\u00bd", "\u2168", "-", "_"]
    parts = []
    while len(parts) < length:
        kind = rng.random()
        if kind < 0.3:
            parts.append(rng.choice(common))
        elif kind < 0.5:
            parts.append(rng.choice(spaces) * rng.choice([1, 1, 1, 2, 5]))
        elif kind < 0.7:
            parts.append(rng.choice("abcdefghijklmnopqrstuvwxyzABC0123456789.,;:!?'\"()"))
        else:
            parts.append(rng.choice(assigned))
    return "".join(parts + assigned)


def compare_edits(tool, tokenizer_path):
    """A file that one side reads and the other does not, or reads otherwise, is a difference; but for added tokens that
    the vocabulary does not list: the library gives them other ids than the file does, we refuse."""
    good = json.loads(pathlib.Path(tokenizer_path).read_text(encoding="utf-8"))
    size = len(good["model"]["vocab"])
    last = max(good["model"]["vocab"], key=good["model"]["vocab"].get)

    def added(id, content, **flags):
        token = {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False}
        return token | {"normalized": False, "special": True} | flags

    edits = {"as it is": {}}
    edits["unused ids"] = {"vocab": {last: size + 1000}}
    edits["added tokens"] = {"added": [added(size, "<x>"), added(size + 1, "<x>>")]}
    edits["added tokens after unused ids"] = {"vocab": {"<x>": size + 40}, "added": [added(size + 40, "<x>")]}
    for first in (False, True):
        for second in (False, True):
            tokens = [added(size, "<x>", normalized=first), added(size + 1, "x><", normalized=second)]
            edits[f"normalized {first} and {second}"] = {"added": tokens}
    for id in (1e20, 97.5, 97.0, 2**32, -1):
        edits[f"id {id}"] = {"vocab": {last: id}}
        edits[f"added id {id}"] = {"added": [added(id, "<x>")]}
    with tempfile.TemporaryDirectory() as folder:
        path, text_path = pathlib.Path(folder) / "tokenizer.json", pathlib.Path(folder) / "text"
        text = f"a<x><y <x>> {last}<x>a<x"
        text_path.write_text(text, encoding="utf-8")
        for name, edit in edits.items():
            changed = json.loads(json.dumps(good))
            changed["model"]["vocab"].update(edit.get("vocab", {}))
            changed["added_tokens"] += edit.get("added", [])
            path.write_text(json.dumps(changed), encoding="utf-8")
            try:
                expected = Tokenizer.from_file(str(path)).encode(text, add_special_tokens=False).ids
            except Exception:  # the library's own kind is not public
                expected = None
            done = subprocess.run([tool, str(path), str(text_path)], capture_output=True, text=True)
            got = [int(line) for line in done.stdout.split()] if done.returncode == 0 else None
            if got != expected:
                sys.exit(f"{name}: got {got or done.stderr}, expected {expected or 'a refusal'}")
            print(f"{name}: " + ("the same ids" if expected else "refused by both"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True, help="path of the built encode_tool")
    parser.add_argument("what", choices=["ids", "train", "stress", "edits"])
    parser.add_argument("arguments", nargs="+")
    options = parser.parse_args()
    first, rest = options.arguments[0], options.arguments[1:]
    if options.what == "ids":
        for text_path in rest:
            compare(options.tool, first, text_path)
    elif options.what == "train":
        compare_training(options.tool, int(first), rest[0])
    elif options.what == "edits":
        compare_edits(options.tool, first)
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "stress.txt"
            path.write_bytes(stress_text().encode("utf-8"))
            compare(options.tool, first, path, "stress text")


if __name__ == "__main__":
    main()
