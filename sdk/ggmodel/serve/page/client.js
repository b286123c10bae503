// Answers of models, in OpenAI's API.

import { events, post } from "./api.js";
import { settings } from "./store.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed", "max_tokens"];

const afterComma = (url) => url.slice(url.indexOf(",") + 1);

/** A file of a message in the API's form. */
function part({ kind, name, url, format }) {
  if (kind === "file") return { type: "file", file: { filename: name, file_data: url } };
  if (kind === "audio") return { type: "input_audio", input_audio: { data: afterComma(url), format } };
  return { type: `${kind}_url`, [`${kind}_url`]: { url } };
}

/** A message in the API's form, with the results of its calls. The thought of an answer that goes on is its beginning. */
function spelled({ role, text, thought, items = [], calls = [] }, place, all) {
  if (items.length) return [{ role, content: [...items.map(part), { type: "text", text }] }];
  if (calls.length) {
    const tool_calls = calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
    const results = calls.map(({ id, result }) => ({ role: "tool", tool_call_id: id, content: result ?? "Error: not run" }));
    return [{ role, content: text, tool_calls }, ...results];
  }
  const goesOn = role === "assistant" && place === all.length - 1;
  return [{ role, content: text, ...(goesOn && thought && { reasoning_content: thought }) }];
}

/** How much the model is to think, as fields of a request. */
function thinking(choice) {
  if (!choice) return {};
  if (choice === "off") return { reasoning_effort: "none" };
  const on = { chat_template_kwargs: { enable_thinking: true } };
  return choice === "on" ? on : { ...on, reasoning_effort: choice };
}

function body({ model, messages, settings: chosen = {}, tools = [] }) {
  const system = chosen.system ? [{ role: "system", content: chosen.system }] : [];
  const request = {
    model,
    messages: [...system, ...messages.flatMap(spelled)],
    ...(tools.length && { tools }),
    stream: true,
    stream_options: { include_usage: true },
    return_progress: true,
    truncation: "auto",
    ...thinking(chosen.thinking),
  };
  for (const name of NUMBERS) {
    if (chosen[name] !== undefined && chosen[name] !== "") request[name] = Number(chosen[name]);
  }
  if (chosen.schema) {
    const json_schema = { name: "answer", strict: true, schema: JSON.parse(chosen.schema) };
    request.response_format = { type: "json_schema", json_schema };
  }
  if (settings().logprobs) Object.assign(request, { logprobs: true, top_logprobs: 5 });
  return request;
}

/** How many tokens the prompt of a whole conversation has; infinitely many if it does not fit in the context. */
export async function promptLength(asked) {
  const { truncation, stream, ...counted } = body(asked);
  try {
    return (await (await post("v1/chat/completions/input_tokens", counted)).json()).input_tokens;
  } catch (error) {
    if (error.code === "context_length_exceeded") return Infinity;
    throw error;
  }
}

/**
 * Answers {model, messages, settings, tools}: yields {text, thought, calls, tokens, progress, usage, timings, reason},
 * each where it is new. The last message goes on if it is an answer.
 * Aborting the signal ends the request at the server, too.
 */
export async function* answer(asked, signal) {
  let request;
  try {
    request = body(asked);
  } catch (error) {
    throw new Error(`The JSON schema in the settings is no JSON: ${error.message}`);
  }
  const response = await post("v1/chat/completions", request, signal);
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    const choice = event.choices?.[0];
    const delta = choice?.delta ?? {};
    yield {
      text: delta.content ?? "",
      calls: delta.tool_calls ?? [],
      thought: delta.reasoning_content ?? delta.reasoning ?? "",
      tokens: choice?.logprobs?.content ?? [],
      progress: event.prompt_progress,
      usage: event.usage,
      timings: event.timings,
      reason: choice?.finish_reason,
    };
  }
}

/** Writes down what is said in the sounds of the last message; yields as `answer`. */
export async function* transcribe({ model, messages }, signal) {
  const { text, items } = messages.at(-1);
  for (const { url, name } of items) {
    const bytes = Uint8Array.from(atob(afterComma(url)), (letter) => letter.charCodeAt(0));
    const form = new FormData();
    form.append("file", new Blob([bytes]), name);
    form.append("model", model);
    if (text) form.append("prompt", text);
    const transcript = await (await post("v1/audio/transcriptions", form, signal)).json();
    yield { text: `${transcript.text.trim()}\n\n`, thought: "", tokens: [], seconds: transcript.usage?.seconds };
  }
}
