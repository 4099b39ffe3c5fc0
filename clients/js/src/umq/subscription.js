/** A topic to which a client subscribes, now and in every session to come. */

import { AsyncQueue } from "../async-queue.js";
import { ConnectionClosed, LimitExceeded } from "../errors.js";
import { BACKLOG_MESSAGES_MAX, isPromise, bytesOfText } from "../backlog.js";
import { bytesOf } from "./attachments.js";

/** @typedef {import("./exchange.js").Update} Update */
/** @typedef {import("./session.js").UmqSession} UmqSession */
/** @typedef {import("../backlog.js").Backlog} Backlog */

/**
 * Is given each update. An update counts as taken when the promise that this returns is settled.
 *
 * @typedef {(update: Update) => unknown} UpdateHook
 */

/**
 * Why a subscription has ended: the server closed the topic, we unsubscribed, the server refused to
 * renew it, we took updates too slowly, or the client is closed.
 *
 * @typedef {"closed" | "unsubscribed" | "refused" | "slow" | "lost"} EndReason
 */

/** Its updates go to a hook, or wait here for `for await`. */
export class Subscription {
  /**
   * @param {UpdateHook | null} hook
   * @param {object} client
   * @param {(subscription: Subscription) => void} client.forget
   * @param {Backlog} client.backlog
   * @param {(error: unknown) => void} client.report
   */
  constructor(hook, { forget, backlog, report }) {
    if (hook !== null && typeof hook !== "function") throw new TypeError("a hook is a function");
    this._hook = hook;
    this._forget = forget;
    this._backlog = backlog;
    this._report = report;
    /** Updates that the hook works on. */
    this._busy = 0;
    /** @type {AsyncQueue<Update>} */
    this._updates = new AsyncQueue((update, by) => backlog.count(by * bytesOfUpdate(update), by));
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
    this._updates.clear();
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
    if (this._over) return;
    if (this._updates.length + this._busy >= BACKLOG_MESSAGES_MAX) {
      this._slow(`${BACKLOG_MESSAGES_MAX} updates wait, and nobody takes them`);
      return;
    }
    if (this._hook) {
      const done = this._hook(update);
      if (isPromise(done)) void this._follow(update, done);
    } else {
      this._updates.push(update);
    }
    if (this._backlog.tooMuch) this._slow("updates came faster than they were taken (the limit backlog-bytes)");
  }

  /**
   * The hook works on this update until `done` is settled.
   *
   * @param {Update} update
   * @param {PromiseLike<unknown>} done
   */
  async _follow(update, done) {
    const bytes = bytesOfUpdate(update);
    this._busy++;
    this._backlog.count(bytes, 1);
    try {
      await done;
    } catch (error) {
      this._report(error);
    }
    this._busy--;
    this._backlog.count(-bytes, -1);
  }

  /** @param {string} why */
  _slow(why) {
    this._finish("slow", new LimitExceeded(why));
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
    this._updates.disown(); // what is here can still be taken, and takes no room from others
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

/** @param {Update} update */
function bytesOfUpdate({ payload, attachments }) {
  return bytesOfText(payload) + bytesOf(attachments);
}
