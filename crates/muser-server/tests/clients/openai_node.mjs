// The official JavaScript client against the server.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { served } from "./serving.mjs";

const messages = [{ role: "user", content: "Tell me a story about a brave little rabbit." }];
const weather = {
  type: "function",
  function: {
    name: "weather",
    parameters: {
      type: "object",
      properties: { city: { type: "string", enum: ["Oslo", "Rome"] }, days: { type: "integer", minimum: 1, maximum: 9 } },
      required: ["city", "days"],
    },
  },
};
const schema = {
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, age: { type: "integer", minimum: 0, maximum: 150 } },
  required: ["name", "age"],
  additionalProperties: false,
};

async function refused(kind, call) {
  try {
    await call();
  } catch (e) {
    assert.ok(e instanceof kind, `${e}`);
    return e;
  }
  assert.fail("was not refused");
}

await served(process.argv[2], async (address) => {
  const client = new OpenAI({ baseURL: `${address}/v1`, apiKey: "none", maxRetries: 0 });

  const [{ id: model }] = (await client.models.list()).data;
  assert.equal((await client.models.retrieve(model)).id, model);
  console.log("ok models");

  const text = await client.completions.create({ model, prompt: "Once", max_tokens: 9, seed: 1, logprobs: 2 });
  assert.equal(text.choices[0].logprobs.tokens.join(""), text.choices[0].text);
  assert.equal(text.usage.completion_tokens, 9);
  console.log("ok completion");

  const options = { model, messages, max_completion_tokens: 40, seed: 1 };
  const whole = await client.chat.completions.create({ ...options, logprobs: true, top_logprobs: 2 });
  assert.equal(whole.choices[0].logprobs.content.map((t) => t.token).join(""), whole.choices[0].message.content);
  const stream = await client.chat.completions.create({ ...options, stream: true, stream_options: { include_usage: true } });
  let [streamed, usage] = ["", null];
  for await (const chunk of stream) {
    streamed += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(streamed, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  console.log("ok chat, stream, logprobs");

  // The client's own accumulator puts a streamed call together.
  const runner = client.chat.completions.stream({ model, messages, tools: [weather], tool_choice: "required", parallel_tool_calls: false, seed: 2 });
  const [call] = (await runner.finalChatCompletion()).choices[0].message.tool_calls;
  assert.ok(call.id && call.function.name === "weather");
  const days = JSON.parse(call.function.arguments).days;
  assert.ok(days >= 1 && days <= 9);
  console.log("ok tools");

  const form = { type: "json_schema", json_schema: { name: "p", schema, strict: true } };
  const json = await client.chat.completions.create({ model, messages, response_format: form, seed: 1 });
  assert.deepEqual(Object.keys(JSON.parse(json.choices[0].message.content)).sort(), ["age", "name"]);
  console.log("ok json schema");

  const vectors = await client.embeddings.create({ model, input: ["a fox", "rain"] });
  assert.ok(Math.abs(vectors.data[0].embedding.reduce((s, v) => s + v * v, 0) - 1) < 1e-5);
  console.log("ok embeddings");

  const bad = await refused(OpenAI.BadRequestError, () => client.chat.completions.create({ ...options, temperature: -1 }));
  assert.equal(bad.param, "temperature");
  const other = await refused(OpenAI.NotFoundError, () => client.chat.completions.create({ ...options, model: "other" }));
  assert.equal(other.code, "model_not_found");
  console.log("ok errors");
});
