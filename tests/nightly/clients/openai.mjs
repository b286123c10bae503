// OpenAI's client.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { ASK, COLOUR, PICTURE, RESULT, failure, isColour, ok, scripted, url } from "./common.mjs";

const did = ok("openai, Node.js");
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: 60000 });
const greedy = { model: "stories", messages: ASK, temperature: 0, max_tokens: 12 };

const whole = await client.chat.completions.create(greedy);
const text = whole.choices[0].message.content;
assert.ok(text);
assert.equal(whole.usage.completion_tokens, 12);
let streamed = "";
const options = { stream: true, stream_options: { include_usage: true } };
let usage = null;
for await (const chunk of await client.chat.completions.create({ ...greedy, ...options })) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(streamed, text);
assert.equal(usage.completion_tokens, 12);
did("chat", "stream");

const response = await client.responses.create({
  model: "stories", input: ASK[0].content, temperature: 0, max_output_tokens: 12,
});
assert.equal(response.output_text, text);
const next = await client.responses.create({
  model: "stories", input: "And then?", previous_response_id: response.id, max_output_tokens: 4,
});
assert.ok(next.usage.input_tokens > response.usage.input_tokens);
const kinds = [];
for await (const event of client.responses.stream({ model: "stories", input: "Hi", max_output_tokens: 4 })) {
  kinds.push(event.type);
}
assert.equal(kinds[0], "response.created");

const tools = [{ type: "function", function: { name: "paint", parameters: COLOUR, strict: true } }];
const runner = client.chat.completions.stream({
  ...greedy, max_tokens: 60, tools, tool_choice: "required",
});
const [call] = (await runner.finalMessage()).tool_calls;
assert.equal(call.function.name, "paint");
assert.ok(isColour(JSON.parse(call.function.arguments)));
did("tool choice");

const other = new OpenAI({ baseURL: `${scripted}/v1`, apiKey: "none", maxRetries: 0, timeout: 60000 });
const painted = [];
const paint = (text) => { painted.push(JSON.parse(text)); return RESULT; };
const able = [{ type: "function", function: { ...tools[0].function, function: paint, parse: (text) => text } }];
for (const stream of [false, true]) {
  const told = await other.chat.completions.runTools({ model: "stories", messages: ASK, tools: able, stream }).finalContent();
  assert.ok(told.includes(RESULT), told);
}
assert.deepEqual(painted, [{ colour: "blue" }, { colour: "blue" }]);
did("tools");

const form = { type: "json_schema", json_schema: { name: "c", schema: COLOUR, strict: true } };
const parsed = await client.chat.completions.parse({ ...greedy, max_tokens: 40, response_format: form });
assert.ok(isColour(JSON.parse(parsed.choices[0].message.content)));
did("structured answers");

const picture = { type: "image_url", image_url: { url: `data:image/png;base64,${PICTURE}` } };
const content = [picture, { type: "text", text: "what is in the picture?" }];
const seen = await client.chat.completions.create({
  ...greedy, model: "shapes", messages: [{ role: "user", content }],
});
assert.ok(seen.choices[0].message.content);
did("pictures");

const rows = await client.embeddings.create({ model: "stories", input: ["a dog", "a cat"] });
assert.equal(rows.data.length, 2);
assert.ok(rows.data[0].embedding.length > 8);
did("embeddings");

const error = await failure(client.chat.completions.create({ ...greedy, model: "absent" }));
assert.ok(error instanceof OpenAI.NotFoundError, error);
const wrong = await failure(client.chat.completions.create({ ...greedy, n: 0 }));
assert.ok(wrong instanceof OpenAI.BadRequestError && wrong.param === "n", wrong);
const names = (await client.models.list()).data.map((one) => one.id);
assert.deepEqual(names, ["stories", "shapes"]);
did("errors");
