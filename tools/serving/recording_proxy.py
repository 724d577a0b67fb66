"""A proxy that passes requests through and writes down what a program sent and what it got.

A record is a line of JSON: method, path, body, status, seconds, `error` (the parameter, code and message of a
refusal), and `ignored` (the fields that the server took without effect). `programs.py --proxy FILE` writes them.

A proxy with `force` changes one request on each path: the first that offers the tool of this name has to call it, with
these arguments. A program that lets the model choose then runs the tool even for a model that calls none by itself. The
record keeps what the program sent.
"""

import copy
import http.client
import http.server
import json
import threading
import time
import urllib.parse

# Headers that belong to one connection, which a proxy must not pass on.
OWN_HEADERS = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "proxy-connection"}


class Recorder(http.server.ThreadingHTTPServer):
    """Listens on a free port of loopback, forwards to `address`, and appends to the file `path` if there is one."""

    daemon_threads = True

    def __init__(self, address, path=None, force=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.target = urllib.parse.urlsplit(address)
        self.file = open(path, "a", encoding="utf-8") if path else None
        self.force = force
        self.forced_paths = set()
        self.lock = threading.Lock()
        self.records = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        # A program that ends leaves its connections open.
        pass

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"

    def record(self, line):
        with self.lock:
            self.records.append(line)
            if self.file:
                self.file.write(json.dumps(line, ensure_ascii=False) + "\n")
                self.file.flush()

    def changed(self, path, body):
        """The body that is sent on: another one the first time that the forced tool is offered on this path."""
        with self.lock:
            request = readable(body)
            if not self.force or path in self.forced_paths or not isinstance(request, dict):
                return body
            forced = forced_call(request, *self.force)
            if forced is None:
                return body
            self.forced_paths.add(path)
            return json.dumps(forced).encode()

    def refusals(self):
        """The requests that were not answered well."""
        return [line for line in self.records if line["status"] is None or line["status"] >= 400 or "error" in line]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def handle_one(self):
        begun = time.monotonic()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            body = self.chunks()
        sent = self.server.changed(self.path, body)
        upstream = http.client.HTTPConnection(self.server.target.hostname, self.server.target.port)
        # A compressed answer could not be read for its error.
        replaced = OWN_HEADERS | {"host", "content-length", "accept-encoding"}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in replaced}
        headers |= {"Host": self.server.target.netloc, "Content-Length": str(len(sent))}
        status, answer = None, bytearray()
        try:
            upstream.request(self.command, self.path, sent, headers)
            response = upstream.getresponse()
            status = response.status
            self.send_response(status)
            for name, value in response.getheaders():
                if name.lower() not in OWN_HEADERS | {"content-length", "date", "server"}:
                    self.send_header(name, value)
            if self.command == "HEAD":
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while piece := response.read1(65536):
                answer += piece
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except (OSError, http.client.HTTPException) as error:
            # One of the two sides has gone; the closed connection says so to the other.
            self.close_connection = True
            answer += f"\n{type(error).__name__}: {error}".encode()
        finally:
            upstream.close()
            line = {"method": self.command, "path": self.path, "body": readable(body), "status": status}
            self.server.record(line | {"seconds": round(time.monotonic() - begun, 3)} | findings(bytes(answer)))

    do_GET = do_POST = do_DELETE = do_HEAD = do_OPTIONS = do_PUT = handle_one

    def chunks(self):
        body = bytearray()
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return bytes(body)


def readable(body):
    """A body as JSON, or as text where it is not JSON; None where there is none."""
    text = body.decode("utf-8", "replace")
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def findings(answer):
    """What an answer, whole or streamed, says of errors and of fields without effect."""
    text = answer.decode("utf-8", "replace")
    found = {}
    for part in [text, *(line[6:] for line in text.splitlines() if line.startswith("data: {"))]:
        value = readable(part.encode())
        if not isinstance(value, dict):
            continue
        # The answer of /v1/responses is inside its events.
        for inner in (value, value.get("response")):
            if isinstance(inner, dict):
                if isinstance(inner.get("error"), dict):
                    found["error"] = {key: inner["error"].get(key) for key in ("param", "code", "message")}
                used = inner.get("x_hotmetal")
                if isinstance(used, dict) and used.get("ignored"):
                    found["ignored"] = used["ignored"]
    return found


def forced_call(request, name, arguments):
    """The request, if it offers a tool of this name, as one that makes the model call it with these arguments."""
    request = copy.deepcopy(request)
    for tool in request.get("tools") or []:
        function = tool.get("function", tool)
        if not isinstance(function, dict) or function.get("name") != name:
            continue
        properties = {key: {"const": value} for key, value in arguments.items()}
        schema = {
            "type": "object",
            "properties": properties,
            "required": list(arguments),
            "additionalProperties": False,
        }
        # Chat has the function inside the tool. Anthropic's tools have `input_schema`, those of Responses `parameters`.
        if "function" in tool:
            request["tool_choice"] = {"type": "function", "function": {"name": name}}
        elif "input_schema" in tool:
            request["tool_choice"] = {"type": "tool", "name": name}
        else:
            request["tool_choice"] = {"type": "function", "name": name}
        function["input_schema" if "input_schema" in tool else "parameters"] = schema
        return request
    return None
