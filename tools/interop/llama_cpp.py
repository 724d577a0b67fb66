"""Files of quantised weights to llama.cpp and back: both sides load what the other wrote, and mean the same by it.

    pip install numpy pyyaml tqdm requests
    python tools/interop/llama_cpp.py --hotmetal target/release/hotmetal --bin LLAMA_CPP/build/bin \
        --gguf-py LLAMA_CPP/gguf-py [--text FILE] [--model DIR_OR_GGUF] [--only NAME…] [--types-only] [--json OUT]

Of each format, `hotmetal quantize` writes a file and `llama-quantize` another, from the same weights. Then of each file:
tensors    what gguf-py's `quants.dequantize` makes of them is what `hotmetal quantize -F f32` makes of them, bit for bit;
perplexity that of `llama-perplexity` and that of `hotmetal eval` on the same windows of the same text differ by less than
           TOLERANCE (both round activations, each in its way).
And of mixtures that both have, on made models (with and without a head of their own, with heads that share keys and values, rows
that blocks of 256 do not divide, with and without importance): each tensor has the same type in both files.
Without --bin or --gguf-py the parts that need them are left out, and the script says so. Exit status 1: something differs.
Without --model it is the built-in model, without --text stories that it was not trained on. Passed with llama.cpp
0.5.0-dev (August 2026); docs/formats.md has the results.
"""

import argparse
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# What `hotmetal quantize -F` is asked for.
OURS = [
    "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs",
    "mxfp4", "nvfp4", "q3_k_m", "q3_k_l", "q4_k_s", "q4_k_m", "q5_k_m",
]
# What `llama-quantize` is asked for. MXFP4_MOE packs experts alone: the rest of that file is Q8_0.
THEIRS = [
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M",
    "Q5_K_S", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4_MOE",
]
# Mixtures that both have.
SAME = [
    "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S",
    "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS",
]
# Layers, features, features between, heads, heads of keys and values, whether the head is a matrix of its own.
MADE = [
    (16, 256, 512, 8, 8, True), (16, 256, 512, 8, 8, False), (17, 256, 512, 8, 2, True), (24, 288, 512, 9, 1, True),
    (24, 288, 544, 9, 1, False), (80, 256, 256, 8, 1, True),
]
# Of a perplexity, relative.
TOLERANCE = 0.005
CONTEXT, CHUNKS = 256, 24
# The end of what llama-perplexity prints is lost at times.
ATTEMPTS = 5


