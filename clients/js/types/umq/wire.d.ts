/**
 * Whether `text` is an id as the grammar has it.
 *
 * @param {string} text
 */
export function isId(text: string): boolean;
/**
 * The value of an id as text: ids with equal values have equal ones, whatever zeros they begin with.
 * Thirteen digits are more than a number holds.
 *
 * @param {string} id
 */
export function valueOf(id: string): string;
/**
 * A number as an id.
 *
 * @param {number} number
 */
export function base36(number: number): string;
/**
 * How many characters (code points) a text has.
 *
 * @param {string} text
 * @param {number} most above so many nobody needs to know
 */
export function charactersOf(text: string, most: number): number;
/**
 * The text message of one command; no `A` for no attachments (UM-03).
 *
 * @param {keyof typeof COMMANDS} letter
 * @param {string} id
 * @param {string} payload
 * @param {number} [attachments]
 */
export function encode(letter: keyof typeof COMMANDS, id: string, payload: string, attachments?: number): string;
/**
 * The command in `text`, or what is wrong with it; never throws.
 *
 * @param {string} text
 * @param {{"payload-characters": number, "attachments": number}} limits
 * @returns {Frame | ProtocolFault}
 */
export function decode(text: string, limits: {
    "payload-characters": number;
    "attachments": number;
}): Frame | ProtocolFault;
/**
 * What stands before and after the first colon; null if there is none.
 *
 * @param {string} text
 * @returns {[string, string | null]}
 */
export function partition(text: string): [string, string | null];
/** This package speaks this version of the protocol (UM-07). */
export const VERSION: 1;
/** Codes of `F` and of a refusing `E` (UM-08). */
export const Code: Readonly<{
    REJECTED: 1;
    CALLBACK_NOT_FOUND: 2;
    FORMAT: 3;
    UNSUPPORTED_COMMAND: 4;
    UNSUPPORTED_VERSION: 5;
    NOT_AN_RPC_SERVER: 6;
    NO_ROUTE: 7;
    UNAVAILABLE: 8;
}>;
/** The commands by their names in the state table; `!` is read like `E` and never written. */
export const COMMANDS: Readonly<{
    "-": "attachment-error";
    H: "hello";
    W: "welcome";
    F: "fatal";
    C: "call";
    B: "callback";
    R: "result";
    E: "error";
    "!": "error";
    T: "update";
    D: "close-topic";
    U: "unsubscribe";
    S: "set";
    X: "unset";
}>;
export type CommandName = (typeof COMMANDS)[keyof typeof COMMANDS];
/**
 * One command: `id` is the text as it came, `attachments` the number of binary messages to follow.
 */
export type Frame = {
    command: CommandName;
    id: string;
    payload: string;
    attachments: number;
};
import { ProtocolFault } from "../errors.js";
