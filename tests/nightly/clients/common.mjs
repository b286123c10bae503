// What the scripts for Node.js share: node NAME.mjs URL ASSETS.
import fs from "node:fs";

export const [url, assets] = process.argv.slice(2);
export const ASK = [{ role: "user", content: "Tell me a story about a dog." }];
export const COLOUR = {
  type: "object",
  properties: { colour: { type: "string", enum: ["red", "blue"] } },
  required: ["colour"],
  additionalProperties: false,
};
export const PICTURE = fs.readFileSync(`${assets}/scene.png`).toString("base64");

export const isColour = (value) => ["red", "blue"].includes(value.colour);

// The error of a promise; that there is none is one, too.
export async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error("a model that is absent answers");
}
