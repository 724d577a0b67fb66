"""What each format loses of a model: size, perplexity, divergence and agreement on a text, as a table.

    python tools/format_losses.py [--hotmetal target/release/hotmetal] [--model DIR_OR_GGUF] [--text FILE] [FORMAT…]
    python tools/format_losses.py --device cuda …
    python tools/format_losses.py --importance [--imatrix-text FILE] …

Without --model it is the built-in model, without --text stories that it was not trained on (24 windows of 256 tokens). Of
the built-in model, perplexity may grow by 0.1 % in Q8_0, 0.5 % in Q6_K and 5 % in four bits; exit status 1 where it grows
by more.

What is said of a format is what the CPU computes. With --device, that device predicts the text from the same file, too; exit status
1 where its perplexity is off by more than half a percent (both round activations, each in its way).

With --importance, formats of up to four bits are made twice: without and with the importance of features on another text:
without --imatrix-text, stories of the built-in model's training set, so that nothing of the text above is seen before. Exit
status 1 where their divergences from the built-in model are no smaller by the geometric mean: of one file it is one draw of
roundings, which may be a lucky one.
"""

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FORMATS = [
    "q8_0", "q6_k", "q5_k_m", "q5_k", "q5_1", "q5_0", "q4_k_m", "q4_k_s", "q4_k", "q4_1", "q4_0", "iq4_nl", "iq4_xs",
    "mxfp4", "nvfp4", "q3_k_l", "q3_k_m", "q3_k", "q2_k",
]
# Folders of safetensors, also for those of FORMATS that have a layout there: `safetensors:NAME`.
LAYOUTS = [
    "int8", "int8_g32", "int8_g64", "int8_g128", "fp8", "fp8_block", "int4_g32", "int4_g64", "int4_g128", "int4_g32_asym",
    "int4_g64_asym", "int4_g128_asym", "awq", "safetensors:mxfp4", "safetensors:nvfp4", "fp4_g32", "fp4_g64", "fp4_g128",
    "fp4_g256",
]
WITH_IMPORTANCE = ["q4_k", "q4_0", "iq4_nl", "iq4_xs", "mxfp4", "q3_k", "q2_k"]
# Between two devices, relative.
AGREEMENT = 0.005
# Relative growth of perplexity.
LIMITS = {
    **dict.fromkeys(["q8_0", *LAYOUTS[:4]], 0.001), "q6_k": 0.005, **dict.fromkeys([*FORMATS[6:15], *LAYOUTS[6:]], 0.05),
}


def stories(held_out: bool) -> str:
    """Held-out stories of the built-in model, or others."""
    sys.path.insert(0, str(ROOT / "tools" / "builtin_model"))
    import talk

    seed = "test" if held_out else "importance"
    return "\n\n".join(talk.any_story(random.Random(f"{seed}/0/{index}"), held_out).text() for index in range(40))


def made_at(folder: str, name: str) -> Path:
    """The file that is made in this format, or the folder."""
    return Path(folder, "out" if name in LAYOUTS else "out.gguf")


def make(args: argparse.Namespace, folder: str, name: str, more: list) -> dict:
    """What the receipt of a file says that is made in this format."""
    text, file, receipt = args.text or Path(folder, "text.txt"), made_at(folder, name), Path(folder, "receipt.json")
    if not text.exists():
        text.write_text(stories(held_out=True))
    container = ["--to", "safetensors" if name in LAYOUTS else "gguf"]
    form = name.removeprefix("safetensors:")
    command = [args.hotmetal, "quantize", args.model, "-F", form, *container, "-o", file, "--force", "--receipt", receipt]
    window = ["--eval-text", text, "--eval-ctx-size", "256", "--eval-chunks", "24"]
    subprocess.run([*command, *window, *more], check=True, stdout=subprocess.DEVNULL)
    return json.loads(receipt.read_text())


def perplexity_on(args: argparse.Namespace, folder: str, name: str) -> float:
    """What the other device makes of the file that was made in this format."""
    text, file = args.text or Path(folder, "text.txt"), made_at(folder, name)
    window = ["--ctx-size", "256", "--chunks", "24", "--device", args.device, "-o", "json"]
    done = subprocess.run([args.hotmetal, "eval", file, "-f", text, *window], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)["perplexity"]


