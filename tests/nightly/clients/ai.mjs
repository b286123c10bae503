// The AI SDK, with its provider for servers that speak OpenAI's language.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, embedMany, generateText, jsonSchema, streamText, tool } from "ai";
import { ASK, COLOUR, PICTURE, failure, isColour, url } from "./common.mjs";

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
console.log("ok chat");

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
console.log("ok tools");

const formed = await generateText({
  ...short, maxOutputTokens: 40, messages: ASK, output: Output.object({ schema: jsonSchema(COLOUR) }),
});
assert.ok(isColour(formed.output));
console.log("ok structured");

const image = { type: "file", mediaType: "image/png", data: PICTURE };
const content = [image, { type: "text", text: "what is in the picture?" }];
const seen = await generateText({
  ...short, model: provider("shapes"), messages: [{ role: "user", content }],
});
assert.ok(seen.text);
console.log("ok pictures");

const rows = await embedMany({ model: provider.embeddingModel("stories"), values: ["a dog", "a cat"] });
assert.equal(rows.embeddings.length, 2);
console.log("ok embeddings");

const error = await failure(generateText({ ...short, model: provider("absent"), messages: ASK }));
assert.equal(error.statusCode, 404);
console.log("ok errors");
