/** Attachments one by one: those of an answer as they come, and ours when their turn has come. */

import { AsyncQueue } from "../async-queue.js";
import { LimitExceeded } from "../errors.js";
import { bytesOf } from "./attachments.js";
import { LIMITS } from "./terms.js";

/** @typedef {import("./attachments.js").Attachment} Attachment */
/** @typedef {import("../backlog.js").Backlog} Backlog */

const PIECE_BYTES = 4 << 20;
const PIECE_BYTES_MAX = LIMITS["attachment-bytes"][0];
const PIECES_MAX = LIMITS.attachments[0];

/**
 * The attachments of one answer, in order; `for await` takes them, and leaving the loop gives the
 * rest up.
 */
export class AttachmentStream {
  /**
   * @param {number} count
   * @param {Backlog} backlog
   * @param {(complete: boolean) => void} over nothing more is wanted, or to come
   */
  constructor(count, backlog, over) {
    /** How many there are in all. */
    this.count = count;
    this._backlog = backlog;
    this._ended = over;
    this._came = 0;
    /** @type {AsyncQueue<Attachment>} */
    this._queue = new AsyncQueue((one, by) => backlog.count(by * bytesOf([one])));
    this._over = false;
  }

  /**
   * The next attachment. Rejected with ConnectionClosed if the session ends before it came, and with
   * LimitExceeded if too much was left waiting.
   *
   * @returns {Promise<IteratorResult<Attachment, undefined>>}
   */
  next() {
    return this._queue.next();
  }

  /** Give the rest up. @returns {Promise<IteratorResult<Attachment, undefined>>} */
  async return() {
    this._drop(null);
    return { value: undefined, done: true };
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  /** @param {Attachment} attachment */
  _arrived(attachment) {
    if (this._over) return;
    this._came++;
    this._queue.push(attachment);
    if (this._backlog.tooMuch)
      this._drop(new LimitExceeded("attachments came faster than they were taken (the limit backlog-bytes)"));
    else if (this._came === this.count) this._stop(null);
  }

  /** @param {Error | null} error */
  _stop(error) {
    if (this._over) return;
    this._over = true;
    this._ended(this._came === this.count);
    this._queue.end(error);
  }

  /**
   * The session is gone: what is here can still be taken, and is no reason to pause the next one.
   *
   * @param {Error} why
   */
  _lost(why) {
    this._stop(why);
    this._queue.disown();
  }

  /**
   * Nobody wants what is here, nor what is to come.
   *
   * @param {Error | null} error
   */
  _drop(error) {
    this._stop(error);
    this._queue.clear();
  }
}

/**
 * A Blob or File as attachments of a few MiB each, to be passed as `attachments`. A piece is read when
 * the pieces before it have left, so that a large file is never in memory as a whole. RangeError for
 * one that is too large for one message.
 *
 * @param {Blob} blob
 * @param {number} [bytes] of a piece; by default 4 MiB, or more where there would be over 32 pieces
 * @returns {(() => Promise<Uint8Array>)[]}
 */
export function pieces(blob, bytes) {
  if (bytes === undefined) {
    bytes = Math.max(PIECE_BYTES, Math.ceil(blob.size / PIECES_MAX));
    if (bytes > PIECE_BYTES_MAX)
      throw new RangeError("above 512 MiB it does not fit into one message: send parts of it, by blob.slice");
  }
  if (!(bytes >= 1)) throw new RangeError("a piece has at least one byte");
  return Array.from({ length: Math.ceil(blob.size / bytes) }, (_, number) => async () => {
    const piece = blob.slice(number * bytes, (number + 1) * bytes);
    return new Uint8Array(await piece.arrayBuffer());
  });
}
