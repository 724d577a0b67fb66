"""Programs that people use, unchanged, against a running `hotmetal serve` of the built-in model.

usage: programs.py PROGRAM http://127.0.0.1:PORT [--proxy FILE]
       programs.py --packages PROGRAM

PROGRAMS below lists them, each with the packages that it was run with. `--packages` prints these, for `pip install` in
a virtual environment whose Python then runs this file, or for `npm install` in a folder that is then the working
directory. Codex, Claude Code and opencode say more than the model's 2,048 tokens before a user says anything. For
them, start

    hotmetal serve --ctx-size 65536 --rope-scaling yarn --rope-scale 32

What is held is that the server answers each request, that a call reaches the program's function or command, and that
the program sends its result back. The built-in model tells stories and calls no tool by itself. Where a program can
say that the model has to call a tool, it does; where it lets the model choose, a proxy makes the first request say so
(recording_proxy.py). Exits with a traceback at the first thing that is wrong. With `--proxy FILE`, the proxy writes
there what the program sent, a line of JSON for each request.
"""

import argparse
import asyncio
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import typing
import urllib.request

import recording_proxy

MODEL = "hotmetal-builtin"
KEY = "none"
QUESTION = "What is the weather in Oslo?"
# A command that programs run for the model, and what it prints.
COMMAND = "echo mark5f1d0c | tr a-f A-F"
PRINTED = "mArk5F1D0C"


def openai_agents(address):
    from agents import (
        Agent,
        ModelSettings,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        called = []

        @function_tool
        def weather(city: str) -> str:
            """The weather in a city."""
            called.append(city)
            return "It rains."

        client = AsyncOpenAI(base_url=f"{address}/v1", api_key=KEY)
        settings = ModelSettings(tool_choice="required", max_tokens=300, temperature=0)
        model = kind(model=MODEL, openai_client=client)
        agent = Agent(name="teller", instructions="Be brief.", model=model, tools=[weather], model_settings=settings)
        result = asyncio.run(Runner.run(agent, QUESTION, max_turns=4))
        assert called, f"{kind.__name__}: the tool was not called"
        assert result.final_output, f"{kind.__name__}: there is no answer"
        print(f"openai-agents, {kind.__name__}: called {len(called)} times, then: {result.final_output[:60]!r}")


def autogen(address):
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core.models import ModelFamily, ModelInfo
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    called = []

    async def weather(city: str) -> str:
        """The weather in a city."""
        called.append(city)
        return "It rains."

    async def run():
        info = ModelInfo(
            vision=False, function_calling=True, json_output=True, structured_output=True, family=ModelFamily.UNKNOWN
        )
        client = OpenAIChatCompletionClient(
            model=MODEL, base_url=f"{address}/v1", api_key=KEY, model_info=info, max_tokens=120, temperature=0
        )
        agent = AssistantAgent("teller", model_client=client, tools=[weather], reflect_on_tool_use=True)
        result = await agent.run(task=QUESTION)
        assert called == ["Oslo"], result
        assert result.messages[-1].source == "teller" and str(result.messages[-1].content), result
        print(f"autogen: called {len(called)} times, then: {str(result.messages[-1].content)[:60]!r}")
        await client.close()

    asyncio.run(run())


def pydantic_ai(address):
    from anthropic import AsyncAnthropic
    from pydantic import BaseModel
    from pydantic_ai import Agent, NativeOutput, ToolOutput
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    class Weather(BaseModel):
        rains: bool
        wind: typing.Literal["none", "some", "much"]

    openai = OpenAIProvider(base_url=f"{address}/v1", api_key=KEY)
    anthropic = AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=address, api_key=KEY))
    for model in (
        OpenAIChatModel(MODEL, provider=openai),
        OpenAIResponsesModel(MODEL, provider=openai),
        AnthropicModel(MODEL, provider=anthropic),
    ):
        name = type(model).__name__
        settings = {"temperature": 0, "max_tokens": 200}
        # An answer that is a call of a tool, and one that is held to a schema.
        for output in [ToolOutput(Weather)] + ([] if name == "AnthropicModel" else [NativeOutput(Weather)]):
            answer = Agent(model, output_type=output, instructions="Be brief.").run_sync(
                QUESTION, model_settings=settings
            )
            assert isinstance(answer.output, Weather), answer
            print(f"pydantic-ai, {name}, {type(output).__name__}: {answer.output}")

        called = []
        agent = Agent(model, instructions="Be brief.")

        @agent.tool_plain
        def weather(city: str) -> str:
            """The weather in a city."""
            called.append(city)
            return "It rains."

        first = agent.run_sync(QUESTION, model_settings=settings)
        assert first.output and called == ["Oslo"], first

        async def streamed():
            async with agent.run_stream(
                "And tomorrow?", message_history=first.all_messages(), model_settings=settings
            ) as run:
                return await run.get_output()

        assert asyncio.run(streamed())


