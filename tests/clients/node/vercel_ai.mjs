// The Vercel AI SDK with its provider for servers that speak as OpenAI does: text, streams, and a loop over a tool.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { ASKED, INSTRUCTIONS, KEY, main, MODEL, SCHEMA } from "./shared.mjs";

const weather = tool({
  description: "Weather now.",
  inputSchema: jsonSchema(SCHEMA),
  execute: ({ city }) => `rain in ${city}`,
});
const FORCED = { tools: { weather }, toolChoice: "required", maxOutputTokens: 96, stopWhen: stepCountIs(2) };

const fields = (url, more) => ({
  model: createOpenAICompatible({ name: "local", baseURL: `${url}/v1`, apiKey: KEY })(MODEL),
  system: INSTRUCTIONS, prompt: ASKED, maxOutputTokens: 24, temperature: 0, seed: 7, maxRetries: 0, ...more,
});
const steps = (found) =>
  found.map((step) => [step.text, step.toolCalls.map((call) => [call.toolName, call.input]), step.finishReason]);

async function streamed(url) {
  const pieces = [];
  for await (const piece of streamText(fields(url)).textStream) pieces.push(piece);
  return pieces;
}

async function toolStreamed(url) {
  const result = streamText(fields(url, FORCED));
  const types = [];
  for await (const part of result.fullStream) types.push(part.type);
  return [...types, ...steps(await result.steps)];
}

await main({
  plain: async (url) => (await generateText(fields(url))).text,
  streamed,
  "tool loop": async (url) => steps((await generateText(fields(url, FORCED))).steps),
  "tool loop, streamed": toolStreamed,
});
