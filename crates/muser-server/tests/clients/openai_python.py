"""The official Python client against the server."""

import json
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import openai
from openai import OpenAI
from serving import served

QUESTION = [{"role": "user", "content": "Tell me a story about a brave little rabbit."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Oslo", "Rome"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
            },
            "required": ["city", "days"],
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def models(client):
    names = [m.id for m in client.models.list()]
    assert len(names) == 1
    assert client.models.retrieve(names[0]).id == names[0]
    return names[0]


def completion(client, model):
    one = client.completions.create(model=model, prompt="Once", max_tokens=9, seed=1, logprobs=2)
    assert one.choices[0].finish_reason == "length"
    assert len(one.choices[0].logprobs.token_logprobs) == 9
    assert one.usage.completion_tokens == 9
    again = client.completions.create(model=model, prompt="Once", max_tokens=9, seed=1, stream=True)
    assert "".join(c.choices[0].text for c in again) == one.choices[0].text


def chat(client, model):
    options = dict(model=model, messages=QUESTION, max_completion_tokens=40, seed=1)
    whole = client.chat.completions.create(**options, logprobs=True, top_logprobs=2, n=2)
    assert [c.index for c in whole.choices] == [0, 1]
    first = whole.choices[0]
    assert first.message.role == "assistant" and first.message.content
    assert first.message.content == "".join(t.token for t in first.logprobs.content)
    assert all(len(t.top_logprobs) == 2 for t in first.logprobs.content)
    stream = client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == first.message.content
    assert chunks[-1].usage.completion_tokens <= 40 and not chunks[-1].choices


def tools(client, model):
    for choice in ["required", {"type": "function", "function": {"name": "weather"}}]:
        options = dict(model=model, messages=QUESTION, tools=[WEATHER], tool_choice=choice, seed=2)
        whole = client.chat.completions.create(**options, parallel_tool_calls=False)
        assert whole.choices[0].finish_reason == "tool_calls"
        (call,) = whole.choices[0].message.tool_calls
        assert call.id and call.type == "function" and call.function.name == "weather"
        arguments = json.loads(call.function.arguments)
        assert arguments["city"] in ("Oslo", "Rome") and 1 <= arguments["days"] <= 9, arguments
        chunks = client.chat.completions.create(**options, parallel_tool_calls=False, stream=True)
        deltas = [d for c in chunks for d in c.choices[0].delta.tool_calls or []]
        assert deltas[0].id and deltas[0].function.name == "weather"
        assert "".join(d.function.arguments for d in deltas) == call.function.arguments
    # The conversation goes on with the result.
    messages = QUESTION + [
        whole.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
    ]
    client.chat.completions.create(model=model, messages=messages, tools=[WEATHER], max_tokens=5)


def json_schema(client, model):
    form = {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA, "strict": True}}
    for seed in range(4):
        one = client.chat.completions.create(
            model=model, messages=QUESTION, response_format=form, seed=seed
        )
        found = json.loads(one.choices[0].message.content)
        assert set(found) == {"name", "age"} and isinstance(found["age"], int), found
        assert one.choices[0].finish_reason == "stop"


def embeddings(client, model):
    whole = client.embeddings.create(model=model, input=["a fox", "a fox", "rain"])
    a, b, c = (d.embedding for d in whole.data)
    assert a == b != c and abs(sum(v * v for v in a) - 1) < 1e-5


def errors(client, model):
    def refused(kind, **options):
        try:
            client.chat.completions.create(**{"model": model, "messages": QUESTION, **options})
        except kind as e:
            return e
        raise AssertionError(f"{options} was not refused")

    assert refused(openai.BadRequestError, temperature=-1).param == "temperature"
    assert refused(openai.BadRequestError, max_tokens=-5).param == "max_tokens"
    assert refused(openai.BadRequestError, extra_body={"colour": 1}).param == "colour"
    assert refused(openai.NotFoundError, model="other").code == "model_not_found"
    long = [{"role": "user", "content": "word " * 5000}]
    assert refused(openai.BadRequestError, messages=long).code == "context_length_exceeded"


def key(muser, folder):
    file = folder / "key.txt"
    file.write_text("a key of sixteen letters\n")
    with served(muser, "--api-key-file", str(file)) as (address, _):
        right = OpenAI(base_url=f"{address}/v1", api_key="a key of sixteen letters", max_retries=0)
        models(right)
        wrong = OpenAI(base_url=f"{address}/v1", api_key="another", max_retries=0)
        try:
            wrong.models.list()
        except openai.AuthenticationError:
            return
        raise AssertionError("a wrong key was taken")


def tls(muser, folder):
    key, certificate = str(folder / "tls.key"), str(folder / "tls.crt")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", key, "-out", certificate, "-days", "2"]
    make = ["openssl", "req", "-x509", *curve, *files, *subject]
    subprocess.run(make, check=True, stderr=subprocess.DEVNULL)
    with served(muser, "--tls-cert", certificate, "--tls-key", key) as (address, process):
        assert address.startswith("https://")

        def ask(context):
            with urllib.request.urlopen(f"{address}/v1/models", context=context) as answer:
                assert json.load(answer)["object"] == "list"

        first = ssl.create_default_context(cafile=certificate)
        for version in [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]:
            first.minimum_version = first.maximum_version = version
            ask(first)
        # Another certificate in the same files is served from SIGHUP on; files
        # that are none leave it as it is.
        subprocess.run(make, check=True, stderr=subprocess.DEVNULL)
        second = ssl.create_default_context(cafile=certificate)
        ask(first)
        process.send_signal(signal.SIGHUP)
        eventually(lambda: ask(second))
        refused(lambda: ask(first))
        Path(certificate).write_text("no certificate")
        process.send_signal(signal.SIGHUP)
        time.sleep(1)
        ask(second)


def eventually(ask):
    end = time.monotonic() + 20
    while True:
        try:
            return ask()
        except urllib.error.URLError:
            assert time.monotonic() < end, "the new certificate is not served"
            time.sleep(0.05)


def refused(ask):
    try:
        ask()
    except urllib.error.URLError:
        return
    raise AssertionError("the old certificate is still served")


def main(muser):
    with served(muser) as (address, _):
        client = OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        model = models(client)
        for test in [completion, chat, tools, json_schema, embeddings, errors]:
            test(client, model)
            print("ok", test.__name__)
    with tempfile.TemporaryDirectory() as folder:
        for test in [key, tls]:
            test(muser, Path(folder))
            print("ok", test.__name__)


if __name__ == "__main__":
    main(sys.argv[1])