def inspect_ai(address):
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import ToolFunction, tool

    called = []

    @tool
    def weather():
        async def execute(city: str):
            """The weather in a city.

            Args:
                city: The city.
            """
            called.append(city)
            return "It rains."

        return execute

    os.environ |= {"HOTMETAL_API_KEY": KEY, "HOTMETAL_BASE_URL": f"{address}/v1"}
    for name, options in (
        (f"openai-api/hotmetal/{MODEL}", {}),
        (f"openai/{MODEL}", {"base_url": f"{address}/v1", "api_key": KEY, "responses_api": True}),
        (f"anthropic/{MODEL}", {"base_url": address, "api_key": KEY}),
    ):
        called.clear()
        solver = [use_tools(weather(), tool_choice=ToolFunction(name="weather")), generate()]
        task = Task([Sample(input=QUESTION, target="a")], solver=solver, scorer=includes())
        with tempfile.TemporaryDirectory() as folder:
            model = get_model(name, **options)
            log = eval(task, model=model, max_tokens=300, temperature=0.0, log_dir=folder, display="none")[0]
        assert log.status == "success", log.error
        assert called, f"{name}: the tool was not called"
        print(
            f"Inspect AI, {name}: called {len(called)} times, scores {log.results.scores[0].metrics['accuracy'].value}"
        )


def langchain(address):
    from langchain_core.messages import ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings
    from pydantic import BaseModel

    class Weather(BaseModel):
        """The weather of a day."""

        rains: bool
        wind: typing.Literal["none", "some", "much"]

    @tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return "It rains."

    for responses in (False, True):
        settings = {"temperature": 0, "max_tokens": 200, "use_responses_api": responses}
        model = ChatOpenAI(model=MODEL, base_url=f"{address}/v1", api_key=KEY, **settings)
        named = "Responses" if responses else "chat"
        for method in ("function_calling", "json_schema"):
            for strict in (None, True):
                held = model.with_structured_output(Weather, method=method, strict=strict)
                assert isinstance(held.invoke(QUESTION), Weather), (named, method)
        call = model.bind_tools([weather], strict=True, tool_choice="weather").invoke(QUESTION)
        assert call.tool_calls[0]["name"] == "weather", call
        result = weather.invoke(call.tool_calls[0])
        assert isinstance(result, ToolMessage), result
        free = model.bind_tools([weather], strict=True)
        answer = free.invoke([("system", "Be brief."), ("user", QUESTION), call, result])
        assert answer.content, answer
        streamed = "".join(str(piece.text) for piece in free.stream([("user", QUESTION), call, result]))
        assert streamed, named
        print(f"LangChain, {named}: {call.tool_calls[0]['args']}, then: {streamed[:60]!r}")
    # Without the check, LangChain sends texts; with it, ids of OpenAI's own tokenizer, which are other words here.
    vectors = OpenAIEmbeddings(model=MODEL, base_url=f"{address}/v1", api_key=KEY, check_embedding_ctx_length=False)
    one, other = vectors.embed_documents(["The moon was out.", "It was night."])
    assert len(one) == len(other) > 0
    print(f"LangChain, embeddings: {len(one)} numbers")


