// What all Node clients here say, and the frame that they say it in (as ../python/shared.py): the same calls to each
// server of the command line, and a line of JSON for each server with what the client made of the answers.

export const MODEL = "tiny";
export const KEY = "a-key";
export const INSTRUCTIONS = "Be brief.";
export const ASKED = "What is the weather in Paris?";
export const SCHEMA = {
  type: "object",
  properties: { city: { type: "string", enum: ["Paris", "Oslo"] } },
  required: ["city"],
};

export async function main(calls) {
  for (const url of process.argv.slice(2)) {
    const found = {};
    for (const [name, call] of Object.entries(calls)) found[name] = await call(url);
    console.log(JSON.stringify(found));
  }
}
