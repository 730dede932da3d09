// The SDK of OpenAI for Node: chat and responses, streams, a tool.

import OpenAI from "openai";
import { ASKED, INSTRUCTIONS, KEY, main, MODEL, SCHEMA } from "./shared.mjs";

const SAID = [
  { role: "system", content: INSTRUCTIONS },
  { role: "user", content: ASKED },
];
const FUNCTION = { name: "weather", description: "Weather now.", parameters: SCHEMA };
const FORCED = { tools: [{ type: "function", function: FUNCTION }], tool_choice: "required", max_tokens: 96 };
const LOOP = [
  ...SAID,
  {
    role: "assistant",
    content: null,
    tool_calls: [{ id: "1", type: "function", function: { name: "weather", arguments: '{"city": "Paris"}' } }],
  },
  { role: "tool", tool_call_id: "1", content: "rain" },
];

const at = (url) => new OpenAI({ baseURL: `${url}/v1`, apiKey: KEY, maxRetries: 0 });
const chat = (url, more) =>
  at(url).chat.completions.create({ model: MODEL, messages: SAID, max_tokens: 24, temperature: 0, seed: 7, ...more });
const calls = (message) => (message.tool_calls ?? []).map((call) => call.function);

async function whole(url, more) {
  const [choice] = (await chat(url, more)).choices;
  return [choice.message.content, calls(choice.message), choice.finish_reason];
}

async function streamed(url, more) {
  const pieces = [];
  for await (const chunk of await chat(url, { stream: true, ...more })) {
    const delta = chunk.choices[0]?.delta ?? {};
    pieces.push([delta.content ?? null, calls(delta)]);
  }
  return pieces;
}

const responses = (url, more) =>
  at(url).responses.create({
    model: MODEL, instructions: INSTRUCTIONS, input: ASKED, max_output_tokens: 24, temperature: 0, ...more,
  });

async function responsesStreamed(url) {
  const types = [];
  for await (const event of await responses(url, { stream: true })) types.push([event.type, event.delta ?? null]);
  return types;
}

async function responsesTool(url) {
  const tools = [{ type: "function", ...FUNCTION }];
  const answer = await responses(url, { tools, tool_choice: "required", max_output_tokens: 96 });
  return answer.output.map((item) => [item.type, item.name, item.arguments]);
}

await main({
  plain: whole,
  streamed,
  tool: (url) => whole(url, FORCED),
  "tool, streamed": (url) => streamed(url, FORCED),
  "tool's result": (url) => whole(url, { messages: LOOP, tools: FORCED.tools, tool_choice: "none" }),
  responses: async (url) => (await responses(url)).output_text,
  "responses, streamed": responsesStreamed,
  "responses, tool": responsesTool,
});