def run(command: list, **more) -> str:
    """What a command prints; the script ends where it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout + done.stderr


def stories() -> str:
    """Held-out stories of the built-in model."""
    sys.path.insert(0, str(ROOT / "tools" / "builtin_model"))
    import talk

    return "\n\n".join(talk.any_story(random.Random(f"test/0/{index}"), True).text() for index in range(40))


def types_of(path: Path) -> dict:
    """How many tensors of each type a file has, vectors left out."""
    from gguf import GGUFReader

    counts = {}
    for tensor in GGUFReader(path).tensors:
        if len(tensor.shape) > 1:
            counts[tensor.tensor_type.name] = counts.get(tensor.tensor_type.name, 0) + 1
    return dict(sorted(counts.items()))


def differing_tensors(packed: Path, expanded: Path) -> list:
    """Tensors of `packed` that gguf-py does not read as `expanded` has them in f32.

    gguf-py leaves the scale beside a matrix in NVFP4 to its caller, as llama.cpp does to the model; ours are powers of two, so
    that it does not matter what is multiplied first.
    """
    import numpy as np
    from gguf import GGUFReader
    from gguf.quants import dequantize

    ours = {tensor.name: tensor for tensor in GGUFReader(expanded).tensors}
    differing, tensors = [], GGUFReader(packed).tensors
    scales = {tensor.name: tensor.data[0] for tensor in tensors if tensor.name.endswith(".scale")}
    for tensor in tensors:
        if tensor.name in scales:
            continue
        theirs = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        theirs = theirs * scales.get(tensor.name.removesuffix(".weight") + ".scale", np.float32(1))
        found = ours.pop(tensor.name, None)
        if found is None:
            differing.append(f"{tensor.name} is missing")
            continue
        found = np.ascontiguousarray(dequantize(found.data, found.tensor_type), dtype=np.float32)
        # Bits, so that a zero of the other sign counts.
        bits = theirs.reshape(-1).view(np.uint32) != found.reshape(-1).view(np.uint32)
        if theirs.size != found.size or bits.any():
            differing.append(f"{tensor.name} ({tensor.tensor_type.name}): {int(bits.sum())} of {theirs.size} weights")
    return differing + [f"{name} is new" for name in ours]


def made(path: Path, shape: tuple) -> list:
    """Writes a model of that shape without a vocabulary, with small random weights; returns name and features of each matrix."""
    import numpy as np
    from gguf import GGUFWriter

    layers, features, between, heads, kv_heads, has_head = shape
    rng, writer, matrices = np.random.default_rng(1), GGUFWriter(path, "llama"), []
    writer.add_block_count(layers)
    writer.add_context_length(64)
    writer.add_embedding_length(features)
    writer.add_feed_forward_length(between)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(64)

    def matrix(name: str, rows: int, columns: int) -> None:
        matrices.append((name, columns))
        writer.add_tensor(name, (0.02 * rng.standard_normal((rows, columns))).astype(np.float32))

    def norm(name: str) -> None:
        writer.add_tensor(name, np.ones(features, dtype=np.float32))

    matrix("token_embd.weight", 64, features)
    for layer in range(layers):
        norm(f"blk.{layer}.attn_norm.weight")
        norm(f"blk.{layer}.ffn_norm.weight")
        kv_rows = features // heads * kv_heads
        for name, rows, columns in [
            ("attn_q", features, features), ("attn_k", kv_rows, features), ("attn_v", kv_rows, features),
            ("attn_output", features, features), ("ffn_gate", between, features), ("ffn_up", between, features),
            ("ffn_down", features, between),
        ]:
            matrix(f"blk.{layer}.{name}.weight", rows, columns)
    norm("output_norm.weight")
    if has_head:
        matrix("output.weight", 64, features)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return matrices


def made_importance(path: Path, matrices: list) -> None:
    """Writes importance for the matrices of layers, in the layout of llama-imatrix."""
    import numpy as np
    from gguf import GGUFWriter

    rng, writer = np.random.default_rng(2), GGUFWriter(path, "")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["made"])
    writer.add_uint32("imatrix.chunk_count", 1)
    writer.add_uint32("imatrix.chunk_size", 64)
    for name, columns in matrices:
        if name.startswith("blk."):
            writer.add_tensor(f"{name}.in_sum2", rng.uniform(1, 2, (1, columns)).astype(np.float32))
            writer.add_tensor(f"{name}.counts", np.ones((1, 1), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def compare_types(args, folder: Path, wanted: list) -> list:
    """A row for each mixture of each made model."""
    from gguf import GGUFReader

    def types(path: Path) -> dict:
        return {tensor.name: tensor.tensor_type.name for tensor in GGUFReader(path).tensors if len(tensor.shape) > 1}

    rows, base, importance = [], folder / "made.gguf", folder / "made.imatrix"
    ours, theirs = folder / "ours.gguf", folder / "theirs.gguf"
    for shape in MADE:
        made_importance(importance, made(base, shape))
        for name in SAME:
            if wanted and name.lower() not in wanted:
                continue
            for given in [[], ["--imatrix", importance]]:
                how = given or ["--plain"]
                run([args.hotmetal, "quantize", base, "-F", name.lower(), "-o", ours, "--force", *how])
                run([args.bin / "llama-quantize", *given, base, theirs, name, args.threads])
                here, there = types(ours), types(theirs)
                wrong = [
                    f"{tensor}: {here.get(tensor)}, not {there.get(tensor)}"
                    for tensor in sorted(here.keys() | there.keys())
                    if here.get(tensor) != there.get(tensor)
                ]
                label = " × ".join(map(str, shape[:-1])) + ("" if shape[-1] else " tied") + (" weighed" if given else "")
                row = {"maker": "both", "format": name, "model": label, "types": len(there), "wrong": wrong, "ok": not wrong}
                rows.append(row)
                if wrong:
                    print(f"| types | {name} | {label} | FAILED, {len(wrong)} differ: {'; '.join(wrong[:3])} |", flush=True)
    good = sum(row["ok"] for row in rows)
    print(f"types: {good} of {len(rows)} files have in each tensor what llama-quantize gives it")
    return rows


def main() -> None:
    """Makes and compares all files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hotmetal", type=Path, default=ROOT / "target" / "release" / "hotmetal")
    parser.add_argument("--bin", type=Path, help="the folder of llama-quantize and llama-perplexity")
    parser.add_argument("--gguf-py", type=Path, help="llama.cpp's gguf-py; not needed where the package `gguf` is installed")
    parser.add_argument("--model", default=ROOT / "crates" / "cli" / "builtin")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--only", nargs="+", default=[], help="formats, as either program calls them")
    parser.add_argument("--types-only", action="store_true", help="compare the types of made models and nothing else")
    parser.add_argument("--threads", default=str(os.cpu_count()))
    parser.add_argument("--json", type=Path, help="write the results here, too")
    args = parser.parse_args()
    if args.gguf_py:
        sys.path.insert(0, str(args.gguf_py))
    try:
        import gguf  # noqa: F401

        has_reader = True
    except ImportError as error:
        has_reader = False
        print(f"gguf-py is not there ({error}): tensors are not compared; --gguf-py names its folder")
    has_peer = args.bin is not None
    if not has_peer:
        print("--bin is not given: no file of llama-quantize is read, and no perplexity compared")
    if not (has_reader or has_peer):
        print("nothing to compare with: skipped")
        return
    wanted = [name.lower() for name in args.only]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        if has_reader and has_peer:
            rows += compare_types(args, folder, wanted)
        if args.types_only:
            finish(args, rows)
        text, base, expanded = args.text or folder / "text.txt", folder / "base.gguf", folder / "expanded.gguf"
        if not args.text:
            text.write_text(stories())
        run([args.hotmetal, "quantize", args.model, "-F", "f32", "-o", base])
        makers = [("hotmetal", name, [args.hotmetal, "quantize", base, "-F", name, "-o"]) for name in OURS]
        if has_peer:
            # Matrices that are one keep one type, as ours do; nothing is left to chance by more threads.
            quantize = [args.bin / "llama-quantize", base]
            makers += [("llama.cpp", name, quantize) for name in THEIRS]
        for maker, name, command in makers:
            if wanted and name.lower() not in wanted:
                continue
            file = folder / "file.gguf"
            run(command + ([file, "--force"] if maker == "hotmetal" else [file, name, args.threads]))
            row = {"maker": maker, "format": name, "bytes": file.stat().st_size}
            if has_reader:
                run([args.hotmetal, "quantize", file, "-F", "f32", "-o", expanded, "--force"])
                row["types"] = types_of(file)
                row["differing"] = differing_tensors(file, expanded)
            if has_peer:
                windows = ["-c", str(CONTEXT), "-f", text, "--chunks", str(CHUNKS), "-t", args.threads]
                for _ in range(ATTEMPTS):
                    printed = run([args.bin / "llama-perplexity", "-m", file, "-b", str(CONTEXT), *windows])
                    theirs = re.search(r"Final estimate: PPL = ([\d.]+)", printed)
                    if theirs:
                        break
                printed = run([args.hotmetal, "eval", file, "--device", "cpu", "-o", "json", *windows])
                row["perplexity"] = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])["perplexity"]
                row["their_perplexity"] = float(theirs.group(1)) if theirs else math.nan
                row["ratio"] = row["perplexity"] / row["their_perplexity"]
            row["ok"] = not row.get("differing") and abs(row.get("ratio", 1.0) - 1.0) <= TOLERANCE
            rows.append(row)
            print(describe(row), flush=True)
    finish(args, rows)


def finish(args, rows: list) -> None:
    """Says how many agree, and ends."""
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    failed = [row for row in rows if not row["ok"]]
    print(f"{len(rows) - len(failed)} of {len(rows)} files agree")
    sys.exit(1 if failed else 0)


def describe(row: dict) -> str:
    """A row as a line of a table."""
    parts = [row["maker"], row["format"], f"{row['bytes'] / 2**20:.2f} MiB"]
    if "differing" in row:
        types = ", ".join(f"{count} {name}" for name, count in row["types"].items())
        parts += [types, "equal bits" if not row["differing"] else "DIFFERENT: " + "; ".join(row["differing"][:3])]
    if "ratio" in row:
        parts.append(f"{row['perplexity']:.4f} / {row['their_perplexity']:.4f} = {row['ratio']:.5f}")
    return "| " + " | ".join([*parts, "ok" if row["ok"] else "FAILED"]) + " |"


if __name__ == "__main__":
    main()
