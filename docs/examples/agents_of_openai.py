"""A served agent as the model of an agent of openai-agents, which has a tool for each action.

    pip install openai-agents
    reflectrl serve runs/number_line-nano

Each tool returns the next state. The agent calls a tool whenever it is asked, so the program says when the end is.
"""

import asyncio

from agents import Agent, OpenAIChatCompletionsModel, Runner, ToolsToFinalOutputResult, function_tool
from agents import set_tracing_disabled as disable_tracing
from openai import AsyncOpenAI

import reflectrl as rl

disable_tracing(True)  # it would send the states to OpenAI


async def play(base_url, api_key, model, env, task):
    """Play a task, and return the actions and whether it succeeded."""
    env.reset(seed=0, options={"task": task})
    played, ends = [], []

    def tool(action):
        def step() -> str:
            played.append(action)
            _, _, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                ends.append(info["success"])
            return env.observation.text

        return function_tool(
            step,
            name_override=action.replace(" ", "_"),
            is_enabled=lambda *_: action in env.observation.actions,  # the menu is what is legal now
            failure_error_function=None,
        )

    def at_the_end(_, results):
        return ToolsToFinalOutputResult(is_final_output=bool(ends), final_output=results[-1].output)

    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        agent = Agent(
            "walker",
            model=OpenAIChatCompletionsModel(model, client),
            tools=[tool("add one"), tool("subtract one")],
            tool_use_behavior=at_the_end,
        )
        await Runner.run(agent, env.observation.text, max_turns=env.horizon)
    return played, ends == [True]


if __name__ == "__main__":
    line = rl.make_env("number_line")
    print(asyncio.run(play("http://127.0.0.1:8000/v1", "none", "number_line-nano", line, line.tasks("test")[0])))
