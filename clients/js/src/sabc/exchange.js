/** What an application gives and gets: bodies, messages, answers. */

import { textOf, utf8 } from "./wire.js";

/** @typedef {string | Uint8Array | ArrayBuffer | ArrayBufferView} Bytes text is sent as UTF-8 */
/** @typedef {Readonly<Record<string, string>>} Headers */

/** A message or an answer that came. */
export class Message {
  /**
   * @param {{id: string, body: Uint8Array, headers: Headers, truncated: boolean}} received
   */
  constructor({ id, body, headers, truncated }) {
    /** The id of the message, or of the one that it answers. */
    this.id = id;
    /** The body's bytes. */
    this.body = body;
    /** The headers that the protocol does not reserve. */
    this.headers = headers;
    /** It was larger than this side takes, and was cut. */
    this.truncated = truncated;
  }

  /** The body as text; bytes that are not UTF-8 are replaced. */
  get text() {
    return textOf(this.body) ?? new TextDecoder().decode(this.body);
  }
}

/** An answer to a request of the server. */
export class Reply {
  /**
   * @param {Bytes} body
   * @param {Headers} [headers]
   */
  constructor(body, headers = {}) {
    this.body = body;
    this.headers = headers;
  }
}

/**
 * The bytes of a body; TypeError for what is none.
 *
 * @param {unknown} body
 * @returns {Uint8Array}
 */
export function bytesOf(body) {
  if (typeof body === "string") {
    if (/\p{Surrogate}/u.test(body)) throw new TypeError("a body has no unpaired surrogates");
    return utf8(body);
  }
  if (body instanceof Uint8Array) return body;
  if (body instanceof ArrayBuffer) return new Uint8Array(body);
  if (ArrayBuffer.isView(body)) return new Uint8Array(body.buffer, body.byteOffset, body.byteLength);
  throw new TypeError("a body is text or bytes");
}
