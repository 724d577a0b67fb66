"""Soaks `hotmetal serve` of the built-in model: many clients, some of them rude; is anything wrong, lost or leaked?

usage: soak.py BINARY [--seconds 600] [--clients 64] [--seed 1] [--json FILE]        (needs nothing beyond Python)

Starts the server and asks each of the requests below alone, twice: the same request has to get the same answer later.
Then the clients draw requests for the given time: every route, whole answers and streams, grammars, tools,
log-probabilities, several completions, refusals, and bodies of 8 MB. A client waits for as long as `Retry-After` says.
Some clients go away in the middle of a body, while they wait, or in a stream, and some stop reading. At the end the
server gets SIGTERM with streams under way. What is held:

- 0 wrong: an answer is the one that the request got alone, and an abandoned stream has shown the beginning of it.
- 0 lost: the server answers every request that its client did not abandon within --answer-time, or refuses it as
  documented: 429 or 503 with `Retry-After`. It gives no other status from 500 up.
- /health answers 200 within --health-time, to a process of its own that asks four times a second.
- Memory (the peak of VmRSS) stays under a budget: what the server has after all requests but the large ones and with a
  full KV cache, --prepare-memory, what grammars may take (64 MiB kept, 4 of 24 MiB being compiled), and 64 MiB for
  connections and for what the allocator keeps. The median of the last third of the time is at most a tenth above that
  of the second. Afterwards the cache's blocks are free, and no file descriptor is left open.
- After SIGTERM, streams under way end by themselves or with an error event, new requests get 503 or no connection, and
  the process ends within the drain time with status 0.

Prints what it counted, and exits with status 1 and a list if anything does not hold.
"""

import argparse
import asyncio
import collections
import dataclasses
import json
import multiprocessing
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time

MIB = 1 << 20
# The server's limits in this run. The queue is short, so that some requests are refused.
BODY_BYTES_MAX = 8 * MIB
DRAIN_S = 10
QUEUE = 64
PREPARE_BYTES = 512 * MIB
# What grammars may take: those that are kept, and those being compiled (crates/server/src/grammar.rs).
GRAMMAR_BYTES = 64 * MIB + 4 * 24 * MIB
ALLOWANCE_BYTES = 64 * MIB
WORDS = "the moon was out and a fox sat by the river while it told the owl a story about an old red boat".split()


@dataclasses.dataclass
class Case:
    """A request, and what it got when it was alone."""

    name: str
    method: str
    path: str
    body: bytes = b""
    weight: float = 1.0
    is_stream: bool = False
    # Answers that differ each time: only the status is compared.
    varies: bool = False
    # The server may answer before it has read all of the body, and close the connection then.
    may_close: bool = False
    chunked: bool = False
    status: int = 0
    answer: object = None


