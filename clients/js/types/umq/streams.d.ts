/**
 * A Blob or File as attachments of a few MiB each, to be passed as `attachments`. A piece is read when
 * the pieces before it have left, so that a large file is never in memory as a whole.
 *
 * @param {Blob} blob
 * @param {number} [bytes] of a piece; by default 4 MiB, or more where there would be over 32 pieces
 * @returns {(() => Promise<Uint8Array>)[]}
 */
export function pieces(blob: Blob, bytes?: number): (() => Promise<Uint8Array>)[];
/**
 * The attachments of one answer, in order; `for await` takes them, and leaving the loop gives the
 * rest up.
 */
export class AttachmentStream {
    /**
     * @param {number} count
     * @param {Unread} unread
     * @param {(complete: boolean) => void} over nothing more is wanted, or to come
     */
    constructor(count: number, unread: Unread, over: (complete: boolean) => void);
    /** How many there are in all. */
    count: number;
    _unread: import("../unread.js").Unread;
    _ended: (complete: boolean) => void;
    _came: number;
    /** @type {AsyncQueue<Attachment>} */
    _queue: AsyncQueue<Attachment>;
    _over: boolean;
    /**
     * The next attachment. Rejected with ConnectionClosed if the session ends before it came, and with
     * LimitExceeded if too much was left waiting.
     *
     * @returns {Promise<IteratorResult<Attachment, undefined>>}
     */
    next(): Promise<IteratorResult<Attachment, undefined>>;
    /** Give the rest up. @returns {Promise<IteratorResult<Attachment, undefined>>} */
    return(): Promise<IteratorResult<Attachment, undefined>>;
    /** @param {Attachment} attachment */
    _arrived(attachment: Attachment): void;
    /** @param {Error | null} error */
    _stop(error: Error | null): void;
    /**
     * The session is gone: what is here can still be taken, and is no reason to pause the next one.
     *
     * @param {Error} why
     */
    _lost(why: Error): void;
    /**
     * Nobody wants what is here, nor what is to come.
     *
     * @param {Error | null} error
     */
    _drop(error: Error | null): void;
    [Symbol.asyncIterator](): this;
}
export type Attachment = import("./attachments.js").Attachment;
export type Unread = import("../unread.js").Unread;
import { AsyncQueue } from "../async-queue.js";
