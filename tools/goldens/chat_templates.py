"""Renders chat templates with Hugging Face transformers, as the reference for `tokenizer::chat_template`.

Two sets of goldens, both under `crates/tokenizer/tests/golden/chat_template/`:

* `real.json`: every template of a folder of real ones (not part of this repository; the test reads it from there
  too), rendered with every conversation below. Templates themselves are not stored, only their renderings; each is
  stored as what differs from the rendering before it.
* `features.json`: small templates written for this project, one per feature, with their sources and renderings.

`source.toml` beside them says what made them. To make them again:

    python3 -m venv venv && venv/bin/pip install transformers==5.23.0 jinja2==3.1.6
    venv/bin/python tools/goldens/chat_templates.py path/to/templates
"""

import datetime
import hashlib
import json
import os
import pathlib
import platform
import sys

import jinja2
import transformers
from transformers.utils import chat_template_utils

OUT = pathlib.Path(__file__).resolve().parents[2] / "crates/tokenizer/tests/golden/chat_template"
NOW = datetime.datetime(2026, 2, 3, 4, 5, 6, 78)


class Clock(datetime.datetime):
    """A clock that stands still, so that `strftime_now` is reproducible."""

    @classmethod
    def now(cls, tz=None):
        return cls(*NOW.timetuple()[:6], NOW.microsecond)


chat_template_utils.datetime = Clock


