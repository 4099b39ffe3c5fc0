/**
 * The bytes of a text as it is in memory, at most.
 *
 * @param {string} text
 */
export function bytesOfText(text: string): number;
/**
 * @param {unknown} value
 * @returns {value is PromiseLike<unknown>}
 */
export function isPromise(value: unknown): value is PromiseLike<unknown>;
/** What has arrived and the program has not taken: it is bounded, and the socket is paused in time. */
/** Messages that may wait in one place; a quarter as many in all pause the socket. */
export const BACKLOG: 10000;
/** One client has one of these, and all its sessions count in it. */
export class Unread {
    /** @param {number} most bytes */
    constructor(most: number);
    most: number;
    bytes: number;
    messages: number;
    /** Is called when something was counted, true: it was taken. @type {(taken: boolean) => void} */
    changed: (taken: boolean) => void;
    /**
     * @param {number} bytes that came (positive) or were taken (negative)
     * @param {number} [messages] likewise
     */
    count(bytes: number, messages?: number): void;
    /** The bound is exceeded: whoever receives more has to give up. */
    get tooMuch(): boolean;
    /**
     * The socket should not be read. One more large message has room until it is.
     *
     * @param {boolean} waiting for something else that comes on this socket
     */
    much(waiting: boolean): boolean;
    /** The socket may be read again. */
    get little(): boolean;
}