def cases():
    found = []

    def add(name, path, body, **more):
        data = json.dumps(body).encode() if not isinstance(body, bytes) else body
        found.append(Case(name, "POST", path, data, **more))

    def both(name, path, body, **more):
        add(name, path, body, **more)
        add(f"{name}, streamed", path, body | {"stream": True}, is_stream=True, **more)

    chat, text, responses, messages = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
    story, greedy = [{"role": "user", "content": "Tell me a story."}], {"temperature": 0}
    both("chat", chat, {"messages": story, "max_tokens": 48, **greedy}, weight=3)
    both("chat, drawn", chat, {"messages": story, "max_tokens": 48, "seed": 7, "temperature": 1.0})
    long = [{"role": "user", "content": " ".join(WORDS * 50)}]
    both("chat, long", chat, {"messages": long, "max_tokens": 16, **greedy}, weight=2)
    several = {"messages": story, "max_tokens": 12, "n": 4, "seed": 3, "logprobs": True, "top_logprobs": 3}
    both("chat, several", chat, several)
    both("completion", text, {"prompt": "Once upon a time", "max_tokens": 40, **greedy}, weight=3)
    echoed = {"prompt": ["Once upon a time, there was", "The moon"], "max_tokens": 0, "echo": True, "logprobs": 2}
    add("scores", text, echoed)
    add("ids", text, {"prompt": [300, 301, 302, 303], "max_tokens": 20, **greedy})
    both("responses", responses, {"input": "Tell me a story.", "max_output_tokens": 30, **greedy})
    both("messages", messages, {"messages": story, "max_tokens": 30, **greedy})
    add("tokens of messages", f"{messages}/count_tokens", {"messages": story})
    add("embeddings", "/v1/embeddings", {"input": ["The moon was out.", "It was night."]})
    add("tokenize", "/tokenize", {"prompt": " ".join(WORDS)})
    add("detokenize", "/detokenize", {"tokens": list(range(100, 400))})
    add("template", "/apply-template", {"messages": story})
    for path in ("/v1/models", "/tokenizer_info", "/openapi.json", "/version", "/", "/app.js"):
        found.append(Case(path, "GET", path, weight=0.3))
    found.append(Case("/metrics", "GET", "/metrics", varies=True, weight=0.5))

    # Grammars of each kind, and a call that has to be made.
    person = {
        "type": "object",
        "required": ["name", "age"],
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 0, "maximum": 99},
        },
    }
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": person}}
    both("schema", chat, {"messages": story, "max_tokens": 60, "response_format": schema, **greedy}, weight=2)
    both(
        "regex",
        text,
        {
            "prompt": "A date: ",
            "max_tokens": 20,
            **greedy,
            "structured_outputs": {"regex": "[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]"},
        },
    )
    lark = 'start: "the " animal " and the " animal\nanimal: "fox" | "owl" | "hen"'
    both("lark", chat, {"messages": story, "max_tokens": 20, "structured_outputs": {"grammar": lark}, **greedy})
    choice = {"choice": ["yes", "no"]}
    both("choice", chat, {"messages": story, "max_tokens": 10, "structured_outputs": choice, **greedy})
    function = {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "required": ["city"], "properties": {"city": {"enum": ["Oslo", "Bergen"]}}},
    }
    both(
        "call",
        chat,
        {
            "messages": story,
            "max_tokens": 200,
            "tool_choice": "required",
            **greedy,
            "tools": [{"type": "function", "function": function}],
        },
    )
    use = {"name": "weather", "input_schema": function["parameters"]}
    has_to = {"tool_choice": {"type": "any"}, "tools": [use]}
    both("use", messages, {"messages": story, "max_tokens": 200, **has_to, **greedy})
    both(
        "function",
        responses,
        {
            "input": "Oslo?",
            "max_output_tokens": 200,
            "tool_choice": "required",
            **greedy,
            "tools": [{"type": "function", **function}],
        },
    )

    # One model alone answers to every name.
    add("another name", chat, {"messages": story, "model": "other", "max_tokens": 5, **greedy}, weight=0.5)

    # Refusals: of a field, a model, a route, a grammar, a text that is no JSON.
    add("misspelt", chat, {"messages": story, "temprature": 0}, weight=0.5)
    add("no such model", "/api/show", {"model": "other"}, weight=0.5)
    add("no such route", "/v1/audio/speech", {}, weight=0.3)
    add("not JSON", chat, b'{"messages": [', weight=0.5)
    add("too deep", chat, b'{"messages": ' + b"[" * 100 + b"]" * 100 + b"}", weight=0.5)
    add("bad grammar", chat, {"messages": story, "structured_outputs": {"grammar": "start: start start"}}, weight=0.5)
    add("no gap", "/infill", {"input_prefix": "a", "input_suffix": "b"}, weight=0.3)

    # Bodies of 8 MB: one that is answered, some that are refused once they are read, and some with a byte too many.
    def fill(head, tail, piece):
        inside = BODY_BYTES_MAX - len(head) - len(tail)
        return head + (piece * (inside // len(piece) + 1))[:inside] + tail

    words = (" ".join(WORDS) + " ").encode()
    large = dict(weight=0.25)
    add("8 MB to tokenize", "/tokenize", fill(b'{"prompt": "', b'", "return_token_strs": false}', words), **large)
    add("8 MB of chat", chat, fill(b'{"messages": [{"role": "user", "content": "', b'"}]}', words), **large)
    said = fill(b'{"max_tokens": 5, "messages": [{"role": "user", "content": "', b'"}]}', words)
    add("8 MB of messages", messages, said, **large)
    add("8 MB of ids", text, fill(b'{"prompt": [3', b"0]}", b",300"), **large)
    add("8 MB of brackets", chat, fill(b'{"messages": [', b"]}", b"[],"), **large)
    over = fill(b'{"prompt": "', b'"}', words) + b" "
    add("a byte too many", "/tokenize", over, may_close=True, **large)
    add("a byte too many, in chunks", "/tokenize", over, may_close=True, chunked=True, **large)
    return found


# Members that differ from answer to answer: ids, times, and what was cached.
VARYING = set(
    "id created created_at x_hotmetal item_id call_id timings cached_tokens prompt_tokens_details input_tokens_details "
    "input_tokens cache_read_input_tokens system_fingerprint load_ms".split()
)


def comparable(value):
    if isinstance(value, dict):
        return {name: comparable(inner) for name, inner in value.items() if name not in VARYING}
    if isinstance(value, list):
        return [comparable(inner) for inner in value]
    return value


def joined(events):
    """What a stream says, however it was cut into events: texts by their place, then everything else in its order."""
    texts, rest = collections.defaultdict(str), []
    for event in events:
        kind = event.get("type", "")
        if kind.endswith("delta") and "delta" in event and kind != "message_delta":
            delta = event["delta"]
            for name, text in delta.items() if isinstance(delta, dict) else [("text", delta)]:
                if name != "type":
                    texts[f"{kind} {event.get('index', event.get('output_index'))} {name}"] += text
        elif kind:
            rest.append({name: inner for name, inner in comparable(event).items() if name != "sequence_number"})
        for choice in event.get("choices", []):
            index, delta = choice["index"], choice.get("delta", {})
            pieces = {name: delta.get(name) for name in ("content", "reasoning_content")} | {"text": choice.get("text")}
            for call in delta.get("tool_calls") or []:
                pieces[f"arguments {call['index']}"] = call["function"].get("arguments")
                pieces[f"name {call['index']}"] = call["function"].get("name")
            for name, text in pieces.items():
                texts[f"{index} {name}"] += text or ""
            for token in (choice.get("logprobs") or {}).get("content") or []:
                texts[f"{index} logprobs"] += json.dumps(token)
            texts[f"{index} finish"] += choice.get("finish_reason") or ""
    return {name: text for name, text in texts.items() if text}, rest


# The events behind which a stream without [DONE] has nothing.
LAST_EVENTS = ("message_stop", "response.completed", "response.incomplete", "response.failed", "error")


class Stream:
    """The events of a stream as they come in."""

    def __init__(self):
        self.rest, self.events, self.error, self.done = b"", [], None, False

    def take(self, piece):
        *whole, self.rest = (self.rest + piece).split(b"\n\n")
        for event in whole:
            for line in event.split(b"\n"):
                if line == b"data: [DONE]":
                    self.done = True
                elif line.startswith(b"data: "):
                    data = json.loads(line[6:])
                    self.events.append(data)
                    kind = data.get("type")
                    self.done |= kind in LAST_EVENTS
                    if data.get("error") or kind in ("error", "response.failed"):
                        self.error = data.get("error") or data


class Gone(Exception):
    """The connection ended before the answer did."""


class Connection:
    """A connection of HTTP/1.1, which may be used again."""

    def __init__(self, port):
        self.port, self.reader, self.writer = port, None, None

    async def open(self):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=MIB)

    def close(self):
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None

    async def send(self, case, share=1.0):
        """Sends a request, or a share of its body."""
        head = f"{case.method} {case.path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
        head += "Content-Type: application/json\r\n"
        head += "Transfer-Encoding: chunked\r\n\r\n" if case.chunked else f"Content-Length: {len(case.body)}\r\n\r\n"
        self.writer.write(head.encode())
        body = case.body[: int(len(case.body) * share)]
        for at in range(0, len(body), 65536):
            piece = body[at : at + 65536]
            self.writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if case.chunked else piece)
            await self.writer.drain()
        if case.chunked and share == 1.0:
            self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def head(self):
        try:
            text = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, OSError) as error:
            raise Gone(f"before its answer: {type(error).__name__}") from None
        first, *lines = text.split("\r\n")
        named = (line.partition(":") for line in lines if line)
        return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in named}

    async def pieces(self, headers):
        try:
            if "content-length" in headers:
                left = int(headers["content-length"])
                while left:
                    piece = await self.reader.read(min(left, 65536))
                    if not piece:
                        raise Gone("within its answer")
                    left -= len(piece)
                    yield piece
                return
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                piece = await self.reader.readexactly(size + 2)
                yield piece[:-2]
            await self.reader.readuntil(b"\r\n")
        except (asyncio.IncompleteReadError, OSError) as error:
            raise Gone(f"within its answer: {type(error).__name__}") from None