def litellm_bridge(address):
    # Its table of prices comes with it; otherwise it is fetched.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm

    # It has no price for this model, and says so at length.
    logging.getLogger("LiteLLM Proxy").disabled = True
    tool = {
        "name": "weather",
        "description": "The weather in a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
    user = {"role": "user", "content": QUESTION}

    async def bridged(model, **options):
        # Anthropic's interface in front; LiteLLM translates it to what the provider has.
        async def ask(messages, **more):
            return await litellm.anthropic.messages.acreate(
                model=model, messages=messages, max_tokens=200, tools=[tool], api_key=KEY, **options, **more
            )

        call = await ask([user], tool_choice={"type": "tool", "name": "weather"})
        use = [block for block in call["content"] if block["type"] == "tool_use"][0]
        result = {"type": "tool_result", "tool_use_id": use["id"], "content": "It rains."}
        messages = [user, {"role": "assistant", "content": call["content"]}, {"role": "user", "content": [result]}]
        answer = await ask(messages, system="Be brief.")
        assert answer["content"], answer
        events = [event async for event in await ask(messages, stream=True)]
        assert events, model
        print(f"LiteLLM, Anthropic's messages to {model}: {use['input']}, {len(events)} pieces of a stream")

    asyncio.run(bridged(f"hosted_vllm/{MODEL}", api_base=f"{address}/v1"))
    asyncio.run(bridged(f"openai/{MODEL}", api_base=f"{address}/v1"))
    asyncio.run(bridged(f"anthropic/{MODEL}", api_base=address))

    function = {"name": "weather", "description": tool["description"], "parameters": tool["input_schema"]}
    for model, base in ((f"openai/{MODEL}", f"{address}/v1"), (f"anthropic/{MODEL}", address)):
        answer = litellm.completion(
            model=model,
            api_base=base,
            api_key=KEY,
            messages=[{"role": "system", "content": "Be brief."}, user],
            tools=[{"type": "function", "function": function}],
            tool_choice="required",
            max_tokens=200,
            temperature=0,
        )
        assert answer.choices[0].message.tool_calls, answer
        stream = litellm.completion(
            model=model,
            api_base=base,
            api_key=KEY,
            messages=[user],
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
        text = "".join(piece.choices[0].delta.content or "" for piece in stream if piece.choices)
        assert text, model
        print(f"LiteLLM, completion of {model}: {text[:60]!r}")


def aider(address):
    with folder() as home:
        run(["git", "init", "-q", home])
        with open(f"{home}/story.txt", "w") as story:
            story.write("Once upon a time\n")
        line = [command("aider"), "--model", f"openai/{MODEL}", "--no-show-model-warnings", "--no-check-update"]
        line += ["--analytics-disable", "--no-gitignore", "--yes-always", "--no-auto-commits", "--map-tokens", "0"]
        environment = {"OPENAI_API_BASE": f"{address}/v1", "OPENAI_API_KEY": KEY}
        said = run([*line, "--message", "Make the story longer.", "story.txt"], home, environment)
        assert "Tokens:" in said, said
        print(f"aider: {[line for line in said.splitlines() if 'Tokens:' in line]}")


def lm_eval(address):
    with folder() as home:
        with open(f"{home}/stories.json", "w") as lines:
            for ending in ("a time", "the moon"):
                choices = [" a time", " the moon", " refrigerator"]
                lines.write(
                    json.dumps({"text": "Once upon", "choices": choices, "gold": 0, "full": f"Once upon {ending}"})
                    + "\n"
                )
        data = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {home}/stories.json}}}}\ntest_split: test\n"
        with open(f"{home}/choice.yaml", "w") as task:
            task.write(f"task: choice\n{data}output_type: multiple_choice\ndoc_to_text: text\ndoc_to_choice: choices\n")
            task.write("doc_to_target: gold\ntarget_delimiter: ''\nmetric_list: [{metric: acc}]\n")
        with open(f"{home}/rolling.yaml", "w") as task:
            task.write(
                f"task: rolling\n{data}output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: full\n"
            )
            task.write("metric_list: [{metric: word_perplexity}]\n")
        with open(f"{home}/until.yaml", "w") as task:
            task.write(f"task: until\n{data}output_type: generate_until\ndoc_to_text: text\ndoc_to_target: full\n")
            task.write("generation_kwargs: {until: ['.'], max_gen_toks: 20}\nmetric_list: [{metric: exact_match}]\n")
        text = f"base_url={address}/v1/completions,model={MODEL},tokenizer_backend=remote"
        chat = f"base_url={address}/v1/chat/completions,model={MODEL}"
        for kind, options, tasks, more in (
            ("local-completions", text, "choice,rolling,until", []),
            ("local-chat-completions", chat, "until", ["--apply_chat_template"]),
        ):
            line = [command("lm_eval"), "run", "--model", kind, "--model_args", options, "--tasks", tasks]
            said = run([*line, "--include_path", home, *more], home, {"OPENAI_API_KEY": KEY, "HF_HUB_OFFLINE": "1"})
            rows = [
                line
                for line in said.splitlines()
                if line.startswith("|") and any(name in line for name in ("choice", "rolling", "until"))
            ]
            assert len(rows) >= tasks.count(",") + 1, said
            print(f"lm-eval, {kind}:", *rows, sep="\n")


