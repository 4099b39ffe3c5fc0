/**
 * UMQ's grammar: one WebSocket text message is one command (UM-01 … UM-05).
 *
 *     message = ["A" count ":"] command id ":" payload
 *     command = one of  - H W F C B R E T D U S X  (and !, read like E)
 *     count, id = up to 13 digits 0-9 A-Z (base 36), possibly none
 *
 * Binary messages carry attachments only.  Ids are compared by value; a reply repeats the id as it
 * came, so a frame keeps its text and {@link valueOf} tells ids with the same value.
 */

import { ProtocolFault } from "../errors.js";

/** This package speaks this version of the protocol (UM-07). */
export const VERSION = 1;

/** Codes of `F` and of a refusing `E` (UM-08). */
export const Code = Object.freeze({
  REJECTED: 1,
  CALLBACK_NOT_FOUND: 2,
  FORMAT: 3,
  UNSUPPORTED_COMMAND: 4,
  UNSUPPORTED_VERSION: 5,
  NOT_AN_RPC_SERVER: 6,
  NO_ROUTE: 7,
  UNAVAILABLE: 8,
});

/** The commands by their names in the state table; `!` is read like `E` and never written. */
export const COMMANDS = Object.freeze({
  "-": "attachment-error",
  H: "hello",
  W: "welcome",
  F: "fatal",
  C: "call",
  B: "callback",
  R: "result",
  E: "error",
  "!": "error",
  T: "update",
  D: "close-topic",
  U: "unsubscribe",
  S: "set",
  X: "unset",
});

/** @typedef {typeof COMMANDS[keyof typeof COMMANDS]} CommandName */

/**
 * One command: `id` is the text as it came, `attachments` the number of binary messages to follow.
 *
 * @typedef {object} Frame
 * @property {CommandName} command
 * @property {string} id
 * @property {string} payload
 * @property {number} attachments
 */

const BARE = "FEDUX!-";
const HEAD = /^(?:A([0-9A-Z]{0,13}):)?([-HWFCBRETDUSX!])([0-9A-Z]{0,13}):/;
const ID = /^[0-9A-Z]{0,13}$/;

/**
 * Whether `text` is an id as the grammar has it.
 *
 * @param {string} text
 */
export function isId(text) {
  return ID.test(text);
}

/**
 * The value of an id as text: ids with equal values have equal ones, whatever zeros they begin with.
 * Thirteen digits are more than a number holds.
 *
 * @param {string} id
 */
export function valueOf(id) {
  return id.replace(/^0+/, "") || "0";
}

/**
 * A number as an id.
 *
 * @param {number} number
 */
export function base36(number) {
  return number.toString(36).toUpperCase();
}

/**
 * How many characters (code points) a text has.
 *
 * @param {string} text
 * @param {number} most above so many nobody needs to know
 */
export function charactersOf(text, most) {
  if (text.length <= most || text.length > 2 * most) return text.length;
  let count = 0;
  for (const _ of text) count++;
  return count;
}

/**
 * The text message of one command; no `A` for no attachments (UM-03).
 *
 * @param {keyof typeof COMMANDS} letter
 * @param {string} id
 * @param {string} payload
 * @param {number} [attachments]
 */
export function encode(letter, id, payload, attachments = 0) {
  const text = `${letter}${id}:${payload}`;
  return attachments ? `A${base36(attachments)}:${text}` : text;
}

/**
 * The command in `text`, or what is wrong with it; never throws.
 *
 * @param {string} text
 * @param {{"payload-characters": number, "attachments": number}} limits
 * @returns {Frame | ProtocolFault}
 */
export function decode(text, limits) {
  const head = HEAD.exec(text);
  if (!head) return diagnose(text);
  const [all, count, letter, id] = head;
  const payload = text.slice(all.length);
  const most = limits["payload-characters"];
  if (charactersOf(payload, most) > most)
    return fault("payload", `the payload is above ${most} characters`);
  let attachments = 0;
  if (count !== undefined) {
    if (BARE.includes(letter)) return fault("bare", `${letter} cannot have attachments`);
    attachments = parseInt(count || "0", 36);
    if (attachments > limits.attachments)
      return fault("attachments", `above ${limits.attachments} attachments`);
  }
  const command = COMMANDS[/** @type {keyof typeof COMMANDS} */ (letter)];
  return { command, id, payload, attachments };
}

/**
 * @param {string} reason
 * @param {string} text
 * @param {number} [code]
 */
function fault(reason, text, code = Code.FORMAT) {
  return new ProtocolFault(reason, text, code);
}

/**
 * Why `text` is no command (UM-02, UM-03, UM-18).
 *
 * @param {string} text
 */
function diagnose(text) {
  let rest = text;
  if (text.startsWith("A")) {
    const [count, after] = partition(text.slice(1));
    if (after === null || !isId(count)) return fault("count", "no attachment count");
    if (after.startsWith("A")) return fault("nested", "A wraps a command which is not A");
    rest = after;
  }
  if (!rest) return fault("empty", "a message without a command");
  const letter = String.fromCodePoint(/** @type {number} */ (rest.codePointAt(0)));
  const [digits, after] = partition(rest.slice(letter.length));
  if (after === null || !isId(digits)) return fault("id", "no command, id and colon");
  if (letter.toUpperCase() !== letter && letter.toUpperCase() in COMMANDS)
    return fault("case", "commands are upper case");
  return fault("command", "unknown command", Code.UNSUPPORTED_COMMAND);
}

/**
 * What stands before and after the first colon; null if there is none.
 *
 * @param {string} text
 * @returns {[string, string | null]}
 */
export function partition(text) {
  const at = text.indexOf(":");
  return at < 0 ? [text, null] : [text.slice(0, at), text.slice(at + 1)];
}
