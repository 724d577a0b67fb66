"""The same files in `hotmetal bench` and in the `llama-bench` of other programs, in turns, as a table of ratios.

    python tools/interop/peers.py FILE… --peer 'NAME=PATH_TO_LLAMA_BENCH FLAGS…' [--peer …] \
        [--hotmetal target/release/hotmetal] [--device cpu] [-t 1,2] [-p 512] [-n 48] [-r 2] [--rounds 3] [--json OUT] \
        [--record RECORD.json [--name MODEL]…]

For example --peer llama.cpp=llama.cpp/build/bin/llama-bench --peer 'ik_llama.cpp=ik/build/bin/llama-bench -rtr 1 -fa 1'.

Everyone takes a turn in a round, on one file with one number of threads, and the next round begins with the next of them: what a
neighbour or the memory does for a minute meets all alike. A cell has the median of tokens per second of each round; a ratio is
ours to the peer's of the same round, the median of the rounds with the least and the most. A difference that is smaller than from
least to most is none. With --device cuda, every layer of the peers is on the GPU too (-ngl 99), and threads do not count.
--record writes a record (docs/performance/records/README.md) that `hotmetal bench table --peers` reads, with the peers' versions
and the bytes of the weights; --name says what a record calls the model of a file, once for each FILE. Exit status 1: a program
ended with an error.
"""

import argparse
import datetime
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


def ours(command: list, file: Path, threads: int, args: argparse.Namespace) -> tuple:
    """Our result by test, `pp512` and so on, and the device."""
    flags = ["-t", threads, "-p", args.prompt, "-n", args.generate, "-r", args.repetitions]
    result = json.loads(run([*command, "bench", file, *flags, "--device", args.device, "-o", "json"]))
    return {row["test"]: {**row, "rate": row["tokens_per_s"]["median"]} for row in result["rows"]}, result["device"]


def theirs(command: list, file: Path, threads: int, args: argparse.Namespace) -> dict:
    """The same of llama-bench."""
    layers = 0 if args.device == "cpu" else 99
    flags = ["-t", threads, "-p", args.prompt, "-n", args.generate, "-r", args.repetitions, "-ngl", layers, "-o", "json"]
    printed = run([*command, "-m", file, *flags])
    # Some print about themselves first.
    rows = json.loads(printed[printed.index("[\n") : printed.rindex("]") + 1])
    kind = lambda row: f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
    return {kind(row): {**row, "rate": statistics.median(row.get("samples_ts") or [row["avg_ts"]])} for row in rows}


def in_turns(programs: dict, args: argparse.Namespace) -> tuple:
    """Of each program, by file, threads and test: a result for each round. And the device."""
    found, device = {name: {} for name in programs}, {}
    names = list(programs)
    for index in range(args.rounds):
        for file in args.files:
            for threads in args.threads:
                for name in names[index % len(names) :] + names[: index % len(names)]:
                    if name == OURS:
                        results, device = ours(programs[name], file, threads, args)
                    else:
                        results = theirs(programs[name], file, threads, args)
                    for test, result in results.items():
                        found[name].setdefault((file.name, threads, test), []).append(result)
                    print(f"round {index + 1}: {name}, {file.name}, {threads} threads", file=sys.stderr, flush=True)
    return found, device


def rates(results: list) -> list:
    """Tokens per second, round by round."""
    return [result["rate"] for result in results]


def quantity(model: str, row: dict) -> str:
    """What records call the quantity of a row of ours."""
    test = row["test"]
    what = "decode" if test == "tg128" else f"decode of {test[2:]}" if test.startswith("tg") else f"prefill {test[2:]}"
    plural = "" if row["threads"] == 1 else "s"
    threads = f", {row['threads']} thread{plural}" if row["device"] == "cpu" else ""
    return f"{model} {row['format']} {what}{threads}"


def record(found: dict, device: dict, args: argparse.Namespace) -> dict:
    """All of it as a record."""
    models = dict(zip((file.name for file in args.files), args.name or [file.stem for file in args.files]))
    rows = []
    for key, mine in found[OURS].items():
        peers, versions = {}, {}
        for name in found:
            results = found[name].get(key, [])
            if name != OURS and results:
                # What llama-bench says of its own build; `bench table --peers` refuses a figure without.
                build = [str(results[0][field]) for field in ("build_number", "build_commit") if field in results[0]]
                peers[" ".join([name, *build])] = results
                versions[" ".join([name, *build])] = " ".join(build)
        mine_rates = rates(mine)
        rows.append(
            {
                "name": quantity(models[key[0]], mine[0]),
                "unit": "tokens/s",
                "value": statistics.median(mine_rates),
                "worst": min(mine_rates),
                "best": max(mine_rates),
                "samples": mine_rates,
                "roofline_share": mine[-1].get("roofline_share"),
                "weight_bytes": mine[0]["weight_bytes"],
                "peers": {name: statistics.median(rates(results)) for name, results in peers.items()},
                "peer_samples": {name: rates(results) for name, results in peers.items()},
                "peer_versions": versions,
                "peer_weight_bytes": {name: results[0].get("model_size") for name, results in peers.items()},
            }
        )
    return {
        "schema": 1,
        "note": f"In turns with the peers, {args.rounds} rounds.",
        "device": device,
        "run": {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            "command": ["python", *sys.argv],
        },
        "rows": rows,
    }


def ratio(mine: list, other: list) -> str:
    """Ours to theirs, round by round."""
    ratios = [a / b for a, b in zip(rates(mine), rates(other)) if b > 0]
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
        cells = [", ".join(f"{rate:.1f}" for rate in rates(results)) or "–" for results in [*others, mine]]
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
    parser.add_argument("--device", default="cpu", help="where all of them compute: cpu, cuda or metal")
    parser.add_argument("-t", "--threads", type=numbers, default=[1, os.cpu_count() or 1])
    parser.add_argument("-p", "--prompt", default="512")
    parser.add_argument("-n", "--generate", default="48")
    parser.add_argument("-r", "--repetitions", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    parser.add_argument("--record", type=Path, help="write a record here, too: RECORDS/<machine>/<date>-<commit>.json")
    parser.add_argument("--name", action="append", help="what the record calls the model, once for each FILE")
    args = parser.parse_args()
    if args.name and len(args.name) != len(args.files):
        parser.error(f"--name is given {len(args.name)} times for {len(args.files)} files")
    # On a GPU the host's threads compute nothing.
    args.threads = sorted(set(args.threads)) if args.device == "cpu" else [1]
    found, device = in_turns({OURS: [args.hotmetal.resolve()], **dict(args.peer)}, args)
    if args.json:
        rows = [
            {"program": name, "file": file, "threads": threads, "test": test, "tokens_per_s": rates(results)}
            for name, of_program in found.items()
            for (file, threads, test), results in of_program.items()
        ]
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    if args.record:
        args.record.write_text(json.dumps(record(found, device, args), indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