def open_webui(address):
    """As it comes, but for what it would fetch from elsewhere; its users' browsers send what is sent here."""
    with folder() as home:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        environment = os.environ | {
            "HOME": home,
            "DATA_DIR": home,
            "WEBUI_AUTH": "False",
            "WEBUI_SECRET_KEY": "none",
            "ENABLE_OLLAMA_API": "False",
            "OPENAI_API_BASE_URL": f"{address}/v1",
            "OPENAI_API_KEY": KEY,
            "OFFLINE_MODE": "True",
            "HF_HUB_OFFLINE": "1",
            "RAG_EMBEDDING_ENGINE": "openai",
            "BYPASS_EMBEDDING_AND_RETRIEVAL": "True",
            "ENABLE_VERSION_UPDATE_CHECK": "False",
        }
        line = [command("open-webui"), "serve", "--host", "127.0.0.1", "--port", str(port)]
        with open(f"{home}/log", "w+") as log:
            server = subprocess.Popen(line, cwd=home, env=environment, stdout=log, stderr=log)
            try:
                site = f"http://127.0.0.1:{port}"
                for _ in range(300):
                    try:
                        fetch(f"{site}/health")
                        break
                    except OSError:
                        assert server.poll() is None, open(log.name).read()[-4000:]
                        time.sleep(1)
                user = {"email": "admin@localhost", "password": "admin"}
                token = {"Authorization": f"Bearer {json.loads(fetch(f'{site}/api/v1/auths/signin', user))['token']}"}
                models = json.loads(fetch(f"{site}/api/models", headers=token))["data"]
                assert MODEL in [model["id"] for model in models], models
                story = {"model": MODEL, "messages": [{"role": "user", "content": "Tell me a story."}]}
                whole = json.loads(fetch(f"{site}/api/chat/completions", story | {"stream": False}, token))
                streamed = fetch(f"{site}/api/chat/completions", story | {"stream": True}, token).decode()
                assert whole["choices"][0]["message"]["content"] and "data: [DONE]" in streamed, (whole, streamed)
                titled = story | {"messages": story["messages"] + [whole["choices"][0]["message"]], "chat_id": "local"}
                for task in ("title", "follow_up", "tags"):
                    fetch(f"{site}/api/v1/tasks/{task}/completions", titled, token)
                print(f"Open WebUI: {whole['choices'][0]['message']['content'][:60]!r}")
            finally:
                server.terminate()
                server.wait()


