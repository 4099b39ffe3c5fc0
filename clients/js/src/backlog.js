/** What has arrived and the program has not taken: it is bounded, and the socket is paused in time. */

/** Messages that may wait in one place; a quarter as many in all pause the socket. */
export const BACKLOG_MESSAGES_MAX = 10_000;

/** One client has one of these, and all its sessions count in it. */
export class Backlog {
  /** @param {number} most bytes */
  constructor(most) {
    this.most = most;
    this.bytes = 0;
    this.messages = 0;
    /** Is called when something was counted, true: it was taken. @type {(taken: boolean) => void} */
    this.changed = () => {};
  }

  /**
   * @param {number} bytes that came (positive) or were taken (negative)
   * @param {number} [messages] likewise
   */
  count(bytes, messages = 0) {
    this.bytes += bytes;
    this.messages += messages;
    this.changed(bytes < 0 || messages < 0);
  }

  /** The bound is exceeded: whoever receives more has to give up. */
  get tooMuch() {
    return this.bytes > this.most;
  }

  /**
   * The socket should not be read. One more large message has room until it is.
   *
   * @param {boolean} waiting for something else that comes on this socket
   */
  much(waiting) {
    const part = waiting ? 3 / 4 : 1 / 4;
    return this.bytes > this.most * part || this.messages > BACKLOG_MESSAGES_MAX * part;
  }

  /** The socket may be read again. */
  get little() {
    return this.bytes <= this.most / 8 && this.messages <= BACKLOG_MESSAGES_MAX / 8;
  }
}

/**
 * The bytes of a text as it is in memory, at most.
 *
 * @param {string} text
 */
export function bytesOfText(text) {
  return 2 * text.length;
}

/**
 * @param {unknown} value
 * @returns {value is PromiseLike<unknown>}
 */
export function isPromise(value) {
  return typeof value === "object" && value !== null && "then" in value && typeof value.then === "function";
}
