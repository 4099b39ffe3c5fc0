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
 * @property {number} heard
 */
/**
 * @param {string | null} key
 * @param {string | null} id
 * @param {boolean} response
 * @param {number} now
 * @returns {Incoming}
 */
export function newIncoming(key: string | null, id: string | null, response: boolean, now: number): Incoming;
/**
 * Deliver nothing (more) of it.
 *
 * @param {Incoming} incoming
 */
export function mute(incoming: Incoming): void;
/** @param {Uint8Array[]} parts */
export function joined(parts: Uint8Array[]): Uint8Array<ArrayBufferLike>;
/**
 * `body` without an unfinished last UTF-8 character; as it is if it is not UTF-8 (SA-22).
 *
 * @param {Uint8Array} body
 */
export function wholeCharacters(body: Uint8Array): Uint8Array<ArrayBufferLike>;
/**
 * A message that is being received, or (muted) what is to be skipped of one.
 */
export type Incoming = {
    key: string | null;
    id: string | null;
    response: boolean;
    headers: Record<string, string>;
    parts: Uint8Array[];
    sendOnly: boolean;
    size: number;
    cut: boolean;
    muted: boolean;
    heard: number;
};
