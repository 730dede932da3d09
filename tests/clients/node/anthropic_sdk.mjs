// The SDK of Anthropic for Node: messages, a stream that the SDK puts together, a tool.

import Anthropic from "@anthropic-ai/sdk";
import { ASKED, INSTRUCTIONS, KEY, main, MODEL, SCHEMA } from "./shared.mjs";

const TOOL = { name: "weather", description: "Weather now.", input_schema: SCHEMA };
const FORCED = { tools: [TOOL], tool_choice: { type: "any" }, max_tokens: 96 };
const USED = [
  { role: "user", content: ASKED },
  { role: "assistant", content: [{ type: "tool_use", id: "1", name: "weather", input: { city: "Paris" } }] },
  { role: "user", content: [{ type: "tool_result", tool_use_id: "1", content: "rain" }] },
];

const at = (url) => new Anthropic({ baseURL: url, apiKey: KEY, maxRetries: 0 });
const fields = (more) => ({
  model: MODEL, system: INSTRUCTIONS, messages: [{ role: "user", content: ASKED }], max_tokens: 24, temperature: 0,
  ...more,
});
// Without its identities and without what depends on the server's cache.
const shown = (message) => [
  message.content.map(({ id, ...block }) => block), message.stop_reason, message.usage.output_tokens,
];

const whole = async (url, more) => shown(await at(url).messages.create(fields(more)));

async function streamed(url, more) {
  const stream = at(url).messages.stream(fields(more));
  const types = [];
  for await (const event of stream) types.push(event.type);
  return [...types, shown(await stream.finalMessage())];
}

await main({
  plain: whole,
  streamed,
  tool: (url) => whole(url, FORCED),
  "tool, streamed": (url) => streamed(url, FORCED),
  "tool's result": (url) => whole(url, { messages: USED }),
  tokens: async (url) => (await at(url).messages.countTokens({ model: MODEL, messages: USED })).input_tokens,
});
