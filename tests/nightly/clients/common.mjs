// Shared by the scripts for Node.js: node NAME.mjs URL ASSETS SCRIPTED; common.py tells of these.
import fs from "node:fs";

export const [url, assets, scripted] = process.argv.slice(2);
export const ASK = [{ role: "user", content: "Tell me a story about a dog." }];
export const COLOUR = {
  type: "object",
  properties: { colour: { type: "string", enum: ["red", "blue"] } },
  required: ["colour"],
  additionalProperties: false,
};
export const RESULT = "secret-42";
export const PICTURE = fs.readFileSync(`${assets}/scene.png`).toString("base64");

export const isColour = (value) => ["red", "blue"].includes(value.colour);

// ok(CLIENT)(COLUMN, …): lines for cells of the table in docs/serving.md.
export const ok = (client) => (...columns) => columns.forEach((one) => console.log(`ok ${client}: ${one}`));

// The error of a promise; that there is none is one, too.
export async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error("a model that is absent answers");
}
