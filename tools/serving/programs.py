"""Programs that people use, unchanged, against a running `hotmetal serve` of the built-in model.

usage: programs.py PROGRAM http://127.0.0.1:PORT

PROGRAM is `openai-agents` (the package `openai-agents`: an agent with a `@function_tool`, through chat and through
Responses) or `autogen` (`autogen-agentchat` and `autogen-ext[openai]`: an AssistantAgent with a tool). The built-in model
tells stories and calls no tool by itself, so the agents are made to call first; what is held is that each request is
answered, that the call reaches the function, and that its result is taken back. Exits with a traceback at the first thing
that is wrong.
"""

import asyncio
import sys

MODEL = "hotmetal-builtin"
KEY = "none"


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
        result = asyncio.run(Runner.run(agent, "What is the weather in Oslo?", max_turns=4))
        assert called, f"{kind.__name__}: the tool was not called"
        assert result.final_output, f"{kind.__name__}: there is no answer"
        print(f"openai-agents, {kind.__name__}: called {len(called)} times, then: {result.final_output[:60]!r}")


def autogen(address):
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core.models import ModelFamily, ModelInfo
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    async def weather(city: str) -> str:
        """The weather in a city."""
        return "It rains."

    async def run():
        info = ModelInfo(
            vision=False, function_calling=True, json_output=True, structured_output=True, family=ModelFamily.UNKNOWN
        )
        client = OpenAIChatCompletionClient(
            model=MODEL, base_url=f"{address}/v1", api_key=KEY, model_info=info, max_tokens=120, temperature=0
        )
        agent = AssistantAgent("teller", model_client=client, tools=[weather], reflect_on_tool_use=True)
        result = await agent.run(task="Tell me a story.")
        assert result.messages[-1].source == "teller" and str(result.messages[-1].content), result
        print(f"autogen: {str(result.messages[-1].content)[:60]!r}")
        await client.close()

    asyncio.run(run())


if __name__ == "__main__":
    program, address = sys.argv[1:]
    {"openai-agents": openai_agents, "autogen": autogen}[program](address.rstrip("/"))
