// Talks to the server, in OpenAI's API.

import { settings } from "./store.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed", "max_tokens"];

function headers() {
  const { key } = settings();
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function checked(response) {
  if (response.ok) return response;
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // The server's proxy answered.
  }
  if (response.status === 401) message += " Give the key in the settings.";
  throw new Error(message);
}

/** The models that the server has. */
export async function models() {
  const response = await checked(await fetch("v1/models", { headers: headers() }));
  return (await response.json()).data;
}

/** A message in the API's form. */
function spelled({ role, text, items = [] }) {
  if (!items.length) return { role, content: text };
  const parts = items.map(({ kind, url, format }) =>
    kind === "image"
      ? { type: "image_url", image_url: { url } }
      : { type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1), format } },
  );
  return { role, content: [...parts, { type: "text", text }] };
}

function body(model, messages) {
  const chosen = settings();
  const system = chosen.system ? [{ role: "system", content: chosen.system }] : [];
  const request = {
    model,
    messages: [...system, ...messages.map(spelled)],
    stream: true,
    stream_options: { include_usage: true },
    truncation: "auto",
  };
  for (const name of NUMBERS) {
    if (chosen[name] !== undefined && chosen[name] !== "") request[name] = Number(chosen[name]);
  }
  if (chosen.schema) {
    const json_schema = { name: "answer", strict: true, schema: JSON.parse(chosen.schema) };
    request.response_format = { type: "json_schema", json_schema };
  }
  if (chosen.logprobs) Object.assign(request, { logprobs: true, top_logprobs: 5 });
  return request;
}

/** The objects of an event stream. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    let end;
    while ((end = held.indexOf("\n\n")) >= 0) {
      const event = held.slice(0, end);
      held = held.slice(end + 2);
      const data = event.split("\n").filter((line) => line.startsWith("data:"));
      const text = data.map((line) => line.slice(5).trimStart()).join("\n");
      if (text === "[DONE]") return;
      if (text) yield JSON.parse(text);
    }
  }
}

/** How many tokens a conversation has, without its pictures and sounds. */
export async function promptLength(model, messages, signal) {
  const asked = JSON.stringify({ model, messages: body(model, messages).messages });
  const response = await checked(await fetch("tokenize", { method: "POST", headers: headers(), body: asked, signal }));
  return (await response.json()).count;
}

/**
 * Answers a conversation: yields {text, thought, tokens, usage, timings, reason}, each where it is new.
 * The first piece is empty: the model is loaded, and reads the prompt.
 * Aborting the signal ends the request at the server, too.
 */
export async function* answer(model, messages, signal) {
  let request;
  try {
    request = JSON.stringify(body(model, messages));
  } catch (error) {
    throw new Error(`The JSON schema in the settings is no JSON: ${error.message}`);
  }
  const response = await checked(
    await fetch("v1/chat/completions", { method: "POST", headers: headers(), body: request, signal }),
  );
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    const choice = event.choices?.[0];
    const delta = choice?.delta ?? {};
    const calls = delta.tool_calls?.map(({ function: f }) => (f.name ?? "") + (f.arguments ?? ""));
    yield {
      text: (delta.content ?? "") + (calls?.join("") ?? ""),
      thought: delta.reasoning_content ?? delta.reasoning ?? "",
      tokens: choice?.logprobs?.content ?? [],
      usage: event.usage ?? null,
      timings: event.timings ?? null,
      reason: choice?.finish_reason ?? null,
    };
  }
}
