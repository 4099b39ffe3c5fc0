/**
 * sABC's frames, one in each WebSocket message (SA-01 … SA-04, SA-25).
 *
 *     frame   = command CRLF 1*(header CRLF) CRLF body [end]
 *     header  = key "::" value            ; UTF-8 without CR, LF and NUL, no "::" in the value
 *     end     = CRLF CRLF NUL             ; NUL alone when the body is empty
 *
 * An end mark ends the message; a frame without one is a part of a message that goes on, or an error
 * frame that is thrown away (SA-20).
 */

import { ProtocolFault } from "../errors.js";

/** Command → whether it has a body. */
export const COMMANDS = Object.freeze({
  CONNECT: false,
  CONNECTED: false,
  DISCONNECT: false,
  DISCONNECTING: false,
  MESSAGE: true,
  ERROR: true,
});

/** @typedef {keyof typeof COMMANDS} Command */

/** Headers that belong to the protocol (SA-06). */
export const RESERVED = new Set([
  "client-id",
  "client-passcode",
  "session-id",
  "session-expiry",
  "msg-id",
  "ref-msg-id",
  "send-only",
  "msg-more",
  "error-code",
]);

/** What our sides tell each other on CONNECT and CONNECTED, beside the source. */
export const ANNOUNCEMENTS = new Set(["framing", "message-bytes"]);

/**
 * @typedef {object} Frame
 * @property {Command} command
 * @property {Map<string, string>} headers
 * @property {Uint8Array} body
 * @property {boolean} final an end mark follows the body
 * @property {number} headBytes up to the blank line
 * @property {number} endBytes of the end mark
 */

/**
 * @typedef {object} Bounds
 * @property {number} lines headers of a frame
 * @property {number} lineBytes of one of them
 * @property {number} blockBytes of all of them
 */

const encoder = new TextEncoder();
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const COMMAND_BYTES_MAX = "DISCONNECTING".length;
const CR = 13;
const LF = 10;
const NUL = 0;
const END = [CR, LF, CR, LF, NUL];
const UNPAIRED = /\p{Surrogate}/u;

/** @param {string} text */
export function utf8(text) {
  return encoder.encode(text);
}

/**
 * The text of some bytes; null if they are not UTF-8.
 *
 * @param {Uint8Array} bytes
 */
export function textOf(bytes) {
  try {
    return strict.decode(bytes);
  } catch {
    return null;
  }
}

/**
 * The line `key::value`; TypeError for what would not be read back as it is (SA-03).
 *
 * @param {string} key
 * @param {string} value
 */
export function headerLine(key, value) {
  for (const [text, name] of [
    [key, "key"],
    [value, "value"],
  ]) {
    if (typeof text !== "string") throw new TypeError(`a header ${name} is text`);
    if (text.includes("::")) throw new TypeError(`'::' must not stand in a header ${name}`);
    if (/[\r\n\0]/.test(text)) throw new TypeError(`CR, LF and NUL must not stand in a header ${name}`);
    if (UNPAIRED.test(text)) throw new TypeError(`a header ${name} has no unpaired surrogates`);
  }
  if (!key || key.endsWith(":")) throw new TypeError("a header key is not empty and does not end with a colon");
  return `${key}::${value}`;
}

/**
 * A frame as bytes; `head` is its command and its header lines, each with CRLF.
 *
 * @param {string} head
 * @param {Uint8Array} body
 * @param {boolean} final
 */
export function encode(head, body, final) {
  const before = encoder.encode(`${head}\r\n`);
  const end = !final ? [] : body.length ? END : [NUL];
  const bytes = new Uint8Array(before.length + body.length + end.length);
  bytes.set(before);
  bytes.set(body, before.length);
  bytes.set(end, before.length + body.length);
  return bytes;
}

/**
 * Where CRLF CRLF NUL stands in `bytes`, from `start` on; -1: nowhere.
 *
 * @param {Uint8Array} bytes
 * @param {number} start
 */
function endIn(bytes, start) {
  for (let at = bytes.indexOf(NUL, start + 4); at >= 0; at = bytes.indexOf(NUL, at + 1))
    if (END.every((byte, index) => bytes[at - 4 + index] === byte)) return at - 4;
  return -1;
}

/**
 * How many bytes an end mark at `start`, directly behind the blank line, has; 0: there is none.
 *
 * @param {Uint8Array} bytes
 * @param {number} start
 */
function endAtStart(bytes, start) {
  if (bytes[start] === NUL) return 1;
  return bytes[start] === CR && bytes[start + 1] === LF && bytes[start + 2] === NUL ? 3 : 0;
}

/**
 * Whether a reader would see an end mark within `body` (SA-21).
 *
 * @param {Uint8Array} body
 */
export function endsEarly(body) {
  return endAtStart(body, 0) > 0 || endIn(body, 0) >= 0;
}

/**
 * The first place at or after `position` where a part of a body may begin (SA-21).
 *
 * @param {Uint8Array} body
 * @param {number} position
 */
