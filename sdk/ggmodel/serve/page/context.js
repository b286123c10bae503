// The context of the model: how much of it a conversation takes, and whether all of it still fits.

import { promptLength } from "./client.js";
import { number } from "./element.js";

const NEARLY = 0.9; // of the context

const [place, meter, text] = ["context", "context-meter", "context-text"].map((id) => document.getElementById(id));

/** Shows how many tokens the shown messages had in the model's context, with the last answer. */
export function showContext(messages, model) {
  const last = messages.findLast(({ usage }) => usage);
  const most = model?.loaded ? model.context_length : 0;
  place.hidden = !(last && most && last.model === model.id);
  if (place.hidden) return;
  const used = Math.min(most, last.usage.prompt_tokens + last.usage.completion_tokens);
  Object.assign(meter, { max: most, high: NEARLY * most, value: used });
  const full = used > NEARLY * most || last.leftOut ? ": the oldest turns are left out when it is full" : "";
  text.textContent = `${number(used)} of ${number(most)} tokens of context${full}`;
}

/** Whether the server has left out the oldest turns for an answer. */
export async function leavesOut(asked, message, model) {
  const prompt = message.usage?.prompt_tokens;
  const hasMedia = asked.messages.some(({ items }) => items?.length);
  if (!prompt || hasMedia || asked.messages.length < 3 || 2 * prompt < (model?.context_length ?? 0)) return false;
  return (await promptLength(asked).catch(() => 0)) > prompt;
}
