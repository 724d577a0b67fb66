"""Measures how much grammars keep texts waiting: the gaps between the tokens of streams.

usage: grammar_gaps.py BINARY [--hostile 2] [--json] [--clients 4] [--seconds 20]        (needs nothing beyond Python)

Starts `BINARY serve` of the built-in model. `--clients` clients stream texts of 200 tokens, or with `--json` answers of
a JSON schema, one after the other. `--hostile` clients ask for texts of an ambiguous grammar meanwhile, which takes
seconds to say which tokens may come next. Prints the tokens per second of the clients that stream, and the gaps
between their tokens.
"""

import argparse
import http.client
import json
import re
import subprocess
import threading
import time

AMBIGUOUS = {"structured_outputs": {"grammar": "start: s\ns: s s s | s s | /[a-z ]/"}}
ITEM = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"type": "integer"}},
    "required": ["name", "n"],
}
SCHEMA = {"structured_outputs": {"json": {"type": "array", "items": ITEM, "minItems": 30}}}


def post(port, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    return connection.getresponse()


def stream(port, seed, held, end, gaps):
    body = {"prompt": "Once upon a time", "max_tokens": 200, "stream": True, "seed": seed, **held}
    while time.time() < end:
        last = None
        for line in post(port, body):
            if line.startswith(b"data: {"):
                now = time.time()
                if last is not None:
                    gaps.append(now - last)
                last = now


def ask_hostile(port, seed, end):
    while time.time() < end:
        post(port, {"prompt": "Once", "max_tokens": 40, "temperature": 1, "seed": seed, **AMBIGUOUS}).read()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--hostile", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20)
    args = parser.parse_args()
    server = subprocess.Popen([args.binary, "serve", "--port", "0"], stderr=subprocess.PIPE, text=True)
    try:
        port = None
        for line in server.stderr:
            found = re.match(r"listening on http://127\.0\.0\.1:(\d+)", line)
            port = int(found[1]) if found else port
            if line.startswith("ready"):
                break
        assert port, "the server did not start"
        threading.Thread(target=server.stderr.read, daemon=True).start()
        held = SCHEMA if args.json else {"ignore_eos": True}
        gaps, end = [], time.time() + args.seconds
        threads = [threading.Thread(target=stream, args=(port, n, held, end, gaps)) for n in range(args.clients)]
        threads += [threading.Thread(target=ask_hostile, args=(port, n, end)) for n in range(args.hostile)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        server.terminate()
        server.wait()
    assert gaps, "no stream had two tokens"
    gaps.sort()
    at = [1e3 * gaps[min(len(gaps) - 1, int(len(gaps) * share))] for share in (0.5, 0.99, 1)]
    rate = len(gaps) / args.seconds
    print(f"{rate:.0f} tokens/s; gap in ms: median {at[0]:.1f}, 99th percentile {at[1]:.1f}, most {at[2]:.1f}")


if __name__ == "__main__":
    main()
