"""Clients and frameworks that others wrote, each with one tool, one schema and one
stream; lm-eval's requests; and Vercel's `ai` under Node.

    python3 ecosystem.py MUSER

makes a temporary virtual environment with the packages below, runs itself in it,
and prints a table. Exit code 1 if a row failed, 77 if the packages could not be
had, for then nothing was tested.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
import urllib.error
import urllib.request
import venv
from enum import Enum
from pathlib import Path
from typing import Optional

from serving import served

PACKAGES = [
    "openai",
    "litellm",
    "langchain-openai",
    "instructor",
    "pydantic-ai-slim[openai]",
    "openai-agents",
    "llama-index-llms-openai-like",
    "haystack-ai",
]
NODE_PACKAGES = ["ai", "@ai-sdk/openai-compatible", "zod"]
SKIPPED = 77
HERE = Path(__file__).resolve().parent
ASK = "Order something, please."
# A model of stories would think for long before it orders.
QUIET = {"reasoning_effort": "none"}


def models():
    """The pydantic models: nested, enums, optional, lists, recursive."""
    from pydantic import BaseModel, ConfigDict, Field

    class Colour(str, Enum):
        red = "red"
        blue = "blue"

    class Item(BaseModel):
        model_config = ConfigDict(extra="forbid")
        colour: Colour
        size: int = Field(ge=1, le=9)

    class Order(BaseModel):
        """An order."""

        model_config = ConfigDict(extra="forbid")
        item: Item
        more: list[Item] = Field(max_length=2)
        wrapping: Optional[Colour]
        code: str = Field(max_length=6)

    class Node(BaseModel):
        model_config = ConfigDict(extra="forbid")
        size: int = Field(ge=1, le=9)
        next: Optional["Node"]

    return Order, Item, Node


def openai_tool(address, model):
    import openai

    order, _, _ = models()
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    tool = openai.pydantic_function_tool(order)
    options = dict(model=model, messages=user(), tools=[tool], tool_choice="required", seed=1)
    for parallel in [True, False]:
        whole = client.chat.completions.parse(**options, parallel_tool_calls=parallel, **QUIET)
        for call in whole.choices[0].message.tool_calls:
            assert isinstance(call.function.parsed_arguments, order), call
    # What was parsed goes back as it is.
    message = whole.choices[0].message
    results = [{"role": "tool", "tool_call_id": c.id, "content": "done"} for c in message.tool_calls]
    history = user() + [message.model_dump(), *results]
    client.chat.completions.create(model=model, messages=history, tools=[tool], max_tokens=4)


def openai_schema(address, model):
    import openai

    order, _, node = models()
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    for seed in range(4):
        one = client.chat.completions.parse(
            model=model, messages=user(), response_format=order, seed=seed, **QUIET
        )
        assert isinstance(one.choices[0].message.parsed, order)
    try:
        one = client.chat.completions.parse(
            model=model, messages=user(), response_format=node, seed=1, max_tokens=400, **QUIET
        )
        assert isinstance(one.choices[0].message.parsed, node)
    except openai.BadRequestError as e:
        assert e.param, e
    except openai.LengthFinishReasonError:
        # A list without an end: no error of the client's or the server's.
        pass


def openai_stream(address, model):
    import openai

    order, _, _ = models()
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    with client.chat.completions.stream(
        model=model, messages=user(), response_format=order, seed=3, **QUIET
    ) as stream:
        kinds = [event.type for event in stream]
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, order)
    assert kinds.count("content.delta") > 3, kinds


def litellm_call(address, model, **options):
    import litellm

    litellm.suppress_debug_info = True
    base = dict(model=f"openai/{model}", api_base=f"{address}/v1", api_key="none", seed=1)
    return litellm.completion(**base, messages=user(), num_retries=0, **options)


def litellm_tool(address, model):
    order, _, _ = models()
    tool = function("order", order.model_json_schema())
    whole = litellm_call(address, model, tools=[tool], tool_choice="required", extra_body=QUIET)
    for call in whole.choices[0].message.tool_calls:
        order.model_validate_json(call.function.arguments)


def litellm_schema(address, model):
    order, _, _ = models()
    whole = litellm_call(address, model, response_format=order, extra_body=QUIET)
    order.model_validate_json(whole.choices[0].message.content)


def litellm_stream(address, model):
    chunks = list(litellm_call(address, model, stream=True, max_tokens=20))
    assert "".join(c.choices[0].delta.content or "" for c in chunks)


def langchain(address, model, **options):
    from langchain_openai import ChatOpenAI

    base = dict(model=model, base_url=f"{address}/v1", api_key="none", seed=1, max_retries=0)
    return ChatOpenAI(**base, **options)


def langchain_tool(address, model):
    order, _, _ = models()
    bound = langchain(address, model, extra_body=QUIET).bind_tools([order], tool_choice="Order")
    for call in bound.invoke(ASK).tool_calls:
        order.model_validate(call["args"])


def langchain_schema(address, model):
    order, _, _ = models()
    chat = langchain(address, model, extra_body=QUIET)
    for method in ["json_schema", "function_calling"]:
        found = chat.with_structured_output(order, method=method).invoke(ASK)
        assert isinstance(found, order), (method, found)


def langchain_stream(address, model):
    chunks = list(langchain(address, model, max_tokens=20).stream(ASK))
    assert "".join(c.content for c in chunks)


def instructor_create(address, model, mode, method="create"):
    import instructor
    import openai

    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    order, _, _ = models()
    wrapped = instructor.from_openai(client, mode=getattr(instructor.Mode, mode))
    return order, getattr(wrapped.chat.completions, method)(
        model=model,
        messages=user(),
        response_model=order,
        max_retries=0,
        seed=1,
        # Parts of a stream are validated as Python's values, of which its strict
        # mode takes an enum's members only, not their JSON.
        strict=method == "create",
        **QUIET,
    )


def instructor_tool(address, model):
    order, found = instructor_create(address, model, "TOOLS")
    assert isinstance(found, order)


def instructor_schema(address, model):
    order, found = instructor_create(address, model, "JSON_SCHEMA")
    assert isinstance(found, order)


def instructor_stream(address, model):
    _, parts = instructor_create(address, model, "TOOLS", "create_partial")
    last = list(parts)[-1]
    assert 1 <= last.item.size <= 9, last


def pydantic_ai(address, model, output):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{address}/v1", api_key="none")
    settings = {"seed": 1, "extra_body": QUIET}
    return Agent(OpenAIChatModel(model, provider=provider), output_type=output, model_settings=settings)


def pydantic_ai_tool(address, model):
    order, _, _ = models()
    found = pydantic_ai(address, model, order).run_sync(ASK)
    assert isinstance(found.output, order)


def pydantic_ai_schema(address, model):
    from pydantic_ai import NativeOutput

    order, _, _ = models()
    found = pydantic_ai(address, model, NativeOutput(order)).run_sync(ASK)
    assert isinstance(found.output, order)


def pydantic_ai_stream(address, model):
    async def texts():
        async with pydantic_ai(address, model, str).run_stream(ASK) as run:
            return [text async for text in run.stream_text(delta=True)]

    assert "".join(asyncio.run(texts()))


def agent(address, model, **options):
    import agents
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    chat = agents.OpenAIChatCompletionsModel(model=model, openai_client=client)
    settings = options.pop("settings", {})
    settings = agents.ModelSettings(extra_body={"seed": 1, **QUIET}, **settings)
    return agents.Agent(name="a", model=chat, model_settings=settings, **options)


def agents_tool(address, model):
    import agents

    order, item, _ = models()
    seen = []

    def take(order: order) -> str:
        """Takes an order."""
        seen.append(order)
        return "taken"

    tool = agents.function_tool(take)
    one = agent(
        address,
        model,
        tools=[tool],
        settings={"tool_choice": "required"},
        tool_use_behavior="stop_on_first_tool",
    )
    agents.Runner.run_sync(one, ASK)
    assert seen and isinstance(seen[0], order), seen


def agents_schema(address, model):
    import agents

    order, _, _ = models()
    found = agents.Runner.run_sync(agent(address, model, output_type=order), ASK)
    assert isinstance(found.final_output, order)


def agents_stream(address, model):
    import agents

    async def events():
        run = agents.Runner.run_streamed(agent(address, model, settings={"max_tokens": 20}), ASK)
        return [event.type async for event in run.stream_events()]

    assert "raw_response_event" in asyncio.run(events())


def llama_index(address, model, **options):
    from llama_index.llms.openai_like import OpenAILike

    base = dict(model=model, api_base=f"{address}/v1", api_key="none", is_chat_model=True)
    extra = {"extra_body": {"seed": 1, **QUIET}}
    return OpenAILike(
        **base, is_function_calling_model=True, max_retries=0, additional_kwargs=extra, **options
    )


def llama_index_tool(address, model):
    from llama_index.core.tools import FunctionTool

    order, item, _ = models()

    def take(item: item) -> str:
        """Takes an item."""
        return "taken"

    chat = llama_index(address, model)
    tool = FunctionTool.from_defaults(take)
    answer = chat.chat_with_tools([tool], user_msg=ASK, tool_required=True)
    for call in chat.get_tool_calls_from_response(answer):
        item.model_validate(call.tool_kwargs["item"])


def llama_index_schema(address, model):
    from llama_index.core.llms import ChatMessage

    order, _, _ = models()
    structured = llama_index(address, model).as_structured_llm(order)
    found = structured.chat([ChatMessage(role="user", content=ASK)])
    assert isinstance(found.raw, order)


def llama_index_stream(address, model):
    from llama_index.core.llms import ChatMessage

    chat = llama_index(address, model, max_tokens=20)
    deltas = [c.delta for c in chat.stream_chat([ChatMessage(role="user", content=ASK)])]
    assert "".join(d or "" for d in deltas)


def haystack(address, model, tools=None, stream=None, **options):
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.utils import Secret

    generator = OpenAIChatGenerator(
        api_key=Secret.from_token("none"),
        api_base_url=f"{address}/v1",
        model=model,
        tools=tools,
        streaming_callback=stream,
        max_retries=0,
        generation_kwargs={"seed": 1, **options},
    )
    return generator.run([ChatMessage.from_user(ASK)])["replies"][0]


def haystack_tool(address, model):
    from haystack.tools import Tool

    order, _, _ = models()
    tool = Tool("order", "Takes an order", order.model_json_schema(), lambda **_: "taken")
    options = {"tool_choice": "required", **QUIET}
    for call in haystack(address, model, tools=[tool], **options).tool_calls:
        order.model_validate(call.arguments)


def haystack_schema(address, model):
    order, _, _ = models()
    reply = haystack(address, model, response_format=order, **QUIET)
    order.model_validate_json(reply.text)


def haystack_stream(address, model):
    chunks = []
    haystack(address, model, stream=lambda c: chunks.append(c.content), max_tokens=20)
    assert "".join(chunks)


def lm_eval_likelihood(address, model):
    """What `local-completions` sends for a likelihood, read as it reads it."""
    body = {"model": model, "prompt": [[5, 6, 7], [4088, 377, 274, 256]], "max_tokens": 1}
    body |= {"logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}
    answer = post(address, "/v1/completions", body)
    for choice, prompt in zip(sorted(answer["choices"], key=lambda c: c["index"]), body["prompt"]):
        context = 1
        probs = choice["logprobs"]["token_logprobs"][context:-1]
        tops = choice["logprobs"]["top_logprobs"][context:-1]
        assert len(probs) == len(tops) == len(prompt) - context
        assert sum(probs) < 0 and all(p <= max(t.values()) for p, t in zip(probs, tops))


def lm_eval_generation(address, model):
    body = {"model": model, "prompt": ["Once upon a time"], "max_tokens": 12, "temperature": 0}
    answer = post(address, "/v1/completions", body | {"stop": ["\n\n"], "seed": 1234})
    assert answer["choices"][0]["text"]
    chat = {"messages": user(), "max_tokens": 12, "temperature": 0, "stop": None, "seed": 1234}
    assert post(address, "/v1/chat/completions", chat | {"model": model})["choices"]


CLIENTS = {
    "openai": (openai_tool, openai_schema, openai_stream),
    "litellm": (litellm_tool, litellm_schema, litellm_stream),
    "langchain-openai": (langchain_tool, langchain_schema, langchain_stream),
    "instructor": (instructor_tool, instructor_schema, instructor_stream),
    "pydantic-ai": (pydantic_ai_tool, pydantic_ai_schema, pydantic_ai_stream),
    "openai-agents": (agents_tool, agents_schema, agents_stream),
    "llama-index": (llama_index_tool, llama_index_schema, llama_index_stream),
    "haystack": (haystack_tool, haystack_schema, haystack_stream),
    "lm-eval's shapes": (lm_eval_likelihood, lm_eval_generation),
}


def user():
    return [{"role": "user", "content": ASK}]


def function(name, parameters):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def post(address, path, body):
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(address + path, json.dumps(body).encode(), kind)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def attempt(test, *arguments):
    """The reason why it failed, or none."""
    try:
        test(*arguments)
    except Exception as e:
        traceback.print_exc()
        return f"{type(e).__name__}: {' '.join(str(e).split())[:200]}"
    return None


def node(muser):
    """The script for Node, beside the packages that it imports."""
    with tempfile.TemporaryDirectory() as folder:
        install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder]
        if subprocess.run([*install, *NODE_PACKAGES]).returncode != 0:
            raise RuntimeError("npm could not install " + " ".join(NODE_PACKAGES))
        for script in ["ai_sdk.mjs", "serving.mjs"]:
            shutil.copy(HERE / script, folder)
        subprocess.run(["node", str(Path(folder) / "ai_sdk.mjs"), muser], check=True)


def inside(muser):
    rows = []
    with served(muser) as (address, process):
        listed = urllib.request.urlopen(f"{address}/v1/models")
        model = json.load(listed)["data"][0]["id"]
        for client, tests in CLIENTS.items():
            for test in tests:
                rows.append((client, test.__name__, attempt(test, address, model)))
                assert process.poll() is None, "the server is gone"
    rows.append(("ai (Node)", "ai_sdk.mjs", attempt(node, muser)))
    print(f"\n{'client':18} {'test':22} result")
    for client, name, failed in rows:
        print(f"{client:18} {name:22} {failed or 'ok'}")
    sys.exit(any(failed for _, _, failed in rows))


def main(muser):
    muser = str(Path(muser).resolve())
    if os.environ.get("ECOSYSTEM_INSIDE"):
        inside(muser)
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        install = [python, "-m", "pip", "install", "--quiet", *PACKAGES]
        if subprocess.run(install).returncode != 0:
            print("skipped: the package index could not be reached, so nothing was tested")
            sys.exit(SKIPPED)
        quiet = {"ECOSYSTEM_INSIDE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        # Frameworks that would tell their makers of this run.
        quiet |= {"HAYSTACK_TELEMETRY_ENABLED": "False", "OPENAI_API_KEY": "none"}
        command = [python, str(HERE / "ecosystem.py"), muser]
        sys.exit(subprocess.run(command, env=os.environ | quiet, cwd=folder).returncode)


if __name__ == "__main__":
    main(sys.argv[1])
