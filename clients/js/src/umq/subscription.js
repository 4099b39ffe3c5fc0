/** A topic to which a client subscribes, now and in every session to come. */

import { AsyncQueue } from "../async-queue.js";
import { ConnectionClosed, LimitExceeded } from "../errors.js";

/** @typedef {import("./exchange.js").Update} Update */
/** @typedef {import("./session.js").UmqSession} UmqSession */

/**
 * Why a subscription has ended: the server closed the topic, we unsubscribed, the server refused to
 * renew it, we took updates too slowly, or the client is closed.
 *
 * @typedef {"closed" | "unsubscribed" | "refused" | "slow" | "lost"} EndReason
 */

export const BACKLOG = 10_000; // updates that nobody has taken

/** Its updates go to a hook, or wait here for `for await`. */
export class Subscription {
  /**
   * @param {((update: Update) => void) | null} hook
   * @param {(subscription: Subscription) => void} forget
   */
  constructor(hook, forget) {
    this._hook = hook;
    this._forget = forget;
    /** @type {AsyncQueue<Update>} */
    this._updates = new AsyncQueue();
    /** @type {UmqSession | null} */
    this._session = null;
    /** @type {(reason: EndReason) => void} */
    this._ended = () => {};
    this._over = false;
    /** The id of its topic in the present session. */
    this.id = "";
    /** Fires when there are no more updates, with the reason. @type {Promise<EndReason>} */
    this.ended = new Promise((resolve) => (this._ended = resolve));
  }

  /** The updates, in order: several loops share them. */
  [Symbol.asyncIterator]() {
    return this;
  }

  /** The next update. @returns {Promise<IteratorResult<Update, undefined>>} */
  next() {
    return this._updates.next();
  }

  /** Called when a `for await` loop is left: unsubscribes. @returns {Promise<IteratorResult<Update, undefined>>} */
  async return() {
    this.unsubscribe();
    return { value: undefined, done: true };
  }

  /** No more updates are wanted. */
  unsubscribe() {
    this._finish("unsubscribed");
  }

  /**
   * @param {UmqSession} session
   * @param {string} topic
   */
  _begun(session, topic) {
    this._session = session;
    this.id = topic;
  }

  /** @param {Update} update */
  _updated(update) {
    if (this._hook) {
      this._hook(update);
      return;
    }
    if (this._updates.length >= BACKLOG)
      this._finish("slow", new LimitExceeded(`${BACKLOG} updates wait, and nobody takes them`));
    else this._updates.push(update);
  }

  /**
   * @param {EndReason} reason
   * @param {Error | null} [error]
   */
  _finish(reason, error = null) {
    if (this._over) return;
    this._over = true;
    this._session?._unsubscribe(this.id);
    this._session = null;
    this._forget(this);
    this._updates.end(error);
    this._ended(reason);
  }

  /** @param {Error} _error */
  _lost(_error) {
    this._session = null;
  }

  /** @param {Error | null} error */
  _closed(error) {
    this._finish("lost", error ?? new ConnectionClosed("the client was closed"));
  }
}
