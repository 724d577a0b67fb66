"""Anthropic's own Python client against a running `hotmetal serve` of the built-in model.

usage: anthropic_client.py http://127.0.0.1:PORT      (needs the `anthropic` package)

Messages, streams, stop sequences, token counts, and errors as the client's exceptions. Exits with a traceback at the first
thing that is wrong.
"""

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


def errors(client, model):
    cases = [
        (dict(extra_body={"temperature": -1}), anthropic.BadRequestError, "temperature"),
        (dict(model="another"), anthropic.NotFoundError, "model"),
        (dict(extra_body={"wibble": 1}), anthropic.BadRequestError, "wibble"),
        (dict(max_tokens=20_000), anthropic.BadRequestError, "max_tokens"),
        (dict(thinking={"type": "enabled", "budget_tokens": 1}), anthropic.BadRequestError, "thinking"),
    ]
    for change, expected, param in cases:
        try:
            client.messages.create(**{**dict(model=model, messages=MESSAGES, max_tokens=2), **change})
        except expected as error:
            assert error.body["error"]["param"] == param, error
        else:
            raise AssertionError(f"{change} was accepted")


def main():
    client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
    for test in (messages, errors):
        test(client, "hotmetal-builtin")
        print(f"{test.__name__}: ok")


main()