def fetch(url, body=None, headers=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return answer.read()


def codex(address):
    with folder() as home:
        with open(f"{home}/config.toml", "w") as config:
            config.write(f'model = "{MODEL}"\nmodel_provider = "hotmetal"\nmodel_context_window = 32768\n')
            config.write(
                f'[model_providers.hotmetal]\nname = "hotmetal"\nbase_url = "{address}/v1"\nwire_api = "responses"\n'
            )
        line = [
            command("codex"),
            "exec",
            "--skip-git-repo-check",
            "--sandbox",
            "danger-full-access",
            "--json",
            "Say hi",
        ]
        events = [
            json.loads(line) for line in run(line, home, {"CODEX_HOME": home}).splitlines() if line.startswith("{")
        ]
        ended = [event for event in events if event["type"] == "turn.completed"]
        ran = [event["item"] for event in events if event.get("item", {}).get("type") == "command_execution"]
        assert ended and any(
            PRINTED in item["aggregated_output"] for item in ran if item["status"] == "completed"
        ), events
        print(f"Codex: ran {ran[-1]['command']!r}; {ended[0]['usage']}")


def claude_code(address):
    with folder() as home:
        line = [command("claude"), "-p", "hi", "--output-format", "json", "--allowedTools", "Bash"]
        environment = {
            "ANTHROPIC_BASE_URL": address,
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_MODEL": MODEL,
            "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "200",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        answer = json.loads(run(line, home, environment))
        assert not answer["is_error"] and answer["num_turns"] > 1 and answer["result"], answer
        print(f"Claude Code: {answer['num_turns']} turns, then: {answer['result'][:60]!r}")


def opencode(address):
    with folder() as home:
        model = {"name": MODEL, "limit": {"context": 60000, "output": 200}}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Hotmetal",
            "models": {MODEL: model},
            "options": {"baseURL": f"{address}/v1", "apiKey": KEY},
        }
        chosen = {"model": f"hotmetal/{MODEL}", "small_model": f"hotmetal/{MODEL}", "autoupdate": False}
        with open(f"{home}/opencode.json", "w") as config:
            json.dump({"provider": {"hotmetal": provider}, **chosen}, config)
        # The model is named twice, since without a configuration that it finds, opencode asks its maker's own service.
        line = [command("opencode"), "run", "--model", f"hotmetal/{MODEL}", "--print-logs", "Say hi"]
        said = run(line, home, {"OPENCODE_CONFIG": f"{home}/opencode.json", "PWD": home})
        assert PRINTED in said, said
        print(f"opencode: ran {COMMAND!r}")


def ai_sdk(address):
    here = os.path.dirname(os.path.abspath(__file__))
    print(run(["node", f"{here}/ai_sdk.mjs", address, os.getcwd()]), end="")


def folder():
    return tempfile.TemporaryDirectory(prefix="hotmetal-programs-")


def command(name):
    """A command beside this Python, of the folder's node packages, or of the path."""
    places = [os.path.dirname(sys.executable), os.path.abspath("node_modules/.bin"), os.environ.get("PATH", "")]
    found = shutil.which(name, path=os.pathsep.join(places))
    assert found, f"there is no command {name}: see --packages"
    return found


def run(line, home=None, environment=None):
    """What a command prints, which has to end well, in a folder that is its home as well."""
    environment = os.environ | ({"HOME": home} if home else {}) | (environment or {})
    done = subprocess.run(
        line,
        cwd=home,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, f"{line} ended with status {done.returncode}:\n{done.stdout[-4000:]}"
    return done.stdout


class Program(typing.NamedTuple):
    run: typing.Callable[[str], None]
    # With the versions that were run.
    packages: list[str]
    # The tool that the model is made to call, and its arguments, where the program lets it choose.
    force: tuple[str, dict] | None = None


def ollama_python(address):
    """Ollama's own package: what Home Assistant, llm-ollama and Open WebUI's first interface are written with."""
    import ollama
    from pydantic import BaseModel

    class Answer(BaseModel):
        yes: bool

    def weather(city: str) -> str:
        """The weather in a city.

        Args:
          city: The city
        """
        return f"rain in {city}"

    client = ollama.Client(address)
    model = client.list().models[0].model
    assert model == f"{MODEL}:latest", model
    assert client.ps().models[0].context_length > 0
    assert "completion" in client.show(model).capabilities
    messages = [{"role": "user", "content": "Tell me a story."}]
    options = {"num_predict": 12, "seed": 1}
    whole = client.chat(model, messages, options=options)
    assert whole.done_reason == "length" and whole.eval_count == 12 and whole.prompt_eval_count > 0, whole
    parts = list(client.chat(model, messages, options=options, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content, parts
    assert len(parts) > 2 and parts[-1].done and parts[-1].eval_duration > 0, parts
    raw = client.generate(model, "Once upon a time", raw=True, options=options)
    parts = client.generate(model, "Once upon a time", raw=True, options=options, stream=True)
    assert "".join(part.response for part in parts) == raw.response, raw
    asked = [{"role": "user", "content": "Is the moon out?"}]
    held = client.chat(model, asked, format=Answer.model_json_schema(), options={"num_predict": 100, "temperature": 0})
    Answer.model_validate_json(held.message.content)
    call = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": weather("Oslo")},
    ]
    client.chat(model, messages, tools=[weather], options=options)
    vectors = client.embed(model, ["The moon was out.", "It was night."]).embeddings
    assert len(vectors) == 2 and abs(sum(x * x for x in vectors[0]) - 1) < 1e-3, vectors
    assert client.embeddings(model, "The moon was out.").embedding == list(vectors[0])
    assert client.generate(model).done_reason == "load"


def langchain_ollama(address):
    from langchain_ollama import ChatOllama, OllamaEmbeddings

    model = ChatOllama(model=MODEL, base_url=address, num_predict=12, seed=1)
    whole = model.invoke("Tell me a story.").content
    assert whole and "".join(part.content for part in model.stream("Tell me a story.")) == whole, whole
    assert len(OllamaEmbeddings(model=MODEL, base_url=address).embed_query("The moon was out.")) > 1


def llm_ollama(address):
    """The command line `llm` with its plugin, which asks what a model can before it talks to it."""
    with folder() as home:
        environment = os.environ | {"OLLAMA_HOST": address, "LLM_USER_PATH": home}
        command = [sys.executable, "-m", "llm", "-m", f"ollama/{MODEL}", "-o", "num_predict", "12", "Tell me a story."]
        told = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        assert len(told.strip()) > 3, told


PROGRAMS = {
    "openai-agents": Program(openai_agents, ["openai-agents==0.24.0"]),
    "autogen": Program(
        autogen, ["autogen-agentchat==0.7.5", "autogen-ext[openai]==0.7.5"], ("weather", {"city": "Oslo"})
    ),
    "codex": Program(codex, ["@openai/codex@0.169.0"], ("exec_command", {"cmd": COMMAND})),
    "claude-code": Program(
        claude_code, ["@anthropic-ai/claude-code@2.1.197"], ("Bash", {"command": COMMAND, "description": "A mark"})
    ),
    "opencode": Program(opencode, ["opencode-ai@1.18.33"], ("bash", {"command": COMMAND, "description": "A mark"})),
    "ai-sdk": Program(
        ai_sdk,
        [
            "ai@6.0.326",
            "@ai-sdk/openai-compatible@2.0.92",
            "@ai-sdk/openai@3.0.141",
            "@ai-sdk/anthropic@3.0.140",
            "zod@4.6.7",
        ],
    ),
    "pydantic-ai": Program(pydantic_ai, ["pydantic-ai-slim[openai,anthropic]==2.68.0"], ("weather", {"city": "Oslo"})),
    "inspect-ai": Program(inspect_ai, ["inspect-ai==0.3.285", "openai==3.57.0", "anthropic==2.14.0"]),
    "langchain": Program(langchain, ["langchain==1.5.2", "langchain-openai==1.7.4"]),
    "litellm": Program(litellm_bridge, ["litellm[proxy]==1.108.7"]),
    "aider": Program(aider, ["aider-chat==0.86.2"]),
    "lm-eval": Program(lm_eval, ["lm-eval[api]==0.4.13"]),
    "ollama": Program(ollama_python, ["ollama==0.6.3"]),
    "langchain-ollama": Program(langchain_ollama, ["langchain-ollama==1.1.0"]),
    "llm-ollama": Program(llm_ollama, ["llm==0.36", "llm-ollama==0.19.1"]),
    "open-webui": Program(open_webui, ["open-webui==0.12.4"]),
}


def main():
    parser = argparse.ArgumentParser(description="Runs a program against a server; see the head of this file.")
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("address", nargs="?", help="the server's, as http://127.0.0.1:PORT")
    parser.add_argument("--proxy", metavar="FILE", help="where requests are written, a line of JSON each")
    parser.add_argument("--packages", action="store_true", help="print the packages of the program instead")
    args = parser.parse_args()
    program = PROGRAMS[args.program]
    if args.packages:
        print(*program.packages)
        return
    if not args.address:
        parser.error("an address is missing")
    proxy = recording_proxy.Recorder(args.address.rstrip("/"), args.proxy, program.force)
    program.run(proxy.address)
    refused = [(line["path"], line["status"], line.get("error")) for line in proxy.refusals()]
    assert not refused, f"{args.program} went on, but requests were refused: {refused}"
    print(f"{args.program}: {len(proxy.records)} requests")


if __name__ == "__main__":
    main()
