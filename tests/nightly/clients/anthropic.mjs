// Anthropic's client.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { ASK, COLOUR, PICTURE, RESULT, failure, isColour, ok, scripted, url } from "./common.mjs";

const did = ok("anthropic, Node.js");
const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0, timeout: 60000 });
const short = { model: "stories", messages: ASK, max_tokens: 12, top_k: 1 };

const whole = await client.messages.create(short);
assert.ok(whole.content[0].text);
assert.equal(whole.usage.output_tokens, 12);
const stream = client.messages.stream(short);
let streamed = "";
stream.on("text", (text) => { streamed += text; });
const final = await stream.finalMessage();
assert.equal(streamed, whole.content[0].text);
assert.equal(final.usage.output_tokens, 12);
const counted = await client.messages.countTokens({ model: "stories", messages: ASK });
assert.equal(final.usage.input_tokens + final.usage.cache_read_input_tokens, counted.input_tokens);
did("chat", "stream");

const tools = [{ name: "paint", description: "Paints.", input_schema: COLOUR }];
const called = await client.messages
  .stream({ ...short, max_tokens: 60, tools, tool_choice: { type: "any" } })
  .finalMessage();
const call = called.content.find((block) => block.type === "tool_use");
assert.equal(called.stop_reason, "tool_use");
assert.ok(call.name === "paint" && isColour(call.input));
const result = { type: "tool_result", tool_use_id: call.id, content: "done" };
const after = await client.messages.create({
  ...short,
  tools,
  messages: [...ASK, { role: "assistant", content: called.content }, { role: "user", content: [result] }],
});
assert.ok(after.content.length > 0);
did("tool choice");

const other = new Anthropic({ baseURL: scripted, apiKey: "none", maxRetries: 0, timeout: 60000 });
const painted = [];
const paint = { ...tools[0], run: (input) => { painted.push(input); return RESULT; }, parse: (input) => input };
const told = await other.beta.messages.toolRunner({ ...short, max_tokens: 200, tools: [paint] });
assert.ok(told.content[0].text.includes(RESULT), JSON.stringify(told.content));
assert.deepEqual(painted, [{ colour: "blue" }]);
did("tools");

const form = { format: { type: "json_schema", schema: COLOUR } };
const made = await client.messages.create({ ...short, max_tokens: 40, output_config: form });
assert.ok(isColour(JSON.parse(made.content[0].text)));
did("structured answers");

const source = { type: "base64", media_type: "image/png", data: PICTURE };
const content = [{ type: "image", source }, { type: "text", text: "what is in the picture?" }];
const seen = await client.messages.create({ ...short, model: "shapes", messages: [{ role: "user", content }] });
assert.ok(seen.content[0].text);
did("pictures");

const error = await failure(client.messages.create({ ...short, model: "absent" }));
assert.ok(error instanceof Anthropic.NotFoundError, error);
did("errors");
