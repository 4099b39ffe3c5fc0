/** A message while its parts arrive. */

import { textOf } from "./wire.js";

/**
 * A message that is being received, or (muted) what is to be skipped of one.
 *
 * @typedef {object} Incoming
 * @property {string | null} key
 * @property {string | null} id
 * @property {boolean} response
 * @property {Record<string, string>} headers
 * @property {Uint8Array[]} parts
 * @property {boolean} sendOnly
 * @property {number} size
 * @property {boolean} cut
 * @property {boolean} muted
 * @property {boolean} givenUp the rest of it did not come in time
 * @property {number} heard
 */

/**
 * @param {string | null} key
 * @param {string | null} id
 * @param {boolean} response
 * @param {number} now
 * @returns {Incoming}
 */
export function newIncoming(key, id, response, now) {
  return {
    ...{ key, id, response, headers: {}, parts: [], sendOnly: false },
    ...{ size: 0, cut: false, muted: false, givenUp: false, heard: now },
  };
}

/**
 * Deliver nothing (more) of it.
 *
 * @param {Incoming} incoming
 */
export function mute(incoming) {
  incoming.muted = true;
  incoming.parts = [];
  incoming.headers = {};
}

/** @param {Uint8Array[]} parts */
export function joined(parts) {
  if (parts.length === 1) return parts[0];
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/**
 * `body` without an unfinished last UTF-8 character; as it is if it is not UTF-8 (SA-22).
 *
 * @param {Uint8Array} body
 */
export function wholeCharacters(body) {
  for (let back = 0; back <= Math.min(3, body.length); back++) {
    const rest = body.subarray(body.length - back);
    if (textOf(body.subarray(0, body.length - back)) !== null && (!back || unfinished(rest)))
      return body.subarray(0, body.length - back);
  }
  return body;
}

/**
 * Whether these bytes begin a character that is longer.
 *
 * @param {Uint8Array} bytes
 */
function unfinished(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes, { stream: true }) === "";
  } catch {
    return false;
  }
}
