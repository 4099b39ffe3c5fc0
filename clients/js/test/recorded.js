/** The recordings of the Python machines, and how their JSON stands for bytes. */

import { readFileSync } from "node:fs";

import { AttachmentLost } from "../src/errors.js";

/** @param {string} name */
export function recording(name) {
  const url = new URL(`./recorded/${name}.json`, import.meta.url);
  return JSON.parse(readFileSync(url, "utf-8"));
}

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Bytes as the recordings have them: text where it is UTF-8. */
export function jsonOf(bytes) {
  if (typeof bytes === "string") return bytes;
  try {
    return utf8.decode(bytes);
  } catch {
    return hex(bytes);
  }
}

export function hex(bytes) {
  return { hex: Buffer.from(bytes).toString("hex") };
}

/** What a recording's message is on the wire: text, or bytes. */
export function wire(message) {
  if (typeof message === "string" || message instanceof Uint8Array) return message;
  return Uint8Array.from(Buffer.from(message.hex, "hex"));
}

export function bytes(message) {
  const found = wire(message);
  return typeof found === "string" ? new TextEncoder().encode(found) : found;
}

/** An attachment that arrived, as the recordings have it. */
export function attachment(one) {
  return one instanceof AttachmentLost ? { lost: one.message } : hex(one);
}
