// Requests to the server, and the streams of its answers.

import { settings } from "./store.js";

function headers(json) {
  const { key } = settings();
  return { ...(json && { "Content-Type": "application/json" }), ...(key && { Authorization: `Bearer ${key}` }) };
}

async function checked(response) {
  if (response.ok) return response;
  let message = `${response.status} ${response.statusText}`;
  let code;
  try {
    const { error } = await response.json();
    message = error.message ?? error; // Ollama's errors are texts
    code = error.code;
  } catch {
    // The server's proxy answered.
  }
  if (response.status === 401) message += " Give the key in the settings.";
  throw Object.assign(new Error(message), { code });
}

/** Sends an object, or a form. */
export async function post(path, sent, signal, method = "POST") {
  const form = sent instanceof FormData;
  const body = form ? sent : JSON.stringify(sent);
  return checked(await fetch(path, { method, headers: headers(!form), body, signal }));
}

/** The JSON at a path. */
export const get = async (path) => (await checked(await fetch(path, { headers: headers(false) }))).json();

/** The parts of a response between ends, as they come. */
export async function* parts(response, end) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    held += value ?? "";
    const whole = held.split(end);
    held = done ? "" : whole.pop();
    yield* whole.filter((part) => part.trim());
    if (done) return;
  }
}

/** The objects of an event stream. */
export async function* events(response) {
  for await (const event of parts(response, /\r?\n\r?\n/)) {
    const data = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
    const text = data.map((line) => line.slice(5).trimStart()).join("\n");
    if (text === "[DONE]") return;
    if (text) yield JSON.parse(text);
  }
}
