"""Ids of conversations in Mistral's own format, by the package that defines it.

    pip install mistral-common==1.13.1
    python tools/goldens/mistral_conversations.py crates/tokenizer/tests/golden/mistral_conversations.json

Writes the words and special tokens of a small tekken.json, of which the tests make the file again, conversations as OpenAI's
API has them, and what each version of the format makes of them.
"""

import base64
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = ["th", "he", "the", " the", "er", "in", "ing", " a", "at", "\":", "\": ", "{\"", " {\"", "}}", "me", "name", "\n\n", " w",
         "call", "ea", " wea", "ther", "é", "中"]
# By rank, as the published files have them; from version 11 on a file lists its own.
SPECIALS = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
            "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]",
            "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"]
NUM_SPECIALS = 1000


def specials(number):
    """Texts by rank. Versions 11 and 13 have more names."""
    names = list(SPECIALS)
    if number >= 11:
        names += [f"<SPECIAL_{rank}>" for rank in range(len(names), 32)] + ["[ARGS]", "[CALL_ID]"]
    return names + [f"<SPECIAL_{rank}>" for rank in range(len(names), NUM_SPECIALS)]


def tekken(number):
    tokens = [bytes([byte]) for byte in range(256)] + [word.encode() for word in WORDS]
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(tokens)
    ]
    config = {"pattern": PATTERN, "num_vocab_tokens": len(vocab), "default_vocab_size": NUM_SPECIALS + len(vocab),
              "default_num_special_tokens": NUM_SPECIALS, "version": f"v{number}"}
    listed = [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(specials(number))]
    return {"config": config, "vocab": vocab, "special_tokens": listed}


def tool(name, description, parameters):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER = tool("get_weather", "The weather \"now\", in °C", {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Köln", "中"]}, "days": {"type": "integer"}},
    "required": ["city"]})
EMPTY = tool("list_all", "", {"type": "object", "properties": {}})


def call(name, arguments, call_id):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}


def said(role, content, **more):
    return {"role": role, "content": content, **more}


CALLS = [call("get_weather", {"city": "Köln", "days": 2}, "a1B2c3D4e"), call("list_all", {}, "Z9y8X7w6V")]
CONVERSATIONS = [
    {"messages": [said("user", "Is the weather good?")]},
    {"messages": [said("system", "Be  brief.\n"), said("user", " [INST] is text, </s> too\u00a0é中 ")]},
    {"messages": [said("user", "One"), said("assistant", "Two  "), said("user", "Three"), said("user", "Four")]},
    {"messages": [said("user", "Weather?")], "tools": [WEATHER, EMPTY]},
    {"messages": [said("system", "s"), said("user", "first"), said("assistant", "then"), said("user", "last")],
     "tools": [EMPTY]},
    {"messages": [said("user", "Weather?"), said("assistant", "", tool_calls=CALLS[:1]),
                  said("tool", "{\"sun\":true, \"at\": [1]}", tool_call_id="a1B2c3D4e")], "tools": [WEATHER]},
    {"messages": [said("user", "All"), said("assistant", "I look:", tool_calls=CALLS),
                  said("tool", "[TOOL_RESULTS] none", tool_call_id="Z9y8X7w6V"),
                  said("tool", "12 °C", tool_call_id="a1B2c3D4e"), said("assistant", "It is 12 °C."),
                  said("user", "And there?")], "tools": [WEATHER, EMPTY]},
    {"messages": [said("user", [{"type": "text", "text": "a part"}, {"type": "text", "text": "another"}])]},
    {"messages": [said("user", "x"), said("system", "in the middle"), said("user", "y")]},
]


def main(path):
    versions = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in (7, 11, 13):
            file = Path(folder) / f"tekken_{number}.json"
            file.write_text(json.dumps(tekken(number)))
            tokenizer = MistralTokenizer.from_file(str(file))
            ids = []
            for conversation in CONVERSATIONS:
                request = ChatCompletionRequest.from_openai(**json.loads(json.dumps(conversation)))
                ids.append(tokenizer.encode_chat_completion(request).tokens)
            versions[str(number)] = {"specials": specials(number)[:40], "ids": ids}
    golden = {"mistral_common": version("mistral-common"), "pattern": PATTERN, "words": WORDS, "num_specials": NUM_SPECIALS,
              "conversations": CONVERSATIONS, "versions": versions}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(golden, file, ensure_ascii=True, separators=(",", ":"))
        file.write("\n")


main(sys.argv[1])
