/** @param {string} text */
export function utf8(text: string): Uint8Array<ArrayBuffer>;
/**
 * The text of some bytes; null if they are not UTF-8.
 *
 * @param {Uint8Array} bytes
 */
export function textOf(bytes: Uint8Array): string | null;
/**
 * The line `key::value`; TypeError for what would not be read back as it is (SA-03).
 *
 * @param {string} key
 * @param {string} value
 */
export function headerLine(key: string, value: string): string;
/**
 * A frame as bytes; `head` is its command and its header lines, each with CRLF.
 *
 * @param {string} head
 * @param {Uint8Array} body
 * @param {boolean} final
 */
export function encode(head: string, body: Uint8Array, final: boolean): Uint8Array<ArrayBuffer>;
/**
 * Whether a reader would see an end mark within `body` (SA-21).
 *
 * @param {Uint8Array} body
 */
export function endsEarly(body: Uint8Array): boolean;
/**
 * The first place at or after `position` where a part of a body may begin (SA-21).
 *
 * @param {Uint8Array} body
 * @param {number} position
 */
export function partStart(body: Uint8Array, position: number): number;
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
export function readFrame(bytes: Uint8Array, bounds: Bounds): Frame | ProtocolFault;
/** Command → whether it has a body. */
export const COMMANDS: Readonly<{
    CONNECT: false;
    CONNECTED: false;
    DISCONNECT: false;
    DISCONNECTING: false;
    MESSAGE: true;
    ERROR: true;
}>;
/** @typedef {keyof typeof COMMANDS} Command */
/** Headers that belong to the protocol (SA-06). */
export const RESERVED: Set<string>;
/** What our sides tell each other on CONNECT and CONNECTED, beside the source. */
export const ANNOUNCEMENTS: Set<string>;
export type Command = keyof typeof COMMANDS;
export type Frame = {
    command: Command;
    headers: Map<string, string>;
    body: Uint8Array;
    /**
     * an end mark follows the body
     */
    final: boolean;
    /**
     * up to the blank line
     */
    headBytes: number;
    /**
     * of the end mark
     */
    endBytes: number;
};
export type Bounds = {
    /**
     * headers of a frame
     */
    lines: number;
    /**
     * of one of them
     */
    lineBytes: number;
    /**
     * of all of them
     */
    blockBytes: number;
};
import { ProtocolFault } from "../errors.js";
