/** What an application gives and gets: replies, requests, attachments, JSON methods. */

import { CallFailed, NotJson, Refused, RemoteError } from "../errors.js";
import { Slot } from "./attachments.js";
import { Code } from "./wire.js";

/** @typedef {import("./attachments.js").Attachment} Attachment */
/** @typedef {Uint8Array | ArrayBuffer | ArrayBufferView | Blob} Bytes */

/**
 * An attachment to send: bytes, a Blob, or a promise for either (it is sent when it is there; if it
 * is rejected, the peer is told that this attachment is lost). A function for one of these is called
 * when all attachments before it have been sent and the peer has read most of them.
 *
 * @typedef {Bytes | Promise<Bytes> | (() => Bytes | Promise<Bytes>)} Sendable
 */

/** A text and its attachments: the answer to a call. */
export class Reply {
  /**
   * @param {string} payload
   * @param {readonly Sendable[]} [attachments]
   */
  constructor(payload, attachments = []) {
    this.payload = payload;
    this.attachments = attachments;
  }
}

/**
 * An answer that came: each attachment is its bytes, or an AttachmentLost in their place. Those of a
 * call that was `streamed` come through `stream` instead.
 *
 * @typedef {object} Answer
 * @property {string} payload
 * @property {Attachment[]} attachments
 * @property {import("./streams.js").AttachmentStream} [stream]
 */

/**
 * Something new on a topic.
 *
 * @typedef {object} Update
 * @property {string} payload
 * @property {Attachment[]} attachments
 */

/**
 * A call of the peer (`callback` is null) or of a callback.
 *
 * @typedef {object} Request
 * @property {import("./session.js").UmqSession} session
 * @property {string} payload
 * @property {Attachment[]} attachments
 * @property {string | null} callback
 */

/**
 * Answers a call: with text, a Reply, or nothing, now or later. What it throws is told to the peer
 * if it is a Refused or a RemoteError; anything else is "internal error" there.
 *
 * @typedef {(request: Request) => Answered | Promise<Answered>} Answering
 */

/** @typedef {string | Reply | void | null | undefined} Answered */

/**
 * A stock server has no such method, and took the call in: `durable` says that it is on disk.
 */
export class Stored {
  /** @param {boolean} durable */
  constructor(durable) {
    this.durable = durable;
  }

  /**
   * What an answer's payload says; null if it is something else.
   *
   * @param {string} payload
   */
  static read(payload) {
    const match = /^\s*\{\s*"stored"\s*:\s*(true|false)\s*\}\s*$/.exec(payload);
    return match ? new Stored(match[1] === "true") : null;
  }
}

/**
 * The bytes to send, and slots for those that come later; `fill` is told of these, and `produce` of
 * those that are not to be made before their turn.
 *
 * @param {readonly Sendable[]} attachments
 * @param {(slot: Slot, bytes: Promise<Uint8Array>) => void} fill
 * @param {(slot: Slot, bytes: () => Promise<Uint8Array>) => void} produce
 * @returns {(Uint8Array | Slot)[]}
 */
export function bodiesOf(attachments, fill, produce) {
  if (!Array.isArray(attachments)) throw new TypeError("attachments are an array");
  return attachments.map((attachment) => {
    if (typeof attachment === "function") {
      const slot = new Slot();
      produce(slot, async () => await later(attachment()));
      return slot;
    }
    const ready = bytesOf(attachment);
    if (ready) return ready;
    const slot = new Slot();
    fill(slot, later(attachment));
    return slot;
  });
}

/** @param {unknown} value */
function bytesOf(value) {
  if (value instanceof Uint8Array) return value;
  if (value instanceof ArrayBuffer) return new Uint8Array(value);
  if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
  if (value instanceof Blob || (value && typeof (/** @type {any} */ (value).then) === "function")) return null;
  throw new TypeError("an attachment is bytes, a Blob, or a promise or function for one of these");
}

/** @param {Bytes | Promise<Bytes>} attachment */
async function later(attachment) {
  const value = await attachment;
  const bytes = value instanceof Blob ? new Uint8Array(await value.arrayBuffer()) : bytesOf(value);
  if (!bytes) throw new TypeError("an attachment is bytes or a Blob");
  return bytes;
}

