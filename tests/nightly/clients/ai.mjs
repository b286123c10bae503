// The AI SDK, with its provider for servers that speak OpenAI's language.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, embedMany, generateText, isStepCount, jsonSchema, streamText, tool } from "ai";
import { ASK, COLOUR, PICTURE, RESULT, failure, isColour, ok, scripted, url } from "./common.mjs";

const did = ok("AI SDK, Node.js");
const provider = createOpenAICompatible({
  name: "ggmodel", baseURL: `${url}/v1`, apiKey: "none",
  includeUsage: true, supportsStructuredOutputs: true,
});
const short = { model: provider("stories"), temperature: 0, maxOutputTokens: 12, maxRetries: 0 };

const whole = await generateText({ ...short, messages: ASK });
assert.ok(whole.text);
assert.equal(whole.usage.outputTokens, 12);
const stream = streamText({ ...short, messages: ASK });
let streamed = "";
for await (const piece of stream.textStream) streamed += piece;
assert.equal(streamed, whole.text);
assert.equal((await stream.usage).outputTokens, 12);
did("chat", "stream");

const paint = tool({
  description: "Paints.",
  inputSchema: jsonSchema(COLOUR),
  execute: async ({ colour }) => `it is ${colour}`,
});
const called = await generateText({
  ...short, maxOutputTokens: 60, messages: ASK, tools: { paint }, toolChoice: "required",
});
assert.equal(called.toolCalls[0].toolName, "paint");
assert.ok(isColour(called.toolCalls[0].input));
assert.match(String(called.toolResults[0].output), /it is (red|blue)/);
did("tool choice");

const other = createOpenAICompatible({ name: "ggmodel", baseURL: `${scripted}/v1`, apiKey: "none" });
const told = await generateText({
  ...short, model: other("stories"), messages: ASK, stopWhen: isStepCount(3), maxOutputTokens: 200,
  tools: { paint: { ...paint, execute: async () => RESULT } },
});
assert.ok(told.text.includes(RESULT));
did("tools");

const formed = await generateText({
  ...short, maxOutputTokens: 40, messages: ASK, output: Output.object({ schema: jsonSchema(COLOUR) }),
});
assert.ok(isColour(formed.output));
did("structured answers");

const image = { type: "file", mediaType: "image/png", data: PICTURE };
const content = [image, { type: "text", text: "what is in the picture?" }];
const seen = await generateText({
  ...short, model: provider("shapes"), messages: [{ role: "user", content }],
});
assert.ok(seen.text);
did("pictures");

const rows = await embedMany({ model: provider.embeddingModel("stories"), values: ["a dog", "a cat"] });
assert.equal(rows.embeddings.length, 2);
did("embeddings");

const error = await failure(generateText({ ...short, model: provider("absent"), messages: ASK }));
assert.equal(error.statusCode, 404);
did("errors");
