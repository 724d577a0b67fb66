// The AI SDK, unchanged, against a running `hotmetal serve` of the built-in model: programs.py runs it as `ai-sdk`.
//
// usage: node ai_sdk.mjs http://127.0.0.1:PORT FOLDER      (FOLDER has node_modules with the packages)
//
// Each provider generates a text with a tool that the model has to call, an object of a schema, and streams of both.
// Exits with an error at the first thing that is wrong.

import assert from "node:assert";
import { createRequire } from "node:module";

const [address, folder] = process.argv.slice(2);
const from = createRequire(`${folder}/`);
const { embed, generateObject, generateText, stepCountIs, streamObject, streamText, tool } = from("ai");
const { z } = from("zod");
const MODEL = "hotmetal-builtin";
const settings = { baseURL: `${address}/v1`, apiKey: "none" };
const compatible = from("@ai-sdk/openai-compatible").createOpenAICompatible({
  name: "hotmetal",
  supportsStructuredOutputs: true,
  includeUsage: true,
  ...settings,
});
const loose = from("@ai-sdk/openai-compatible").createOpenAICompatible({ name: "hotmetal", ...settings });
const openai = from("@ai-sdk/openai").createOpenAI(settings);
const anthropic = from("@ai-sdk/anthropic").createAnthropic(settings);

const schema = z.object({ rains: z.boolean(), wind: z.enum(["none", "some", "much"]) });

for (const [name, model, objects] of [
  ["openai-compatible", compatible(MODEL), true],
  // It asks for `json_object` and does not send the schema, which the model would have to obey by itself.
  ["openai-compatible without schemas", loose(MODEL), false],
  ["openai, chat", openai.chat(MODEL), true],
  ["openai, Responses", openai.responses(MODEL), true],
  ["anthropic", anthropic(MODEL), true],
]) {
  const called = [];
  const weather = tool({
    description: "The weather in a city.",
    inputSchema: z.object({ city: z.enum(["Oslo", "Bergen"]) }),
    execute: async ({ city }) => (called.push(city), "It rains."),
  });
  const prompt = "What is the weather in Oslo?";
  const request = { model, prompt, maxOutputTokens: 200, temperature: 0, maxRetries: 0 };
  const steps = {
    tools: { weather },
    stopWhen: stepCountIs(2),
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "auto" }),
  };
  const text = await generateText({ ...request, ...steps });
  assert(called.length > 0, `${name}: the tool was not called`);
  assert.equal(text.steps.length, 2);
  assert(text.text, `${name}: there is no answer`);

  const onError = ({ error }) => {
    throw error;
  };
  const stream = streamText({ ...request, ...steps, onError });
  let streamed = "";
  for await (const piece of stream.textStream) streamed += piece;
  assert(streamed, `${name}: nothing was streamed`);
  // It asks for usage only if it is told to.
  if (objects) assert((await stream.usage).outputTokens > 0, `${name}: a stream has no usage`);

  if (objects) {
    const { object } = await generateObject({ ...request, schema });
    assert(schema.safeParse(object).success, `${name}: ${JSON.stringify(object)}`);
    const partial = streamObject({ ...request, schema });
    for await (const _ of partial.partialObjectStream);
    assert(schema.safeParse(await partial.object).success);
  }
  const [call] = text.steps[0].toolCalls;
  console.log(`AI SDK, ${name}: ${JSON.stringify(call.input)}, then ${JSON.stringify(streamed.slice(0, 60))}`);
}

const { embedding } = await embed({ model: compatible.textEmbeddingModel(MODEL), value: "The moon was out." });
assert(embedding.length > 0);