// ── JSON: a call's payload is ["method", args…], its answer the result ───────────────────────────

/**
 * The payload of a JSON call.
 *
 * @param {string} name
 * @param {readonly unknown[]} args
 */
export function methodCall(name, args) {
  if (typeof name !== "string") throw new TypeError("a method's name is text");
  return jsonOf([name, ...args]);
}

const DEPTH_MAX = 64;
const CONTAINERS_MAX = 10_000;

/** A string, or one bracket outside of strings. */
const TOKENS = /"(?:[^"\\]|\\.)*"|[[\]{}]/g;

/**
 * A value as JSON that every peer accepts (UM-17); throws TypeError for what has none.
 *
 * @param {unknown} value
 */
function jsonOf(value) {
  const text = JSON.stringify(value);
  if (text === undefined) throw new TypeError("the value has no JSON");
  // JSON has half of an emoji as "\ud83c"; an escaped backslash before "ud" is none.
  if (text.includes("\\ud") && text.replaceAll("\\\\", "").includes("\\ud"))
    throw new TypeError("a text has no unpaired surrogates (an emoji was cut)");
  let depth = 0;
  let containers = 0;
  if (text.length > DEPTH_MAX)
    for (const [token] of text.matchAll(TOKENS))
      if (token === "[" || token === "{") {
        containers++;
        if (++depth > DEPTH_MAX) throw new TypeError(`the value is nested deeper than ${DEPTH_MAX}`);
      } else if (token === "]" || token === "}") depth--;
  if (containers > CONTAINERS_MAX)
    throw new TypeError(`the value has more than ${CONTAINERS_MAX} objects and arrays`);
  return text;
}

/**
 * A text without what cannot be sent, and not too long.
 *
 * @param {string} text
 * @param {number} characters
 */
export function sendable(text, characters) {
  return text.slice(0, characters).replace(/\p{Surrogate}/gu, "\ufffd");
}

/**
 * The value in a JSON answer, null for an empty one; throws NotJson.
 *
 * @param {string} payload
 * @returns {any}
 */
export function parseAnswer(payload) {
  const stored = Stored.read(payload);
  if (stored) return stored;
  if (!payload) return null;
  try {
    return JSON.parse(payload);
  } catch {
    throw new NotJson("the answer is no JSON");
  }
}

/**
 * The error that a peer's `E` stands for.
 *
 * @param {string} payload
 */
export function failureOf(payload) {
  if (payload.startsWith("{"))
    try {
      const value = JSON.parse(payload);
      if (typeof value.type === "string") return new RemoteError(value.type, String(value.message ?? ""));
    } catch {
      // some text that begins like JSON
    }
  return new CallFailed(payload);
}

/**
 * What the peer is told of an error of ours.
 *
 * @param {unknown} error
 */
export function errorText(error) {
  if (error instanceof CallFailed) return error.payload;
  if (error instanceof Refused) return `${error.code ?? Code.REJECTED} ${error.message}`;
  return "internal error";
}

const requested = Symbol("the first argument is the request");

/**
 * Mark a method whose first argument is the {@link Request}: it has attachments, or opens topics.
 *
 * @template {(request: Request, ...args: any[]) => any} F
 * @param {F} method
 * @returns {F}
 */
export function withRequest(method) {
  return Object.assign(method, { [requested]: true });
}

/** @typedef {Readonly<Record<string, (...args: any[]) => any>>} Methods */

/**
 * Call the method that a payload names; null if there is none.
 *
 * @param {Methods} methods
 * @param {Request} request
 * @returns {Promise<Reply> | null}
 */
export function answerMethod(methods, request) {
  if (!request.payload.startsWith("[")) return null;
  let call;
  try {
    call = JSON.parse(request.payload);
  } catch {
    return null;
  }
  const [name, ...args] = call;
  if (typeof name !== "string" || !Object.hasOwn(methods, name)) return null;
  const method = methods[name];
  const given = requested in method ? [request, ...args] : args;
  return (async () => {
    const result = await method.apply(methods, given);
    return result instanceof Reply ? result : new Reply(jsonOf(result ?? null));
  })();
}
