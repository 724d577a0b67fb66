"""The same files in `hotmetal bench` and in the `llama-bench` of other programs, in turns, as a table of ratios.

    python tools/interop/peers.py FILE… --peer 'NAME=PATH_TO_LLAMA_BENCH FLAGS…' [--peer …] \
        [--hotmetal target/release/hotmetal] [-t 1,2] [-p 512] [-n 48] [-r 2] [--rounds 3] [--json OUT]

For example --peer llama.cpp=llama.cpp/build/bin/llama-bench --peer 'ik_llama.cpp=ik/build/bin/llama-bench -rtr 1 -fa 1'.

Everyone takes a turn in a round, on one file with one number of threads, and the next round begins with the next of them: what a
neighbour or the memory does for a minute meets all alike. A cell has the median of tokens per second of each round; a ratio is
ours to the peer's of the same round, the median of the rounds with the least and the most. A difference that is smaller than from
least to most is none. Exit status 1: a program ended with an error.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = "hotmetal"


def run(command: list) -> str:
    """What a command prints; the script ends where it fails."""
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    except OSError as error:
        sys.exit(f"cannot start `{command[0]}`: {error.strerror}")
    if done.returncode != 0:
        sys.exit(f"{shlex.join(map(str, command))}\nended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def ours(command: list, file: Path, threads: int, args: argparse.Namespace) -> dict:
    """Tokens per second by test, `pp512` and so on: the median of the repetitions."""
    flags = ["-t", threads, "-p", args.prompt, "-n", args.generate, "-r", args.repetitions, "--device", "cpu", "-o", "json"]
    rows = json.loads(run([*command, "bench", file, *flags]))["rows"]
    return {row["test"]: row["tokens_per_s"]["median"] for row in rows}


def theirs(command: list, file: Path, threads: int, args: argparse.Namespace) -> dict:
    """The same of llama-bench."""
    flags = ["-t", threads, "-p", args.prompt, "-n", args.generate, "-r", args.repetitions, "-ngl", 0, "-o", "json"]
    printed = run([*command, "-m", file, *flags])
    # Some print about themselves first.
    rows = json.loads(printed[printed.index("[\n") : printed.rindex("]") + 1])
    kind = lambda row: f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
    return {kind(row): statistics.median(row.get("samples_ts") or [row["avg_ts"]]) for row in rows}


def in_turns(programs: dict, files: list, args: argparse.Namespace) -> dict:
    """Of each program, by file, threads and test: a figure for each round."""
    found = {name: {} for name in programs}
    names = list(programs)
    for index in range(args.rounds):
        for file in files:
            for threads in args.threads:
                for name in names[index % len(names) :] + names[: index % len(names)]:
                    measure = ours if name == OURS else theirs
                    for test, rate in measure(programs[name], file, threads, args).items():
                        found[name].setdefault((file.name, threads, test), []).append(rate)
                    print(f"round {index + 1}: {name}, {file.name}, {threads} threads", file=sys.stderr, flush=True)
    return found


def ratio(mine: list, other: list) -> str:
    """Ours to theirs, round by round."""
    ratios = [a / b for a, b in zip(mine, other) if b > 0]
    if not ratios:
        return "–"
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def table(found: dict) -> str:
    """The figures in Markdown."""
    peers = [name for name in found if name != OURS]
    heads = ["file", "threads", "test", *peers, OURS, *(f"to {name}" for name in peers)]
    lines = [heads, ["---"] * len(heads)]
    for key, mine in found[OURS].items():
        others = [found[name].get(key, []) for name in peers]
        cells = [", ".join(f"{rate:.1f}" for rate in rates) or "–" for rates in [*others, mine]]
        lines.append([*map(str, key), *cells, *(ratio(mine, other) for other in others)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def peer(text: str) -> tuple:
    """A name, and the command."""
    name, _, command = text.partition("=")
    if not name or not command or name == OURS:
        raise argparse.ArgumentTypeError("expected NAME=PATH_TO_LLAMA_BENCH, with flags behind it")
    return name, shlex.split(command)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="GGUF files that all of them read")
    parser.add_argument("--hotmetal", type=Path, default=ROOT / "target" / "release" / "hotmetal")
    parser.add_argument("--peer", type=peer, action="append", required=True)
    parser.add_argument("-t", "--threads", type=numbers, default=[1, os.cpu_count() or 1])
    parser.add_argument("-p", "--prompt", default="512")
    parser.add_argument("-n", "--generate", default="48")
    parser.add_argument("-r", "--repetitions", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    args = parser.parse_args()
    args.threads = sorted(set(args.threads))
    found = in_turns({OURS: [args.hotmetal.resolve()], **dict(args.peer)}, args.files, args)
    if args.json:
        rows = [
            {"program": name, "file": file, "threads": threads, "test": test, "tokens_per_s": rates}
            for name, of_program in found.items()
            for (file, threads, test), rates in of_program.items()
        ]
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
