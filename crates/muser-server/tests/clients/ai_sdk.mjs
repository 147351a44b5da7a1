// Vercel's `ai` against the server: one tool, one schema, one stream.

import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamText, tool } from "ai";
import { z } from "zod";
import { served } from "./serving.mjs";

const item = z.object({ colour: z.enum(["red", "blue"]), size: z.number().int().min(1).max(9) });
const order = z.object({ item, more: z.array(item).max(2), wrapping: z.enum(["red", "blue"]).nullable() });
const prompt = "Order something, please.";

await served(process.argv[2], async (address) => {
  const [{ id }] = (await (await fetch(`${address}/v1/models`)).json()).data;
  const provider = createOpenAICompatible({ name: "muser", baseURL: `${address}/v1`, supportsStructuredOutputs: true });
  const model = provider(id);
  const options = { model, prompt, seed: 1, maxRetries: 0, providerOptions: { muser: { reasoningEffort: "none" } } };

  const taken = await generateText({ ...options, tools: { order: tool({ inputSchema: order }) }, toolChoice: "required" });
  assert.ok(taken.toolCalls.length > 0);
  for (const call of taken.toolCalls) order.parse(call.input);
  console.log("ok tool");

  const { object } = await generateObject({ ...options, schema: order });
  order.parse(object);
  console.log("ok schema");

  let text = "";
  for await (const part of streamText({ ...options, maxOutputTokens: 20 }).textStream) text += part;
  assert.ok(text.length > 0);
  console.log("ok stream");
});