@dataclasses.dataclass
class Got:
    status: int
    headers: dict
    answer: object
    error: object = None


async def ask(connection, case, on_event=None):
    """Sends a request and reads its answer; `on_event` sees the stream, and ends the reading by returning false."""
    await connection.open()
    try:
        await connection.send(case)
    except OSError:
        # What the server said before it closed may be there to read.
        if not case.may_close:
            raise Gone("while it was sent") from None
    status, headers = await connection.head()
    stream, body = Stream(), bytearray()
    is_stream = headers.get("content-type", "").startswith("text/event-stream")
    pieces = connection.pieces(headers)
    async for piece in pieces:
        if is_stream:
            stream.take(piece)
            if on_event and not await on_event(stream):
                await pieces.aclose()
                connection.close()
                return Got(status, headers, joined(stream.events), "abandoned")
        else:
            body += piece
    if headers.get("connection", "").lower() == "close":
        connection.close()
    if is_stream:
        if not stream.done:
            raise Gone("before the end of its stream")
        return Got(status, headers, joined(stream.events), stream.error)
    if headers.get("content-type", "").startswith("application/json"):
        # Hashes are enough of what has megabytes.
        answer = hash(bytes(body)) if len(body) > MIB else comparable(json.loads(body))
    else:
        answer = bytes(body)
    return Got(status, headers, answer)


