"""Throughput and latency of `hotmetal serve` beside llama.cpp's `llama-server`: the same file, machine and load, in turns.

usage: compare.py --hotmetal BINARY --llama-server BINARY --model FILE.gguf [--clients 1,16,64] [--rounds 3] [--threads N]

Each round starts a server, puts the load of `hotmetal bench serve` on it, stops it, and does the same with the other one;
every second round begins with the other. Prints a table of medians over the rounds with their least and most, and with --json
writes all that was measured. A server's processor time is counted too: where others use the machine meanwhile, tokens for a
second of it say more than tokens for a second on the clock.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

TICKS = os.sysconf("SC_CLK_TCK")
MEASURES = [
    ("output_throughput", "tokens/s"),
    ("tokens_per_cpu_s", "tokens per s of CPU"),
    ("median_itl_ms", "ITL median ms"),
    ("p99_itl_ms", "ITL p99 ms"),
    ("median_ttft_ms", "TTFT median ms"),
    ("p99_ttft_ms", "TTFT p99 ms"),
]


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--hotmetal", required=True)
    parser.add_argument("--llama-server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--clients", default="1,16,64", help="requests under way at a time")
    parser.add_argument("--requests", type=int, default=2, help="requests of each client")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--input-len", type=int, default=64, help="words of a prompt")
    parser.add_argument("--output-len", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--llama-args", default="", help="more flags of llama-server")
    parser.add_argument("--json", help="where all that was measured is written")
    return parser.parse_args()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def command(name, args, clients, port):
    # Words are a token or two, and there is the answer; both servers get room for as many texts as there are clients.
    context = (2 * args.input_len + args.output_len + 64 + 31) // 32 * 32
    if name == "hotmetal":
        sizes = ["--parallel", clients, "--ctx-size", context, "--kv-tokens", context * clients]
        sizes += ["--batch-tokens", max(512, clients)]
        return [args.hotmetal, "serve", args.model, "--device", "cpu", "--port", port, "-t", args.threads, *sizes]
    sizes = ["-np", clients, "-c", context * clients, "-t", args.threads, "-tb", args.threads, "-cb"]
    return [args.llama_server, "-m", args.model, "--port", port, *sizes, *args.llama_args.split()]


def cpu_seconds(process):
    with open(f"/proc/{process.pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def wait_until_ready(process, url):
    for _ in range(600):
        if process.poll() is not None:
            sys.exit(f"{process.args[0]} ended with status {process.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    sys.exit(f"{process.args[0]} is never ready")


def measure(name, args, clients):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    line = [str(part) for part in command(name, args, clients, port)]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_ready(process, url)
        load = ["--max-concurrency", clients, "-n", clients * args.requests, "--input-len", args.input_len]
        load += ["--output-len", args.output_len, "-o", "json"]
        begun = cpu_seconds(process)
        load = [args.hotmetal, "bench", "serve", "--base-url", url, *map(str, load)]
        found = json.loads(subprocess.run(load, stdout=subprocess.PIPE, check=True).stdout)
        if found["failed"]:
            sys.exit(f"{name}: {found['errors']}")
        # The first request, which is not measured, is in this time: a small share, and the same for both.
        found["cpu_s"] = round(cpu_seconds(process) - begun, 2)
        found["tokens_per_cpu_s"] = found["output_throughput"] * found["duration"] / found["cpu_s"]
        return found
    finally:
        process.terminate()
        process.wait()


def row(clients, name, runs):
    cells = []
    for measure, _ in MEASURES:
        values = [run[measure] for run in runs]
        cells.append(f"{statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})")
    return f"| {clients} | {name} | {' | '.join(cells)} |"


def ratio(clients, runs):
    cells = []
    for measure, _ in MEASURES:
        ours, theirs = (statistics.median(run[measure] for run in runs[name]) for name in ("hotmetal", "llama-server"))
        cells.append(f"{ours / theirs:.2f} ×")
    return f"| {clients} | ratio | {' | '.join(cells)} |"


def main():
    args = arguments()
    counts = [int(count) for count in args.clients.split(",")]
    runs = {clients: {"hotmetal": [], "llama-server": []} for clients in counts}
    for number in range(args.rounds):
        for clients in counts:
            order = ["hotmetal", "llama-server"] if number % 2 == 0 else ["llama-server", "hotmetal"]
            for name in order:
                found = measure(name, args, clients)
                runs[clients][name].append(found)
                shown = ", ".join(f"{title} {found[measure]:.4g}" for measure, title in MEASURES)
                print(f"round {number + 1}, {clients} clients, {name}: {shown}", file=sys.stderr)
                if args.json:
                    with open(args.json, "w") as out:
                        json.dump(runs, out)
    print(f"| clients | server | {' | '.join(title for _, title in MEASURES)} |")
    print(f"|---:|---|{'---:|' * len(MEASURES)}")
    for clients in counts:
        for name in ("hotmetal", "llama-server"):
            print(row(clients, name, runs[clients][name]))
        print(ratio(clients, runs[clients]))


main()