def with_importance(args: argparse.Namespace, folder: str) -> float:
    """Prints what importance changes; by what it multiplies divergences, the geometric mean of all formats."""
    text, imatrix = args.imatrix_text or Path(folder, "importance.txt"), Path(folder, "imatrix.gguf")
    if not args.imatrix_text:
        text.write_text(stories(held_out=False))
    collect = ["--imatrix-text", text, "--imatrix-ctx-size", "256", "--imatrix-out", imatrix]
    print("| format | perplexity | with importance | divergence | with | change | same likeliest token | with |")
    print("|---|---|---|---|---|---|---|---|")
    logs = []
    for name in args.formats or WITH_IMPORTANCE:
        before = make(args, folder, name, [])["evaluation"]
        found = make(args, folder, name, ["--imatrix", imatrix] if imatrix.exists() else collect)
        after = found["evaluation"]
        old, new = (one["against"]["kl_divergence"] for one in (before, after))
        logs.append(math.log(new / old))
        columns = [
            name, f"{before['perplexity']:.4f}", f"{after['perplexity']:.4f}", f"{old:.5f}", f"{new:.5f}",
            f"{100 * (new / old - 1):+.0f} %",
            *(f"{100 * one['against']['same_likeliest']:.1f} %" for one in (before, after)),
        ]
        print("| " + " | ".join(columns) + " |", flush=True)
    return math.exp(sum(logs) / len(logs))


def main() -> None:
    """Makes a file of each format and prints what its receipt says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hotmetal", default=ROOT / "target" / "release" / "hotmetal")
    parser.add_argument("--model", default=ROOT / "crates" / "cli" / "builtin")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--device", help="compare with this one: cuda, cuda:N, metal or reference")
    parser.add_argument("--importance", action="store_true")
    parser.add_argument("--imatrix-text", type=Path)
    parser.add_argument("formats", nargs="*")
    args = parser.parse_args()
    failed, apart = [], []
    with tempfile.TemporaryDirectory() as folder:
        if args.importance:
            change = with_importance(args, folder)
            print(f"\nDivergences times {change:.3f}, the geometric mean.")
            sys.exit("importance makes divergences no smaller" if change >= 1.0 and not args.text else 0)
        heads = ["format", "size, MiB", "perplexity", "growth", "divergence", "same likeliest token", "in other formats"]
        heads += [f"perplexity on {args.device}", "ratio"] if args.device else []
        print("| " + " | ".join(heads) + " |")
        print("|---" * len(heads) + "|")
        for name in args.formats or [*FORMATS, *LAYOUTS]:
            found = make(args, folder, name, [])
            of, others = found["evaluation"], {}
            for tensor in found["tensors"]:
                if tensor["to"].lower() != name.removeprefix("safetensors:"):
                    others[tensor["to"]] = others.get(tensor["to"], 0) + 1
            against = of["against"]
            growth = of["perplexity"] / against["perplexity"] - 1.0
            if not args.text and growth > LIMITS.get(name, 1.0):
                failed.append(name)
            columns = [
                name, f"{found['bytes_out'] / 2**20:.2f}", f"{of['perplexity']:.4f}", f"{100 * growth:+.2f} %",
                f"{against['kl_divergence']:.5f}", f"{100 * against['same_likeliest']:.1f} %",
                ", ".join(f"{count} {kind}" for kind, count in sorted(others.items())) or "–",
            ]
            if args.device:
                there = perplexity_on(args, folder, name)
                ratio = there / of["perplexity"]
                columns += [f"{there:.4f}", f"{ratio:.4f}"]
                if not abs(ratio - 1.0) <= AGREEMENT:
                    apart.append(name)
            print("| " + " | ".join(columns) + " |", flush=True)
    if apart:
        sys.exit(f"the CPU and {args.device} are apart in {', '.join(apart)}")
    if failed:
        sys.exit(f"perplexity grows by more than it may in {', '.join(failed)}")


if __name__ == "__main__":
    main()
