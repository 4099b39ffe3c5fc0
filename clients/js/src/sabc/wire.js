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
export const ANNOUNCEMENTS = new Set(["framing", "message-octets"]);

/**
 * @typedef {object} Frame
 * @property {Command} command
 * @property {Map<string, string>} headers
 * @property {Uint8Array} body
 * @property {boolean} final an end mark follows the body
 * @property {number} headOctets up to the blank line
 * @property {number} endOctets of the end mark
 */

/**
 * @typedef {object} Bounds
 * @property {number} lines headers of a frame
 * @property {number} lineOctets of one of them
 * @property {number} blockOctets of all of them
 */

const encoder = new TextEncoder();
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const COMMAND_OCTETS_MAX = "DISCONNECTING".length;
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
 * The text of some octets; null if they are not UTF-8.
 *
 * @param {Uint8Array} octets
 */
export function textOf(octets) {
  try {
    return strict.decode(octets);
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
 * A frame as octets; `head` is its command and its header lines, each with CRLF.
 *
 * @param {string} head
 * @param {Uint8Array} body
 * @param {boolean} final
 */
export function encode(head, body, final) {
  const before = encoder.encode(`${head}\r\n`);
  const end = !final ? [] : body.length ? END : [NUL];
  const octets = new Uint8Array(before.length + body.length + end.length);
  octets.set(before);
  octets.set(body, before.length);
  octets.set(end, before.length + body.length);
  return octets;
}

/**
 * Where CRLF CRLF NUL stands in `octets`, from `start` on; -1: nowhere.
 *
 * @param {Uint8Array} octets
 * @param {number} start
 */
function endIn(octets, start) {
  for (let at = octets.indexOf(NUL, start + 4); at >= 0; at = octets.indexOf(NUL, at + 1))
    if (END.every((octet, index) => octets[at - 4 + index] === octet)) return at - 4;
  return -1;
}

/**
 * How many octets an end mark at `start`, directly behind the blank line, has; 0: there is none.
 *
 * @param {Uint8Array} octets
 * @param {number} start
 */
function endAtStart(octets, start) {
  if (octets[start] === NUL) return 1;
  return octets[start] === CR && octets[start + 1] === LF && octets[start + 2] === NUL ? 3 : 0;
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
 * @param {Uint8Array} octets
 * @param {number} start
 */
function lineEnd(octets, start) {
  for (let at = octets.indexOf(CR, start); at >= 0; at = octets.indexOf(CR, at + 1))
    if (octets[at + 1] === LF) return at;
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
 * Read the head of a frame; null when the octets end before it does.
 *
 * @param {Uint8Array} octets
 * @param {Bounds} bounds
 * @returns {Frame | ProtocolFault | {bodyless: boolean}}
 */
function readHead(octets, bounds) {
  const size = octets.length;
  let start = 0;
  let end = lineEnd(octets, 0);
  const half = octets[size - 1] === CR ? 1 : 0; // it may be half a line end
  if ((end >= 0 ? end : size - half) > COMMAND_OCTETS_MAX) return fault("command", "unknown command");
  if (end < 0) return { bodyless: false };
  const name = textOf(octets.subarray(0, end)) ?? "";
  if (!Object.hasOwn(COMMANDS, name)) return fault("command", "unknown command");
  const command = /** @type {Command} */ (name);
  /** @type {Map<string, string>} */
  const headers = new Map();
  let remaining = bounds.blockOctets;
  for (;;) {
    start = end + 2;
    end = lineEnd(octets, start);
    const reach = end >= 0 ? end : Math.max(start, size - half);
    if (reach - start > Math.min(bounds.lineOctets, remaining))
      return remaining < bounds.lineOctets
        ? fault("header-block-octets", "the header block is too long")
        : fault("header-line-octets", "a header line is too long");
    if (end < 0) return { bodyless: !COMMANDS[command] };
    remaining -= end + 2 - start;
    if (end === start) break;
    if (headers.size >= bounds.lines) return fault("header-lines", "too many headers");
    const problem = readHeader(octets.subarray(start, end), headers);
    if (problem) return problem;
  }
  if (!headers.size && command !== "CONNECT")
    return fault("headers-missing", "a frame has at least one header");
  const body = octets.subarray(0, 0);
  return { command, headers, body, final: true, headOctets: end + 2, endOctets: 0 };
}

/**
 * The one frame of a WebSocket message, or what is wrong with it; never throws.
 *
 * The commands without a body may end after their last header, with or without its line end (SA-02);
 * nothing stands behind an end mark (SA-21). A MESSAGE or ERROR without an end mark has `final` false.
 *
 * @param {Uint8Array} octets
 * @param {Bounds} bounds
 * @returns {Frame | ProtocolFault}
 */
export function readFrame(octets, bounds) {
  let head = readHead(octets, bounds);
  if (!("command" in head) && !(head instanceof ProtocolFault) && head.bodyless) {
    const rest = octets[octets.length - 1] === LF ? [CR, LF] : [CR, LF, CR, LF];
    const whole = new Uint8Array(octets.length + rest.length);
    whole.set(octets);
    whole.set(rest, octets.length);
    octets = whole;
    head = readHead(octets, bounds);
  }
  if (head instanceof ProtocolFault) return head;
  if (!("command" in head)) return fault("framing", "no blank line ends the headers");
  const frame = head;
  const start = frame.headOctets;
  let after = endAtStart(octets, start);
  if (!COMMANDS[frame.command]) {
    if (after !== 1) after = endIn(octets, start) === start ? END.length : 0;
    frame.endOctets = after;
    return start + after === octets.length ? frame : fault("framing", "this command has no body");
  }
  const found = after ? start : endIn(octets, start);
  if (found < 0) {
    frame.final = false;
    frame.body = octets.subarray(start);
    return frame;
  }
  frame.endOctets = after || END.length;
  frame.body = octets.subarray(start, found);
  return found + frame.endOctets === octets.length ? frame : fault("framing", "octets follow the end mark");
}