export function partStart(body, position) {
  while (position < body.length && endAtStart(body, position)) position++;
  return position;
}

/**
 * Where the next CRLF begins; -1: nowhere.
 *
 * @param {Uint8Array} bytes
 * @param {number} start
 */
function lineEnd(bytes, start) {
  for (let at = bytes.indexOf(CR, start); at >= 0; at = bytes.indexOf(CR, at + 1))
    if (bytes[at + 1] === LF) return at;
  return -1;
}

/**
 * @param {string} reason
 * @param {string} text
 */
function fault(reason, text) {
  return new ProtocolFault(reason, text, 400);
}

/**
 * Put the header of a line into `headers`; returns what is wrong with it, or null.
 *
 * @param {Uint8Array} line
 * @param {Map<string, string>} headers
 */
function readHeader(line, headers) {
  const text = textOf(line);
  if (text === null) return fault("header-encoding", "headers are UTF-8");
  if (/[\r\n\0]/.test(text)) return fault("header-syntax", "a header holds neither CR nor LF nor NUL");
  const at = text.indexOf("::");
  if (at < 0) return fault("header-syntax", "a header is key::value");
  const key = text.slice(0, at);
  const value = text.slice(at + 2);
  if (value.includes("::")) return fault("header-syntax", "a header value holds no '::'");
  if (!key) return fault("header-syntax", "a header key is not empty");
  if (headers.has(key)) return fault("header-repeated", "a header stands once");
  headers.set(key, value);
  return null;
}

/**
 * Read the head of a frame; null when the bytes end before it does.
 *
 * @param {Uint8Array} bytes
 * @param {Bounds} bounds
 * @returns {Frame | ProtocolFault | {bodyless: boolean}}
 */
function readHead(bytes, bounds) {
  const size = bytes.length;
  let start = 0;
  let end = lineEnd(bytes, 0);
  const half = bytes[size - 1] === CR ? 1 : 0; // it may be half a line end
  if ((end >= 0 ? end : size - half) > COMMAND_BYTES_MAX) return fault("command", "unknown command");
  if (end < 0) return { bodyless: false };
  const name = textOf(bytes.subarray(0, end)) ?? "";
  if (!Object.hasOwn(COMMANDS, name)) return fault("command", "unknown command");
  const command = /** @type {Command} */ (name);
  /** @type {Map<string, string>} */
  const headers = new Map();
  let remaining = bounds.blockBytes;
  for (;;) {
    start = end + 2;
    end = lineEnd(bytes, start);
    const reach = end >= 0 ? end : Math.max(start, size - half);
    if (reach - start > Math.min(bounds.lineBytes, remaining))
      return remaining < bounds.lineBytes
        ? fault("header-block-bytes", "the header block is too long")
        : fault("header-line-bytes", "a header line is too long");
    if (end < 0) return { bodyless: !COMMANDS[command] };
    remaining -= end + 2 - start;
    if (end === start) break;
    if (headers.size >= bounds.lines) return fault("header-lines", "too many headers");
    const problem = readHeader(bytes.subarray(start, end), headers);
    if (problem) return problem;
  }
  if (!headers.size && command !== "CONNECT")
    return fault("headers-missing", "a frame has at least one header");
  const body = bytes.subarray(0, 0);
  return { command, headers, body, final: true, headBytes: end + 2, endBytes: 0 };
}

/**
 * The one frame of a WebSocket message, or what is wrong with it; never throws.
 *
 * The commands without a body may end after their last header, with or without its line end (SA-02);
 * nothing stands behind an end mark (SA-21). A MESSAGE or ERROR without an end mark has `final` false.
 *
 * @param {Uint8Array} bytes
 * @param {Bounds} bounds
 * @returns {Frame | ProtocolFault}
 */
export function readFrame(bytes, bounds) {
  let head = readHead(bytes, bounds);
  if (!("command" in head) && !(head instanceof ProtocolFault) && head.bodyless) {
    const rest = bytes[bytes.length - 1] === LF ? [CR, LF] : [CR, LF, CR, LF];
    const whole = new Uint8Array(bytes.length + rest.length);
    whole.set(bytes);
    whole.set(rest, bytes.length);
    bytes = whole;
    head = readHead(bytes, bounds);
  }
  if (head instanceof ProtocolFault) return head;
  if (!("command" in head)) return fault("framing", "no blank line ends the headers");
  const frame = head;
  const start = frame.headBytes;
  let after = endAtStart(bytes, start);
  if (!COMMANDS[frame.command]) {
    if (after !== 1) after = endIn(bytes, start) === start ? END.length : 0;
    frame.endBytes = after;
    return start + after === bytes.length ? frame : fault("framing", "this command has no body");
  }
  const found = after ? start : endIn(bytes, start);
  if (found < 0) {
    frame.final = false;
    frame.body = bytes.subarray(start);
    return frame;
  }
  frame.endBytes = after || END.length;
  frame.body = bytes.subarray(start, found);
  return found + frame.endBytes === bytes.length ? frame : fault("framing", "bytes follow the end mark");
}
