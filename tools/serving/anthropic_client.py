"""Anthropic's own Python client against a running `hotmetal serve` of the built-in model.

usage: anthropic_client.py http://127.0.0.1:PORT [http://127.0.0.1:PORT2]      (needs the `anthropic` package)

Messages, streams, stop sequences, token counts, and errors as the client's exceptions; tools against the second server,
which has `--chat-template tools/serving/tools.jinja`. Exits with a traceback at the first thing that is wrong.
"""

import json
import sys

import anthropic

MESSAGES = [{"role": "user", "content": "Tell me a story."}]


def messages(client, model):
    request = dict(model=model, messages=MESSAGES, max_tokens=30, extra_body={"seed": 1})
    whole = client.messages.create(**request)
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 30, whole
    with client.messages.stream(**request) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text, text
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 30, final
    stopped = client.messages.create(**request, stop_sequences=[text[20:24]])
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == text[20:24], stopped
    counted = client.messages.count_tokens(model=model, messages=MESSAGES).input_tokens
    assert counted == whole.usage.input_tokens + whole.usage.cache_read_input_tokens, counted


def conversation(client, model):
    request = dict(model=model, max_tokens=8, extra_body={"temperature": 0})
    more = {"role": "user", "content": [{"type": "text", "text": "On!"}]}
    turns = [*MESSAGES, {"role": "assistant", "content": "Once."}, more]
    answer = client.messages.create(**request, messages=turns, system="Be brief.")
    assert answer.role == "assistant" and answer.type == "message" and answer.id.startswith("msg_"), answer
    counted = client.messages.count_tokens(model=model, messages=turns, system="Be brief.").input_tokens
    assert counted > client.messages.count_tokens(model=model, messages=MESSAGES).input_tokens
    assert counted == answer.usage.input_tokens + answer.usage.cache_read_input_tokens, (counted, answer)
    # The same again comes from the cache, and says so.
    again = client.messages.create(**request, messages=turns, system="Be brief.")
    assert again.content[0].text == answer.content[0].text and again.usage.cache_read_input_tokens > 0, again
    names = [event.type for event in client.messages.create(**request, messages=MESSAGES, stream=True)]
    assert names[:2] == ["message_start", "content_block_start"] and names[-2:] == ["message_delta", "message_stop"], names


def tools(client, model):
    tool = {
        "name": "get_weather",
        "description": "The weather somewhere.",
        "input_schema": {
            "type": "object",
            "properties": {"unit": {"enum": ["C", "F"]}},
            "required": ["unit"],
            "additionalProperties": False,
        },
    }
    request = dict(model=model, max_tokens=120, messages=MESSAGES, tools=[tool], extra_body={"seed": 1})
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        whole = client.messages.create(**request, tool_choice=choice)
        (call,) = whole.content
        assert whole.stop_reason == "tool_use" and call.type == "tool_use" and call.name == "get_weather", whole
        assert call.input["unit"] in ("C", "F"), whole
        pieces = ""
        with client.messages.stream(**request, tool_choice=choice) as stream:
            for event in stream:
                if event.type == "input_json":
                    pieces += event.partial_json
            final = stream.get_final_message()
        assert final.content[0].input == call.input == json.loads(pieces), (final, pieces)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "12 degrees"}
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}]},
        {"role": "user", "content": [result]},
    ]
    answer = client.messages.create(**{**request, "messages": turns, "max_tokens": 4}, tool_choice={"type": "none"})
    assert answer.content[0].type == "text", answer
    bare = client.messages.count_tokens(model=model, messages=MESSAGES).input_tokens
    assert client.messages.count_tokens(model=model, messages=MESSAGES, tools=[tool]).input_tokens > bare
    another = {"type": "tool", "name": "another"}
    refused(client, {**request, "tool_choice": another}, anthropic.BadRequestError, "tool_choice")


def refused(client, request, expected, param):
    try:
        client.messages.create(**request)
    except expected as error:
        assert error.body["type"] == "error" and error.body["error"]["param"] == param, error.body
    else:
        raise AssertionError(f"{request} was accepted")


def errors(client, model):
    cases = [
        (dict(extra_body={"temperature": -1}), anthropic.BadRequestError, "temperature"),
        (dict(extra_body={"stop_sequence": ["x"]}), anthropic.BadRequestError, "stop_sequence"),
        (dict(tools=[{"type": "bash_20250124", "name": "bash"}]), anthropic.BadRequestError, "tools"),
    ]
    for change, expected, param in cases:
        refused(client, {**dict(model=model, messages=MESSAGES, max_tokens=2), **change}, expected, param)
    # One model alone answers under every name, with its own; another's is not known.
    answer = client.messages.create(model="another", messages=MESSAGES, max_tokens=2)
    assert answer.model == model and "model" in answer.x_hotmetal["ignored"], answer
    try:
        client.models.retrieve("another")
    except anthropic.NotFoundError:
        pass
    else:
        raise AssertionError("there is no other model")
    # An error before a stream begins is one of the client's too.
    refused(client, dict(model=model, messages=[], max_tokens=2, stream=True), anthropic.BadRequestError, "messages")


def main():
    tests = [(test, sys.argv[1]) for test in (messages, conversation, errors)]
    tests += [(tools, address) for address in sys.argv[2:]]
    for test, address in tests:
        test(anthropic.Anthropic(base_url=address, api_key="none", max_retries=0), "hotmetal-builtin")
        print(f"{test.__name__}: ok")


main()
