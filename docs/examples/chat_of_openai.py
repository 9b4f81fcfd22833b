"""A served agent plays an episode as a chat model: the loop of any client of OpenAI's API, and nothing of reflectrl's.

    reflectrl serve runs/number_line-nano

The environment may be any with a menu; here it is the agent's own.
"""

import json

from openai import OpenAI

import reflectrl as rl


def tool(actions):
    """Return a tool that takes one of the actions."""
    action = {"type": "string", "enum": list(actions)}
    parameters = {"type": "object", "properties": {"action": action}, "required": ["action"]}
    return {"type": "function", "function": {"name": "act", "parameters": parameters}}


def play(client, env, task):
    """Play a task, and return the actions and whether it succeeded."""
    [model] = client.models.list()
    env.reset(seed=0, options={"task": task})
    seen, played, over, info = env.observation, [], False, {}
    messages = [{"role": "system", "content": seen.task}] if seen.task else []
    messages.append({"role": "user", "content": seen.text})
    while not over:
        tools = [tool(env.observation.actions)]
        answer = client.chat.completions.create(model=model.id, messages=messages, tools=tools).choices[0].message
        [call] = answer.tool_calls
        played.append(json.loads(call.function.arguments)["action"])
        _, _, terminated, truncated, info = env.step(played[-1])
        over = terminated or truncated
        messages += [answer, {"role": "tool", "tool_call_id": call.id, "content": env.observation.text}]
    return played, info["success"]


if __name__ == "__main__":
    env = rl.make_env("number_line")
    print(play(OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none"), env, env.tasks("test")[0]))