def function(name, description, properties, required=()):
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER = function(
    "get_weather",
    "Weather at a place <now> & later, it's \"fresh\"",
    {
        "city": {"type": "string", "description": "City, e.g. Zürich or 東京"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
    },
    ["city"],
)
SEARCH = function(
    "search_files",
    "Finds files",
    {
        "patterns": {"type": "array", "items": {"type": "string"}, "description": "Globs"},
        "limit": {"type": "integer", "default": 10, "minimum": 0, "maximum": 1e3},
        "deep": {"type": "boolean", "default": False},
        "weight": {"type": "number", "default": 0.5},
        "options": {"type": "object", "properties": {"hidden": {"type": "boolean"}}, "additionalProperties": False},
        "any": {"type": ["string", "null"], "nullable": True},
        "list": {"type": "array"},
    },
    ["patterns"],
)


def call(call_id, name, arguments):
    """A tool call as OpenAI's API returns it: the arguments are a string."""
    arguments = json.dumps(arguments, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def said(role, content, **fields):
    return {"role": role, "content": content, **fields}


AWKWARD = "a < b && c > d, \"quoted\" 'single' \\back\\slash\ttab\r\nÄöü 東京 🦀 {{ not.jinja }} {% if %}"
ANSWERED = [
    said("user", "Weather in Zürich?"),
    said("assistant", "", tool_calls=[call("abcdef123", "get_weather", {"city": "Zürich <west> & \"old\"", "days": 2})]),
    said("tool", '{"temp": -3.5, "sky": "<snow> & \'wind\'", "note": "Grüezi 🦀"}', tool_call_id="abcdef123", name="get_weather"),
]
CONVERSATIONS = {
    "user": [said("user", "Hello, who are you?")],
    "system": [said("system", "You are terse."), said("user", "Hi")],
    "spaces": [said("system", "  padded \n"), said("user", "\n\n lines \n\n"), said("assistant", "  so \n"), said("user", " ok ")],
    "multi_turn": [
        said("system", "Be brief."),
        said("user", "One?"),
        said("assistant", "One."),
        said("user", AWKWARD),
        said("assistant", AWKWARD),
        said("user", "Three?"),
    ],
    "ends_with_assistant": [said("user", "Say it"), said("assistant", "It.")],
    "reasoning": [
        said("user", "2 + 2?"),
        said("assistant", "4", reasoning_content="Two and two\nare four."),
        said("user", "And 3 + 3?"),
    ],
    "reasoning_last": [said("user", "2 + 2?"), said("assistant", "4", reasoning_content="\nTwo and two.\n")],
    "reasoning_inline": [
        said("user", "2 + 2?"),
        said("assistant", "<think>\nTwo & two\n</think>\n\n4"),
        said("user", "Sure?"),
    ],
    "tool_call": ANSWERED[:2],
    "tool_result": ANSWERED,
    "tool_answer": [said("system", "Use tools."), *ANSWERED, said("assistant", "Snow, -3.5 °C."), said("user", "Thanks")],
    "tool_call_with_text": [
        said("user", "Weather?"),
        said("assistant", "Let me look.", tool_calls=[call("abcdef123", "get_weather", {"city": "Bern"})]),
        said("tool", "sunny", tool_call_id="abcdef123", name="get_weather"),
    ],
    "tool_call_reasoned": [
        said("user", "Weather?"),
        said("assistant", "", reasoning_content="I need the tool.", tool_calls=[call("abcdef123", "get_weather", {"city": "Bern"})]),
        said("tool", "sunny", tool_call_id="abcdef123", name="get_weather"),
    ],
    "parallel_tool_calls": [
        said("user", "Both?"),
        said(
            "assistant",
            "",
            tool_calls=[
                call("abcdef123", "get_weather", {"city": "Bern", "unit": None}),
                call("abcdef124", "search_files", {"patterns": ["*.rs", "a&b"], "deep": True, "weight": 1e-7, "limit": 3, "options": {}}),
            ],
        ),
        said("tool", "sunny", tool_call_id="abcdef123", name="get_weather"),
        said("tool", "[\"x.rs\"]", tool_call_id="abcdef124", name="search_files"),
    ],
    "roles_out_of_order": [said("user", "a"), said("user", "b"), said("assistant", "c")],
    "unknown_role": [said("user", "a"), said("critic", "b")],
    "no_messages": [],
}
DOCUMENTS = [{"title": "On <snow>", "text": "It's \"cold\" & white."}, {"title": "東京", "text": "Line one\nline two"}]
# Names of variables, beside the conversation, with which each is rendered.
OPTIONS = {
    "plain": {"add_generation_prompt": True},
    "no_prompt": {"add_generation_prompt": False},
    "tools": {"add_generation_prompt": True, "tools": [WEATHER, SEARCH]},
    "one_tool": {"add_generation_prompt": False, "tools": [WEATHER]},
    "thinking": {"add_generation_prompt": True, "enable_thinking": True},
    "not_thinking": {"add_generation_prompt": True, "enable_thinking": False},
    "documents": {"add_generation_prompt": True, "documents": DOCUMENTS},
    "kwargs": {
        "add_generation_prompt": True,
        "tools": [SEARCH],
        "kwargs": {
            "thinking": True, "reasoning_effort": "high", "builtin_tools": ["browser", "python"], "custom_tools": [SEARCH],
            "model_identity": "You are a test.", "date_string": "1 Jan 2020", "tools_in_user_message": False,
            "enable_citations": True, "clear_thinking": False, "xml_tools": [SEARCH], "python_tools": [WEATHER],
            "controls": {"length": "short", "originality": "abstractive"},
        },
    },
}
PAIRS = [(conversation, options) for conversation in CONVERSATIONS for options in ("plain", "no_prompt")]
PAIRS += [(conversation, "tools") for conversation in CONVERSATIONS if conversation not in ("spaces", "unknown_role")]
PAIRS += [("tool_result", "one_tool"), ("parallel_tool_calls", "one_tool"), ("system", "documents"), ("multi_turn", "documents")]
PAIRS += [
    (conversation, options)
    for conversation in ("user", "system", "reasoning", "reasoning_last", "reasoning_inline", "tool_answer")
    for options in ("thinking", "not_thinking", "kwargs")
]


def with_parsed_arguments(messages):
    """Tool calls as templates expect them: the arguments are an object."""
    messages = json.loads(json.dumps(messages))
    for message in messages:
        for tool_call in message.get("tool_calls", []):
            tool_call["function"]["arguments"] = json.loads(tool_call["function"]["arguments"])
    return messages


def render(source, messages, options):
    """`{"output": text}`, or what the reference refuses: `{"raised": message}` or `{"error": type}`."""
    variables = {"bos_token": "<BOS>", "eos_token": "<EOS>", **options.get("kwargs", {})}
    if "enable_thinking" in options:
        variables["enable_thinking"] = options["enable_thinking"]
    try:
        rendered, _ = chat_template_utils.render_jinja_template(
            conversations=[with_parsed_arguments(messages)],
            tools=options.get("tools"),
            documents=options.get("documents"),
            chat_template=source,
            add_generation_prompt=options["add_generation_prompt"],
            **variables,
        )
        return {"output": rendered[0]}
    except jinja2.exceptions.TemplateError as error:
        if type(error) is jinja2.exceptions.TemplateError:
            return {"raised": str(error)}
        return {"error": type(error).__name__}
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, SyntaxError, RecursionError) as error:
        return {"error": type(error).__name__}


def real(folder):
    templates = {}
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_bytes().decode("utf-8")
        previous = ""
        cases = []
        for conversation, options in PAIRS:
            result = render(source, CONVERSATIONS[conversation], OPTIONS[options])
            if "output" in result:
                output = result.pop("output")
                kept = len(os.path.commonprefix([previous, output]))
                result = {"kept_chars": kept, "then": output[kept:]}
                previous = output
            cases.append({"conversation": conversation, "options": options, **result})
        templates[path.name] = cases
    return {"conversations": CONVERSATIONS, "options": OPTIONS, "templates": templates}


def main():
    folder = pathlib.Path(sys.argv[1])
    OUT.mkdir(parents=True, exist_ok=True)
    features = json.loads((OUT / "features_input.json").read_text(encoding="utf-8"))
    rendered = []
    for name, source in features["templates"].items():
        rendered.append({"name": name, "template": source, **render(source, features["messages"], {"add_generation_prompt": True, "tools": features["tools"], "kwargs": features["kwargs"]})})
    for name, content in [("real.json", real(folder)), ("features.json", rendered)]:
        with open(OUT / name, "w", encoding="utf-8") as file:
            json.dump(content, file, ensure_ascii=False, separators=(",", ":"))
            file.write("\n")

    lines = [
        "# What made the goldens in this folder.",
        'tool = "transformers.utils.chat_template_utils.render_jinja_template"',
        f'transformers = "{transformers.__version__}"',
        f'jinja2 = "{jinja2.__version__}"',
        f'python = "{platform.python_version()}"',
        'command = "python tools/goldens/chat_templates.py path/to/templates"',
        f'date = "{datetime.date.today()}"',
        f'clock = "{NOW.isoformat()}"',
        'license = "renderings of the conversations in the script; the templates are their makers\' and are not stored"',
        "",
        "# SHA-256 of each file",
        "[files]",
        *(f'"{name}" = "{sha256(OUT / name)}"' for name in ("features.json", "features_input.json", "real.json")),
        "",
        "# SHA-256 of each template rendered in real.json; as collected by llama.cpp (models/templates), MIT",
        "[templates]",
        *(f'"{path.name}" = "{sha256(path)}"' for path in sorted(folder.glob("*.jinja"))),
    ]
    (OUT / "source.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