class Soak:
    def __init__(self, args, port, table):
        self.args, self.port, self.cases = args, port, table
        self.counts, self.faults = collections.Counter(), []
        self.times = []

    def fault(self, kind, case, what):
        self.counts[kind] += 1
        if len(self.faults) < 50:
            self.faults.append(f"{kind}: {case.name} ({case.method} {case.path}): {what}"[:1500])

    async def alone(self):
        """Asks everything alone, twice, and keeps the answers."""
        for case in self.cases:
            for again in (False, True):
                connection = Connection(self.port)
                got = await asyncio.wait_for(ask(connection, case), self.args.answer_time)
                connection.close()
                if again and not case.varies and (case.status, case.answer) != (got.status, got.answer):
                    self.fault("wrong", case, f"{got.status} {got.answer}, and before {case.status} {case.answer}")
                case.status, case.answer = got.status, got.answer
            if case.status >= 500 or case.status == 429:
                self.fault("wrong", case, f"alone, it gets status {case.status}: {case.answer}")

    async def fill_cache(self):
        """Writes all of the KV cache once, so that its pages are counted before anything else is."""

        def prompt(index):
            ids = [300 + (7 * index + at) % 3000 for at in range(2000)]
            return Case("fill", "POST", "/v1/completions", json.dumps({"prompt": ids, "max_tokens": 1}).encode())

        await asyncio.gather(*(ask(Connection(self.port), prompt(index)) for index in range(16)))

    def check(self, case, got):
        status = got.status
        self.counts[f"status {status}"] += 1
        if status in (429, 503) and status != case.status:
            if "retry-after" not in got.headers:
                self.fault("undeclared", case, f"status {status} without Retry-After: {got.answer}")
            self.counts["refused for load"] += 1
        elif status >= 500:
            self.fault("5xx", case, f"status {status}: {got.answer}")
        elif status != case.status:
            self.fault("wrong", case, f"status {status}, and {case.status} alone: {got.answer}")
        elif not case.varies and got.answer != case.answer:
            self.fault("wrong", case, f"{got.answer}\n  alone: {case.answer}")
        else:
            self.counts["as alone"] += 1

    async def well(self, connection, case):
        """A request that its client waits for."""
        begun = time.monotonic()
        fresh = connection.writer is None
        try:
            got = await asyncio.wait_for(ask(connection, case), self.args.answer_time)
        except (Gone, OSError, asyncio.TimeoutError) as error:
            connection.close()
            if not fresh and isinstance(error, Gone) and "within" not in str(error):
                # The server closed a connection that was kept for another request, as it may at any time.
                self.counts["kept connections closed"] += 1
                await self.well(connection, case)
                return
            self.fault("lost", case, f"{type(error).__name__}: {error}")
            return
        self.times.append(time.monotonic() - begun)
        self.check(case, got)
        if got.status in (429, 503):
            await asyncio.sleep(float(got.headers.get("retry-after", 1)))

    async def rude(self, case, draw):
        """A request that its client abandons, somewhere."""
        connection = Connection(self.port)
        where = draw.choice(["body", "waiting", "stream", "stream", "unread"])
        try:
            await connection.open()
            if where == "body" and case.body:
                await connection.send(case, share=draw.random())
                await asyncio.sleep(draw.uniform(0, 0.2))
            elif where == "stream" and case.is_stream:
                most = draw.randint(1, 30)

                async def on_event(stream):
                    return len(stream.events) < most

                got = await asyncio.wait_for(ask(connection, case, on_event), self.args.answer_time)
                if got.error == "abandoned" and got.status == case.status:
                    for place, text in got.answer[0].items():
                        if not case.answer[0].get(place, "").startswith(text):
                            self.fault("wrong", case, f"the stream began {got.answer[0]}\n  alone: {case.answer[0]}")
                elif got.error != "abandoned":
                    self.check(case, got)
            else:
                await connection.send(case)
                # One that does not read leaves what comes in its socket.
                await asyncio.sleep(draw.uniform(0, 3 if where == "unread" else 0.3))
        except (Gone, OSError):
            # Of a body that is too large, the server need not read all.
            if not case.may_close and where != "body":
                self.fault("lost", case, f"abandoned at {where}, but the server closed first")
        except asyncio.TimeoutError:
            self.fault("lost", case, "nothing came of a stream")
        if connection.writer is not None and draw.random() < 0.3:
            # Gone without a word: the socket resets.
            connection.writer.transport.abort()
        connection.close()
        self.counts["abandoned"] += 1

    async def client(self, number, until):
        draw = random.Random(self.args.seed * 1000 + number)
        connection = Connection(self.port)
        weights = [case.weight for case in self.cases]
        while time.monotonic() < until:
            case = draw.choices(self.cases, weights)[0]
            if draw.random() < self.args.rude:
                await self.rude(case, draw)
            else:
                await self.well(connection, case)
            if draw.random() < 0.2:
                connection.close()
        connection.close()

    async def streams_under_way(self, number, began):
        """At the end: streams that SIGTERM finds under way have to end with a word."""
        body = {"messages": [{"role": "user", "content": f"{number}"}], "stream": True}
        body |= {"ignore_eos": True, "max_tokens": 1900}
        case = Case("drained", "POST", "/v1/chat/completions", json.dumps(body).encode(), is_stream=True)
        connection = Connection(self.port)

        async def on_event(_):
            began.release()
            return True

        try:
            got = await ask(connection, case, on_event)
            if got.status != 200:
                began.release()
            end = "told" if got.error else "whole" if got.status == 200 else "refused"
            self.counts[f"stream at SIGTERM: {end}"] += 1
        except (Gone, OSError) as error:
            began.release()
            self.fault("lost", case, f"SIGTERM cut it: {error}")

    async def drain(self, process):
        began = asyncio.Semaphore(0)
        streams = [asyncio.ensure_future(self.streams_under_way(number, began)) for number in range(self.args.clients)]
        for _ in range(8):
            await began.acquire()
        # The other requests have been read by then: one that the signal finds unread is a new one, and its connection is
        # closed without an answer.
        await asyncio.sleep(0.5)
        probe = Case("a new request", "POST", "/v1/completions", b'{"prompt": "a", "max_tokens": 1}')
        # One comes on a connection that was there before, the others on new ones.
        kept = Connection(self.port)
        await kept.open()
        process.send_signal(signal.SIGTERM)
        sent = time.monotonic()
        await asyncio.sleep(0.2)
        while process.poll() is None and time.monotonic() < sent + DRAIN_S + 10:
            connection, kept = kept or Connection(self.port), None
            try:
                got = await asyncio.wait_for(ask(connection, probe), 5)
                self.counts[f"while draining: {got.status}"] += 1
                if got.status != 503 or "retry-after" not in got.headers:
                    self.fault("undeclared", probe, f"status {got.status} while the server ends: {got.answer}")
            except (Gone, OSError):
                self.counts["while draining: no connection"] += 1
            except asyncio.TimeoutError:
                self.fault("lost", probe, "no word while the server ends")
            await asyncio.sleep(0.5)
        took = time.monotonic() - sent
        done, pending = await asyncio.wait(streams, timeout=5)
        if process.poll() != 0 or took > DRAIN_S + 3 or pending:
            status = f"status {process.poll()} after {took:.1f} s, {len(pending)} streams without an end"
            self.fault("drain", probe, f"{status}; status 0 within {DRAIN_S} s is promised")
        return took


