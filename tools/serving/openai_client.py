"""OpenAI's own Python client against a running `hotmetal serve` of the built-in model.

usage: openai_client.py http://127.0.0.1:PORT [http://127.0.0.1:PORT2]      (needs the `openai` package)

Chat, streams, log-probabilities, several completions, structured output through the client's own parser, completions with
echo, responses, embeddings, models, token counts, and errors as the client's exceptions; tools against the second server,
which has `--chat-template tools/serving/tools.jinja`. Exits with a traceback at the first thing that is wrong.
"""

import json
import sys

import openai
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


MESSAGES = [{"role": "user", "content": "Tell me a story."}]


def chat(client, model):
    request = dict(model=model, messages=MESSAGES, max_tokens=30, seed=1)
    whole = client.chat.completions.create(**request, logprobs=True, top_logprobs=2)
    choice = whole.choices[0]
    assert choice.finish_reason == "length" and whole.usage.completion_tokens == 30, whole
    assert len(choice.logprobs.content) == 30 and len(choice.logprobs.content[0].top_logprobs) == 2
    assert "".join(token.token for token in choice.logprobs.content) == choice.message.content

    chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == choice.message.content, text
    assert chunks[-1].usage.completion_tokens == 30, chunks[-1]

    several = client.chat.completions.create(**{**request, "max_tokens": 8}, n=3, temperature=1.2)
    assert [choice.index for choice in several.choices] == [0, 1, 2]

    stream = client.chat.completions.create(**{**request, "max_tokens": 500}, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()  # the server goes on serving others


def structured(client, model):
    request = dict(model=model, messages=MESSAGES, max_tokens=300, temperature=0)
    parsed = client.chat.completions.parse(**request, response_format=Person).choices[0].message.parsed
    assert isinstance(parsed, Person), parsed
    answer = client.chat.completions.create(**request, extra_body={"structured_outputs": {"choice": ["yes", "no"]}})
    assert answer.choices[0].message.content in ("yes", "no"), answer


def completions(client, model):
    answer = client.completions.create(model=model, prompt=["Once", "The"], max_tokens=5, echo=True, logprobs=1, seed=1)
    first, second = answer.choices
    assert first.text.startswith("Once") and second.text.startswith("The"), answer
    assert first.logprobs.token_logprobs[0] is None and "".join(first.logprobs.tokens) == first.text, first
    scored = client.completions.create(model=model, prompt=first.text, max_tokens=0, echo=True, logprobs=1).choices[0]
    assert scored.text == first.text and len(scored.logprobs.token_logprobs) == len(scored.logprobs.tokens), scored


def responses(client, model):
    request = dict(model=model, input="Tell me a story.", max_output_tokens=30, extra_body={"seed": 1})
    whole = client.responses.create(**request)
    assert whole.status == "incomplete" and whole.incomplete_details.reason == "max_output_tokens", whole
    chat = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=30, seed=1)
    assert whole.output_text == chat.choices[0].message.content, whole
    with client.responses.stream(**request) as stream:
        events = list(stream)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text and events[-1].type == "response.incomplete", text
    person = client.responses.parse(
        model=model, input="Who?", max_output_tokens=200, temperature=0, text_format=Person, extra_body={"seed": 1}
    )
    assert person.status == "incomplete" or isinstance(person.output_parsed, Person), person
    try:
        client.responses.create(model=model, input="x", previous_response_id="resp_1")
    except openai.BadRequestError as error:
        assert error.body["param"] == "previous_response_id", error
    else:
        raise AssertionError("what nobody stored was found")


def embeddings(client, model):
    # The client asks for base64 by itself.
    both = client.embeddings.create(model=model, input=["The moon was out.", "It was night."])
    plain = client.embeddings.create(model=model, input="It was night.", encoding_format="float")
    again = both.data[1].embedding
    assert len(again) == len(plain.data[0].embedding) > 0 and both.usage.prompt_tokens > 0
    assert max(abs(a - b) for a, b in zip(again, plain.data[0].embedding)) < 1e-6
    assert abs(sum(x * x for x in again) - 1) < 1e-5


def tools(client, model):
    parameters = {
        "type": "object",
        "properties": {"unit": {"enum": ["C", "F"]}},
        "required": ["unit"],
        "additionalProperties": False,
    }
    function = {"name": "get_weather", "parameters": parameters}
    request = dict(model=model, messages=MESSAGES, max_tokens=120, seed=1)
    request["tools"] = [{"type": "function", "function": function}]
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        whole = client.chat.completions.create(**request, tool_choice=choice).choices[0]
        (call,) = whole.message.tool_calls
        assert whole.finish_reason == "tool_calls" and call.function.name == "get_weather", whole
        assert json.loads(call.function.arguments)["unit"] in ("C", "F"), whole
        with client.chat.completions.stream(**request, tool_choice=choice) as stream:
            deltas = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
        assert "".join(deltas) == call.function.arguments, deltas
    turns = [*MESSAGES, whole.message, {"role": "tool", "tool_call_id": call.id, "content": "12 degrees"}]
    answer = client.chat.completions.create(**{**request, "messages": turns, "max_tokens": 4}, tool_choice="none")
    assert answer.choices[0].message.content is not None, answer


def errors(client, model):
    cases = [
        (dict(temperature=-1), openai.BadRequestError, "temperature"),
        (dict(extra_body={"temprature": 1}), openai.BadRequestError, "temprature"),
        (dict(tools=[{"type": "web_search"}]), openai.BadRequestError, "tools"),
    ]
    for change, expected, param in cases:
        try:
            client.chat.completions.create(**{**dict(model=model, messages=MESSAGES, max_tokens=2), **change})
        except expected as error:
            assert error.body["param"] == param, error
        else:
            raise AssertionError(f"{change} was accepted")
    # One model alone answers under every name, with its own; another's is not known.
    answer = client.chat.completions.create(model="another", messages=MESSAGES, max_tokens=2)
    assert answer.model == model and "model" in answer.x_hotmetal["ignored"], answer
    try:
        client.models.retrieve("another")
    except openai.NotFoundError:
        pass
    else:
        raise AssertionError("there is no other model")


def main():
    tests = [(test, sys.argv[1]) for test in (chat, structured, completions, responses, embeddings, errors)]
    tests += [(tools, address) for address in sys.argv[2:]]
    for test, address in tests:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        test(client, client.models.list().data[0].id)
        print(f"{test.__name__}: ok")


main()
