"""A served agent as the model of an agent of openai-agents, whose tools are the actions.

    pip install openai-agents
    reflectrl serve runs/number_line-nano

Each tool returns the next state. The agent calls a tool whenever it is asked, so the program says when the end is.
"""

from agents import Agent, OpenAIChatCompletionsModel, Runner, ToolsToFinalOutputResult, function_tool
from agents import set_tracing_disabled as disable_tracing
from openai import AsyncOpenAI

import reflectrl as rl

disable_tracing(True)  # it would send the states to OpenAI


def play(base_url, api_key, model, env, task):
    """Play a task, and return the actions and whether it succeeded."""
    env.reset(seed=0, options={"task": task})
    played, ends = [], []

    def step(action):
        played.append(action)
        _, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            ends.append(info["success"])
        return env.observation.text

    @function_tool
    def add_one() -> str:
        """Add one to the number."""
        return step("add one")

    @function_tool
    def subtract_one() -> str:
        """Subtract one from the number."""
        return step("subtract one")

    def at_the_end(_, results):
        return ToolsToFinalOutputResult(is_final_output=bool(ends), final_output=results[-1].output)

    client = AsyncOpenAI(base_url=base_url, api_key=api_key)
    agent = Agent(
        "walker",
        model=OpenAIChatCompletionsModel(model, client),
        tools=[add_one, subtract_one],
        tool_use_behavior=at_the_end,
    )
    Runner.run_sync(agent, env.observation.text, max_turns=1000)
    return played, ends == [True]


if __name__ == "__main__":
    line = rl.make_env("number_line")
    print(play("http://127.0.0.1:8000/v1", "none", "number_line-nano", line, line.tasks("test")[0]))