def status_of(pid):
    """VmRSS and VmHWM in bytes, and the threads."""
    with open(f"/proc/{pid}/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    rss, peak = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return rss, peak, int(fields["Threads"])


def spread(times):
    times = sorted(times)
    shares = {"median": 0.5, "p99": 0.99, "most": 1}
    return {name: round(times[min(len(times) - 1, int(share * len(times)))], 3) for name, share in shares.items()}


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def watch_health(port, until, results):
    """Asks for /health four times a second, from a process that does nothing else."""
    import urllib.error
    import urllib.request

    times, wrong = [], []
    while time.monotonic() < until.value:
        begun = time.monotonic()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as answer:
                answer.read()
        except (urllib.error.URLError, OSError) as error:
            wrong.append(str(error))
        times.append(time.monotonic() - begun)
        time.sleep(max(0, 0.25 - times[-1]))
    results.put((times, wrong))


def start(args):
    line = [args.binary, "serve", "--port", "0", "--queue", str(QUEUE), "--prepare-memory", str(PREPARE_BYTES)]
    line += ["--max-body-bytes", str(BODY_BYTES_MAX), "--drain-timeout", str(DRAIN_S)]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
    port = None
    for said in process.stderr:
        found = re.match(r"listening on http://127.0.0.1:(\d+)", said)
        port = int(found[1]) if found else port
        if said.startswith("ready"):
            # It says little more, but a pipe that nobody reads may fill up.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, port
    sys.exit(f"the server ended with status {process.wait()}")


async def soak(args, process, port):
    run = Soak(args, port, cases())
    ready = status_of(process.pid)[0]
    small = [case for case in run.cases if len(case.body) < MIB]
    large, run.cases = run.cases, small
    await run.alone()
    await run.fill_cache()
    await asyncio.sleep(1)
    warm, _, threads = status_of(process.pid)
    files = descriptors(process.pid)
    run.cases = [case for case in large if len(case.body) >= MIB]
    await run.alone()
    run.cases = large
    print(f"{len(run.cases)} requests asked alone, twice; {warm / MIB:.0f} MiB", file=sys.stderr)

    until = time.monotonic() + args.seconds
    end, results = multiprocessing.Value("d", until), multiprocessing.Queue()
    health = multiprocessing.Process(target=watch_health, args=(port, end, results))
    health.start()
    begun = said = time.monotonic()
    samples = []
    clients = [asyncio.ensure_future(run.client(number, until)) for number in range(args.clients)]
    waiting = set(clients)
    while waiting:
        done, waiting = await asyncio.wait(waiting, timeout=0.2)
        for client in done:
            # A mistake in this file must not pass for a good run.
            client.result()
        if process.poll() is not None:
            sys.exit(f"the server ended with status {process.poll()} during the run: {run.faults}")
        samples.append(status_of(process.pid)[0])
        if time.monotonic() > said + 60:
            said = time.monotonic()
            print(f"{(said - begun) / 60:.0f} min: {samples[-1] / MIB:.0f} MiB, {dict(run.counts)}", file=sys.stderr)
    times, wrong = results.get()
    health.join()

    nobody = Case("nothing in particular", "GET", "/metrics")
    for _ in range(100):
        got = await ask(Connection(port), nobody)
        used = int(re.search(rb"hotmetal_kv_blocks_used\{[^}]*\} (\d+)", got.answer)[1])
        held = int(re.search(rb"hotmetal_prepare_bytes (\d+)", got.answer)[1])
        left = descriptors(process.pid)
        if used == 0 and held == 0 and left <= files + 1:
            break
        await asyncio.sleep(0.1)
    else:
        run.fault(
            "leak", nobody, f"left: {used} blocks, {held} bytes of requests, {left} descriptors (before: {files})"
        )
    after, highest, threads_after = status_of(process.pid)
    budget = warm + PREPARE_BYTES + GRAMMAR_BYTES + ALLOWANCE_BYTES
    if highest > budget:
        run.fault("memory", nobody, f"{highest / MIB:.0f} MiB at most, and the budget is {budget / MIB:.0f} MiB")
    third = len(samples) // 3
    thirds = [statistics.median(samples[at * third : (at + 1) * third]) for at in range(3)]
    if args.seconds >= 300 and thirds[2] > 1.1 * thirds[1]:
        run.fault("memory", nobody, f"it grows: {[int(rss / MIB) for rss in thirds]} MiB in each third of the time")
    if wrong:
        run.fault("health", nobody, f"{len(wrong)} of {len(times)} times not well: {wrong[:3]}")
    if max(times) > args.health_time:
        run.fault("health", nobody, f"an answer took {max(times):.2f} s, and {args.health_time} s is promised")
    # All that is small again, alone: the time has changed nothing.
    run.cases = small
    await run.alone()
    drained = await run.drain(process)

    report = {
        "seconds": args.seconds,
        "clients": args.clients,
        "seed": args.seed,
        "requests": len(run.times) + run.counts["abandoned"],
        "counts": dict(sorted(run.counts.items())),
        "wrong": run.counts["wrong"],
        "lost": run.counts["lost"],
        "5xx": run.counts["5xx"],
        "answers_s": spread(run.times),
        "health_s": {"asked": len(times), **spread(times)},
        "memory_mib": {
            "ready": ready // MIB,
            "warm": warm // MIB,
            "peak": highest // MIB,
            "budget": budget // MIB,
            "after": after // MIB,
            "medians of thirds": [int(rss / MIB) for rss in thirds],
        },
        "threads": [threads, threads_after],
        "drained_s": round(drained, 2),
    }
    print(json.dumps(report, indent=1))
    if args.json:
        with open(args.json, "w") as out:
            json.dump(report, out, indent=1)
    for fault in run.faults:
        print(fault, file=sys.stderr)
    return not run.faults


def main():
    parser = argparse.ArgumentParser(description="Soaks a server; see the head of this file.")
    parser.add_argument("binary", help="the program `hotmetal`")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rude", type=float, default=0.2, help="share of requests that are abandoned")
    parser.add_argument("--answer-time", type=float, default=120, help="seconds in which a request is answered")
    parser.add_argument("--health-time", type=float, default=2, help="seconds in which /health is answered")
    parser.add_argument("--json", metavar="FILE", help="where the figures are written too")
    args = parser.parse_args()
    process, port = start(args)
    try:
        held = asyncio.run(soak(args, process, port))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
