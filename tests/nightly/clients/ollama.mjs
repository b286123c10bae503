// Ollama's client.
import assert from "node:assert/strict";
import { Ollama } from "ollama";
import { ASK, COLOUR, PICTURE, RESULT, failure, isColour, ok, scripted, url } from "./common.mjs";

const did = ok("ollama, Node.js");
const client = new Ollama({ host: url });
const greedy = { model: "stories", options: { temperature: 0, num_predict: 12 } };

const whole = await client.chat({ ...greedy, messages: ASK });
assert.ok(whole.message.content);
assert.equal(whole.eval_count, 12);
let streamed = "";
for await (const part of await client.chat({ ...greedy, messages: ASK, stream: true })) {
  streamed += part.message.content;
}
assert.equal(streamed, whole.message.content);
const made = await client.generate({ ...greedy, prompt: "Once upon a time" });
assert.ok(made.response && made.context.length > 12);
did("chat", "stream");

const long = { temperature: 0, num_predict: 40 };
const formed = await client.chat({ ...greedy, options: long, messages: ASK, format: COLOUR });
assert.ok(isColour(JSON.parse(formed.message.content)));
const tool = { type: "function", function: { name: "paint", description: "Paints.", parameters: COLOUR } };
did("structured answers");

const other = new Ollama({ host: scripted });
const called = await other.chat({ model: "stories", messages: ASK, tools: [tool] });
const call = called.message.tool_calls[0].function;
assert.ok(call.name === "paint" && call.arguments.colour === "blue");
const result = { role: "tool", tool_name: "paint", content: RESULT };
const told = await other.chat({ model: "stories", messages: [...ASK, called.message, result], tools: [tool] });
assert.ok(told.message.content.includes(RESULT));
did("tools");

const seen = await client.chat({
  ...greedy,
  model: "shapes",
  messages: [{ role: "user", content: "what is in the picture?", images: [PICTURE] }],
});
assert.ok(seen.message.content);
did("pictures");

const rows = await client.embed({ model: "stories", input: ["a dog", "a cat"] });
assert.equal(rows.embeddings.length, 2);
did("embeddings");

const names = (await client.list()).models.map((one) => one.name);
assert.deepEqual(names, ["stories:latest", "shapes:latest"]);
assert.ok((await client.ps()).models.length > 0);
assert.ok((await client.show({ model: "stories" })).capabilities.includes("completion"));
const error = await failure(client.chat({ ...greedy, model: "absent", messages: ASK }));
assert.equal(error.status_code, 404);
did("errors");
